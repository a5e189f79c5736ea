// Tables of the class sortable: a click on a heading sorts by its column, by data-sort where a cell has it.

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
  const key = ({ cells }) => cells[column].dataset.sort ?? cells[column].textContent;
  const rows = [...body.rows].sort((one, other) => {
    const [a, b] = [key(one), key(other)];
    if (a === "" || b === "") return (a === "") - (b === ""); // unmeasured values come last in both directions
    const difference = Number(a) - Number(b);
    return direction * (Number.isNaN(difference) ? a.localeCompare(b, "en", { numeric: true }) : difference);
  });
  body.append(...rows);
}

for (const table of document.querySelectorAll("table.sortable")) startSorting(table);
