// The drawing of the embedding map: tens of thousands of points on a canvas that moves and zooms.
// Points are written into the pixels of the canvas, which is faster than drawing each of them.

// Shapes by class number, so that classes can also be distinguished without colours. Each function
// returns whether a place (x, y) in [-1, 1] belongs to the shape.
const SHAPES = [
  (x, y) => x * x + y * y <= 1, // disc
  (x, y) => Math.abs(x) <= 0.85 && Math.abs(y) <= 0.85, // square
  (x, y) => y <= 0.8 && y >= -1 && Math.abs(x) <= (y + 1) * 0.55, // triangle
  (x, y) => Math.abs(x) + Math.abs(y) <= 1.1, // diamond
  (x, y) => Math.min(Math.abs(x), Math.abs(y)) <= 0.34, // plus
  (x, y) => y >= -0.8 && y <= 1 && Math.abs(x) <= (1 - y) * 0.55, // triangle that points down
  (x, y) => Math.abs(Math.abs(x) - Math.abs(y)) <= 0.42, // cross
  (x, y) => x * x + y * y <= 1.1 && x * x + y * y >= 0.3, // ring
  (x, y) => Math.abs(y) <= 0.45, // bar
  (x, y) => Math.abs(x) <= 0.45, // upright bar
];
const COLOURED = 10; // classes with a colour and a shape of their own

// Return the red, green and blue of a CSS colour such as #2a7de1.
function channels(css) {
  const text = css.trim().replace("#", "");
  return [0, 2, 4].map((at) => Number.parseInt(text.slice(at, at + 2), 16));
}

// Return a colour between two, as a pixel of 32 bits. share is that of the first one.
function pixel(first, second, share) {
  const [r, g, b] = first.map((value, i) => Math.round(share * value + (1 - share) * second[i]));
  return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
}

// Return the offsets [x, y] of the pixels of a shape with this radius.
function stamp(shape, radius) {
  const offsets = [];
  const reach = Math.ceil(radius);
  for (let y = -reach; y <= reach; y++) {
    for (let x = -reach; x <= reach; x++) {
      if (SHAPES[shape](x / radius, y / radius)) offsets.push([x, y]);
    }
  }
  return offsets.length ? offsets : [[0, 0]];
}

