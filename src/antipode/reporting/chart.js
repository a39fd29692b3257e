// Elements, numbers, and charts as inline SVG. Texts are set as text, never as markup.

const NS = "http://www.w3.org/2000/svg";

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== null && value !== undefined) node.setAttribute(name, value);
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

function say(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  if (size >= 1000) return value.toLocaleString("en-US", { maximumFractionDigits: 0 });
  if (size !== 0 && size < 0.001) return value.toExponential(2).replace("e-", "e−");
  return String(Number(value.toPrecision(size >= 100 ? 4 : 3))).replace("-", "−");
}

function score(value, unit) {
  if (value === null || value === undefined) return "–";
  return unit.startsWith("%") ? value.toFixed(1) : say(value);
}

// ---- the one tooltip

const tip = document.getElementById("tip");

function showTip(x, y, ...children) {
  tip.replaceChildren(...children);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const wide = document.documentElement.clientWidth;
  const left = x + 18 + box.width > wide ? x - 14 - box.width : x + 18;
  tip.style.left = `${Math.max(6, Math.min(left, wide - box.width - 6))}px`;
  tip.style.top = `${Math.max(6, Math.min(y + 14, window.innerHeight - box.height - 6))}px`;
}

function hideTip() {
  tip.hidden = true;
}

function tipRow(colour, name, value) {
  const swatch = el("i");
  swatch.style.background = colour;
  return el("div", { class: "row" }, swatch, el("span", {}, name), el("b", {}, value));
}

// ---- scales

function niceTicks(low, high, count) {
  const span = high - low || 1;
  const rough = span / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
  const found = [];
  for (let at = Math.ceil(low / step); at * step <= high + step * 1e-6; at++) found.push(Number((at * step).toPrecision(12)));
  return found;
}

function decades(low, high) {
  const found = [];
  for (let at = Math.floor(low); at <= Math.ceil(high); at++) if (at >= low - 1e-9 && at <= high + 1e-9) found.push(at);
  return found.length > 1 ? found : niceTicks(low, high, 4);
}

function tickText(value) {
  const size = Math.abs(value);
  if (size >= 10000) return `${Number((value / 1000).toPrecision(4))}k`;
  if (size !== 0 && size < 0.001) return value.toExponential(0).replace("-", "−");
  return String(Number(value.toPrecision(6))).replace("-", "−");
}

function range(columns) {
  let low = Infinity;
  let high = -Infinity;
  for (const column of columns) for (const value of column) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low > high ? [0, 1] : [low, high];
}

// what is drawn follows the width of its place
function responsive(host, draw) {
  let width = 0;
  const again = () => {
    const now = Math.floor(host.clientWidth);
    if (now && now !== width) {
      width = now;
      draw(now);
    }
  };
  new ResizeObserver(again).observe(host);
  again();
  return () => { width = 0; again(); };
}

