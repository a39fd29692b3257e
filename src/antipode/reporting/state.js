// What the page shows: which runs are chosen, which one is in focus, and sections that follow.

const D = JSON.parse(document.getElementById("data").textContent);
const many = D.runs.length > 1;
const shown = new Set(D.runs.map((_, at) => at));
const pictured = D.runs.findIndex((run) => Object.keys(run.pictures).length > 0);
let focus = Math.max(0, pictured);
const onFilter = [];
const onFocus = [];
const redraws = new Map();
const body = document.getElementById("body");

const COLOURS = 8;
const DASHES = [null, "7 4", "2 3", "10 3 2 3"];

function colour(at) {
  const place = D.groups.length === 1 ? at : D.runs[at].group;
  return `var(--s${place % COLOURS})`;
}

function dash(at) {
  const place = D.groups.length === 1 ? at : D.runs[at].group;
  return DASHES[Math.floor(place / COLOURS) % DASHES.length];
}

function chosen() {
  return [...shown].sort((a, b) => a - b);
}

// ---- sections

function section(id, title, how, ...content) {
  const head = el("div", { class: "top" }, el("h2", {}, title));
  const node = el("section", { id }, head, how ? el("p", { class: "how" }, how) : null, content);
  body.append(node);
  return { node, head };
}

// a section about one run; it is drawn again when another comes into focus
function focused(id, title, how, draw) {
  const place = el("div");
  const { head } = section(id, title, how, place);
  if (many) head.append(picker());
  const again = () => place.replaceChildren(...[draw(D.runs[focus])].flat().filter(Boolean));
  onFocus.push(again);
  again();
}

function picker() {
  const option = (run) => el("option", { value: D.runs.indexOf(run) }, run.name);
  const [drawn, plain] = [true, false].map((wanted) => D.runs.filter((run) => Object.keys(run.pictures).length > 0 === wanted));
  const lists = drawn.length && plain.length ? [el("optgroup", { label: "with pictures" }, drawn.map(option)), el("optgroup", { label: "others" }, plain.map(option))] : D.runs.map(option);
  const select = el("select", { class: "focus", "aria-label": "run", onchange: () => look(Number(select.value)) }, lists);
  onFocus.push(() => { select.value = focus; });
  select.value = focus;
  return select;
}

function look(at) {
  focus = at;
  for (const again of onFocus) again();
}

function absent(run, part) {
  return el("p", { class: "absent" }, `Not here: ${run.absent[part] || "it was not drawn"}.`);
}

function table(heads, rows, name = "") {
  const numeric = (at) => rows.some((row) => row[at] instanceof Node && row[at].className === "number");
  const head = heads ? el("thead", {}, el("tr", {}, heads.map((text, at) => el("th", { class: numeric(at) ? "number" : null }, text)))) : null;
  const lines = rows.map((row) => el("tr", {}, row.map((cell) => (cell instanceof Node && cell.tagName === "TD" ? cell : el("td", {}, cell)))));
  return el("div", { class: `wide ${name}` }, el("table", {}, head, el("tbody", {}, lines)));
}

function settingsText(settings) {
  return Object.entries(settings).map(([key, value]) => `${key} ${brief(value)}`).join(", ");
}

function brief(value) {
  if (typeof value === "number") return say(value);
  if (!Array.isArray(value)) return text(value);
  return value.length > 4 ? `${brief(value[0])} to ${brief(value[value.length - 1])} in ${value.length}` : value.map(brief).join(" ");
}
