// The analyses, and the sections that say how a run was made: method, recipe and commands.

// ---- analyses: tables and charts of any result that analysis.json contains

function analysisSection() {
  const names = [...new Set(D.runs.flatMap((run) => Object.keys(run.analysis)))];
  if (!names.length) return;
  const place = el("div");
  const draw = () => place.replaceChildren(...names.map(analysis).filter(Boolean));
  section("analyses", "Analyses", "The results of antipode analyse.", place);
  onFilter.push(draw);
  draw();
}

// Return the result of one analysis for the first eight selected runs that have it.
function analysis(what) {
  const MOST = 8;
  const all = selectedRuns().filter((index) => D.runs[index].analysis[what]);
  if (!all.length) return null;
  const runs = all.slice(0, MOST);
  const results = runs.map((index) => D.runs[index].analysis[what]);
  const notes = [...new Set(results.flatMap((result) => result.notes))];
  const settings = results.map((result) => formatSettings(result.settings)).filter(Boolean);
  const small = (text) => el("p", { class: "small" }, text);
  const curveAxes = (shape) => `${shape.xlabel} | ${shape.ylabel}`;
  const histogramAxes = (shape) => shape.xlabel;
  const makeCurves = (series, { xlabel, ylabel }) => {
    return lineChart({ series, xlabel, ylabel, direct: true, height: 280, title: what });
  };
  const makeHistogram = (series, { xlabel }) => histogram({ series, xlabel, title: what });
  return el("article", { class: "analysis", "data-what": what },
    el("h3", {}, what),
    valueTable(runs, results),
    charts(runs, what, "curves", curveAxes, makeCurves),
    charts(runs, what, "histograms", histogramAxes, makeHistogram),
    notes.map(small),
    all.length > MOST
      ? small(`The first ${MOST} of the ${all.length} selected runs with this analysis are shown.`)
      : null,
    settings.length
      ? el("p", { class: "small settings" }, [...new Set(settings)].join("; "))
      : null);
}

// Return a table with one row per value and one column per run, or null if there are no values.
function valueTable(runs, results) {
  const names = [...new Set(results.flatMap((result) => Object.keys(result.values)))];
  if (!names.length) return null;
  const headings = runs.map((index) => (several ? D.runs[index].name : "value"));
  const cell = (value) => el("td", { class: "number" }, formatValue(value));
  const rows = names.map((name) => [name, ...results.map((result) => cell(result.values[name]))]);
  return table(["", ...headings], rows, "fit");
}

// Return the charts of an analysis. Curves or histograms with the same axes share a chart.
function charts(runs, what, kind, axesOf, make) {
  const byAxes = new Map();
  for (const index of runs) {
    for (const [name, shape] of Object.entries(D.runs[index].analysis[what][kind])) {
      const axes = axesOf(shape);
      byAxes.set(axes, [...(byAxes.get(axes) || []), { index, name, shape }]);
    }
  }
  return [...byAxes.values()].map((shapes) => {
    if (kind === "histograms" && shapes.length > 6) return selectableHistogram(shapes, make);
    const onePerRun = runs.length > 1 && shapes.length === runs.length;
    const series = shapes.map(({ index, name, shape }, i) => ({
      ...shape,
      name: runs.length > 1 ? `${D.runs[index].name} ${name}` : name,
      colour: `var(--s${(onePerRun ? D.runs[index].group : i) % COLOURS})`,
    }));
    const key = series.length > 1 && kind === "histograms"
      ? legend(series.map((part) => [part.colour, part.name]))
      : null;
    const caption = series.length === 1 ? el("figcaption", {}, series[0].name) : key;
    return el("figure", {}, caption, make(series, shapes[0].shape).node);
  });
}

// Return a histogram with a drop-down list of names. It replaces a chart in which too many
// histograms would overlap, and shows one name at a time for every run that has it.
function selectableHistogram(shapes, make) {
  const place = el("div");
  const names = [...new Set(shapes.map(({ name }) => name))];
  const draw = (name) => {
    const series = shapes.filter((part) => part.name === name).map(({ index, shape }, i) => ({
      ...shape,
      name: several ? D.runs[index].name : name,
      colour: `var(--s${i % COLOURS})`,
    }));
    const key = legend(series.map((part) => [part.colour, part.name]));
    place.replaceChildren(key, make(series, shapes[0].shape).node);
  };
  const options = names.map((name) => el("option", {}, name));
  const onchange = () => draw(select.value);
  const select = el("select", { "aria-label": "histogram", onchange }, options);
  draw(names[0]);
  return el("figure", {}, select, place);
}

