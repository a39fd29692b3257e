// The state of the page (which runs are selected, which one is in focus) and the section helpers.

const D = JSON.parse(document.getElementById("data").textContent);
const several = D.runs.length > 1;
const selected = new Set(D.runs.map((_, index) => index)); // indices of the runs in the charts
const hasImages = (run) => Object.keys(run.pictures).length > 0;
let focus = Math.max(0, D.runs.findIndex(hasImages)); // index of the run that sections describe
const onFilter = []; // functions to call when the selection changes
const onFocus = []; // functions to call when another run comes into focus
const redraws = new Map(); // functions to call when the colour theme changes
const body = document.getElementById("body");

const COLOURS = 8;
const DASHES = [null, "7 4", "2 3", "10 3 2 3"];

// Return the colour of the run with this index. The runs of a setting share a colour, unless the
// page shows only one setting.
function colour(index) {
  const place = D.groups.length === 1 ? index : D.runs[index].group;
  return `var(--s${place % COLOURS})`;
}

// Return the dash pattern of a run, which distinguishes runs when the colours repeat.
function dash(index) {
  const place = D.groups.length === 1 ? index : D.runs[index].group;
  return DASHES[Math.floor(place / COLOURS) % DASHES.length];
}

// Return the indices of the selected runs in ascending order.
function selectedRuns() {
  return [...selected].sort((a, b) => a - b);
}

// ---- sections

// Add a section with a heading and an explanation to the page.
function section(id, title, explanation, ...content) {
  const head = el("div", { class: "top" }, el("h2", {}, title));
  const about = explanation ? el("p", { class: "how" }, explanation) : null;
  body.append(el("section", { id }, head, about, content));
  return head;
}

// Add a section about the run in focus. It is drawn again when another run comes into focus.
function runSection(id, title, explanation, draw) {
  const place = el("div");
  const head = section(id, title, explanation, place);
  if (several) head.append(runSelect());
  const redraw = () => place.replaceChildren(...[draw(D.runs[focus])].flat().filter(Boolean));
  onFocus.push(redraw);
  redraw();
}

// Return a drop-down list that puts a run into focus.
function runSelect() {
  const option = (run) => el("option", { value: D.runs.indexOf(run) }, run.name);
  const group = (label, runs) => el("optgroup", { label }, runs.map(option));
  const drawn = D.runs.filter(hasImages);
  const others = D.runs.filter((run) => !hasImages(run));
  const options = drawn.length && others.length
    ? [group("runs with images", drawn), group("runs without images", others)]
    : D.runs.map(option);
  const onchange = () => setFocus(Number(select.value));
  const select = el("select", { class: "focus", "aria-label": "run", onchange }, options);
  onFocus.push(() => { select.value = focus; });
  select.value = focus;
  return select;
}

function setFocus(index) {
  focus = index;
  for (const update of onFocus) update();
}

// Return the paragraph that explains why a part of the page is missing.
function unavailable(reason) {
  return el("p", { class: "absent" }, `Not available: ${reason}.`);
}

function missingPicture(run, part) {
  return unavailable(run.absent[part] || "it was not computed");
}

// Return a table. A row is a list of texts or of finished <td> elements; headings may be null.
function table(headings, rows, name = "") {
  const isCell = (cell) => cell instanceof Node && cell.tagName === "TD";
  const isNumeric = (column) => rows.some((row) => {
    return row[column] instanceof Node && row[column].className === "number";
  });
  // an empty heading is a cell, because a heading must have a text
  const heading = (text, i) => {
    const attributes = { class: isNumeric(i) ? "number" : null, scope: text ? "col" : null };
    return el(text ? "th" : "td", attributes, text);
  };
  const head = headings ? el("thead", {}, el("tr", {}, headings.map(heading))) : null;
  const cells = (row) => row.map((cell, i) => {
    const node = isCell(cell) ? cell : el("td", {}, cell);
    if (headings && headings[i]) node.setAttribute("data-label", headings[i]);
    return node;
  });
  const lines = rows.map((row) => el("tr", {}, cells(row)));
  const place = { class: `wide ${name}`, tabindex: 0, role: "group", "aria-label": "table" };
  return el("div", place, el("table", {}, head, el("tbody", {}, lines)));
}

// ---- formats

// Format the settings of a protocol or an analysis on one line.
function formatSettings(settings) {
  const entries = Object.entries(settings);
  return entries.map(([key, value]) => `${key} ${formatSetting(value)}`).join(", ");
}

// Format one setting. A list of more than four values is shortened to its range.
function formatSetting(value) {
  if (typeof value === "number") return formatValue(value);
  if (!Array.isArray(value)) return formatJson(value);
  if (value.length <= 4) return value.map(formatSetting).join(" ");
  const [first, last] = [value[0], value[value.length - 1]].map(formatSetting);
  return `${first} to ${last} (${value.length} values)`;
}

// Format a value of a JSON file.
function formatJson(value) {
  if (typeof value === "string") return value;
  return value === null ? "none" : JSON.stringify(value);
}
