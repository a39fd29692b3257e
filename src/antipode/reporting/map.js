// The embedding map: a canvas of points or thumbnails that shows the image under the pointer.

// map: {layouts: {name: [x0, y0, x1, y1, ...] from 0 to 1000}, colour: class index of each image or
// null, classes: names of the coloured classes, names: class name of each image, src: a sheet with
// the thumbnails of all images or null, side: pixels of a thumbnail, columns: thumbnails in a row of it}.
function embeddingMap(map) {
  const canvas = el("canvas", { role: "img", "aria-label": "embedding map" });
  const host = el("div", { class: "map" }, canvas);
  const sheet = map.src
    ? el("img", { class: "sheet", alt: "thumbnails of all images", src: map.src })
    : null;
  const count = map.names.length;
  const layouts = Object.keys(map.layouts);
  let layout = layouts[0];
  let thumbnails = sheet !== null && !map.classes.length; // points without colours carry little information
  let highlighted = null; // index of a class, or null for all images
  let width = 0;

  function colours() {
    const style = getComputedStyle(document.documentElement);
    return {
      classes: map.classes.map((_, i) => style.getPropertyValue(`--s${i % 10}`)),
      other: style.getPropertyValue("--faint"),
    };
  }

  // Return the canvas coordinates of all images.
  function positions() {
    const flat = map.layouts[layout];
    const edge = thumbnails ? side() / 2 + 4 : 14;
    return Array.from({ length: count }, (_, i) => [
      edge + (flat[2 * i] / 1000) * (width - 2 * edge),
      edge + (1 - flat[2 * i + 1] / 1000) * (height() - 2 * edge),
    ]);
  }

  // Return the side of a thumbnail on the map, in pixels.
  function side() {
    const size = count > 400 ? 22 : count > 80 ? 34 : 56;
    return width < 560 ? Math.round(size * 0.7) : size;
  }

  function height() {
    return Math.min(width, 640);
  }

  // Return the source rectangle of a thumbnail on the sheet.
  function source(i) {
    const left = map.side * (i % map.columns);
    const top = map.side * Math.floor(i / map.columns);
    return [left, top, map.side, map.side];
  }

  function isHighlighted(i) {
    return highlighted === null || (map.colour && map.colour[i] === highlighted);
  }

  function draw() {
    const ratio = window.devicePixelRatio || 1;
    [canvas.width, canvas.height] = [width * ratio, height() * ratio];
    [canvas.style.width, canvas.style.height] = [`${width}px`, `${height()}px`];
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.clearRect(0, 0, width, height());
    const palette = colours();
    const points = positions();
    // Draw the highlighted images last, on top of the others.
    const order = points.map((_, i) => i);
    order.sort((a, b) => Number(isHighlighted(a)) - Number(isHighlighted(b)));
    for (const i of order) paint(pen, points[i], i, palette);
  }

  function paint(pen, [x, y], i, palette) {
    const label = map.colour ? map.colour[i] : -1;
    const colour = label >= 0 ? palette.classes[label] : palette.other;
    pen.globalAlpha = isHighlighted(i) ? 0.9 : 0.1;
    if (thumbnails && sheet.complete && sheet.naturalWidth) {
      const size = side();
      pen.drawImage(sheet, ...source(i), x - size / 2, y - size / 2, size, size);
      pen.strokeStyle = colour;
      pen.lineWidth = 1.6;
      pen.strokeRect(x - size / 2, y - size / 2, size, size);
    } else {
      pen.fillStyle = colour;
      pen.beginPath();
      pen.arc(x, y, width < 560 ? 2.6 : 3.6, 0, 7);
      pen.fill();
    }
  }

  // Show the image that is closest to the pointer, if it is within 24 pixels.
  function hover(event) {
    const box = canvas.getBoundingClientRect();
    const [pointerX, pointerY] = [event.clientX - box.left, event.clientY - box.top];
    let [closest, least] = [-1, 24];
    positions().forEach(([x, y], i) => {
      const distance = Math.hypot(x - pointerX, y - pointerY);
      if (distance < least && isHighlighted(i)) [closest, least] = [i, distance];
    });
    if (closest < 0) return hideTip();
    const large = sheet ? enlarged(closest) : [];
    const text = map.names[closest] || `image ${closest + 1} of ${count}`;
    const content = [large, el("div", { class: "head" }, text)].flat();
    showTip(event.clientX, event.clientY, ...content);
  }

  // Return the thumbnail of an image, enlarged.
  function enlarged(i) {
    const large = el("canvas", { width: 96, height: 96, class: "thumb" });
    const pen = large.getContext("2d");
    pen.imageSmoothingEnabled = map.side > 48;
    pen.drawImage(sheet, ...source(i), 0, 0, 96, 96);
    return large;
  }

  // Return one button per class: hovering highlights the class, clicking keeps it highlighted.
  function classButtons() {
    if (!map.classes.length) return null;
    let pinned = null;
    function preview(index) {
      highlighted = index === null ? pinned : index;
      draw();
    }
    function pin(index) {
      pinned = pinned === index ? null : index;
      buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === pinned)));
      highlighted = pinned;
      draw();
    }
    const buttons = map.classes.map((name, index) => {
      const swatch = el("i");
      swatch.style.background = `var(--s${index % 10})`;
      return el("button", {
        type: "button",
        "aria-pressed": "false",
        onclick: () => pin(index),
        onpointerenter: (event) => event.pointerType === "mouse" && preview(index),
        onpointerleave: () => preview(null),
      }, swatch, name);
    });
    const hasOthers = map.colour && map.colour.includes(-1);
    const others = hasOthers ? [el("span", {}, el("i"), "other classes")] : [];
    return el("div", { class: "legend" }, buttons, others);
  }

  canvas.addEventListener("pointermove", hover);
  canvas.addEventListener("pointerdown", hover);
  canvas.addEventListener("pointerleave", hideTip);
  if (sheet) sheet.addEventListener("load", draw);
  redraws.set("map", draw);
  const chooseLayout = (name) => { layout = name; draw(); };
  const chooseMarks = (value) => { thumbnails = value; draw(); };
  const names = layouts.map((name) => [name, name]);
  const marks = [[false, "points"], [true, "images"]];
  const controls = el("div", { class: "controls" },
    layouts.length > 1 ? choice(names, layout, chooseLayout, "layout") : null,
    sheet ? choice(marks, thumbnails, chooseMarks, "points or images") : null);
  responsive(host, (current) => { width = current; draw(); });
  return el("div", {}, controls, host, classButtons(), sheet);
}
