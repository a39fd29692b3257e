// The colour theme, the navigation bar, and the sections of the page in their order.

// Set up the button that switches between the light and the dark theme.
function theme() {
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const current = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  const redraw = () => { for (const draw of redraws.values()) draw(); };
  const stored = storedTheme();
  if (stored) root.dataset.theme = stored;
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = current() === "dark" ? "light" : "dark";
    redraw();
    storeTheme(current());
  });
  dark.addEventListener("change", redraw);
}

// A page that is opened from a file may have no local storage.
function storedTheme() {
  try {
    return localStorage.getItem("antipode-theme");
  } catch {
    return null;
  }
}

function storeTheme(name) {
  try {
    localStorage.setItem("antipode-theme", name);
  } catch { /* no local storage: the theme is not remembered */ }
}

// Add a link for each section, named after its id, and mark those on the screen.
function navigation() {
  const titles = { repeat: "Reproduce", notes: "Warnings" };
  const title = (id) => titles[id] || id[0].toUpperCase() + id.slice(1);
  const sections = [...document.querySelectorAll("main section")];
  const links = new Map();
  for (const node of sections) links.set(node, el("a", { href: `#${node.id}` }, title(node.id)));
  const place = document.querySelector("nav");
  place.append(...links.values());
  // on a narrow screen, a button opens the list of sections
  const menu = document.getElementById("menu");
  const open = (value) => {
    menu.setAttribute("aria-expanded", String(value));
    place.classList.toggle("open", value);
  };
  menu.addEventListener("click", () => open(menu.getAttribute("aria-expanded") !== "true"));
  place.addEventListener("click", () => open(false));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && place.classList.contains("open")) { open(false); menu.focus(); }
  });
  const observer = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      links.get(target).classList.toggle("here", isIntersecting);
    }
  }, { rootMargin: "-20% 0px -70% 0px" });
  for (const node of sections) observer.observe(node);
}

theme();
if (several) {
  scorePlot();
  runTable();
} else {
  scoreTable();
}
curveSection();
neighbourSection();
mapSection();
duplicateSection();
viewSection();
geometrySection();
spectrumSection();
analysisSection();
methodSection();
recipeSection();
repeatSection();
navigation();
document.documentElement.dataset.ready = "yes";
