// Analyses, drawn without knowing what they are, and where a run comes from.

// ---- analyses: drawn without knowing what they are

function analysisSection() {
  const kinds = [...new Set(D.runs.flatMap((run) => Object.keys(run.analysis)))];
  if (!kinds.length) return;
  const place = el("div");
  const draw = () => place.replaceChildren(...kinds.map(analysis).filter(Boolean));
  section("analyses", "Analyses", "What antipode analyse has found, as it wrote it down.", place);
  onFilter.push(draw);
  draw();
}

function analysis(what) {
  const having = chosen().filter((at) => D.runs[at].analysis[what]);
  if (!having.length) return null;
  const few = having.slice(0, 8);
  const results = few.map((at) => D.runs[at].analysis[what]);
  const names = [...new Set(results.flatMap((result) => Object.keys(result.values)))];
  const values = names.length ? table(["", ...few.map((at) => (many ? D.runs[at].name : "value"))], names.map((name) => [name, ...results.map((result) => el("td", { class: "number" }, say(result.values[name])))]), "fit") : null;
  const notes = [...new Set(results.flatMap((result) => result.notes))];
  const settings = results.map((result) => settingsText(result.settings)).filter(Boolean);
  return el("article", { class: "analysis", "data-what": what }, el("h3", {}, what), values,
    charts(few, what, "curves", (shape) => `${shape.xlabel} | ${shape.ylabel}`, (list, shape) => lineChart({ series: list, xlabel: shape.xlabel, ylabel: shape.ylabel, direct: true, height: 280, title: what })),
    charts(few, what, "histograms", (shape) => shape.xlabel, (list, shape) => histogram({ series: list, xlabel: shape.xlabel, title: what })),
    notes.map((note) => el("p", { class: "small" }, note)),
    having.length > 8 ? el("p", { class: "small" }, `The first 8 of ${having.length} chosen runs that have it.`) : null,
    settings.length ? el("p", { class: "small settings" }, [...new Set(settings)].join("; ")) : null);
}

// curves with the same axes share a picture
function charts(runs, what, kind, axes, make) {
  const pictures = new Map();
  for (const at of runs) for (const [name, shape] of Object.entries(D.runs[at].analysis[what][kind])) {
    pictures.set(axes(shape), [...(pictures.get(axes(shape)) || []), { at, name, shape }]);
  }
  return [...pictures.values()].map((list) => {
    const series = list.map(({ at, name, shape }, place) => ({ ...shape, name: runs.length > 1 ? `${D.runs[at].name} ${name}` : name, colour: `var(--s${(runs.length > 1 && list.length === runs.length ? D.runs[at].group : place) % COLOURS})` }));
    const key = series.length > 1 && kind === "histograms" ? legend(series.map((one) => [one.colour, one.name])) : null;
    if (kind === "histograms" && series.length > 6) return chosenHistogram(list, make);
    return el("figure", {}, series.length === 1 ? el("figcaption", {}, series[0].name) : key, make(series, list[0].shape).node);
  });
}

// too many to lie over each other: one name at a time, for every run that has it
function chosenHistogram(list, make) {
  const place = el("div");
  const names = [...new Set(list.map(({ name }) => name))];
  const draw = (wanted) => {
    const few = list.filter(({ name }) => name === wanted);
    place.replaceChildren(legend(few.map(({ at }, order) => [`var(--s${order % COLOURS})`, many ? D.runs[at].name : wanted])), make(few.map(({ at, shape }, order) => ({ ...shape, name: many ? D.runs[at].name : wanted, colour: `var(--s${order % COLOURS})` })), list[0].shape).node);
  };
  const select = el("select", { "aria-label": "histogram", onchange: () => draw(select.value) }, names.map((name) => el("option", {}, name)));
  draw(names[0]);
  return el("figure", {}, select, place);
}

function legend(entries) {
  return el("div", { class: "legend" }, entries.map(([hue, words]) => {
    const swatch = el("i");
    swatch.style.background = hue;
    return el("span", {}, swatch, words);
  }));
}

// ---- where it comes from

function methodSection() {
  const kinds = new Map();
  for (const group of D.groups) {
    const run = D.runs[group.runs[0]];
    if (run.choices) kinds.set(`${run.method} ${JSON.stringify(run.choices)}`, [group.label, run]);
  }
  const rows = [...kinds.values()];
  if (!rows.length) return;
  const how = "A method is a row of choices, read off the learner that the recipe builds.";
  if (rows.length === 1) {
    section("method", "Method", how, el("dl", { class: "choices" }, D.axes.map(([axis, meaning]) => el("div", {}, el("dt", {}, axis, el("small", {}, meaning)), el("dd", {}, rows[0][1].choices[axis])))));
  } else {
    section("method", "Methods", how, table(["", ...D.axes.map(([axis]) => axis)], rows.map(([label, run]) => [label, ...D.axes.map(([axis]) => run.choices[axis])])));
  }
}

function text(value) {
  return typeof value === "string" ? value : value === null ? "none" : JSON.stringify(value);
}

function recipeSection() {
  focused("recipe", "Recipe", "What differs from the package's own recipe for this data set and method, and where every value comes from.", (run) => {
    if (!run.recipe.length) return el("p", { class: "absent" }, "Not here: the folder has no recipe.");
    const differing = run.recipe.filter((row) => row.length > 3);
    const first = differing.length
      ? table(["key", "value", "default", "source"], differing.map(([key, value, source, usual]) => [el("td", { class: "key" }, key), el("td", { class: "now" }, text(value)), text(usual[0]), source]), "recipe")
      : el("p", {}, "Nothing differs: it is the default recipe.");
    const whole = table(["key", "value", "source"], run.recipe.map(([key, value, source]) => [el("td", { class: "key" }, key), text(value), source]), "recipe");
    return [first, el("details", {}, el("summary", {}, `All ${run.recipe.length} values`), whole)];
  });
}

function nested(run) {
  const content = {};
  const sources = {};
  for (const [key, value, source] of run.recipe) {
    const parts = key.split(".");
    let at = content;
    for (const part of parts.slice(0, -1)) at = at[part] ??= {};
    at[parts.at(-1)] = value;
    if (source) sources[key] = source;
  }
  return { ...content, sources };
}

function repeatSection() {
  focused("repeat", "Do it again", "The recipe is in this page: save it, and these commands make the run anew.", (run) => {
    if (!run.recipe.length) return el("p", { class: "absent" }, "Not here: the folder has no recipe.");
    const save = el("a", { class: "button", id: "save", download: "recipe.json", href: `data:application/json,${encodeURIComponent(JSON.stringify(nested(run), null, 2))}` }, "Save recipe.json");
    return [el("p", {}, save), el("pre", {}, run.commands.join("\n")),
      run.started ? el("p", { class: "small" }, "It was started by ", el("code", {}, run.started)) : null,
      run.env.length ? table(null, run.env.map(([key, value]) => [el("td", { class: "key" }, key), value]), "env") : el("p", { class: "absent" }, "The run wrote down no versions.")];
  });
}
