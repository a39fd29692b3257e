// What training recorded.

function curveSection() {
  if (!D.metrics.length) {
    section("training", "Training", null, el("p", { class: "absent" }, "Not here: no run has recorded anything."));
    return;
  }
  const state = { metric: D.metrics[0][0], axis: "step", log: false, smooth: false, seeds: false };
  const title = el("h3", { id: "metric" });
  const how = el("p", { class: "small" });
  const chart = lineChart({ series: [], direct: true, height: 340 });
  const cards = el("div", { class: "cards" });
  const repeated = D.groups.some((group) => group.runs.length > 1);

  function draw() {
    const [name, text, about, marks] = D.metrics.find(([metric]) => metric === state.metric);
    title.textContent = text;
    how.textContent = about;
    let series = chosen().filter((at) => D.runs[at].curves.y[name]).map((at) => curve(at, name, state));
    if (state.seeds) series = joined(series);
    chart.set({ series, marks, log: state.log, xlabel: state.axis, title: text });
  }

  function deal() {
    const few = chosen().slice(0, 12);
    cards.replaceChildren(...D.metrics.map(([name, text]) => {
      const runs = few.filter((at) => D.runs[at].curves.y[name]);
      const lasts = runs.map((at) => D.runs[at].curves.y[name][1].at(-1));
      const last = lasts.length === 1 ? say(lasts[0]) : lasts.length ? `${say(Math.min(...lasts))} to ${say(Math.max(...lasts))}` : "–";
      return el("button", { type: "button", class: "card", "data-metric": name, "aria-pressed": String(name === state.metric), onclick: () => { state.metric = name; deal(); draw(); } },
        el("span", {}, text), el("b", {}, last), spark(runs.map((at) => curve(at, name, { axis: "step" }))));
    }));
  }

  onFilter.push(deal, draw);
  const change = (key) => (value) => { state[key] = value; draw(); };
  section("training", "Training", "Choose a curve below; point at it to read it. Long runs are thinned, keeping the lowest and highest point of every stretch.",
    el("div", { class: "panel" },
      el("div", { class: "controls" }, el("div", { class: "what" }, title, how),
        choice([["step", "steps"], ["epoch", "epochs"]], "step", change("axis"), "horizontal axis"),
        repeated ? choice([[false, "each run"], [true, "mean of seeds"]], false, change("seeds"), "runs or means") : null,
        tick("log", false, change("log")), tick("smooth", false, change("smooth"))),
      chart.node),
    cards);
  deal();
  draw();
}

function curve(at, name, { axis, smooth }) {
  const run = D.runs[at];
  const [which, values] = run.curves.y[name];
  const steps = run.curves.x[which];
  const x = axis === "epoch" && run.perEpoch ? steps.map((step) => Number(((step + 1) / run.perEpoch).toFixed(3))) : steps;
  return { name: run.name, group: run.group, at, colour: colour(at), dash: dash(at), x, y: smooth ? smoothed(values) : values };
}

function smoothed(values) {
  let kept = values[0];
  return values.map((value) => { kept = 0.85 * kept + 0.15 * value; return kept; });
}

// one line for each setting: the mean over its seeds at the steps of the first, and a standard deviation around it
function joined(series) {
  const groups = new Map();
  for (const one of series) groups.set(one.group, [...(groups.get(one.group) || []), one]);
  return [...groups.values()].map((members) => {
    const first = members[0];
    const end = Math.min(...members.map((one) => one.x[one.x.length - 1]));
    const x = first.x.filter((value) => value <= end);
    const sums = x.map((value) => summary(members.map((one) => between(one, value))));
    const label = D.groups[first.group].label + (members.length > 1 ? ` (n = ${members.length})` : "");
    const wide = members.length > 1;
    return { ...first, name: label, x, y: sums.map((sum) => sum.mean), low: wide ? sums.map((sum) => sum.mean - sum.std) : null, high: wide ? sums.map((sum) => sum.mean + sum.std) : null };
  });
}

function between(one, value) {
  const at = one.x.findIndex((x) => x >= value);
  if (at <= 0) return one.y[Math.max(at, 0)];
  const part = (value - one.x[at - 1]) / (one.x[at] - one.x[at - 1]);
  return one.y[at - 1] + part * (one.y[at] - one.y[at - 1]);
}
