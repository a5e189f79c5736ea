// Behaviour of the HTML reports: theme, sortable tables, sources of figures, printing; plots are in report_plot.js.
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

// Tables --------------------------------------------------------------------------------------------------------------

function startSorting(table) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const descending = heading.getAttribute("aria-sort") === "ascending";
      for (const other of headings) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
      sort(table.tBodies[0], column, descending ? -1 : 1);
    });
  });
}

function sort(body, column, direction) {
  const key = (row) => row.cells[column].dataset.sort;
  const rows = [...body.rows].sort((one, other) => {
    const [a, b] = [key(one), key(other)];
    if (a === "" || b === "") return (a === "") - (b === ""); // unmeasured values come last in both directions
    const difference = Number(a) - Number(b);
    return direction * (Number.isNaN(difference) ? a.localeCompare(b, "en", { numeric: true }) : difference);
  });
  body.append(...rows);
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
for (const table of document.querySelectorAll("table.sortable")) startSorting(table);
const all = JSON.parse(document.getElementById("curves").textContent);
forms = all;
for (const section of document.querySelectorAll("section.model")) {
  const curves = all.models[Number(section.dataset.model)].map((curve) => prepared(curve, all.sides));
  startModel(section, curves, all.sides);
}
