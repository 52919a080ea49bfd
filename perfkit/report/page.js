"use strict";
// Adds search, sorting, reading of columns and zoom to a page that is complete without it.
// Text is only ever moved as textContent: nothing from a trace is parsed as markup here.
(() => {
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
  const tip = $("#tip");

  const root = document.documentElement;
  $("#theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });

  function show(text, x, y) {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(8, Math.min(x + 14, innerWidth - box.width - 8)) + "px";
    tip.style.top = (y + 18 + box.height > innerHeight ? y - box.height - 12 : y + 18) + "px";
  }
  const hide = () => { tip.hidden = true; };
  addEventListener("scroll", hide, { passive: true });
  addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });

  // the text of a table's row, with the names of its columns; rows keep their number when they are sorted
  const original = new Map($$("table[id]").map((table) => [table.id, $$("tbody tr", table)]));
  function rowText(id, index) {
    const row = (original.get(id) || [])[index];
    if (!row) return "";
    const heads = $$("thead th", row.closest("table")).map((th) => th.textContent);
    return [...row.cells].map((cell, i) => heads[i] + " " + cell.textContent).join("\n");
  }

  for (const chart of $$("svg.stack")) {
    const { table, left, right, count } = chart.dataset;
    const cursor = $(".cursor", chart), width = (right - left) / count;
    let at = -1;
    const select = (index, x, y) => {
      at = Math.max(0, Math.min(count - 1, index));
      cursor.setAttribute("x", +left + at * width);
      cursor.removeAttribute("hidden");
      show(rowText(table, at), x, y);
    };
    const clear = () => { cursor.setAttribute("hidden", ""); hide(); };
    chart.addEventListener("pointermove", (event) => {
      const box = chart.getBoundingClientRect(), x = (event.clientX - box.left) / box.width * 1000;
      if (x < left || x > right) clear();
      else select(Math.floor((x - left) / width), event.clientX, event.clientY);
    });
    chart.addEventListener("pointerleave", clear);
    chart.addEventListener("blur", clear);
    chart.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10, Home: -1e9, End: 1e9 }[event.key];
      if (!move) return;
      event.preventDefault();
      const box = chart.getBoundingClientRect(), next = at < 0 ? 0 : Math.max(0, Math.min(count - 1, at + move));
      select(next, box.left + (+left + next * width) / 1000 * box.width, box.top + box.height / 3);
    });
  }

  for (const dot of $$(".dot")) {
    const id = dot.closest("svg").dataset.table, row = original.get(id)[dot.dataset.row];
    const title = $("title", dot);
    if (title) title.remove(); // the tip below says more, and two would overlap
    dot.addEventListener("pointerenter", (event) => show(rowText(id, dot.dataset.row), event.clientX, event.clientY));
    dot.addEventListener("pointerleave", hide);
    dot.addEventListener("click", () => {
      $$(".on").forEach((other) => other.classList.remove("on"));
      dot.classList.add("on");
      row.hidden = false;
      row.classList.add("on");
      row.scrollIntoView({ block: "nearest" });
    });
  }

  for (const button of $$("button.sort")) {
    button.addEventListener("click", () => {
      const head = button.closest("th"), column = head.cellIndex, body = $("tbody", head.closest("table"));
      const down = head.getAttribute("aria-sort") !== "descending";
      $$("th", head.parentElement).forEach((th) => th.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => { const cell = row.cells[column]; return cell.dataset.key === undefined ? null : +cell.dataset.key; };
      const numeric = head.classList.contains("num");
      const rows = [...body.rows].map((row) => [numeric ? key(row) : row.cells[column].textContent, row]);
      const known = rows.filter(([k]) => k !== null), unknown = rows.filter(([k]) => k === null); // unknown goes last
      known.sort(([a], [b]) => (numeric ? a - b : a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1));
      body.append(...known.concat(unknown).map(([, row]) => row));
    });
  }

  const search = $("#kernel-search");
  if (search) {
    const rows = original.get("kernels-table").map((row) => [row, row.textContent.toLowerCase()]);
    search.addEventListener("input", () => {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const [row, text] of rows) {
        row.hidden = !words.every((word) => text.includes(word));
        shown += !row.hidden;
      }
      $("#kernel-count").textContent = shown.toLocaleString("en") + (shown === 1 ? " row" : " rows");
    });
  }

  const lanes = $("#timeline-svg");
  if (lanes) {
    const span = +lanes.dataset.span, height = lanes.viewBox.baseVal.height;
    let start = 0, width = 1; // as shares of the step
    const time = (share) => (share * span / 1e6).toFixed(3) + " ms";
    const draw = () => {
      width = Math.max(1 / 200, Math.min(1, width));
      start = Math.max(0, Math.min(1 - width, start));
      lanes.setAttribute("viewBox", start * 10000 + " 0 " + width * 10000 + " " + height);
      $("#timeline-range").textContent = time(start) + " to " + time(start + width);
    };
    const zoom = (factor, at = 0.5) => { const old = width; width = Math.max(1 / 200, Math.min(1, width * factor)); start += (old - width) * at; draw(); };
    const actions = {
      in: () => zoom(0.5), out: () => zoom(2), left: () => { start -= width / 4; draw(); },
      right: () => { start += width / 4; draw(); }, reset: () => { start = 0; width = 1; draw(); },
    };
    $$("[data-zoom]").forEach((button) => button.addEventListener("click", actions[button.dataset.zoom]));
    const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", 0: "reset" };
    lanes.addEventListener("keydown", (event) => {
      if (!keys[event.key] || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      actions[keys[event.key]]();
    });
    lanes.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && !event.altKey) return; // a plain wheel scrolls the page
      event.preventDefault();
      const box = lanes.getBoundingClientRect();
      zoom(event.deltaY < 0 ? 0.8 : 1.25, (event.clientX - box.left) / box.width);
    }, { passive: false });
    let from = null;
    lanes.addEventListener("pointerdown", (event) => { from = event.clientX; lanes.setPointerCapture(event.pointerId); });
    lanes.addEventListener("pointermove", (event) => {
      if (from === null) return;
      start -= (event.clientX - from) / lanes.getBoundingClientRect().width * width;
      from = event.clientX;
      draw();
    });
    lanes.addEventListener("pointerup", () => { from = null; });
    draw();
  }

  addEventListener("beforeprint", () => $$("details").forEach((part) => { part.open = true; }));
})();
