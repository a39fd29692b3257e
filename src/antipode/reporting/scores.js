// Scores: tiles of one run, dots of several; and the table of runs, which is the filter too.

function summary(values) {
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  const around = values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  return { mean, std: values.length > 1 ? Math.sqrt(around / (values.length - 1)) : null, n: values.length };
}

function scoreTiles() {
  if (!D.columns.length) return;
  const run = D.runs[0];
  const tiles = D.columns.map((column, at) => {
    const more = Object.entries(run.more[at] || {}).filter(([, value]) => typeof value === "number");
    return el("div", { class: "tile" },
      el("h3", {}, column.label),
      el("p", { class: "value" }, score(run.scores[at], column.unit), el("span", {}, ` ${column.unit}`)),
      more.length ? el("p", {}, more.map(([name, value]) => `${name} ${say(value)}`).join(", ")) : null,
      el("p", {}, `${column.data} ${column.split}, ${say(column.n)} images, ${column.epoch} epoch`),
      el("p", { class: "settings" }, settingsText(column.settings)));
  });
  section("scores", "Scores", "Each protocol with its own numbers: two scores of one name mean the same. One run has no spread; give several seeds of it to see one.", el("div", { class: "tiles" }, tiles));
}

function scorePlot() {
  if (!D.columns.length) return;
  let column = D.main ?? 0;
  const host = el("div", { class: "chart dots" });
  const about = el("p", { class: "small" });
  const again = responsive(host, (width) => host.replaceChildren(dotPlot(column, width)));
  const tell = () => {
    const kind = D.columns[column];
    about.textContent = `${kind.label}, ${kind.unit}, on ${kind.data} ${kind.split}, ${say(kind.n)} images, ${kind.epoch} epoch. ${settingsText(kind.settings)}`;
    again();
  };
  onFilter.push(tell);
  section("scores", "Scores", "One row per setting, the highest first. A dot is a run, the bar is the mean, the band one standard deviation over seeds.",
    D.columns.length > 1 ? el("div", { class: "controls" }, choice(D.columns.map((one, at) => [at, one.label]), column, (at) => { column = at; tell(); }, "protocol")) : null, host, about);
  tell();
}

// runs of one seed are one value: a run that was repeated tells nothing of the spread
function bySeed(runs, column) {
  const seeds = new Map();
  for (const run of runs) seeds.set(D.runs[run].seed, [...(seeds.get(D.runs[run].seed) || []), D.runs[run].scores[column]]);
  return [...seeds.values()].map((values) => summary(values).mean);
}

function scored(column) {
  return D.groups.map((group, at) => {
    const runs = group.runs.filter((run) => shown.has(run) && typeof D.runs[run].scores[column] === "number");
    return { at, label: group.label, runs, ...(runs.length ? summary(bySeed(runs, column)) : {}) };
  }).filter((row) => row.runs.length).sort((a, b) => b.mean - a.mean);
}

