"use strict";

// Sort the table of settings by a column: numbers as numbers, then texts, then missing values.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const compare = (a, b) => {
    if (a === "" || b === "") return (a === "") - (b === "");
    const numbers = a - b;
    return Number.isNaN(numbers) ? a.localeCompare(b) : numbers;
  };
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach(other => other.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = row => row.cells[column].dataset.value;
      const rows = [...table.tBodies[0].rows].sort((one, other) => {
        const a = value(one);
        const b = value(other);
        const missing = a === "" || b === "";
        return compare(a, b) * (down && !missing ? -1 : 1);
      });
      table.tBodies[0].append(...rows);
    });
  });
}
