/* The theme, before anything is drawn: loaded in the head. */
(function () {
  "use strict";
  const root = document.documentElement, pk = (window.perfkit = { version: undefined });
  const stored = () => { try { return localStorage.getItem("perfkit-theme"); } catch { return null; } };
  const prefers = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  pk.setTheme = (name) => {
    pk.chosen = name;
    root.setAttribute("data-mantine-color-scheme", name);
    root.setAttribute("data-ag-theme-mode", name);
  };
  pk.setTheme(["light", "dark"].includes(stored()) ? stored() : prefers);
  /* the component library sets the attribute once when it mounts; ours wins */
  new MutationObserver(() => { if (root.getAttribute("data-mantine-color-scheme") !== pk.chosen) pk.setTheme(pk.chosen); })
    .observe(root, { attributes: true, attributeFilter: ["data-mantine-color-scheme"] });
})();