function dotPlot(column, width) {
  const all = scored(column);
  const rows = all.slice(0, 40);
  const unit = D.columns[column].unit;
  const narrow = width < 620;
  const [high, left, right, top] = narrow ? [46, 8, 8, 8] : [32, Math.min(300, 30 + 7 * Math.max(...rows.map((row) => row.label.length), 8)), 150, 8];
  const height = top + rows.length * high + 34;
  let [x0, x1] = range(rows.map((row) => [...row.runs.map((run) => D.runs[run].scores[column]), row.mean - (row.std || 0), row.mean + (row.std || 0)]));
  const pad = (x1 - x0 || Math.abs(x1) || 1) * 0.08;
  [x0, x1] = [x0 - pad, x1 + pad];
  const to = (value) => left + 8 + ((value - x0) / (x1 - x0)) * (width - left - right - 16);
  const parts = [];
  for (const tick of niceTicks(x0, x1, narrow ? 4 : 7)) {
    parts.push(svg("line", { class: "grid", x1: to(tick), x2: to(tick), y1: top, y2: height - 30 }));
    parts.push(svg("text", { class: "tick", x: to(tick), y: height - 12, "text-anchor": "middle" }, tickText(tick)));
  }
  rows.forEach((row, place) => parts.push(dotRow(row, top + place * high + (narrow ? 31 : high / 2), { narrow, to, left, width, right, unit, column })));
  if (!rows.length) parts.push(svg("text", { class: "tick", x: 10, y: 20 }, "none of the chosen runs has this score"));
  if (all.length > 40) parts.push(svg("text", { class: "label", x: 2, y: height }, `the highest 40 of ${all.length} settings`));
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` }, parts);
}

function dotRow(row, y, { narrow, to, left, width, right, unit, column }) {
  const hue = colour(row.runs[0]);
  const text = `${score(row.mean, unit)}${row.std === null ? "" : ` ± ${score(row.std, unit)}`}`;
  const fit = narrow ? 30 : 40;
  const label = row.label.length > fit ? `${row.label.slice(0, fit - 1)}…` : row.label;
  const group = svg("g", { class: "dotrow" },
    svg("rect", { class: "hit", x: 0, y: y - (narrow ? 28 : 16), width, height: narrow ? 44 : 32 }),
    narrow ? svg("text", { class: "who", x: 2, y: y - 13 }, label) : svg("text", { class: "who", x: left - 10, y: y + 4, "text-anchor": "end" }, label),
    row.std === null ? null : svg("rect", { class: "band", fill: hue, x: to(row.mean - row.std), y: y - 8, width: Math.max(1, to(row.mean + row.std) - to(row.mean - row.std)), height: 16, rx: 3 }),
    svg("line", { class: "mean", stroke: hue, x1: to(row.mean), x2: to(row.mean), y1: y - 9, y2: y + 9 }),
    row.runs.map((run) => svg("circle", { class: "dot", fill: hue, cx: to(D.runs[run].scores[column]), cy: y, r: 4.2 })),
    svg("text", { class: "sum", x: narrow ? width - 4 : width - right + 8, y: narrow ? y - 13 : y + 4, "text-anchor": narrow ? "end" : "start" }, text, svg("tspan", { class: "n" }, `  n = ${row.n}`)));
  group.addEventListener("pointermove", (event) => showTip(event.clientX, event.clientY, el("div", { class: "head" }, row.label), ...row.runs.slice(0, 10).map((run) => tipRow(colour(run), D.runs[run].name, score(D.runs[run].scores[column], unit)))));
  group.addEventListener("pointerleave", hideTip);
  return group;
}

// ---- the table of runs, which is the filter too

function lastLoss(run) {
  const found = run.curves.y.contrast ?? run.curves.y.loss; // as the bar shows it: the difference that AdCo minimises has no meaning
  return found ? found[1][found[1].length - 1] : null;
}

function runTable() {
  let [by, turn] = [-1, 1];
  const fields = [["run", (run) => run.name], ...D.vary.map((key, at) => [key.replace(/\.name$/, "").replace(/^(method|train|optim\.network)\./, ""), (run) => (run.recipe.length ? asNumber(run.vary[at]) : null)]),
    ...D.columns.map((column, at) => [column.label, (run) => run.scores[at] ?? null, (value) => score(value, column.unit)]), ["last loss", lastLoss], ["state", (run) => run.status]];
  const numeric = fields.map(([, read]) => D.runs.some((run) => typeof read(run) === "number"));
  const search = el("input", { type: "search", id: "filter", placeholder: "filter: words of a name, dcl, seed=1 …", "aria-label": "filter runs", oninput: () => narrow(search.value) });
  const count = el("span", { class: "small count" });
  const place = el("div");
  let match = new Set(shown);

  function narrow(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    match = new Set(D.runs.map((_, at) => at).filter((at) => words.every((word) => hay(D.runs[at]).includes(word))));
    shown.clear();
    for (const at of match) shown.add(at);
    changed();
  }

  function row(at) {
    const run = D.runs[at];
    const box = el("input", { type: "checkbox", "aria-label": `show ${run.name}`, onchange: () => { if (box.checked) shown.add(at); else shown.delete(at); changed(); } });
    box.checked = shown.has(at);
    const swatch = el("i", { class: "swatch" });
    swatch.style.background = colour(at);
    const cells = fields.map(([, read, write], place) => {
      const text = (write || say)(read(run));
      return el("td", { class: numeric[place] ? "number" : null }, place ? text : el("label", {}, box, swatch, text));
    });
    return el("tr", {}, cells);
  }

  function draw() {
    const order = [...match].sort((a, b) => {
      if (by < 0) return a - b;
      const [one, two] = [a, b].map((at) => fields[by][1](D.runs[at]));
      return turn * (one === null ? 1 : two === null ? -1 : typeof one === "number" && typeof two === "number" ? one - two : String(one).localeCompare(String(two), "en", { numeric: true }));
    });
    const heads = fields.map(([text], at) => el("th", { class: numeric[at] ? "number" : null, "aria-sort": at === by ? (turn > 0 ? "ascending" : "descending") : null }, el("button", { type: "button", onclick: () => { [by, turn] = [at, at === by ? -turn : 1]; draw(); } }, text)));
    place.replaceChildren(el("div", { class: "wide tall" }, el("table", { class: "runs" }, el("thead", {}, el("tr", {}, heads)), el("tbody", {}, order.map(row)))));
    count.textContent = `${shown.size} of ${D.runs.length} runs shown`;
  }

  onFilter.push(draw);
  const set = (all) => { shown.clear(); if (all) for (const at of match) shown.add(at); changed(); };
  section("runs", "Runs", "What differs between the runs, and what came out. The filter and the boxes decide which runs the scores and curves show.",
    el("div", { class: "controls" }, search, el("button", { type: "button", onclick: () => set(true) }, "all"), el("button", { type: "button", onclick: () => set(false) }, "none"), count), place);
  draw();
}

function asNumber(text) {
  return text !== "" && !Number.isNaN(Number(text)) ? Number(text) : text === "null" ? null : text;
}

function hay(run) {
  run.hay ??= [run.name, run.method, run.data, run.status, ...D.vary.flatMap((key, at) => [`${key}=${run.vary[at]}`, `${key.split(".").pop()}=${run.vary[at]}`])].join(" ").toLowerCase();
  return run.hay;
}

function changed() {
  for (const again of onFilter) again();
}
