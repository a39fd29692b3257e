// DOM helpers, number formats, the tooltip, and charts drawn as inline SVG.
// Text from a run is always set as a text node and never parsed as markup.

const NS = "http://www.w3.org/2000/svg";

// ---- elements

const isGiven = (value) => value !== null && value !== undefined && value !== false;

// Replace control characters, and those that reorder a text, by visible escapes. Texts that come
// from files may contain any character.
const UNSAFE = /[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;

function visible(child) {
  if (typeof child !== "string") return child;
  const escape = (mark) => `\\u${mark.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return child.replace(UNSAFE, escape);
}

// Create an HTML element. Attributes whose names start with "on" become event listeners.
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (!isGiven(value)) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter(isGiven).map(visible));
  return node;
}

// Create an SVG element.
function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  const given = children.flat().filter((child) => child !== null && child !== undefined);
  node.append(...given.map(visible));
  return node;
}

// ---- number formats

// Format a number with about three significant digits. Other values become text.
function formatValue(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  if (size >= 1000) return value.toLocaleString("en-US", { maximumFractionDigits: 0 });
  if (size !== 0 && size < 0.001) return value.toExponential(2).replace("e-", "e−");
  return String(Number(value.toPrecision(size >= 100 ? 4 : 3))).replace("-", "−");
}

// Format a score. Percentages have one decimal place.
function formatScore(value, unit) {
  if (value === null || value === undefined) return "–";
  return unit.startsWith("%") ? value.toFixed(1) : formatValue(value);
}

// Format the label of an axis tick.
function formatTick(value) {
  const size = Math.abs(value);
  if (size >= 10000) return `${Number((value / 1000).toPrecision(4))}k`;
  if (size !== 0 && size < 0.001) return value.toExponential(0).replace("-", "−");
  return String(Number(value.toPrecision(6))).replace("-", "−");
}

// ---- tooltip: the page has one, which all charts share

const tip = document.getElementById("tip");

// Show the tooltip beside the pointer, inside the window.
function showTip(x, y, ...children) {
  tip.replaceChildren(...children);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const pageWidth = document.documentElement.clientWidth;
  const left = x + 18 + box.width > pageWidth ? x - 14 - box.width : x + 18;
  tip.style.left = `${Math.max(6, Math.min(left, pageWidth - box.width - 6))}px`;
  tip.style.top = `${Math.max(6, Math.min(y + 14, window.innerHeight - box.height - 6))}px`;
}

function hideTip() {
  tip.hidden = true;
}

// Return a tooltip row: a colour swatch, a name and a value.
function tipRow(colour, name, value) {
  const swatch = el("i");
  swatch.style.background = colour;
  return el("div", { class: "row" }, swatch, el("span", {}, name), el("b", {}, value));
}

// ---- scales

// Return about `count` round tick values between `low` and `high`.
function niceTicks(low, high, count) {
  const span = high - low || 1;
  const rough = span / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const steps = [1, 2, 2.5, 5, 10].map((factor) => factor * power);
  const step = steps.find((size) => size >= rough * 0.999);
  const ticks = [];
  for (let i = Math.ceil(low / step); i * step <= high + step * 1e-6; i++) {
    ticks.push(Number((i * step).toPrecision(12)));
  }
  return ticks;
}

// Return the powers of ten between 10 ** low and 10 ** high, as exponents.
function decades(low, high) {
  const exponents = [];
  for (let i = Math.floor(low); i <= Math.ceil(high); i++) {
    if (i >= low - 1e-9 && i <= high + 1e-9) exponents.push(i);
  }
  return exponents.length > 1 ? exponents : niceTicks(low, high, 4);
}

// Return the minimum and maximum over several arrays, or [0, 1] if all are empty.
function extent(columns) {
  let low = Infinity;
  let high = -Infinity;
  for (const column of columns) {
    for (const value of column) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low > high ? [0, 1] : [low, high];
}

// Return true for a roughly geometric sequence, such as batch sizes that double.
// Its points are evenly spaced on a logarithmic axis.
function isGeometric(x) {
  const ratios = x.slice(1).map((value, i) => value / x[i]);
  return x.length > 3 && x.length < 20 && x[0] > 0
    && ratios.every((ratio) => ratio > 1.4 && ratio < 11)
    && x[x.length - 1] / x[0] > 20;
}

// Return the index of the entry of a sorted array that is closest to `value`.
function nearestIndex(sorted, value) {
  let [low, high] = [0, sorted.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle;
    else high = middle;
  }
  return Math.abs(sorted[low] - value) <= Math.abs(sorted[high] - value) ? low : high;
}

// Call draw(width) now and whenever the width of `host` changes.
// Returns a function that draws again at the present width.
function responsive(host, draw) {
  let width = 0;
  const update = () => {
    const current = Math.floor(host.clientWidth);
    if (current && current !== width) {
      width = current;
      draw(current);
    }
  };
  new ResizeObserver(update).observe(host);
  update();
  return () => { width = 0; update(); };
}

// Return the grid, the axis, the tick labels and the axis labels of a chart.
function axes(width, height, margin, x, y, spec) {
  const left = margin.left;
  const right = width - margin.right;
  const bottom = height - margin.bottom;
  const nodes = [];
  for (const tick of y.ticks) {
    const top = y.to(tick);
    const label = { class: "tick", x: left - 8, y: top + 4, "text-anchor": "end" };
    nodes.push(svg("line", { class: "grid", x1: left, x2: right, y1: top, y2: top }));
    nodes.push(svg("text", label, y.text(tick)));
  }
  for (const tick of x.ticks) {
    const label = { class: "tick", x: x.to(tick), y: bottom + 18, "text-anchor": "middle" };
    nodes.push(svg("text", label, x.text(tick)));
  }
  nodes.push(svg("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }));
  if (spec.xlabel) {
    const label = { class: "label", x: right, y: height - 2, "text-anchor": "end" };
    nodes.push(svg("text", label, spec.xlabel));
  }
  if (spec.ylabel) nodes.push(svg("text", { class: "label", x: 2, y: 11 }, spec.ylabel));
  return nodes;
}

// ---- line charts
// spec.series: [{name, colour, x, y, dash, low, high}], where low and high bound a shaded band.
// spec.marks: [[y, text]], horizontal reference lines.
// spec.spans: [[x0, x1, text]], shaded parts of the x axis.
// spec.direct: write the name of each series at the end of its line.

function lineChart(spec) {
  const label = spec.title || spec.ylabel || "chart";
  const host = el("div", { class: "chart", tabindex: 0, role: "img", "aria-label": label });
  const height = spec.height || 320;
  let state = null;

  function scales(width) {
    const { series } = spec;
    const narrow = width < 560;
    const named = spec.direct && !narrow && series.length <= 8 && series.length > 1;
    const longest = Math.max(...series.map((line) => line.name.length), 0);
    const right = named ? Math.min(200, 34 + longest * 6.6) : 14;
    const margin = { left: 48, right, top: 24, bottom: 40 };
    const plotWidth = width - margin.left - margin.right;
    const plotHeight = height - margin.top - margin.bottom;

    // The y axis is logarithmic if the user asks for it and every series has positive values.
    const log = spec.log && series.every((line) => line.y.some((value) => value > 0));
    const toLog = (value) => (log ? Math.log10(Math.max(value, 1e-12)) : value);
    const columns = series.flatMap((line) => [line.y, line.low || [], line.high || []]);
    const positive = (column) => (log ? column.filter((value) => value > 0) : column);
    let [y0, y1] = extent(columns.map((column) => positive(column).map(toLog)));
    const marks = (spec.marks || []).filter(([value]) => {
      return !log && value > y0 - (y1 - y0) && value < y1 + (y1 - y0);
    });
    for (const [value] of marks) [y0, y1] = [Math.min(y0, value), Math.max(y1, value)];
    const padding = (y1 - y0 || Math.abs(y1) || 1) * 0.06;
    [y0, y1] = [y0 - padding, y1 + padding];

    const geometric = series.length > 0 && series.every((line) => isGeometric(line.x));
    const stretch = (value) => (geometric ? Math.log2(value) : value);
    const unstretch = (value) => (geometric ? 2 ** value : value);
    const [x0, x1] = extent(series.map((line) => line.x)).map(stretch);
    const xTicks = geometric
      ? series[0].x.filter((_, i) => !narrow || i % 2 === 0)
      : niceTicks(x0, x1, narrow ? 4 : 8);
    return {
      named, margin, marks, toLog,
      x: {
        to: (value) => margin.left + ((stretch(value) - x0) / (x1 - x0 || 1)) * plotWidth,
        from: (pixel) => unstretch(x0 + ((pixel - margin.left) / plotWidth) * (x1 - x0)),
        ticks: xTicks,
        text: formatTick,
      },
      y: {
        to: (value) => margin.top + (1 - (value - y0) / (y1 - y0)) * plotHeight,
        ticks: log ? decades(y0, y1) : niceTicks(y0, y1, 5),
        text: log ? (exponent) => formatTick(10 ** exponent) : formatTick,
      },
    };
  }

  function draw(width) {
    const { series } = spec;
    const scale = scales(width);
    const { x, y, toLog, margin } = scale;
    const point = (line, i, column) => {
      return `${x.to(line.x[i]).toFixed(1)} ${y.to(toLog(column[i])).toFixed(1)}`;
    };
    const path = (line, column) => `M${line.x.map((_, i) => point(line, i, column)).join("L")}`;
    const lines = series.map((line, index) => svg("path", {
      class: "line",
      "data-name": line.name,
      "data-at": index,
      d: path(line, line.y),
      stroke: line.colour,
      "stroke-dasharray": line.dash,
      "stroke-width": series.length > 12 ? 1.1 : 1.8,
      "stroke-opacity": series.length > 30 ? 0.55 : null,
    }));
    const bands = series.filter((line) => line.low).map((line) => {
      const back = line.x.map((_, i) => point(line, line.x.length - 1 - i, line.low));
      const d = `${path(line, line.high)}L${back.join("L")}Z`;
      return svg("path", { class: "band", fill: line.colour, d });
    });
    const sparse = series.filter((line) => line.x.length <= 12 && series.length <= 8);
    const dots = sparse.flatMap((line) => line.x.map((value, i) => {
      const place = { cx: x.to(value), cy: y.to(toLog(line.y[i])) };
      return svg("circle", { class: "dot", ...place, r: 2.6, fill: line.colour });
    }));
    const marks = scale.marks.map(([value, text]) => {
      const right = width - margin.right;
      const at = y.to(value);
      return svg("g", { class: "mark" },
        svg("line", { x1: margin.left, x2: right, y1: at, y2: at }),
        svg("text", { x: right, y: at - 5, "text-anchor": "end" }, text));
    });
    const [top, bottom] = [margin.top, height - margin.bottom];
    const spans = (spec.spans || []).map(([from, to, text]) => {
      const [first, last] = [from, to].map((value) => {
        return Math.max(margin.left, Math.min(width - margin.right, x.to(value)));
      });
      return svg("g", { class: "span" },
        svg("rect", { x: first, y: top, width: Math.max(2, last - first), height: bottom - top }),
        svg("text", { x: first + 6, y: top + 14 }, text));
    });
    const cross = svg("line", { class: "cross", y1: top, y2: bottom, visibility: "hidden" });
    const bead = svg("circle", { class: "bead", r: 4, visibility: "hidden" });
    const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` },
      axes(width, height, margin, x, y, spec), spans, bands, marks, cross, lines, dots,
      scale.named ? names(scale) : [], bead);
    host.replaceChildren(picture);
    host.setAttribute("aria-label", describe());
    state = { scale, lines, cross, bead };
  }

  // Return what the chart shows in words: the first and last value of the first series.
  function describe() {
    const title = spec.title || spec.ylabel || "chart";
    const ends = spec.series.slice(0, 4).map((line) => {
      return `${line.name} from ${formatValue(line.y[0])} to ${formatValue(line.y.at(-1))}`;
    });
    const hint = spec.series.length ? ". Left and right arrow keys read values." : "";
    return `${title} by ${spec.xlabel || "x"}: ${ends.join(", ")}${hint}`;
  }

  // Return the name of each series at the end of its line, moved apart where they would overlap.
  function names({ x, y, toLog, margin }) {
    const ends = spec.series
      .map((line) => ({ line, top: y.to(toLog(line.y[line.y.length - 1])) }))
      .sort((a, b) => a.top - b.top);
    ends.forEach((end, i) => { if (i) end.top = Math.max(end.top, ends[i - 1].top + 15); });
    const overflow = ends.length ? ends[ends.length - 1].top - (height - margin.bottom) : 0;
    return ends.map(({ line, top }) => {
      const left = x.to(line.x[line.x.length - 1]) + 8;
      const text = line.name.length > 26 ? `${line.name.slice(0, 25)}…` : line.name;
      const baseline = top - Math.max(0, overflow) + 4;
      return svg("text", { class: "name", x: left, y: baseline },
        svg("tspan", { fill: line.colour }, "● "), text);
    });
  }

  // Return the point of each series that is closest to the pointer, the closest series first.
  function closestPoints(pointerX, pointerY) {
    const { x, y, toLog } = state.scale;
    const value = x.from(pointerX);
    return spec.series.map((line, series) => {
      const index = nearestIndex(line.x, value);
      const [left, top] = [x.to(line.x[index]), y.to(toLog(line.y[index]))];
      const distance = Math.hypot(left - pointerX, 2 * (top - pointerY));
      return { line, series, index, left, top, distance };
    }).sort((a, b) => a.distance - b.distance);
  }

  // Mark the point that is closest to the pointer and show the values of all series there.
  function point(pointerX, pointerY, clientX, clientY) {
    if (!state || !spec.series.length) return;
    const points = closestPoints(pointerX, pointerY);
    const first = points[0];
    const cross = { x1: first.left, x2: first.left, visibility: "visible" };
    const bead = { cx: first.left, cy: first.top, fill: first.line.colour, visibility: "visible" };
    for (const [name, value] of Object.entries(cross)) state.cross.setAttribute(name, value);
    for (const [name, value] of Object.entries(bead)) state.bead.setAttribute(name, value);
    const fade = spec.series.length > 1;
    state.lines.forEach((line, i) => line.classList.toggle("faded", fade && i !== first.series));
    const rows = points.slice(0, 7).map(({ line, index }, i) => {
      const row = tipRow(line.colour, line.name, formatValue(line.y[index]));
      row.classList.toggle("first", i === 0 && points.length > 1);
      return row;
    });
    if (points.length > 7) rows.push(el("div", { class: "more" }, `and ${points.length - 7} more`));
    const head = `${spec.xlabel || "x"} ${formatValue(first.line.x[first.index])}`;
    showTip(clientX, clientY, el("div", { class: "head" }, head), ...rows);
  }

  function leave() {
    hideTip();
    if (!state) return;
    for (const node of [state.cross, state.bead]) node.setAttribute("visibility", "hidden");
    for (const line of state.lines) line.classList.remove("faded");
  }

  let cursor = 0; // the point of the first series that the arrow keys have reached
  const onPointer = (event) => {
    const box = host.getBoundingClientRect();
    point(event.clientX - box.left, event.clientY - box.top, event.clientX, event.clientY);
  };
  host.addEventListener("pointermove", onPointer);
  host.addEventListener("pointerdown", onPointer);
  host.addEventListener("pointerleave", leave);
  host.addEventListener("blur", leave);
  host.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move || !spec.series.length) return;
    event.preventDefault();
    const line = spec.series[0];
    cursor = Math.max(0, Math.min(line.x.length - 1, cursor + move));
    const box = host.getBoundingClientRect();
    const { x, y, toLog } = state.scale;
    const [left, top] = [x.to(line.x[cursor]), y.to(toLog(line.y[cursor]))];
    point(left, top, box.left + left, box.top + top);
  });
  const redraw = responsive(host, draw);
  return {
    node: host,
    set(changes) { Object.assign(spec, changes); cursor = 0; leave(); redraw(); },
  };
}

