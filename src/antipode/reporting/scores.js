// The scores of one run as a table, the scores of several runs as a dot plot, and the table of runs
// with its filter.

// Return the mean, the sample standard deviation (null for one value) and the number of values.
function summary(values) {
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  const squares = values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  const std = values.length > 1 ? Math.sqrt(squares / (values.length - 1)) : null;
  return { mean, std, n: values.length };
}

// Describe the images on which a score was computed, and the epoch of the backbone.
function formatScoredOn({ data, split, n, epoch }) {
  return `${data} ${split}, ${formatValue(n)} images, ${epoch} epoch`;
}

// Describe a score in a table, with what it is compared with. Settings are folded.
function scoreTable() {
  if (!D.columns.length) return;
  const run = D.runs[0];
  const order = D.columns.map((_, i) => i).sort((a, b) => (b === D.main) - (a === D.main));
  const has = (read) => order.some((i) => typeof read(i) === "number");
  const untrained = (i) => run.more[i]?.untrained;
  const chance = (i) => run.spans[i][2];
  const number = (text) => el("td", { class: "number" }, text);
  const shown = (value, i) => formatScore(value ?? null, D.columns[i].unit);
  const fields = [
    ["score", (i) => el("td", {}, el("b", {}, D.columns[i].label))],
    ["value", (i) => number([shown(run.scores[i], i), el("small", {}, ` ${D.columns[i].unit}`)])],
    ["95 % interval", (i) => number(formatSpan(run.spans[i], D.columns[i].unit))],
    ...(has(untrained) ? [["untrained", (i) => number(shown(untrained(i), i))]] : []),
    ...(has(chance) ? [["chance", (i) => number(shown(chance(i), i))]] : []),
    ["images", (i) => el("td", {}, formatScoredOn(D.columns[i]))],
  ];
  const rows = order.map((i) => fields.map(([, cell]) => cell(i)));
  const details = order.map((i) => {
    const { label, settings } = D.columns[i];
    const texts = [furtherNumbers(run.more[i]), formatSettings(settings)].filter(Boolean);
    return el("p", {}, el("b", {}, label), `: ${texts.join("; ")}`);
  });
  section("scores", "Scores",
    "Scores with the same name use the same protocol. The interval is over the images: train "
      + "several seeds to see their spread.",
    table(fields.map(([name]) => name), rows, "stack"),
    el("details", {}, el("summary", {}, "Settings and further numbers"),
      el("div", { class: "small settings" }, details)));
}

function formatSpan([low, high], unit) {
  if (typeof low !== "number" || typeof high !== "number") return "–";
  return `${formatScore(low, unit)} to ${formatScore(high, unit)}`;
}

// Return the further numbers of a score as text.
function furtherNumbers(more) {
  const entries = Object.entries(more || {}).filter(([name]) => name !== "untrained");
  return entries.map(([name, value]) => `${name} ${formatValue(value)}`).join(", ");
}

// ---- dot plot

function scorePlot() {
  if (!D.columns.length) return;
  let column = D.main ?? 0;
  const host = el("div", { class: "chart dots" });
  const about = el("p", { class: "small" });
  const how = el("p", { class: "small settings" });
  const redraw = responsive(host, (width) => host.replaceChildren(dotPlot(column, width)));
  const update = () => {
    const { label, unit, settings } = D.columns[column];
    const images = formatScoredOn(D.columns[column]);
    about.textContent = `${label}, ${unit}, on ${images}.`;
    how.textContent = formatSettings(settings);
    redraw();
  };
  const protocols = D.columns.map(({ label }, i) => [i, label]);
  const choose = (index) => { column = index; update(); };
  onFilter.push(update);
  section("scores", "Scores",
    "One row per setting (runs that differ only in their seed), sorted by mean score. Each dot is "
      + "a run. The vertical bar is the mean over seeds and the shaded band is one standard "
      + "deviation on either side.",
    protocols.length > 1
      ? el("div", { class: "controls" }, choice(protocols, column, choose, "protocol"))
      : null,
    host, about, el("details", {}, el("summary", {}, "Settings of this score"), how));
  update();
}

// Return one score per seed. Several runs with the same seed are averaged, because repeating a run
// says nothing about the spread over seeds.
function scoresBySeed(runs, column) {
  const seeds = new Map();
  for (const run of runs) {
    const { seed, scores } = D.runs[run];
    seeds.set(seed, [...(seeds.get(seed) || []), scores[column]]);
  }
  return [...seeds.values()].map((values) => summary(values).mean);
}

// Return the settings that have this score and a selected run, the highest mean first.
function scoredSettings(column) {
  const hasScore = (run) => typeof D.runs[run].scores[column] === "number";
  return D.groups.map(({ label, runs: members }) => {
    const runs = members.filter((run) => selected.has(run) && hasScore(run));
    return { label, runs, ...(runs.length ? summary(scoresBySeed(runs, column)) : {}) };
  }).filter((row) => row.runs.length).sort((a, b) => b.mean - a.mean);
}

