/* What only a browser can do: the URL, the theme, visibility, hover texts, clicks on charts, PNG. No framework, no network. */
(function () {
  "use strict";
  const config = JSON.parse(document.querySelector('meta[name="perfkit"]').content);
  const root = document.documentElement;
  const pk = (window.perfkit = { version: undefined });

  /* ---------------------------------------------------------------- theme */
  const stored = () => { try { return localStorage.getItem("perfkit-theme"); } catch { return null; } };
  pk.theme = () => root.getAttribute("data-mantine-color-scheme") || "light";
  function setTheme(name) {
    root.setAttribute("data-mantine-color-scheme", name);
    root.setAttribute("data-ag-theme-mode", name);
  }
  setTheme(stored() || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
  /* the component library sets the attribute once when it mounts; ours wins */
  const wanted = pk.theme();
  new MutationObserver(() => { if (pk.theme() !== pk.chosen) setTheme(pk.chosen); })
    .observe(root, { attributes: true, attributeFilter: ["data-mantine-color-scheme"] });
  pk.chosen = wanted;

  /* ---------------------------------------------------------------- URL */
  pk.go = (url) => {
    const to = new URL(url, location.href);
    if (to.origin !== location.origin) return;
    history.pushState({}, "", to.pathname + to.search);
    dispatchEvent(new CustomEvent("_dashprivate_pushstate"));
  };
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
      view: (href) => (href ? view() : none()),
      /* a control changed: write its value into the URL */
      control: (values, checked, ids, checkedIds) => {
        const trigger = window.dash_clientside.callback_context.triggered_id;
        if (!trigger) return none();
        let i = ids.findIndex((id) => id.control === trigger.control);
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
        if (!move || !figures[i]?.layout?.meta?.zoom) return none();
        const low = move["xaxis.range[0]"], high = move["xaxis.range[1]"];
        let search = location.search;
        if (low !== undefined && high !== undefined) {
          search = withValue(search, "first", Math.max(0, Math.ceil(low)));
          search = withValue(search, "last", Math.max(0, Math.floor(high)));
        } else if (move["xaxis.autorange"]) {
          search = withValue(withValue(search, "first", null), "last", null);
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
      pk.chosen = pk.chosen === "dark" ? "light" : "dark";
      try { localStorage.setItem("perfkit-theme", pk.chosen); } catch { /* private mode */ }
      setTheme(pk.chosen);
      window.dash_clientside.set_props("view", { data: view() });
    }
    if (what === "link") copy(location.href, button);
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
    const graph = button.closest(".pk-card")?.querySelector(".js-plotly-plot");
    if (graph && window.Plotly)
      window.Plotly.downloadImage(graph, { format: "png", scale: 2, width: graph.offsetWidth, height: graph.offsetHeight, filename: button.getAttribute("data-name") });
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
