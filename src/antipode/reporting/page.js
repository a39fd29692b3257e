// The page put together, in its order.

// ---- light and dark

function theme() {
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const now = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  const kept = () => { try { return localStorage.getItem("antipode-theme"); } catch { return null; } };
  const set = (name) => { root.dataset.theme = name; for (const draw of redraws.values()) draw(); };
  if (kept()) root.dataset.theme = kept();
  document.getElementById("theme").addEventListener("click", () => {
    set(now() === "dark" ? "light" : "dark");
    try { localStorage.setItem("antipode-theme", now()); } catch { /* a page from a file may have no storage */ }
  });
  dark.addEventListener("change", () => { for (const draw of redraws.values()) draw(); });
}

function navigation() {
  const nav = document.querySelector("nav");
  const sections = [...document.querySelectorAll("main section")];
  const links = new Map(sections.map((node) => [node, el("a", { href: `#${node.id}` }, node.id[0].toUpperCase() + node.id.slice(1))]));
  nav.append(...links.values());
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) links.get(entry.target).classList.toggle("here", entry.isIntersecting);
  }, { rootMargin: "-20% 0px -70% 0px" });
  for (const node of sections) watch.observe(node);
}

theme();
if (many) {
  scorePlot();
  runTable();
} else scoreTiles();
curveSection();
neighbourSection();
mapSection();
viewSection();
geometrySection();
spectrumSection();
analysisSection();
methodSection();
recipeSection();
repeatSection();
navigation();
document.documentElement.dataset.ready = "yes";
