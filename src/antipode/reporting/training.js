// The training curves: one large chart and a card with a sparkline for each metric.

function curveSection() {
  if (!D.metrics.length) {
    section("training", "Training", null, unavailable("no training metrics were logged"));
    return;
  }
  const state = { metric: D.metrics[0][0], axis: "step", log: false, smooth: false, seeds: false };
  const title = el("h3", { id: "metric" });
  const explanation = el("p", { class: "small" });
  const filling = el("p", { class: "small filling", hidden: true });
  const chart = lineChart({ series: [], direct: true, height: 340 });
  const cards = el("div", { class: "cards" });
  const hasSeeds = D.groups.some((group) => group.runs.length > 1);
  const runsWith = (runs, metric) => runs.filter((index) => D.runs[index].curves.y[metric]);

  function draw() {
    const [name, text, about, marks] = D.metrics.find(([metric]) => metric === state.metric);
    title.textContent = text;
    explanation.textContent = about;
    let series = runsWith(selectedRuns(), name).map((index) => curve(index, name, state));
    const filled = D.filled.includes(name) ? fillings(series, state) : [];
    filling.textContent = filled.map(fillingText).filter(Boolean)[0] || "";
    filling.hidden = !filling.textContent;
    if (state.seeds) series = meansOverSeeds(series);
    const spans = filled.length ? [[filled[0].from, filled[0].to, `${filled[0].kind} fills`]] : [];
    chart.set({ series, marks, spans, log: state.log, xlabel: state.axis, title: text });
  }

  // Draw one card per metric, with the curves of the first 12 selected runs.
  function drawCards() {
    const first = selectedRuns().slice(0, 12);
    const columns = evenColumns(D.metrics.length, cards.clientWidth || 1032);
    const rest = D.metrics.length % columns;
    cards.style.setProperty("--cards", columns);
    cards.style.setProperty("--last", rest ? columns - rest + 1 : 1); // the last card fills its row
    cards.replaceChildren(...D.metrics.map(([name, text]) => {
      const runs = runsWith(first, name);
      const onclick = () => { state.metric = name; drawCards(); draw(); };
      const pressed = String(name === state.metric);
      const attributes = { class: "card", "data-metric": name, "aria-pressed": pressed, onclick };
      const series = runs.map((index) => curve(index, name, { axis: "step" }));
      return el("button", { type: "button", ...attributes },
        el("span", {}, text), el("b", {}, lastValues(runs, name)), sparkline(series));
    }));
  }

  onFilter.push(drawCards, draw);
  const change = (key) => (value) => { state[key] = value; draw(); };
  const horizontal = [["step", "steps"], ["epoch", "epochs"]];
  const lines = [[false, "each run"], [true, "mean over seeds"]];
  section("training", "Training",
    "Select a metric below the chart. Hover over a curve to read its values. Curves with many "
      + "points are downsampled; the minimum and maximum of every interval are kept.",
    el("div", { class: "panel" },
      el("div", { class: "controls" },
        el("div", { class: "what" }, title, explanation),
        choice(horizontal, "step", change("axis"), "horizontal axis"),
        hasSeeds ? choice(lines, false, change("seeds"), "each run or mean over seeds") : null,
        checkbox("log scale", false, change("log")),
        checkbox("smoothing", false, change("smooth"))),
      filling,
      chart.node),
    cards);
  drawCards();
  draw();
}

// Return the number of cards in a row with which the last row is as full as possible.
function evenColumns(count, width) {
  const most = Math.max(2, Math.floor((width + 10) / 148));
  if (count <= most) return count;
  const options = Array.from({ length: Math.ceil(most / 2) }, (_, i) => most - i).filter((n) => n > 1);
  const empty = (columns) => (columns - (count % columns)) % columns;
  return options.reduce((best, columns) => (empty(columns) < empty(best) ? columns : best));
}

// Return the spans in which stored random vectors are replaced, of the runs of some curves that
// have such a span. The longest comes first.
function fillings(series, { axis }) {
  const found = series.map(({ run: index }) => {
    const run = D.runs[index];
    if (!run.filling) return null;
    const scale = axis === "epoch" && run.perEpoch ? 1 / run.perEpoch : 1;
    return { ...run.filling, from: 0, to: run.filling.steps * scale };
  }).filter(Boolean);
  return found.sort((a, b) => b.steps - a.steps);
}

// Return why a loss rises at first, or null if it does not.
function fillingText({ kind, count, steps, rises }) {
  if (!rises) return null;
  return `The loss rises during the first ${formatValue(steps)} steps, and this is normal: the ${kind} `
    + `starts with ${formatValue(count)} random vectors, which are easy to tell from an image, and `
    + "keys of images replace them.";
}

// Return the last value of a metric as text, or its range over several runs.
function lastValues(runs, name) {
  const values = runs.map((index) => D.runs[index].curves.y[name][1].at(-1));
  if (!values.length) return "–";
  if (values.length === 1) return formatValue(values[0]);
  return `${formatValue(Math.min(...values))} to ${formatValue(Math.max(...values))}`;
}

// Return the curve of one metric of one run as a series of a line chart.
function curve(index, name, { axis, smooth }) {
  const run = D.runs[index];
  const [which, values] = run.curves.y[name];
  const steps = run.curves.x[which];
  const epoch = (step) => Number(((step + 1) / run.perEpoch).toFixed(3));
  const x = axis === "epoch" && run.perEpoch ? steps.map(epoch) : steps;
  const y = smooth ? movingAverage(values) : values;
  const look = { colour: colour(index), dash: dash(index) };
  return { name: run.name, run: index, group: run.group, ...look, x, y };
}

// Return the exponential moving average, with a weight of 0.15 for each new value.
function movingAverage(values) {
  let average = values[0];
  return values.map((value) => {
    average = 0.85 * average + 0.15 * value;
    return average;
  });
}

// Return one series per setting: the mean over its runs, with a band of one standard deviation on
// either side. The x values are those of its first run, up to the end of its shortest run.
function meansOverSeeds(series) {
  const groups = new Map();
  for (const line of series) groups.set(line.group, [...(groups.get(line.group) || []), line]);
  return [...groups.values()].map((members) => {
    const first = members[0];
    const end = Math.min(...members.map((line) => line.x[line.x.length - 1]));
    const x = first.x.filter((value) => value <= end);
    const points = x.map((value) => summary(members.map((line) => interpolate(line, value))));
    const y = points.map(({ mean }) => mean);
    const { label } = D.groups[first.group];
    if (members.length === 1) return { ...first, name: label, x, y, low: null, high: null };
    const low = points.map(({ mean, std }) => mean - std);
    const high = points.map(({ mean, std }) => mean + std);
    return { ...first, name: `${label} (n = ${members.length})`, x, y, low, high };
  });
}

// Return the value of a series at x, by linear interpolation.
function interpolate(line, x) {
  const next = line.x.findIndex((value) => value >= x);
  if (next <= 0) return line.y[Math.max(next, 0)];
  const part = (x - line.x[next - 1]) / (line.x[next] - line.x[next - 1]);
  return line.y[next - 1] + part * (line.y[next] - line.y[next - 1]);
}