// ---- method

function methodSection() {
  const methods = new Map(); // [label, run] of each distinct method
  for (const group of D.groups) {
    const run = D.runs[group.runs[0]];
    if (!run.choices) continue;
    methods.set(`${run.method} ${JSON.stringify(run.choices)}`, [group.label, run]);
  }
  const rows = [...methods.values()];
  if (!rows.length) return;
  if (rows.length === 1) {
    const { choices } = rows[0][1];
    const items = D.axes.map(([axis, meaning]) => el("div", {},
      el("dt", {}, axis, el("small", {}, meaning)), el("dd", {}, choices[axis])));
    const explanation = "The components of the method that the recipe builds.";
    section("method", "Method", explanation, el("dl", { class: "choices" }, items));
  } else {
    const headings = ["", ...D.axes.map(([axis]) => axis)];
    const cells = rows.map(([label, { choices }]) => {
      return [label, ...D.axes.map(([axis]) => choices[axis])];
    });
    const explanation = "The components of the methods that the recipes build.";
    section("method", "Methods", explanation, table(headings, cells, "stack"));
  }
}

// ---- recipe

const NO_RECIPE = "the folder has no recipe.json";

function recipeSection() {
  const explanation = "The values that the user gave in place of the values of the package's "
    + "recipe, and the source of every value.";
  runSection("recipe", "Recipe", explanation, (run) => {
    if (!run.recipe.length) return unavailable(NO_RECIPE);
    const keyCell = (key) => el("td", { class: "key" }, key);
    const given = run.recipe.filter((row) => row.length > 3);
    const replacements = given.map(([key, value, source, [replaced]]) => [
      keyCell(key),
      el("td", { class: "now" }, formatJson(value)),
      formatJson(replaced),
      source,
    ]);
    const noReplacement = run.about.replaced
      ? "The user replaced no value of the package's recipe."
      : "The replaced values are unknown: this run was made by an older version of antipode.";
    const values = run.recipe.map(([key, value, source]) => {
      return [keyCell(key), formatJson(value), source];
    });
    return [
      given.length
        ? table(["key", "value", "replaced value", "source"], replacements, "recipe stack")
        : el("p", {}, noReplacement),
      el("details", {},
        el("summary", {}, `All ${run.recipe.length} values`),
        table(["key", "value", "source"], values, "recipe stack")),
    ];
  });
}

// Return the content of recipe.json: nested sections, the sources of the values, and its format.
function recipeFile(run) {
  // objects without a prototype, so that a key such as __proto__ is a key like others
  const empty = () => Object.create(null);
  const content = empty();
  const sources = empty();
  for (const [key, value, source] of run.recipe) {
    const parts = key.split(".");
    let parent = content;
    for (const part of parts.slice(0, -1)) parent = parent[part] ??= empty();
    parent[parts.at(-1)] = value;
    if (source) sources[key] = source;
  }
  return { ...run.about, ...content, sources };
}

// ---- reproduction

function repeatSection() {
  const explanation = "Save the recipe, which this page contains, and run these commands to "
    + "repeat the run.";
  runSection("repeat", "Reproduce this run", explanation, (run) => {
    if (!run.recipe.length) return unavailable(NO_RECIPE);
    const json = encodeURIComponent(JSON.stringify(recipeFile(run), null, 2));
    const href = `data:application/json,${json}`;
    const link = { class: "button", id: "save", download: "recipe.json", href };
    const environment = run.env.map(([key, value]) => [el("td", { class: "key" }, key), value]);
    return [
      el("p", {}, el("a", link, "Save recipe.json")),
      el("pre", {}, run.commands.join("\n")),
      run.started
        ? el("p", { class: "small" }, "The original command was ", el("code", {}, run.started))
        : null,
      environment.length
        ? table(null, environment, "env")
        : unavailable("the run did not record its versions and hardware"),
    ];
  });
}