// Return the view of a map on a canvas. map is as in map.js.
function mapView(map, canvas, thumbnail) {
  const count = Object.values(map.layouts)[0].length / 2;
  const state = {
    layout: Object.keys(map.layouts)[0],
    marks: "points", // or "images"
    split: "both", // or "test" or "train"
    highlighted: null, // number of a class, or null for all
    zoom: 1,
    middle: [0.5, 0.5], // the place at the centre of the canvas
  };
  const chosen = new Uint8Array(count); // 1 for selected images
  const medians = new Map(); // [x, y] of each class, by layout
  let selecting = false; // whether some images are selected
  let layers = null; // the images in the order of drawing, by layer
  let palette = null; // colours as pixels, by layer and class
  let image = null; // the pixels of the canvas
  let width = 0;
  let due = false;
  let marked = -1; // the image whose neighbours are shown

  const height = () => Math.min(width, 640);
  const isTest = (i) => i < map.tests;
  const flat = () => map.layouts[state.layout];
  // The map fills the canvas, so its two axes have different scales.
  const wide = () => (width - 28) * state.zoom;
  const high = () => (height() - 28) * state.zoom;
  const toLeft = (x) => width / 2 + (x / map.scale - state.middle[0]) * wide();
  const toTop = (y) => height() / 2 - (y / map.scale - state.middle[1]) * high();
  const left = (i) => toLeft(flat()[2 * i]);
  const top = (i) => toTop(flat()[2 * i + 1]);

  // Images of the other split are not drawn at all.
  function isHidden(i) {
    return state.split !== "both" && (state.split === "test") !== isTest(i);
  }

  function isShown(i) {
    if (isHidden(i)) return false;
    return state.highlighted === null || map.label[i] === state.highlighted;
  }

  function radius() {
    const base = count > 20000 ? 1.2 : count > 6000 ? 1.7 : count > 1500 ? 2.5 : 3.6;
    return Math.min(8, base * Math.sqrt(state.zoom));
  }

  // Draw at the next frame; several calls before it draw once.
  function draw() {
    if (due) return;
    due = true;
    requestAnimationFrame(() => { due = false; paint(); });
  }

  // Draw again after a change of what is shown, or of the colours.
  function refresh() {
    layers = null;
    palette = null;
    draw();
  }

  function paint() {
    if (!width) return;
    const ratio = window.devicePixelRatio || 1;
    const columns = Math.round(width * ratio);
    const rows = Math.round(height() * ratio);
    const pen = canvas.getContext("2d");
    if (canvas.width !== columns || canvas.height !== rows || !image) {
      [canvas.width, canvas.height] = [columns, rows];
      image = pen.createImageData(columns, rows);
    }
    const style = getComputedStyle(document.documentElement);
    palette ??= readPalette(style);
    layers ??= sortLayers();
    const pixels = new Uint32Array(image.data.buffer);
    pixels.fill(palette.back);
    if (state.marks === "points") paintPoints(pixels, columns, rows, ratio);
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.putImageData(image, 0, 0);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    if (state.marks === "images") paintImages(pen, style);
    paintMarked(pen, style);
    if (state.highlighted === null) paintNames(pen, style);
  }

  // Return the colours of each class as pixels: faint, of train images, of test images.
  function readPalette(style) {
    const read = (name) => channels(style.getPropertyValue(name));
    const card = read("--card");
    const hues = Array.from({ length: COLOURED }, (_, i) => read(`--s${i}`));
    const shades = [0.14, map.tests && map.tests < count ? 0.6 : 1, 1];
    const tints = shades.map((share) => {
      return Uint32Array.from([...hues, read("--faint")].map((hue) => pixel(hue, card, share)));
    });
    return { back: pixel(card, card, 1), tints };
  }

  // Return the images of each layer: those that are not highlighted, train, test.
  function sortLayers() {
    const found = [[], [], []];
    for (let i = count - 1; i >= 0; i--) {
      if (isHidden(i)) continue;
      const shown = isShown(i) && (!selecting || chosen[i]);
      found[shown ? (isTest(i) || !map.tests ? 2 : 1) : 0].push(i);
    }
    return found.map((images) => Int32Array.from(images));
  }

  // Write the points into the pixels of the canvas.
  function paintPoints(pixels, columns, rows, ratio) {
    const size = radius() * ratio;
    const stamps = SHAPES.map((_, shape) => {
      return Int32Array.from(stamp(shape, size).map(([x, y]) => y * columns + x));
    });
    const edge = Math.ceil(size) + 1; // points nearer to the edge of the canvas are left out
    const places = flat();
    const label = map.label;
    const [stepX, stepY] = [(wide() * ratio) / map.scale, (high() * ratio) / map.scale];
    const startX = (width / 2 - state.middle[0] * wide()) * ratio + 0.5;
    const startY = (height() / 2 + state.middle[1] * high()) * ratio + 0.5;
    layers.forEach((images, layer) => {
      const tints = palette.tints[layer];
      for (let k = 0; k < images.length; k++) {
        const i = images[k];
        const x = Math.floor(startX + places[2 * i] * stepX);
        const y = Math.floor(startY - places[2 * i + 1] * stepY);
        if (x < edge || y < edge || x >= columns - edge || y >= rows - edge) continue;
        const own = label === null || label[i] < 0 || label[i] >= COLOURED ? COLOURED : label[i];
        const offsets = stamps[own === COLOURED ? 0 : own];
        const middle = y * columns + x;
        for (let n = 0; n < offsets.length; n++) pixels[middle + offsets[n]] = tints[own];
      }
    });
  }

  // Draw thumbnails. In each cell of a grid, only the first image is drawn.
  function paintImages(pen, style) {
    const size = width < 560 ? 22 : 30;
    const across = Math.ceil(width / size);
    const taken = new Uint8Array(across * Math.ceil(height() / size));
    for (let i = 0; i < count; i++) {
      const x = left(i);
      const y = top(i);
      if (x < 0 || y < 0 || x >= width || y >= height()) continue;
      const cell = Math.floor(y / size) * across + Math.floor(x / size);
      if (taken[cell] || !isShown(i) || (selecting && !chosen[i])) continue;
      taken[cell] = 1;
      const label = map.label ? map.label[i] : -1;
      const hue = label >= 0 && label < COLOURED ? `--s${label}` : "--faint";
      thumbnail.paint(pen, i, x - size / 2 + 1, y - size / 2 + 1, size - 2, draw);
      pen.strokeStyle = style.getPropertyValue(hue);
      pen.lineWidth = isTest(i) || !map.tests ? 1.8 : 0.8;
      pen.strokeRect(x - size / 2 + 1, y - size / 2 + 1, size - 2, size - 2);
    }
  }

  // Draw a ring around the image whose neighbours are shown, and lines to them.
  function paintMarked(pen, style) {
    if (marked < 0) return;
    pen.strokeStyle = style.getPropertyValue("--ink");
    pen.lineWidth = 1.4;
    pen.beginPath();
    for (const other of neighbours(marked)) {
      pen.moveTo(left(marked), top(marked));
      pen.lineTo(left(other), top(other));
    }
    pen.stroke();
    pen.beginPath();
    pen.arc(left(marked), top(marked), 9, 0, 7);
    pen.stroke();
  }

  // Write the name of each coloured class at the median place of its images.
  function paintNames(pen, style) {
    if (!map.label) return;
    const small = width < 560;
    pen.font = `600 ${small ? 11 : 13}px Inter, "Segoe UI", Helvetica, Arial, sans-serif`;
    pen.textAlign = "center";
    pen.lineJoin = "round";
    const taken = []; // boxes of the names so far
    for (const [label, [x, y]] of classMedians()) {
      const text = map.classes[label];
      const name = text.length > 22 ? `${text.slice(0, 21)}…` : text;
      const half = pen.measureText(name).width / 2 + 4;
      const at = Math.max(half, Math.min(width - half, toLeft(x)));
      let down = toTop(y);
      if (at < 0 || toLeft(x) < 0 || toLeft(x) > width || down < 0 || down > height()) continue;
      const hits = () => taken.some(([column, row, reach]) => {
        return Math.abs(column - at) < reach + half && Math.abs(row - down) < 16;
      });
      for (let tries = 0; tries < 3 && hits(); tries++) down += 16;
      if (hits()) continue; // it would be far from its class; the legend has it, too
      taken.push([at, down, half]);
      pen.lineWidth = 4;
      pen.strokeStyle = style.getPropertyValue("--card");
      pen.strokeText(name, at, down + 4);
      pen.fillStyle = style.getPropertyValue("--ink");
      pen.fillText(name, at, down + 4);
    }
  }

  function classMedians() {
    if (medians.has(state.layout)) return medians.get(state.layout);
    const members = new Map();
    map.label.forEach((label, i) => {
      if (label < 0 || label >= COLOURED) return;
      if (!members.has(label)) members.set(label, []);
      members.get(label).push(i);
    });
    const middle = (values) => values.sort((a, b) => a - b)[values.length >> 1];
    const found = [...members].map(([label, images]) => [label, [
      middle(images.map((i) => flat()[2 * i])), middle(images.map((i) => flat()[2 * i + 1])),
    ]]);
    medians.set(state.layout, found);
    return found;
  }

  // Return the shown image that is closest to a place on the canvas, or -1 if none is near.
  function pick(x, y, most = 24) {
    let [closest, least] = [-1, most];
    for (let i = 0; i < count; i++) {
      const distance = Math.hypot(left(i) - x, top(i) - y);
      if (distance < least && isShown(i)) [closest, least] = [i, distance];
    }
    return closest;
  }

  // Return the shown images inside a polygon of places on the canvas.
  function within(polygon) {
    const found = [];
    for (let i = 0; i < count; i++) {
      if (isShown(i) && isInside(left(i), top(i), polygon)) found.push(i);
    }
    return found;
  }

  function neighbours(i) {
    return map.near.slice(i * map.k, (i + 1) * map.k);
  }

  // Zoom by a factor, so that the place (x, y) on the canvas stays where it is.
  function zoomBy(factor, x = width / 2, y = height() / 2) {
    const zoom = Math.max(1, Math.min(40, state.zoom * factor));
    const moved = 1 - state.zoom / zoom;
    const [dx, dy] = [(x - width / 2) / wide(), (height() / 2 - y) / high()];
    state.middle = [state.middle[0] + dx * moved, state.middle[1] + dy * moved];
    state.zoom = zoom;
    if (zoom === 1) state.middle = [0.5, 0.5];
    draw();
  }

  function panBy(dx, dy) {
    const clip = (value) => Math.max(-0.1, Math.min(1.1, value));
    state.middle = [clip(state.middle[0] - dx / wide()), clip(state.middle[1] + dy / high())];
    draw();
  }

  return {
    count, state, draw, refresh, pick, within, neighbours, zoomBy, panBy, isTest,
    set(changes) { Object.assign(state, changes); refresh(); },
    resize(current) {
      width = current;
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height()}px`;
      draw();
    },
    size: () => [width, height()],
    reset() { state.zoom = 1; state.middle = [0.5, 0.5]; draw(); },
    select(images) {
      chosen.fill(0);
      for (const i of images) chosen[i] = 1;
      selecting = images.length > 0;
      refresh();
    },
    mark(i) { marked = i; draw(); },
    inView() { const [w, h] = [width, height()]; return within([[0, 0], [w, 0], [w, h], [0, h]]); },
  };
}

// Return true if a point is inside a polygon, by the number of its edges to the right of the point.
function isInside(x, y, polygon) {
  let inside = false;
  for (let i = 0, j = polygon.length - 1; i < polygon.length; j = i++) {
    const [[ax, ay], [bx, by]] = [polygon[i], polygon[j]];
    if ((ay > y) !== (by > y) && x < ((bx - ax) * (y - ay)) / (by - ay) + ax) inside = !inside;
  }
  return inside;
}