function dotPlot(column, width) {
  const MOST = 40; // rows
  const all = scoredSettings(column);
  const rows = all.slice(0, MOST); // the highest
  const narrow = width < 620;
  const longest = Math.max(...rows.map((row) => row.label.length), 8);
  const rowHeight = narrow ? 46 : 32;
  const left = narrow ? 8 : Math.min(300, 30 + 7 * longest);
  const right = narrow ? 8 : 150;
  const top = 8;
  const height = top + rows.length * rowHeight + 34;
  let [x0, x1] = extent(rows.map(({ runs, mean, std }) => {
    return [...runs.map((run) => D.runs[run].scores[column]), mean - (std || 0), mean + (std || 0)];
  }));
  const padding = (x1 - x0 || Math.abs(x1) || 1) * 0.08;
  [x0, x1] = [x0 - padding, x1 + padding];
  const to = (value) => left + 8 + ((value - x0) / (x1 - x0)) * (width - left - right - 16);
  const layout = { narrow, to, left, width, right, column };
  const nodes = [];
  for (const tick of niceTicks(x0, x1, narrow ? 4 : 7)) {
    const x = to(tick);
    const label = { class: "tick", x, y: height - 12, "text-anchor": "middle" };
    nodes.push(svg("line", { class: "grid", x1: x, x2: x, y1: top, y2: height - 30 }));
    nodes.push(svg("text", label, formatTick(tick)));
  }
  rows.forEach((row, i) => {
    const middle = top + i * rowHeight + (narrow ? 31 : rowHeight / 2);
    nodes.push(dotRow(row, middle, layout));
  });
  if (!rows.length) {
    const text = "None of the selected runs has this score.";
    nodes.push(svg("text", { class: "tick", x: 10, y: 20 }, text));
  }
  if (all.length > MOST) {
    const text = `The ${MOST} highest of ${all.length} settings are shown.`;
    nodes.push(svg("text", { class: "label", x: 2, y: height }, text));
  }
  const { label: name, unit } = D.columns[column];
  const means = rows.slice(0, 5).map((row) => `${row.label} ${formatScore(row.mean, unit)}`);
  const label = `${name} of each setting, the highest first: ${means.join(", ")}`;
  const attributes = { width, height, viewBox: `0 0 ${width} ${height}`, role: "img" };
  return svg("svg", { ...attributes, "aria-label": label }, nodes);
}

function dotRow(row, y, { narrow, to, left, width, right, column }) {
  const { unit } = D.columns[column];
  const hue = colour(row.runs[0]);
  const spread = row.std === null ? "" : ` ± ${formatScore(row.std, unit)}`;
  const most = narrow ? 30 : 40; // characters
  const label = row.label.length > most ? `${row.label.slice(0, most - 1)}…` : row.label;
  const labelPlace = narrow
    ? { x: 2, y: y - 13 }
    : { x: left - 10, y: y + 4, "text-anchor": "end" };
  const scorePlace = narrow
    ? { x: width - 4, y: y - 13, "text-anchor": "end" }
    : { x: width - right + 8, y: y + 4, "text-anchor": "start" };
  const hit = { x: 0, y: y - (narrow ? 28 : 16), width, height: narrow ? 44 : 32 };
  const mean = { stroke: hue, x1: to(row.mean), x2: to(row.mean), y1: y - 9, y2: y + 9 };
  const value = (run) => D.runs[run].scores[column];
  const dot = (run) => {
    return svg("circle", { class: "dot", fill: hue, cx: to(value(run)), cy: y, r: 4.2 });
  };
  const group = svg("g", { class: "dotrow" },
    svg("rect", { class: "hit", ...hit }),
    svg("text", { class: "who", ...labelPlace }, label),
    row.std === null ? null : deviationBand(row, y, to, hue),
    svg("line", { class: "mean", ...mean }),
    row.runs.map(dot),
    svg("text", { class: "sum", ...scorePlace },
      `${formatScore(row.mean, unit)}${spread}`, svg("tspan", { class: "n" }, `  n = ${row.n}`)));
  group.addEventListener("pointermove", (event) => {
    const rows = row.runs.slice(0, 10).map((run) => {
      return tipRow(colour(run), D.runs[run].name, formatScore(value(run), unit));
    });
    showTip(event.clientX, event.clientY, el("div", { class: "head" }, row.label), ...rows);
  });
  group.addEventListener("pointerleave", hideTip);
  return group;
}

function deviationBand({ mean, std }, y, to, fill) {
  const left = to(mean - std);
  const width = Math.max(1, to(mean + std) - left);
  return svg("rect", { class: "band", fill, x: left, y: y - 8, width, height: 16, rx: 3 });
}

// ---- the table of runs, which also selects the runs in the charts