// ---- histograms
// spec.series: [{name, colour, edges, counts}], drawn as step functions that may overlap.
// spec.share: the counts are fractions, shown in percent.

function histogram(spec) {
  const label = spec.title || "histogram";
  const host = el("div", { class: "chart", role: "img", "aria-label": label });
  const height = spec.height || 260;
  let xScale = null;

  function draw(width) {
    const { series } = spec;
    const margin = { left: 48, right: 14, top: 24, bottom: 40 };
    const [x0, x1] = extent(series.map((part) => part.edges));
    const y1 = (extent(series.map((part) => part.counts))[1] || 1) * 1.06;
    const plotWidth = width - margin.left - margin.right;
    const plotHeight = height - margin.top - margin.bottom;
    const x = {
      to: (value) => margin.left + ((value - x0) / (x1 - x0 || 1)) * plotWidth,
      from: (pixel) => x0 + ((pixel - margin.left) / plotWidth) * (x1 - x0),
      ticks: niceTicks(x0, x1, width < 480 ? 4 : 7),
      text: formatTick,
    };
    const y = {
      to: (value) => margin.top + (1 - value / y1) * plotHeight,
      ticks: niceTicks(0, y1, 4),
      text: spec.share ? (value) => `${formatTick(100 * value)} %` : formatTick,
    };
    xScale = x;
    const corner = (edge, count) => `${x.to(edge).toFixed(1)} ${y.to(count).toFixed(1)}`;
    const areas = series.map(({ name, colour, edges, counts }) => {
      const steps = counts.map((count, i) => {
        return `L${corner(edges[i], count)}L${corner(edges[i + 1], count)}`;
      });
      const d = `M${corner(edges[0], 0)}${steps.join("")}L${corner(edges[edges.length - 1], 0)}Z`;
      return svg("path", { class: "steps", "data-name": name, fill: colour, stroke: colour, d });
    });
    host.replaceChildren(svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` },
      axes(width, height, margin, x, y, spec), areas));
  }

  host.addEventListener("pointermove", (event) => {
    const box = host.getBoundingClientRect();
    const value = xScale.from(event.clientX - box.left);
    const bins = spec.series.map(({ edges, counts }) => {
      const bin = edges.findIndex((edge) => edge > value) - 1;
      return Math.max(0, Math.min(counts.length - 1, bin));
    });
    const { edges } = spec.series[0];
    const head = `${formatValue(edges[bins[0]])} to ${formatValue(edges[bins[0] + 1])}`;
    const rows = spec.series.map(({ name, colour, counts }, i) => {
      const count = counts[bins[i]];
      const text = spec.share ? `${(100 * count).toFixed(1)} %` : formatValue(count);
      return tipRow(colour, name, text);
    });
    showTip(event.clientX, event.clientY, el("div", { class: "head" }, head), ...rows);
  });
  host.addEventListener("pointerleave", hideTip);
  responsive(host, draw);
  return { node: host };
}

// ---- sparklines: small curves without axes

function sparkline(series) {
  const [width, height] = [120, 34];
  const [x0, x1] = extent(series.map((line) => line.x));
  const [y0, y1] = extent(series.map((line) => line.y));
  const lines = series.map((line) => {
    const last = line.x.length - 1;
    const every = Math.max(1, Math.floor(line.x.length / 60));
    const kept = line.x.map((_, i) => i).filter((i) => i % every === 0 || i === last);
    const points = kept.map((i) => {
      const x = ((line.x[i] - x0) / (x1 - x0 || 1)) * width;
      const y = 2 + (1 - (line.y[i] - y0) / (y1 - y0 || 1)) * (height - 4);
      return `${x.toFixed(1)} ${y.toFixed(1)}`;
    });
    const d = `M${points.join("L")}`;
    return svg("path", { d, stroke: line.colour, "vector-effect": "non-scaling-stroke" });
  });
  const viewBox = `0 0 ${width} ${height}`;
  const attributes = { viewBox, preserveAspectRatio: "none", "aria-hidden": "true" };
  return svg("svg", { class: "spark", ...attributes }, lines);
}

// ---- controls

// Return a row of buttons of which one is pressed. options: [[value, text]].
function choice(options, initial, onChoose, label) {
  const buttons = options.map(([value, text]) => {
    const pressed = String(value === initial);
    const onclick = () => press(value);
    return el("button", { type: "button", "aria-pressed": pressed, onclick }, text);
  });
  function press(value) {
    buttons.forEach((button, i) => {
      button.setAttribute("aria-pressed", String(options[i][0] === value));
    });
    onChoose(value);
  }
  return el("div", { class: "choice", role: "group", "aria-label": label }, buttons);
}

// Return a checkbox with a label.
function checkbox(text, initial, onChange) {
  const box = el("input", { type: "checkbox", onchange: () => onChange(box.checked) });
  box.checked = initial;
  return el("label", { class: "tick" }, box, text);
}

// Return a legend. entries: [[colour, text]].
function legend(entries) {
  return el("div", { class: "legend" }, entries.map(([colour, text]) => {
    const swatch = el("i");
    swatch.style.background = colour;
    return el("span", {}, swatch, text);
  }));
}
