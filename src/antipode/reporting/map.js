// The section of the embedding map: its controls, and what a click or a lasso shows.

// Small copies of the images of a map, from sheets that are decoded when they are first needed.
function thumbnails(map) {
  const sheets = map.sheets.map(() => null);
  const waiting = map.sheets.map(() => []);

  function sheet(at, whenLoaded) {
    if (!sheets[at]) {
      const image = new Image();
      image.addEventListener("load", () => { for (const call of waiting[at].splice(0)) call(); });
      image.src = map.sheets[at];
      sheets[at] = image;
    }
    if (sheets[at].complete && sheets[at].naturalWidth) return sheets[at];
    if (!waiting[at].includes(whenLoaded)) waiting[at].push(whenLoaded);
    return null;
  }

  // Draw an image at a place; if its sheet is not decoded yet, call again() once it is.
  function paint(pen, i, x, y, size, again) {
    const found = sheet(Math.floor(i / map.perSheet), again);
    if (!found) return;
    const at = i % map.perSheet;
    const from = [map.side * (at % map.columns), map.side * Math.floor(at / map.columns)];
    pen.imageSmoothingEnabled = size < map.side;
    pen.drawImage(found, ...from, map.side, map.side, x, y, size, size);
  }

  // Return a canvas with an image.
  function element(i, size) {
    const node = el("canvas", { width: size, height: size, class: "thumb", "aria-hidden": "true" });
    const fill = () => paint(node.getContext("2d"), i, 0, 0, size, fill);
    fill();
    return node;
  }

  return { any: map.sheets.length > 0, paint, element };
}