// Return the last contrastive term, or the last loss where there is none, as the progress bar does.
// AdCo minimises the difference of two losses, whose value has no meaning.
function lastLoss(run) {
  const curve = run.curves.y.contrast ?? run.curves.y.loss;
  return curve ? curve[1][curve[1].length - 1] : null;
}

// Return the columns of the table: [heading, value of a run, format of a value].
function tableFields() {
  const heading = (key) => {
    return key.replace(/\.name$/, "").replace(/^(method|train|optim\.network)\./, "");
  };
  const varying = D.vary.map((key, i) => {
    return [heading(key), (run) => (run.recipe.length ? asNumber(run.vary[i]) : null), formatValue];
  });
  const scores = D.columns.map(({ label, unit }, i) => {
    return [label, (run) => run.scores[i] ?? null, (value) => formatScore(value, unit)];
  });
  return [
    ["run", (run) => run.name, formatValue],
    ...varying,
    ...scores,
    ["last loss", lastLoss, formatValue],
    ["status", (run) => run.status, formatValue],
  ];
}

// Compare two cells: numbers by value, texts in natural order, empty cells after all others.
function compareCells(a, b) {
  if (a === null) return 1;
  if (b === null) return -1;
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

function runTable() {
  const fields = tableFields();
  const numeric = fields.map(([, read]) => D.runs.some((run) => typeof read(run) === "number"));
  const search = el("input", {
    type: "search",
    id: "filter",
    placeholder: "Filter, for example: dcl seed=1",
    "aria-label": "filter runs",
    oninput: () => filter(search.value),
  });
  const count = el("span", { class: "small count" });
  const place = el("div");
  let sortBy = -1; // index of a field, or -1 for the given order
  let direction = 1;
  let matching = new Set(selected); // indices of the runs that pass the filter

  function filter(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const matches = (run) => words.every((word) => searchText(run).includes(word));
    matching = new Set(D.runs.map((_, index) => index).filter((index) => matches(D.runs[index])));
    selectAll();
  }

  function selectAll() {
    selected.clear();
    for (const index of matching) selected.add(index);
    selectionChanged();
  }

  function selectNone() {
    selected.clear();
    selectionChanged();
  }

  function tableRow(index) {
    const run = D.runs[index];
    const onchange = () => {
      if (box.checked) selected.add(index);
      else selected.delete(index);
      selectionChanged();
    };
    const box = el("input", { type: "checkbox", "aria-label": `show ${run.name}`, onchange });
    box.checked = selected.has(index);
    const swatch = el("i", { class: "swatch" });
    swatch.style.background = colour(index);
    const cells = fields.map(([, read, format], i) => {
      const text = format(read(run));
      const content = i ? text : el("label", {}, box, swatch, text);
      const name = fields[i][0];
      return el("td", { class: numeric[i] ? "number" : null, "data-label": i ? name : null }, content);
    });
    return el("tr", {}, cells);
  }

  function heading([text], i) {
    const onclick = () => {
      direction = i === sortBy ? -direction : 1;
      sortBy = i;
      draw();
    };
    const sorted = direction > 0 ? "ascending" : "descending";
    const attributes = {
      class: numeric[i] ? "number" : null,
      "aria-sort": i === sortBy ? sorted : null,
    };
    return el("th", attributes, el("button", { type: "button", onclick }, text));
  }

  function draw() {
    const order = [...matching].sort((a, b) => {
      if (sortBy < 0) return a - b;
      const read = fields[sortBy][1];
      return direction * compareCells(read(D.runs[a]), read(D.runs[b]));
    });
    const runs = el("table", { class: "runs" },
      el("thead", {}, el("tr", {}, fields.map(heading))),
      el("tbody", {}, order.map(tableRow)));
    const scroll = { class: "wide tall stack", tabindex: 0, role: "group", "aria-label": "table of runs" };
    place.replaceChildren(el("div", scroll, runs));
    count.textContent = `${selected.size} of ${D.runs.length} runs shown`;
  }

  onFilter.push(draw);
  section("runs", "Runs",
    "The recipe values that differ between the runs, and the results. The filter and the "
      + "checkboxes select the runs that are shown in the charts.",
    el("div", { class: "controls" },
      search,
      el("button", { type: "button", onclick: selectAll }, "Select all"),
      el("button", { type: "button", onclick: selectNone }, "Select none"),
      count),
    place);
  draw();
}

function asNumber(text) {
  if (text === "null") return null;
  return text !== "" && !Number.isNaN(Number(text)) ? Number(text) : text;
}

// Return the text that the filter searches: the run's names, and "key=value" of every recipe value
// that varies. It is computed once.
function searchText(run) {
  if (run.searchText) return run.searchText;
  const pairs = D.vary.flatMap((key, i) => {
    return [`${key}=${run.vary[i]}`, `${key.split(".").pop()}=${run.vary[i]}`];
  });
  const words = [run.name, run.method, run.data, run.status, ...pairs];
  run.searchText = words.join(" ").toLowerCase();
  return run.searchText;
}

function selectionChanged() {
  for (const update of onFilter) update();
}