function frame(width, height, margin, x, y, spec) {
  const [left, right, top, bottom] = [margin.left, width - margin.right, margin.top, height - margin.bottom];
  const parts = [];
  for (const tick of y.ticks) {
    const at = y.to(tick);
    parts.push(svg("line", { class: "grid", x1: left, x2: right, y1: at, y2: at }));
    parts.push(svg("text", { class: "tick", x: left - 8, y: at + 4, "text-anchor": "end" }, y.text(tick)));
  }
  for (const tick of x.ticks) parts.push(svg("text", { class: "tick", x: x.to(tick), y: bottom + 18, "text-anchor": "middle" }, x.text(tick)));
  parts.push(svg("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }));
  if (spec.xlabel) parts.push(svg("text", { class: "label", x: right, y: height - 2, "text-anchor": "end" }, spec.xlabel));
  if (spec.ylabel) parts.push(svg("text", { class: "label", x: 2, y: 11 }, spec.ylabel));
  return parts;
}

// ---- lines: series [{name, colour, x, y, dash, low, high}], marks [[y, text]]

function lineChart(spec) {
  const host = el("div", { class: "chart", tabindex: 0, role: "img", "aria-label": spec.title || spec.ylabel || "chart" });
  const height = spec.height || 320;
  let state = null;

  function scales(width) {
    const narrow = width < 560;
    const named = spec.direct && !narrow && spec.series.length <= 8 && spec.series.length > 1;
    const longest = Math.max(...spec.series.map((one) => one.name.length), 0);
    const margin = { left: 48, right: named ? Math.min(190, 22 + longest * 6.6) : 14, top: 24, bottom: 40 };
    const log = spec.log && spec.series.every((one) => one.y.some((value) => value > 0));
    const lift = (value) => (log ? Math.log10(Math.max(value, 1e-12)) : value);
    const geometric = spec.series.length > 0 && spec.series.every((one) => growing(one.x));
    const stretch = (value) => (geometric ? Math.log2(value) : value);
    const columns = spec.series.flatMap((one) => [one.y, one.low || [], one.high || []]);
    const ys = columns.map((column) => (log ? column.filter((value) => value > 0) : column).map(lift));
    const [x0, x1] = range(spec.series.map((one) => one.x)).map(stretch);
    let [y0, y1] = range(ys);
    const near = (spec.marks || []).filter(([value]) => !log && value > y0 - (y1 - y0) && value < y1 + (y1 - y0));
    for (const [value] of near) [y0, y1] = [Math.min(y0, value), Math.max(y1, value)];
    const pad = (y1 - y0 || Math.abs(y1) || 1) * 0.06;
    [y0, y1] = [y0 - pad, y1 + pad];
    const across = width - margin.left - margin.right;
    const up = height - margin.top - margin.bottom;
    return {
      narrow, named, margin, near, lift,
      x: {
        to: (v) => margin.left + ((stretch(v) - x0) / (x1 - x0 || 1)) * across,
        from: (p) => { const v = x0 + ((p - margin.left) / across) * (x1 - x0); return geometric ? 2 ** v : v; },
        ticks: geometric ? spec.series[0].x.filter((_, at) => !narrow || at % 2 === 0) : niceTicks(x0, x1, narrow ? 4 : 8),
        text: tickText,
      },
      y: { to: (v) => margin.top + (1 - (v - y0) / (y1 - y0)) * up, ticks: log ? decades(y0, y1) : niceTicks(y0, y1, 5), text: log ? (v) => tickText(10 ** v) : tickText },
    };
  }

  function draw(width) {
    const scale = scales(width);
    const { x, y, lift } = scale;
    const point = (one, at, column) => `${x.to(one.x[at]).toFixed(1)} ${y.to(lift(column[at])).toFixed(1)}`;
    const path = (one, column) => `M${one.x.map((_, at) => point(one, at, column)).join("L")}`;
    const lines = spec.series.map((one, at) => svg("path", { class: "line", "data-name": one.name, "data-at": at, d: path(one, one.y), stroke: one.colour, "stroke-dasharray": one.dash, "stroke-width": spec.series.length > 12 ? 1.1 : 1.8, "stroke-opacity": spec.series.length > 30 ? 0.55 : null }));
    const bands = spec.series.filter((one) => one.low).map((one) => svg("path", { class: "band", fill: one.colour, d: `${path(one, one.high)}L${one.x.map((_, at) => point(one, one.x.length - 1 - at, one.low)).join("L")}Z` }));
    const dots = spec.series.filter((one) => one.x.length <= 12 && spec.series.length <= 8).flatMap((one) => one.x.map((v, at) => svg("circle", { class: "dot", cx: x.to(v), cy: y.to(lift(one.y[at])), r: 2.6, fill: one.colour })));
    const marks = scale.near.map(([value, text]) => svg("g", { class: "mark" }, svg("line", { x1: scale.margin.left, x2: width - scale.margin.right, y1: y.to(value), y2: y.to(value) }), svg("text", { x: width - scale.margin.right, y: y.to(value) - 5, "text-anchor": "end" }, text)));
    const cross = svg("line", { class: "cross", y1: scale.margin.top, y2: height - scale.margin.bottom, visibility: "hidden" });
    const bead = svg("circle", { class: "bead", r: 4, visibility: "hidden" });
    const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` }, frame(width, height, scale.margin, x, y, spec), bands, marks, cross, lines, dots, scale.named ? names(scale) : [], bead);
    host.replaceChildren(picture);
    state = { scale, lines, cross, bead, picture };
  }

  function names(scale) {
    const ends = spec.series.map((one) => ({ one, at: scale.y.to(scale.lift(one.y[one.y.length - 1])) })).sort((a, b) => a.at - b.at);
    ends.forEach((end, at) => { if (at) end.at = Math.max(end.at, ends[at - 1].at + 15); });
    const over = ends.length ? ends[ends.length - 1].at - (height - scale.margin.bottom) : 0;
    return ends.map(({ one, at }) => svg("text", { class: "name", x: scale.x.to(one.x[one.x.length - 1]) + 8, y: at - Math.max(0, over) + 4, fill: one.colour }, one.name.length > 26 ? `${one.name.slice(0, 25)}…` : one.name));
  }

  function near(px, py) {
    const value = state.scale.x.from(px);
    return spec.series.map((one, place) => {
      const at = nearest(one.x, value);
      const y = state.scale.y.to(state.scale.lift(one.y[at]));
      return { one, place, at, x: state.scale.x.to(one.x[at]), y, away: Math.hypot(state.scale.x.to(one.x[at]) - px, 2 * (y - py)) };
    }).sort((a, b) => a.away - b.away);
  }

  function point(px, py, clientX, clientY) {
    if (!state || !spec.series.length) return;
    const found = near(px, py);
    const first = found[0];
    for (const [name, value] of [["x1", first.x], ["x2", first.x], ["visibility", "visible"]]) state.cross.setAttribute(name, value);
    for (const [name, value] of [["cx", first.x], ["cy", first.y], ["fill", first.one.colour], ["visibility", "visible"]]) state.bead.setAttribute(name, value);
    state.lines.forEach((line, at) => line.classList.toggle("faded", spec.series.length > 1 && at !== first.place));
    const rows = found.slice(0, 7).map(({ one, at }, place) => {
      const row = tipRow(one.colour, one.name, say(one.y[at]));
      row.classList.toggle("first", place === 0 && found.length > 1);
      return row;
    });
    const more = found.length > 7 ? el("div", { class: "more" }, `and ${found.length - 7} more`) : null;
    showTip(clientX, clientY, el("div", { class: "head" }, `${spec.xlabel || "x"} ${say(first.one.x[first.at])}`), ...rows, ...(more ? [more] : []));
  }

  function leave() {
    hideTip();
    if (!state) return;
    for (const node of [state.cross, state.bead]) node.setAttribute("visibility", "hidden");
    for (const line of state.lines) line.classList.remove("faded");
  }

  let key = 0;
  const onPointer = (event) => {
    const box = host.getBoundingClientRect();
    point(event.clientX - box.left, event.clientY - box.top, event.clientX, event.clientY);
  };
  host.addEventListener("pointermove", onPointer);
  host.addEventListener("pointerdown", onPointer);
  host.addEventListener("pointerleave", leave);
  host.addEventListener("blur", leave);
  host.addEventListener("keydown", (event) => {
    const turn = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!turn || !spec.series.length) return;
    event.preventDefault();
    const one = spec.series[0];
    key = Math.max(0, Math.min(one.x.length - 1, key + turn));
    const box = host.getBoundingClientRect();
    const [px, py] = [state.scale.x.to(one.x[key]), state.scale.y.to(state.scale.lift(one.y[key]))];
    point(px, py, box.left + px, box.top + py);
  });
  const again = responsive(host, draw);
  return { node: host, set(changes) { Object.assign(spec, changes); key = 0; leave(); again(); } };
}

// doubling numbers, such as batch sizes, deserve an axis on which they stand evenly
function growing(x) {
  return x.length > 3 && x.length < 20 && x[0] > 0 && x.every((value, at) => !at || (value / x[at - 1] > 1.4 && value / x[at - 1] < 11)) && x[x.length - 1] / x[0] > 20;
}

function nearest(sorted, value) {
  let [low, high] = [0, sorted.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle;
    else high = middle;
  }
  return Math.abs(sorted[low] - value) <= Math.abs(sorted[high] - value) ? low : high;
}

// ---- histograms: series [{name, colour, edges, counts}], drawn as steps that may overlap

function histogram(spec) {
  const host = el("div", { class: "chart", role: "img", "aria-label": spec.title || "histogram" });
  const height = spec.height || 260;
  let scale = null;
  function draw(width) {
    const margin = { left: 48, right: 14, top: 24, bottom: 40 };
    const [x0, x1] = range(spec.series.map((one) => one.edges));
    const y1 = (range(spec.series.map((one) => one.counts))[1] || 1) * 1.06;
    const across = width - margin.left - margin.right;
    const up = height - margin.top - margin.bottom;
    const x = { to: (v) => margin.left + ((v - x0) / (x1 - x0 || 1)) * across, from: (p) => x0 + ((p - margin.left) / across) * (x1 - x0), ticks: niceTicks(x0, x1, width < 480 ? 4 : 7), text: tickText };
    const y = { to: (v) => margin.top + (1 - v / y1) * up, ticks: niceTicks(0, y1, 4), text: spec.share ? (v) => `${tickText(100 * v)} %` : tickText };
    scale = { x };
    const steps = (one) => one.counts.map((count, at) => `L${x.to(one.edges[at]).toFixed(1)} ${y.to(count).toFixed(1)}L${x.to(one.edges[at + 1]).toFixed(1)} ${y.to(count).toFixed(1)}`).join("");
    const areas = spec.series.map((one) => svg("path", { class: "steps", "data-name": one.name, fill: one.colour, stroke: one.colour, d: `M${x.to(one.edges[0]).toFixed(1)} ${y.to(0).toFixed(1)}${steps(one)}L${x.to(one.edges[one.edges.length - 1]).toFixed(1)} ${y.to(0).toFixed(1)}Z` }));
    host.replaceChildren(svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` }, frame(width, height, margin, x, y, spec), areas));
  }
  host.addEventListener("pointermove", (event) => {
    const box = host.getBoundingClientRect();
    const value = scale.x.from(event.clientX - box.left);
    const rows = spec.series.map((one) => {
      const at = Math.max(0, Math.min(one.counts.length - 1, one.edges.findIndex((edge) => edge > value) - 1));
      return [one, at];
    });
    const [first, at] = rows[0];
    const head = `${say(first.edges[at])} to ${say(first.edges[at + 1])}`;
    showTip(event.clientX, event.clientY, el("div", { class: "head" }, head), ...rows.map(([one, place]) => tipRow(one.colour, one.name, spec.share ? `${(100 * one.counts[place]).toFixed(1)} %` : say(one.counts[place]))));
  });
  host.addEventListener("pointerleave", hideTip);
  responsive(host, draw);
  return { node: host };
}