// map: {layouts: {name: [x0, y0, x1, y1, ...] from 0 to scale}, label: class number of each image or
// null, classes: names by number, tests: number of test images (they come first), near: k
// neighbours of each image, sheets: data URIs with perSheet thumbnails each, in rows of columns}.
function embeddingMap(map) {
  const thumbnail = thumbnails(map);
  const canvas = el("canvas", {
    tabindex: 0,
    role: "application",
    "aria-label": "Embedding map. Arrow keys move it, plus and minus zoom, Enter shows the image "
      + "nearest to the centre with its neighbours, Escape clears the selection.",
  });
  const cross = el("div", { class: "crosshair", "aria-hidden": "true" });
  const host = el("div", { class: "map" }, canvas, cross);
  const view = mapView(map, canvas, thumbnail);
  const panel = el("div", { class: "found", "aria-live": "polite" });
  if (thumbnail.any && !map.label) view.state.marks = "images";
  let lassoing = false;

  function nameOf(i) {
    const label = map.label && map.label[i] >= 0 ? map.classes[map.label[i]] : "";
    const split = map.tests ? (view.isTest(i) ? "test" : "train") : "training";
    return label ? `${label} (${split})` : `${split} image`;
  }

  // Return a grid of images as buttons; a press shows the neighbours of an image.
  function grid(images, size) {
    return el("div", { class: "grid-of-images" }, images.map((i) => el("button", {
      type: "button", title: nameOf(i), "aria-label": `${nameOf(i)}: show its neighbours`,
      onclick: () => showNeighbours(i),
    }, thumbnail.any ? thumbnail.element(i, size) : nameOf(i))));
  }

  function clear() {
    view.select([]);
    view.mark(-1);
    panel.replaceChildren();
  }

  function clearButton() {
    return el("button", { type: "button", class: "button", onclick: clear }, "Clear");
  }

  function showNeighbours(i) {
    view.mark(i);
    const near = view.neighbours(i);
    const head = el("h3", {}, `Nearest neighbours: ${nameOf(i)}`);
    const among = map.bank < view.count ? `, among ${formatValue(map.bank)} of the images` : "";
    const about = el("p", { class: "small" },
      `The first image is the one you chose. The others have the most similar features${among}.`);
    panel.replaceChildren(head, grid([i, ...near], 72), about, clearButton());
  }

  function showSelection(images) {
    const MOST = 120;
    view.mark(-1);
    view.select(images);
    if (!images.length) return clear();
    const number = (n) => `${formatValue(n)} ${n === 1 ? "image" : "images"}`;
    const place = el("div");
    const more = (from) => {
      place.append(grid(images.slice(from, from + MOST), 48));
      const rest = images.length - from - MOST;
      const onclick = () => { button.remove(); more(from + MOST); };
      const text = `Show ${Math.min(MOST, rest)} more`;
      const button = el("button", { type: "button", class: "button", onclick }, text);
      if (rest > 0) place.append(button);
    };
    more(0);
    panel.replaceChildren(el("h3", {}, `${number(images.length)} selected`),
      el("p", { class: "small" }, composition(images)), place, clearButton());
  }

  // Return how many of the images belong to each class, the most frequent first.
  function composition(images) {
    if (!map.label) return "Press an image to see its neighbours.";
    const counts = new Map();
    for (const i of images) counts.set(map.label[i], (counts.get(map.label[i]) || 0) + 1);
    const rows = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 8);
    return rows.map(([label, n]) => `${label < 0 ? "no label" : map.classes[label]} ${n}`).join(", ");
  }

  listenToPointer();
  listenToKeys();
  redraws.set("map", view.refresh);
  responsive(host, (current) => view.resize(current));
  return el("div", {}, controls(), host, classButtons(map, view), panel);

  function listenToPointer() {
    let from = null; // where the pointer was pressed
    let last = null;
    let path = [];
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    canvas.addEventListener("pointerdown", (event) => {
      from = place(event);
      last = from;
      path = [from];
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const now = place(event);
      if (!from) return hover(event, now);
      hideTip();
      if (lassoing) {
        path.push(now);
        view.draw();
        requestAnimationFrame(() => drawLasso(path));
      } else {
        view.panBy(now[0] - last[0], now[1] - last[1]);
      }
      last = now;
    });
    canvas.addEventListener("pointerup", (event) => {
      if (!from) return;
      const moved = Math.hypot(last[0] - from[0], last[1] - from[1]) > 4;
      if (lassoing && path.length > 2) showSelection(view.within(path));
      else if (!moved) click(place(event));
      [from, path] = [null, []];
      view.draw();
    });
    canvas.addEventListener("pointercancel", () => { from = null; });
    canvas.addEventListener("pointerleave", hideTip);
    canvas.addEventListener("wheel", (event) => {
      // the page scrolls past the map, unless the map was clicked or Ctrl is held
      if (document.activeElement !== canvas && !event.ctrlKey) return;
      event.preventDefault();
      view.zoomBy(Math.exp(-event.deltaY / 300), ...place(event));
    }, { passive: false });
  }

  function click([x, y]) {
    const found = view.pick(x, y);
    if (found >= 0) showNeighbours(found);
  }

  function hover(event, [x, y]) {
    const found = view.pick(x, y);
    if (found < 0) return hideTip();
    const large = thumbnail.any ? [thumbnail.element(found, 96)] : [];
    showTip(event.clientX, event.clientY, ...large, el("div", { class: "head" }, nameOf(found)));
  }

  // Show the neighbours of the image nearest to the centre of the map.
  function showMiddle() {
    const found = view.pick(...view.size().map((length) => length / 2), Infinity);
    if (found >= 0) showNeighbours(found);
  }

  function drawLasso(path) {
    if (path.length < 2) return;
    const pen = canvas.getContext("2d");
    pen.beginPath();
    path.forEach(([x, y], i) => (i ? pen.lineTo(x, y) : pen.moveTo(x, y)));
    pen.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--accent");
    pen.lineWidth = 2;
    pen.stroke();
  }

  function listenToKeys() {
    const moves = { ArrowLeft: [40, 0], ArrowRight: [-40, 0], ArrowUp: [0, 40], ArrowDown: [0, -40] };
    const acts = {
      "+": () => view.zoomBy(1.4),
      "=": () => view.zoomBy(1.4),
      "-": () => view.zoomBy(1 / 1.4),
      0: () => view.reset(),
      Enter: showMiddle,
      Escape: clear,
    };
    canvas.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (moves[event.key]) view.panBy(...moves[event.key]);
      else if (acts[event.key]) acts[event.key]();
      else return;
      event.preventDefault();
    });
  }

  function controls() {
    const button = (text, onclick) => el("button", { type: "button", class: "button", onclick }, text);
    const layouts = Object.keys(map.layouts).map((name) => [name, name]);
    const marks = [["points", "points"], ["images", "images"]];
    const splits = [["both", "train and test"], ["test", "test"], ["train", "train"]];
    const mixed = map.tests > 0 && map.tests < view.count;
    const change = (key) => (value) => view.set({ [key]: value });
    const lasso = button("Lasso", () => {
      lassoing = !lassoing;
      lasso.setAttribute("aria-pressed", String(lassoing));
      host.classList.toggle("lassoing", lassoing);
    });
    lasso.setAttribute("aria-pressed", "false");
    return el("div", { class: "controls" },
      layouts.length > 1 ? choice(layouts, view.state.layout, change("layout"), "layout") : null,
      thumbnail.any ? choice(marks, view.state.marks, change("marks"), "points or images") : null,
      mixed ? choice(splits, "both", change("split"), "images shown") : null,
      el("span", { class: "buttons" },
        button("Zoom in", () => view.zoomBy(1.6)),
        button("Zoom out", () => view.zoomBy(1 / 1.6)),
        button("Reset", () => { view.reset(); clear(); })),
      lasso,
      button("Images in view", () => showSelection(view.inView())));
  }
}

// Return one button per class: hovering highlights the class, clicking keeps it highlighted.
function classButtons(map, view) {
  if (!map.label) return null;
  let pinned = null;
  const pin = (index) => {
    pinned = pinned === index ? null : index;
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === pinned)));
    view.set({ highlighted: pinned });
  };
  const preview = (index) => view.set({ highlighted: index === null ? pinned : index });
  const buttons = map.classes.slice(0, COLOURED).map((name, index) => el("button", {
    type: "button",
    "aria-pressed": "false",
    onclick: () => pin(index),
    onpointerenter: (event) => event.pointerType === "mouse" && preview(index),
    onpointerleave: () => preview(null),
  }, shapeSwatch(index), name));
  const hasOthers = map.label.some((label) => label < 0 || label >= COLOURED);
  const others = hasOthers ? [el("span", {}, el("i"), "other images")] : [];
  return el("div", { class: "legend" }, buttons, others);
}

// Return the shape and colour of a class as a small picture.
function shapeSwatch(index) {
  const cell = { width: 1.05, height: 1.05 };
  const cells = stamp(index, 6).map(([x, y]) => svg("rect", { x: x + 6, y: y + 6, ...cell }));
  const attributes = { class: "shape", viewBox: "-1 -1 15 15", "aria-hidden": "true" };
  return svg("svg", { ...attributes, fill: `var(--s${index})` }, cells);
}
