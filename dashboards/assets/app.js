/* What only a browser can do: the URL, visibility, hover texts, clicks on charts, PNG. No framework, no network. */
(function () {
  "use strict";
  const config = JSON.parse(document.querySelector('meta[name="perfkit"]').content);
  const pk = window.perfkit;

  /* ---------------------------------------------------------------- URL */
  pk.go = (url) => {
    const to = new URL(url, location.href);
    if (to.origin !== location.origin) return;
    history.pushState({}, "", to.pathname + to.search);
    dispatchEvent(new CustomEvent("_dashprivate_pushstate"));
  };
  /* A control speaks when somebody used it, and also some time after the URL was shown in it: inputs repeat what they were
     given when their delay is over. By then the URL may be another page's. So a control counts only if it was used since
     the URL last changed; whatever else it says would put a filter of the last page into the history of this one. */
  let used = false;
  const inControls = (target) =>
    !!target.closest?.(".pk-bar, [id^='{\"control\"']") || !document.getElementById("react-entry-point")?.contains(target);
  for (const kind of ["pointerdown", "click", "keydown", "input", "change"])
    addEventListener(kind, (event) => { if (inControls(event.target)) used = true; }, true);
  for (const kind of ["popstate", "_dashprivate_pushstate"]) addEventListener(kind, () => { used = false; });
  /* what the first page can do without (shell.Frame) is loaded when another page is opened */
  let late;
  pk.late = () => (late ||= Promise.all([...document.querySelectorAll("link[data-late]")].map((link) => new Promise((done) => {
    const script = Object.assign(document.createElement("script"), { src: link.href, onload: done, onerror: done });
    link.remove();
    document.head.append(script);
  }))));
  const bare = !!document.querySelector("link[data-late]"), first = location.pathname;
  const view = () => ({ path: location.pathname, search: location.search, theme: pk.chosen });
  function withValue(search, name, value) {
    const query = new URLSearchParams(search);
    if (name === "days") {
      if (value?.length === 2 && !(value[0] && value[1]) && (value[0] || value[1])) return search; /* half chosen */
      query.delete("since"); query.delete("until");
      if (value?.[0] && value?.[1]) { query.set("since", value[0].slice(0, 10)); query.set("until", value[1].slice(0, 10)); }
      return query.size ? "?" + query.toString().replace(/\+/g, "%20") : "";
    }
    query.delete(name);
    const list = Array.isArray(value) ? value : [value];
    for (const one of list) {
      if (one === null || one === undefined || one === "") continue;
      const text = one === true ? "1" : one === false ? "0" : String(one);
      if (text !== config.defaults[name]) query.append(name, text);
    }
    if (name === "range") { query.delete("since"); query.delete("until"); }
    if (name === "base_cluster") query.delete("base"); /* a run of the cluster before */
    const text = query.toString().replace(/\+/g, "%20");
    return text ? "?" + text : "";
  }
  function valueOf(name, now) {
    const query = new URLSearchParams(location.search);
    if (name === "clusters") return query.getAll(name);
    if (name === "days") return query.get("since") && query.get("until") ? [query.get("since"), query.get("until")] : [];
    if (name === "live") return (query.get(name) ?? "1") !== "0";
    return query.get(name) ?? config.defaults[name] ?? (typeof now === "string" ? "" : null);
  }
  /* a control may hold 5, "5", "", null, [] or [null, null]: compare what they mean */
  const plain = (value) => {
    if (Array.isArray(value)) { const some = value.filter((one) => one !== null && one !== ""); return some.length ? some.map(String) : null; }
    return value === null || value === undefined || value === "" ? null : String(value);
  };
  const same = (a, b) => JSON.stringify(plain(a)) === JSON.stringify(plain(b));

  const none = () => window.dash_clientside.no_update;
  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    perfkit: {
      view: (href) => (href ? (bare && location.pathname !== first ? pk.late().then(view) : view()) : none()),
      /* a control changed: write its value into the URL */
      control: (values, checked, ids, checkedIds) => {
        const trigger = window.dash_clientside.callback_context.triggered_id;
        if (!trigger || !used) return none();
        const i = ids.findIndex((id) => id.control === trigger.control);
        const value = i >= 0 ? values[i] : checked[checkedIds.findIndex((id) => id.control === trigger.control)];
        if (same(value, valueOf(trigger.control, value))) return none();
        const search = withValue(location.search, trigger.control, value);
        if (search !== location.search) pk.go(location.pathname + search);
        return none();
      },
      /* the URL changed (back, forward, a link): show it in the controls */
      show: (_view, values, ids, checked, checkedIds) => {
        ids.forEach((id, i) => {
          if (id.control === "attempt") return; /* another attempt is another page, laid out anew */
          const value = valueOf(id.control, values[i]);
          if (!same(value, values[i])) window.dash_clientside.set_props(id, { value });
        });
        checkedIds.forEach((id, i) => {
          const value = valueOf(id.control, checked[i]);
          if (value !== checked[i]) window.dash_clientside.set_props(id, { checked: value });
        });
        return none();
      },
      tick: (n) => (n && document.visibilityState === "visible" && valueOf("live") ? Date.now() : none()),
      /* sections are drawn again only when the data has another version */
      refresh: (version) => {
        const before = pk.version;
        pk.version = version;
        return before === undefined || before === version || !version ? none() : version;
      },
      /* a zoom along steps is a part of the view: write it into the URL, and the server draws it in full detail */
      zoom: (moves, figures) => {
        const trigger = window.dash_clientside.callback_context.triggered_id;
        const ids = window.dash_clientside.callback_context.inputs_list?.[0] || [];
        const i = ids.findIndex((input) => trigger && input.id.graph === trigger.graph);
        const move = moves[i];
        const zoom = figures[i]?.layout?.meta?.zoom;
        if (!move || !zoom) return none();
        /* true: steps; else the names of the two values in the link and how many of their unit a unit of x is */
        const [first, last, scale] = zoom === true ? ["first", "last", 1] : [zoom.first, zoom.last, zoom.scale];
        const low = move["xaxis.range[0]"], high = move["xaxis.range[1]"];
        let search = location.search;
        if (low !== undefined && high !== undefined) {
          search = withValue(search, first, Math.max(0, Math.ceil(low * scale)));
          search = withValue(search, last, Math.max(0, Math.floor(high * scale)));
        } else if (move["xaxis.autorange"]) {
          search = withValue(withValue(search, first, null), last, null);
        }
        if (search !== location.search) pk.go(location.pathname + search);
        return none();
      },
      click: (clicks, figures) => {
        const trigger = window.dash_clientside.callback_context.triggered_id;
        const ids = window.dash_clientside.callback_context.inputs_list?.[0] || [];
        const i = ids.findIndex((input) => trigger && input.id.graph === trigger.graph);
        const point = clicks[i]?.points?.[0];
        const template = figures[i]?.layout?.meta?.go;
        if (!point || !template) return none();
        const rows = figures[i].layout.meta.rows;
        const named = { x: point.x, y: point.y, row: rows?.[point.y], customdata: [].concat(point.customdata ?? [])[0] };
        const fill = (_all, key) => encodeURIComponent(named[key] ?? "");
        pk.go(template.replace(/\{(x|y|row|customdata)\}/g, fill));
        return none();
      },
    },
  });

  addEventListener("visibilitychange", () => {
    if (document.visibilityState === "visible" && window.dash_clientside.set_props && valueOf("live") && pk.version)
      window.dash_clientside.set_props("tick", { data: Date.now() });
  });

  /* ---------------------------------------------------------------- clicks */
  addEventListener("click", (event) => {
    const button = event.target.closest?.("[data-do]");
    if (!button) return;
    const what = button.getAttribute("data-do");
    if (what === "theme") {
      pk.setTheme(pk.chosen === "dark" ? "light" : "dark");
      try { localStorage.setItem("perfkit-theme", pk.chosen); } catch { /* private mode */ }
      window.dash_clientside.set_props("view", { data: view() });
    }
    if (what === "link") copy(location.href, button);
    if (what === "command") copy(button.getAttribute("data-command"), button);
    if (what === "notes") notes();
    if (what === "png") png(button);
  });
  function say(button, text) {
    const before = button.dataset.label || button.textContent;
    button.dataset.label = before;
    button.textContent = text;
    setTimeout(() => { button.textContent = before; }, 1500);
  }
  function copy(text, button) {
    const old = () => {
      const area = Object.assign(document.createElement("textarea"), { value: text });
      document.body.append(area); area.select(); document.execCommand("copy"); area.remove();
    };
    (navigator.clipboard ? navigator.clipboard.writeText(text).catch(old) : Promise.resolve(old())).then(() => say(button, "Copied"));
  }
  function png(button) {
    const graph = button.closest(".pk-card")?.querySelector(".js-plotly-plot, canvas");
    if (graph instanceof HTMLCanvasElement) {
      graph.toBlob((image) => {
        const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(image), download: button.getAttribute("data-name") + ".png" });
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 10000);
      });
      return;
    }
    if (graph && window.Plotly)
      window.Plotly.downloadImage(graph, { format: "png", scale: 2, width: graph.offsetWidth, height: graph.offsetHeight, filename: button.getAttribute("data-name") });
  }

  /* ---------------------------------------------------------------- what the server answers other than yes */
  const ask = window.fetch.bind(window);
  const rest = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));
  window.fetch = async (input, init) => {
    let answer = await ask(input, init);
    if (!String(input?.url ?? input).includes("_dash-update-component")) return answer;
    for (let tries = 0; answer.status === 429 && tries < 6; tries++) {
      await rest(Math.min(60, Number(answer.headers.get("Retry-After")) || 1) + Math.random());
      answer = await ask(input, init);
    }
    /* gone, or no longer for us: the page itself says so. Not in a circle, should two workers disagree for a moment. */
    if (answer.status === 404 || answer.status === 401) {
      let last = 0;
      try { last = Number(sessionStorage.getItem("perfkit-reload")); sessionStorage.setItem("perfkit-reload", Date.now()); } catch { /* private mode */ }
      if (Date.now() - last > 15000) location.reload();
    }
    return answer;
  };

  /* ---------------------------------------------------------------- notes and saved views */
  const make = (kind, properties, ...children) => {
    const node = Object.assign(document.createElement(kind), properties);
    node.append(...children);
    return node;
  };
  async function notes() {
    document.getElementById("pk-notes")?.remove();
    const query = new URLSearchParams(location.search);
    const cluster = query.get("cluster"), run = query.get("run");
    const about = new URLSearchParams([["cluster", cluster], ["run", run]].filter(([, value]) => value !== null));
    const problem = make("p", { className: "pk-sub" });
    problem.setAttribute("role", "alert");
    const dialog = make("dialog", { id: "pk-notes", className: "pk-dialog" });
    dialog.setAttribute("aria-label", "Notes and saved views");
    const send = async (method, path, body) => {
      const answer = await ask(config.prefix + path, { method, body: body && JSON.stringify(body), headers: { "Content-Type": "application/json" } });
      if (!answer.ok) { problem.textContent = await answer.text(); return null; }
      return answer.json();
    };
    const found = (await send("GET", "notes?" + about)) || { notes: [], views: [], writable: false };
    const again = async (done) => { if (done) { window.dash_clientside.set_props("tick", { data: Date.now() }); notes(); } };
    const line = (row, ...children) => {
      const item = make("li", {}, ...children);
      if (row.by) item.append(make("span", { className: "pk-sub", textContent: "  " + row.by }));
      if (row.mine && found.writable) {
        const remove = make("button", { type: "button", className: "pk-action", textContent: "Delete" });
        remove.setAttribute("aria-label", "Delete " + row.text);
        remove.addEventListener("click", async () => again(await send("DELETE", "notes/" + row.id)));
        item.append(remove);
      }
      return item;
    };
    const list = (rows, none) => (rows.length ? make("ul", { className: "pk-list" }, ...rows) : make("p", { className: "pk-sub", textContent: none }));
    const form = (label, fields, button, body) => {
      const place = make("form", { className: "pk-form" }, ...fields, make("button", { className: "pk-button", textContent: button }));
      place.setAttribute("aria-label", label);
      place.addEventListener("submit", async (event) => { event.preventDefault(); again(await send("POST", "notes", { ...body(), link: location.pathname + location.search })); });
      return place;
    };
    const input = (label, type, extra) => {
      const field = make("input", { type, required: true, className: "pk-input", ...extra });
      return [make("label", {}, label, field), field];
    };
    const close = make("button", { type: "button", className: "pk-button", textContent: "Close" });
    close.addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => dialog.remove());
    const parts = [make("header", {}, make("h2", { textContent: "Notes and saved views" }), close)];
    if (cluster !== null) {
      const title = run !== null ? "Notes on this run and its cluster" : "Notes on this cluster";
      const rows = found.notes.map((row) => line(row, make("strong", { textContent: row.time + " " }), row.text));
      parts.push(make("h3", { textContent: title }), list(rows, "None yet. A note stands on the time charts, for everybody who sees the page."));
      if (found.writable) {
        const [timeLabel, time] = input("Time (UTC)", "datetime-local", { value: document.querySelector("#status time")?.dateTime || "" });
        const [textLabel, text] = input("Note", "text", { maxLength: 500, placeholder: "driver upgraded here" });
        parts.push(form("Add a note", [timeLabel, textLabel], "Add", () => ({ kind: "annotation", time: time.value, text: text.value })));
      }
    }
    const views = found.views.map((row) => line(row, make("a", { href: row.link, textContent: row.text })));
    parts.push(make("h3", { textContent: "Saved views" }), list(views, "None yet. A view is this page with its range, filters and choices."));
    if (found.writable) {
      const [nameLabel, name] = input("Name", "text", { maxLength: 200, placeholder: "Monday review" });
      parts.push(form("Save this view", [nameLabel], "Save this view", () => ({ kind: "view", text: name.value })));
    }
    dialog.append(...parts, problem);
    document.body.append(dialog);
    dialog.showModal();
  }

  /* ---------------------------------------------------------------- definitions on hover and focus */
  const tip = Object.assign(document.createElement("div"), { id: "pk-tip" });
  tip.setAttribute("role", "tooltip");
  addEventListener("DOMContentLoaded", () => document.body.append(tip));
  function show(event) {
    const term = event.target.closest?.("[data-tip]");
    if (!term) { tip.style.display = "none"; return; }
    tip.textContent = term.getAttribute("data-tip");
    tip.style.display = "block";
    const box = term.getBoundingClientRect();
    const left = Math.max(8, Math.min(box.left, innerWidth - tip.offsetWidth - 8));
    const below = box.bottom + 6 + tip.offsetHeight < innerHeight;
    tip.style.left = left + "px";
    tip.style.top = (below ? box.bottom + 6 : box.top - tip.offsetHeight - 6) + "px";
  }
  addEventListener("mouseover", show);
  addEventListener("focusin", show);
  addEventListener("focusout", () => { tip.style.display = "none"; });
  addEventListener("keydown", (event) => { if (event.key === "Escape") tip.style.display = "none"; });

  /* ---------------------------------------------------------------- cells of tables */
  const cells = (window.dashAgGridComponentFunctions = window.dashAgGridComponentFunctions || {});
  cells.PerfkitLink = (props) => {
    if (!props.data) return null;
    const href = props.data[props.column.colDef.cellRendererParams?.href || "href"];
    const text = props.value === null || props.value === undefined || props.value === "" ? "(no name)" : String(props.value);
    const open = (event) => {
      if (event.metaKey || event.ctrlKey || event.shiftKey) return;
      event.preventDefault();
      pk.go(href);
      scrollTo(0, 0);
    };
    return window.React.createElement("a", { href, onClick: open, title: text, tabIndex: -1 }, text);
  };
})();
