// The map of embeddings: a canvas of dots or pictures, with the image under the pointer.

function embeddingMap(map) {
  const canvas = el("canvas", { role: "img", "aria-label": "map of the embeddings" });
  const host = el("div", { class: "map" }, canvas);
  const sheet = el("img", { class: "sheet", alt: "all images of the map", src: map.src });
  const count = map.names.length;
  let [layout, pictures, lit, width] = [Object.keys(map.layouts)[0], !map.classes.length, null, 0]; // dots without colours say little

  function colours() {
    const style = getComputedStyle(document.documentElement);
    return { of: map.classes.map((_, at) => style.getPropertyValue(`--s${at % 10}`)), other: style.getPropertyValue("--faint") };
  }

  function places() {
    const flat = map.layouts[layout];
    const edge = pictures ? side() / 2 + 4 : 14;
    return Array.from({ length: count }, (_, at) => [edge + (flat[2 * at] / 1000) * (width - 2 * edge), edge + (1 - flat[2 * at + 1] / 1000) * (height() - 2 * edge)]);
  }

  function side() {
    const size = count > 400 ? 22 : count > 80 ? 34 : 56;
    return width < 560 ? Math.round(size * 0.7) : size;
  }

  function height() {
    return Math.min(width, 640);
  }

  function draw() {
    const ratio = window.devicePixelRatio || 1;
    [canvas.width, canvas.height] = [width * ratio, height() * ratio];
    [canvas.style.width, canvas.style.height] = [`${width}px`, `${height()}px`];
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.clearRect(0, 0, width, height());
    const palette = colours();
    const order = Array.from({ length: count }, (_, at) => at).sort((a, b) => Number(shown(a)) - Number(shown(b)));
    const all = places();
    for (const at of order) paint(pen, all[at], at, palette);
  }

  function shown(at) {
    return lit === null || (map.colour && map.colour[at] === lit);
  }

  function paint(pen, [x, y], at, palette) {
    const place = map.colour ? map.colour[at] : -1;
    const colour = place >= 0 ? palette.of[place] : palette.other;
    pen.globalAlpha = shown(at) ? 0.9 : 0.1;
    if (pictures && sheet.complete && sheet.naturalWidth) {
      const size = side();
      const [left, top] = [map.side * (at % map.columns), map.side * Math.floor(at / map.columns)];
      pen.drawImage(sheet, left, top, map.side, map.side, x - size / 2, y - size / 2, size, size);
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

  function hover(event) {
    const box = canvas.getBoundingClientRect();
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    let [best, away] = [-1, 24];
    places().forEach(([x, y], at) => {
      const distance = Math.hypot(x - px, y - py);
      if (distance < away && shown(at)) [best, away] = [at, distance];
    });
    if (best < 0) return hideTip();
    const large = el("canvas", { width: 96, height: 96, class: "thumb" });
    const pen = large.getContext("2d");
    pen.imageSmoothingEnabled = map.side > 48;
    pen.drawImage(sheet, map.side * (best % map.columns), map.side * Math.floor(best / map.columns), map.side, map.side, 0, 0, 96, 96);
    showTip(event.clientX, event.clientY, large, el("div", { class: "head" }, map.names[best] || `image ${best + 1} of ${count}`));
  }

  function legend() {
    if (!map.classes.length) return null;
    const items = map.classes.map((name, at) => {
      const swatch = el("i");
      swatch.style.background = `var(--s${at % 10})`;
      const item = el("button", { type: "button", "aria-pressed": "false", onclick: () => light(at), onpointerenter: (event) => event.pointerType === "mouse" && peek(at), onpointerleave: () => peek(null) }, swatch, name);
      return item;
    });
    let held = null;
    function peek(at) { lit = at === null ? held : at; draw(); }
    function light(at) {
      held = held === at ? null : at;
      items.forEach((item, place) => item.setAttribute("aria-pressed", String(place === held)));
      lit = held;
      draw();
    }
    const rest = map.colour && map.colour.includes(-1) ? [el("span", {}, el("i"), "other classes")] : [];
    return el("div", { class: "legend" }, items, rest);
  }

  canvas.addEventListener("pointermove", hover);
  canvas.addEventListener("pointerdown", hover);
  canvas.addEventListener("pointerleave", hideTip);
  sheet.addEventListener("load", draw);
  redraws.set("map", draw);
  const controls = el("div", { class: "controls" },
    Object.keys(map.layouts).length > 1 ? choice(Object.keys(map.layouts).map((name) => [name, name]), layout, (name) => { layout = name; draw(); }, "layout") : null,
    choice([[false, "dots"], [true, "pictures"]], pictures, (value) => { pictures = value; draw(); }, "dots or pictures"));
  responsive(host, (now) => { width = now; draw(); });
  return el("div", {}, controls, host, legend(), sheet);
}