// ---- a curve the size of a thumb

function spark(series) {
  const [width, height] = [120, 34];
  const [x0, x1] = range(series.map((one) => one.x));
  const [y0, y1] = range(series.map((one) => one.y));
  const lines = series.map((one) => {
    const every = Math.max(1, Math.floor(one.x.length / 60));
    const kept = one.x.map((_, at) => at).filter((at) => at % every === 0 || at === one.x.length - 1);
    const points = kept.map((at) => `${(((one.x[at] - x0) / (x1 - x0 || 1)) * width).toFixed(1)} ${(2 + (1 - (one.y[at] - y0) / (y1 - y0 || 1)) * (height - 4)).toFixed(1)}`);
    return svg("path", { d: `M${points.join("L")}`, stroke: one.colour, "vector-effect": "non-scaling-stroke" });
  });
  return svg("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" }, lines);
}

// ---- small controls

function choice(options, chosen, pick, label) {
  const buttons = options.map(([value, text]) => el("button", { type: "button", "aria-pressed": String(value === chosen), onclick: () => press(value) }, text));
  function press(value) {
    buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(options[at][0] === value)));
    pick(value);
  }
  return el("div", { class: "choice", role: "group", "aria-label": label }, buttons);
}

function tick(text, chosen, pick) {
  const box = el("input", { type: "checkbox", onchange: () => pick(box.checked) });
  box.checked = chosen;
  return el("label", { class: "tick" }, box, text);
}
