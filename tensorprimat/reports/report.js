// Behaviour of the HTML reports: theme, sources of figures, printing; plots are in report_plot.js, sortable tables in report_sort.js.
// It uses no library and no network.

const THEME_KEY = "tensorprimat-theme";

// Theme ---------------------------------------------------------------------------------------------------------------

function remembered() {
  try { return localStorage.getItem(THEME_KEY) || "auto"; } catch { return "auto"; } // storage may be forbidden to files
}

function show(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  for (const button of document.querySelectorAll("[data-theme-choice]"))
    button.setAttribute("aria-pressed", String(button.dataset.themeChoice === theme));
}

function choose(theme) {
  show(theme);
  try { localStorage.setItem(THEME_KEY, theme); } catch { /* not remembered, that is all */ }
}

function startTheme() {
  for (const button of document.querySelectorAll("[data-theme-choice]"))
    button.addEventListener("click", () => choose(button.dataset.themeChoice));
  document.querySelector("[data-print]").addEventListener("click", () => window.print());
  document.querySelector(".tools").hidden = false;
  const theme = remembered();
  show(["light", "dark"].includes(theme) ? theme : "auto"); // not stored: another open report may store a choice now
}

// Sources -------------------------------------------------------------------------------------------------------------

function startSources() {
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.(".figure");
    if (!button) return;
    const source = document.getElementById(button.getAttribute("popovertarget"));
    const unrounded = source.querySelector(".unrounded");
    unrounded.hidden = !Number.isFinite(Number(button.dataset.value));
    unrounded.textContent = `Unrounded: ${button.dataset.value}`;
    requestAnimationFrame(() => {
      const at = button.getBoundingClientRect(), size = source.getBoundingClientRect();
      const below = at.bottom + 6 + size.height < innerHeight;
      source.style.left = `${Math.max(8, Math.min(at.left, innerWidth - size.width - 8))}px`;
      source.style.top = `${Math.max(8, below ? at.bottom + 6 : at.top - size.height - 6)}px`;
    });
  });
}

// Printing opens every section ----------------------------------------------------------------------------------------

function startPrinting() {
  let closed = [];
  addEventListener("beforeprint", () => {
    closed.push(...document.querySelectorAll("details:not([open])"));
    for (const details of closed) details.open = true;
  });
  addEventListener("afterprint", () => {
    for (const details of closed) details.open = false;
    closed = [];
  });
}

// Start ---------------------------------------------------------------------------------------------------------------

startTheme();
startSources();
startPrinting();
const all = JSON.parse(document.getElementById("curves").textContent);
forms = all;
for (const section of document.querySelectorAll("section.model")) {
  const curves = all.models[Number(section.dataset.model)].map((curve) => prepared(curve, all.sides));
  startModel(section, curves, all.sides);
}
