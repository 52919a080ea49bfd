/* The timeline on a canvas: asks for a window of a step as columns (figures_timeline.picture) and draws it. It is loaded
   in the head, before the frameworks: they start when the picture stands in #pk-first (shell.Frame), or after PATIENCE_MS
   if the server needs longer, because on a small machine they would take the cores that the server works on. A zoom is drawn from what is here at once, asked for in detail, and
   only then told to the rest of the page through the URL. */
(function () {
  "use strict";
  const config = JSON.parse(document.querySelector('meta[name="perfkit"]').content);
  const HELP = "Keys: arrows move, + and - zoom, Home shows the whole step, comma and full stop choose a bar, Enter zooms to it.";
  const FONT = 'Inter, "Segoe UI", system-ui, -apple-system, "Helvetica Neue", Arial, sans-serif';
  const TOP = 20, BOTTOM = 34, RIGHT = 10;
  const TALLEST = 16384; /* device pixels that every browser's canvas may have */
  const make = (kind, properties = {}, ...children) => {
    const node = Object.assign(document.createElement(kind), properties);
    node.append(...children);
    return node;
  };
  const here = () => location.pathname === config.prefix + "timeline";
  const address = () => config.prefix + "export/timeline.json" + location.search;

  /* ---------------------------------------------------------------- asking */
  let last = null;
  async function ask(url, tries = 6) {
    const answer = await window.fetch(url);
    if (answer.status === 429 && tries) {
      await new Promise((done) => setTimeout(done, 1000 * (Math.min(60, Number(answer.headers.get("Retry-After")) || 1) + Math.random())));
      return ask(url, tries - 1);
    }
    const said = (answer.headers.get("Content-Type") || "").startsWith("text/plain") ? await answer.text() : "";
    if (!answer.ok) throw new Error(said.slice(0, 300) || `The server answered ${answer.status}.`);
    return answer.json();
  }
  function load(url, again) {
    if (again || last?.url !== url) {
      last = { url, data: ask(url) };
      last.data.catch(() => { last = null; });
    }
    return last.data;
  }
  const PATIENCE_MS = 1200;
  async function startFrameworks() {
    const loading = [];
    for (const later of document.querySelectorAll('script[type="text/later"]')) {
      const script = make("script", { async: false, id: later.id, textContent: later.textContent });
      if (later.src) loading.push(new Promise((done) => Object.assign(script, { onload: done, onerror: done, src: later.src })));
      else await Promise.all(loading);
      later.replaceWith(script);
    }
  }
  if (here()) {
    const patience = new Promise((done) => setTimeout(done, PATIENCE_MS));
    const stands = new Promise((done) => document.addEventListener("DOMContentLoaded", done));
    const drawn = load(address()).catch(() => {}).then(() => new Promise((done) => requestAnimationFrame(() => setTimeout(done))));
    stands.then(() => Promise.race([drawn, patience])).then(startFrameworks);
  }

  /* ---------------------------------------------------------------- the place it is drawn in */
  let host, parts, data, range, chosen = -1, drag = null, version;
  let asked = 0;
  function mount(place) {
    host = place;
    version = host.dataset.version;
    data = undefined;
    const canvas = make("canvas", { tabIndex: 0 });
    canvas.setAttribute("role", "application");
    canvas.setAttribute("aria-roledescription", "timeline");
    parts = {
      moves: make("div", { className: "pk-moves" }), legend: make("div", { className: "pk-legend" }), canvas,
      caption: make("figcaption", { className: "pk-hidden" }), notes: make("p", { className: "pk-sub" }),
      detail: make("p", { className: "pk-detail" }), hover: make("div", { className: "pk-hover" }),
    };
    parts.hover.setAttribute("role", "tooltip");
    parts.detail.setAttribute("aria-live", "polite");
    host.replaceChildren(parts.moves, parts.legend, make("figure", {}, canvas, parts.caption), parts.detail, parts.notes, parts.hover);
    listen(canvas);
    sizes.disconnect();
    sizes.observe(host);
    show();
  }
  async function show(again) {
    const url = address(), mine = ++asked, place = host;
    host.setAttribute("aria-busy", "true");
    let found;
    try { found = await load(url, again); } catch (error) { found = { empty: ["This part cannot be shown.", error.message, ""] }; }
    if (mine !== asked || place !== host) return;
    host.removeAttribute("aria-busy");
    data = found;
    range = data.empty ? null : [data.lo, data.hi];
    chosen = -1;
    describe();
    paint();
    host.dataset.drawn = url;
    requestAnimationFrame(() => setTimeout(() => performance.mark("perfkit-timeline", { detail: url })));
  }
  const sizes = new ResizeObserver(() => { if (data && host.clientWidth !== wide) paint(); });

  /* ---------------------------------------------------------------- words around it */
  function link([label, href]) {
    const node = make("a", { textContent: label, href, className: "pk-button" });
    node.addEventListener("click", (event) => {
      if (event.metaKey || event.ctrlKey || event.shiftKey) return;
      event.preventDefault();
      go(new URL(href, location.href).search);
    });
    return node;
  }
  const palette = () => data.palette[window.perfkit.chosen];
  function describe() {
    const around = host.closest(".pk-card");
    const set = (name, change) => { const node = around?.querySelector(`[data-timeline=${name}]`); if (node) change(node); };
    host.classList.toggle("pk-nothing", !!data.empty);
    set("sub", (node) => { node.textContent = data.sub || ""; });
    for (const name of ["csv", "trace"]) set(name, (node) => { if (data[name]) node.href = data[name]; });
    detail();
    if (data.empty) {
      const [title, text, command] = data.empty;
      const rest = command ? [make("code", { textContent: command })] : [];
      parts.moves.replaceChildren(make("div", { className: "pk-empty" }, make("h2", { textContent: title }), make("p", { textContent: text }), ...rest));
      parts.legend.replaceChildren();
      parts.caption.textContent = parts.notes.textContent = text;
      return;
    }
    const held = parts.moves.contains(document.activeElement) ? document.activeElement.textContent : null;
    parts.moves.replaceChildren(...data.moves.map(link), make("span", { className: "pk-sub", textContent: data.span }));
    if (held) [...parts.moves.children].find((node) => node.textContent === held)?.focus();
    const dot = (kind) => { const node = make("i", { className: "pk-dot" }); node.style.background = kind < 0 ? palette().bad : palette().classes[kind]; return node; };
    parts.legend.replaceChildren(...data.legend.map(([label, kind]) => make("span", {}, dot(kind), label)));
    parts.notes.textContent = data.notes;
    parts.caption.textContent = data.words;
    parts.canvas.setAttribute("aria-label", data.words + " " + HELP);
  }
  function detail() {
    if (chosen < 0) {
      parts.detail.replaceChildren(data.empty ? "" : make("span", { className: "pk-sub", textContent: "A click on a bar shows it here, a double click the whole step. " + HELP }));
      return;
    }
    const bars = data.bars, nodes = [bars.hover[chosen].replaceAll("\n", "; ") + " "];
    const around = Math.max(bars.end[chosen] - bars.start[chosen], 1000);
    nodes.push(link(["Zoom to it", location.pathname + search(bars.start[chosen] - around, bars.end[chosen] + around)]));
    const instance = data.instances[chosen];
    if (instance !== undefined) nodes.push(" ", make("a", { className: "pk-button", textContent: "This collective on all ranks", href: data.collectives + "&instance=" + instance }));
    parts.detail.replaceChildren(...nodes);
  }

  /* ---------------------------------------------------------------- drawing */
  let wide = 0, left = 0, width = 0; /* of the canvas, of the names of lanes, of the time axis; in CSS pixels */
  const x = (time) => left + ((time - range[0]) / (range[1] - range[0])) * width;
  const timeAt = (place) => range[0] + ((place - left) / width) * (range[1] - range[0]);
  function paint() {
    const { canvas } = parts;
    canvas.hidden = !!data.empty;
    if (data.empty) return;
    const tall = data.height + TOP + BOTTOM, ratio = Math.min(window.devicePixelRatio || 1, TALLEST / tall);
    wide = host.clientWidth;
    canvas.style.height = tall + "px";
    canvas.width = Math.round(wide * ratio);
    canvas.height = Math.round(tall * ratio);
    const pen = canvas.getContext("2d"), colours = palette();
    pen.scale(ratio, ratio);
    pen.fillStyle = colours.surface; /* a picture that is saved has its own ground */
    pen.fillRect(0, 0, wide, tall);
    pen.textBaseline = "middle";
    pen.font = "10px " + FONT;
    left = 12 + Math.max(...data.lanes.map(([, text]) => pen.measureText(text).width));
    width = Math.max(120, wide - left - RIGHT);
    const line = (points, colour, dash = [], thick = 1) => {
      pen.strokeStyle = colour; pen.lineWidth = thick; pen.setLineDash(dash); pen.beginPath();
      points.forEach(([a, b], i) => (i ? pen.lineTo(a, b) : pen.moveTo(a, b)));
      pen.stroke();
    };
    axis(pen, colours, line, tall);
    pen.textAlign = "right"; pen.fillStyle = colours.muted;
    for (const [y, text] of data.lanes) pen.fillText(text, left - 6, y + TOP);
    pen.textAlign = "left";
    pen.save(); pen.beginPath(); pen.rect(left, 0, width, tall - BOTTOM + 4); pen.clip();
    for (const [time, top, bottom] of data.edges) line([[x(time), top + TOP], [x(time), bottom + TOP]], colours.accent, [4, 3]);
    bars(pen, colours);
    pen.globalAlpha = 0.55;
    for (const join of data.joins)
      for (const [which, dash] of [[1, []], [2, [2, 2]]]) line(join.map((point) => [x(point[which]), point[0] + TOP]), colours.text, dash, 0.8);
    pen.globalAlpha = 1;
    pen.restore();
    heads(pen, colours, line);
    if (drag?.to !== undefined) {
      pen.fillStyle = colours.accent; pen.globalAlpha = 0.18;
      pen.fillRect(Math.min(drag.from, drag.to), TOP, Math.abs(drag.to - drag.from), data.height);
      pen.globalAlpha = 1;
    }
  }
  function axis(pen, colours, line, tall) {
    const span = range[1] - range[0];
    const [unit, name] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]].find(([size]) => span >= 2 * size) || [1, "ns"];
    const rough = span / unit / Math.max(3, width / 110), power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((size) => size * power >= rough);
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    pen.textAlign = "center"; pen.fillStyle = colours.muted;
    for (let i = Math.ceil(range[0] / unit / step); i * step * unit <= range[1]; i++) {
      const at = x(i * step * unit), text = (i * step).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
      line([[at, TOP], [at, TOP + data.height]], colours.grid);
      for (const y of [TOP - 9, tall - BOTTOM + 9]) pen.fillText(text, Math.min(at, left + width - 8), y);
    }
    pen.fillText(`${name} after the start of the step`, left + width / 2, tall - 8);
  }
  function bars(pen, colours) {
    const { row, start, end, fill, text } = data.bars, { y, h } = data.rows, kinds = data.rows.class;
    pen.font = "9px " + FONT;
    for (let i = 0; i < row.length; i++) {
      const from = Math.max(x(start[i]), left - 2), to = Math.min(x(end[i]), left + width + 2), one = row[i];
      if (to < left || from > left + width) continue;
      const long = Math.max(to - from - (to - from > 3 ? 0.5 : 0), 1), top = y[one] - h[one] / 2 + TOP; /* never thinner than a pixel */
      pen.globalAlpha = 0.25 + 0.0075 * fill[i];
      pen.fillStyle = colours.classes[kinds[one]];
      pen.fillRect(from, top, long, h[one]);
      pen.globalAlpha = 1;
      if (text[i] >= 0 && h[one] >= 8) {
        const name = data.names[text[i]], letters = Math.floor((long - 6) / 5);
        if (letters >= Math.min(name.length, 9)) {
          pen.fillStyle = colours.inks[kinds[one]];
          pen.fillText(name.length > letters ? name.slice(0, letters - 1) + "…" : name, from + 3, y[one] + TOP + 0.5);
        }
      }
      if (i === chosen) { pen.strokeStyle = colours.text; pen.lineWidth = 2; pen.setLineDash([]); pen.strokeRect(from, top, long, h[one]); }
    }
  }
  function heads(pen, colours, line) {
    const scale = width / (range[1] - range[0]), right = left + width;
    for (const [y, name, clock, error] of data.heads) {
      const at = y + TOP;
      line([[0, at - 11], [right, at - 11]], colours.grid);
      pen.font = "bold 11px " + FONT; pen.fillStyle = colours.text;
      pen.fillText(name, left, at);
      const after = left + pen.measureText(name).width + 10;
      pen.font = "11px " + FONT; pen.fillStyle = colours.muted;
      pen.fillText(clock, after, at);
      if (error === null || data.heads.length < 2) continue;
      const half = error * scale, from = after + pen.measureText(clock).width + 12; /* right beside the words */
      const centre = Math.min(from + half, (from + right) / 2), ends = [Math.max(from, centre - half), Math.min(right, centre + half)];
      line([[ends[0], at], [ends[1], at]], colours.bad, [], 1.5);
      for (const one of half > 3 ? [centre, ...ends] : [centre]) line([[one, at - 4], [one, at + 4]], colours.bad, [], 1.5);
    }
  }

  /* ---------------------------------------------------------------- moving */
  function search(lo, hi) {
    const query = new URLSearchParams(location.search);
    query.delete("lo"); query.delete("hi");
    lo = Math.max(0, Math.round(lo)); hi = Math.min(data.length, Math.round(hi));
    if (lo > 0 || hi < data.length) { query.set("lo", lo); query.set("hi", Math.max(hi, lo + 1)); }
    return "?" + query.toString().replace(/\+/g, "%20");
  }
  let pushed = 0;
  function go(to) {
    if (to === location.search) return;
    performance.mark("perfkit-timeline-asked");
    const often = performance.now() - pushed < 800; /* a turning wheel is one place in the history */
    pushed = performance.now();
    history[often ? "replaceState" : "pushState"]({}, "", location.pathname + to);
    const mine = show();
    mine.then(() => { if (address() === host?.dataset.drawn) setTimeout(() => dispatchEvent(new CustomEvent("_dashprivate_pushstate")), 30); });
  }
  let soon;
  function move(lo, hi, wait) {
    const span = Math.min(Math.max(hi - lo, 100), data.length);
    lo = Math.min(Math.max(0, lo), data.length - span);
    range = [lo, lo + span]; /* what is here, at once; the detail follows */
    paint();
    clearTimeout(soon);
    soon = setTimeout(() => go(search(lo, lo + span)), wait);
  }
  const zoom = (factor, centre = (range[0] + range[1]) / 2, wait = 0) =>
    move(centre - (centre - range[0]) * factor, centre + (range[1] - centre) * factor, wait);
  const pan = (share, wait = 0) => { const by = share * (range[1] - range[0]); move(range[0] + by, range[1] + by, wait); };
  function barAt(event) {
    const box = parts.canvas.getBoundingClientRect(), across = event.clientX - box.left, top = event.clientY - box.top - TOP;
    const { row, start, end } = data.bars, { y, h } = data.rows;
    for (let i = row.length - 1; i >= 0; i--)
      if (Math.abs(top - y[row[i]]) <= h[row[i]] / 2 + 0.5 && across >= x(start[i]) - 1 && across <= Math.max(x(end[i]), x(start[i]) + 2)) return i;
    return -1;
  }
  function choose(i) {
    chosen = i;
    detail();
    paint();
  }
  function listen(canvas) {
    const place = (event) => Math.min(Math.max(event.clientX - canvas.getBoundingClientRect().left, left), left + width);
    const alive = (act) => (event) => { if (data && !data.empty) act(event); };
    canvas.addEventListener("pointerdown", alive((event) => {
      if (event.button) return;
      canvas.setPointerCapture(event.pointerId);
      drag = { from: place(event), pan: event.shiftKey, range: [...range] };
    }));
    canvas.addEventListener("pointermove", alive((event) => {
      if (drag) {
        drag.to = drag.pan ? undefined : place(event);
        drag.moved = drag.moved || Math.abs(place(event) - drag.from) > 3;
        if (drag.pan) { const by = ((drag.from - place(event)) / width) * (drag.range[1] - drag.range[0]); move(drag.range[0] + by, drag.range[1] + by, 120); } else paint();
        return;
      }
      const i = barAt(event), tip = parts.hover;
      canvas.style.cursor = i < 0 ? "crosshair" : "pointer";
      tip.style.display = i < 0 ? "none" : "block";
      if (i < 0) return;
      tip.textContent = data.bars.hover[i];
      tip.style.left = Math.max(8, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)) + "px";
      tip.style.top = (event.clientY + 18 + tip.offsetHeight < innerHeight ? event.clientY + 18 : event.clientY - tip.offsetHeight - 12) + "px";
    }));
    canvas.addEventListener("pointerup", alive((event) => {
      const was = drag;
      drag = null;
      if (was?.moved && !was.pan) { const ends = [timeAt(was.from), timeAt(place(event))].sort((a, b) => a - b); move(ends[0], ends[1], 0); }
      else if (was && !was.moved) choose(barAt(event));
    }));
    canvas.addEventListener("pointercancel", () => { drag = null; });
    canvas.addEventListener("pointerleave", () => { parts.hover.style.display = "none"; });
    canvas.addEventListener("dblclick", alive(() => move(0, data.length, 0)));
    canvas.addEventListener("wheel", alive((event) => {
      if (event.ctrlKey || event.metaKey) zoom(2 ** (Math.max(-100, Math.min(100, event.deltaY)) / 100), timeAt(place(event)), 80);
      else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan((event.deltaX || event.deltaY) / 600, 80);
      else return;
      event.preventDefault();
    }), { passive: false });
    canvas.addEventListener("keydown", alive((event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const next = (by) => choose((chosen + by + data.bars.row.length + (chosen < 0 && by < 0 ? 1 : 0)) % data.bars.row.length);
      const act = {
        ArrowLeft: () => pan(-0.25, 60), ArrowRight: () => pan(0.25, 60), "+": () => zoom(0.5, undefined, 60), "=": () => zoom(0.5, undefined, 60),
        "-": () => zoom(2, undefined, 60), Home: () => move(0, data.length, 0), ".": () => next(1), ",": () => next(-1),
        Enter: () => parts.detail.querySelector("a")?.click(), Escape: () => { parts.hover.style.display = "none"; choose(-1); },
      }[event.key];
      if (act) { event.preventDefault(); act(); }
    }));
  }

  /* ---------------------------------------------------------------- what changes around it */
  for (const kind of ["popstate", "_dashprivate_pushstate"])
    addEventListener(kind, () => {
      if (!here()) return;
      if (host?.isConnected) { if (address() !== last?.url) show(); } else load(address());
    });
  new MutationObserver(() => {
    const page = document.querySelector("#react-entry-point .pk-timeline");
    if (page || !here()) document.getElementById("pk-first")?.remove();
    if (!here()) return;
    const place = page || document.querySelector("#pk-first .pk-timeline");
    if (place && (place !== host || !place.firstChild)) mount(place);
    else if (place && place.dataset.version !== version) { version = place.dataset.version; show(true); }
  }).observe(document, { childList: true, subtree: true, attributes: true, attributeFilter: ["data-version"] });
  new MutationObserver(() => { if (host?.isConnected && data) { describe(); paint(); } })
    .observe(document.documentElement, { attributes: true, attributeFilter: ["data-ag-theme-mode"] });
})();
