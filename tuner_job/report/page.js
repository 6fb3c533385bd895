"use strict";
// Search and sorting of the table of trials. Without scripts the table is whole and in plan order.
(() => {
  const table = document.getElementById("trials-table");
  if (!table) return;
  const body = table.tBodies[0];
  const rows = Array.from(body.rows);
  const text = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
  const find = document.getElementById("find");
  const count = document.getElementById("found");
  document.getElementById("search").hidden = false;
  const filter = () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      row.hidden = !words.every((word) => text.get(row).includes(word));
      if (!row.hidden) shown += 1;
    }
    count.textContent = `${shown} of ${rows.length} trials`;
  };
  find.addEventListener("input", filter);
  filter();
  const value = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.v === undefined ? cell.textContent.trim() : cell.dataset.v === "" ? null : Number(cell.dataset.v);
  };
  const heads = Array.from(table.tHead.rows[0].cells);
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const sign = down ? -1 : 1;
      const order = (a, b) => {
        const x = value(a, column);
        const y = value(b, column);
        if (x === null || y === null) return x === y ? 0 : x === null ? 1 : -1;
        return sign * (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y)));
      };
      body.append(...rows.sort(order));
    });
  });
})();
