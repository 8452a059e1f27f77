// Light or dark: the system's setting, or the user's choice. A classic script, so that it runs before the first paint.

globalThis.theme = {
  get() {
    try { return localStorage.getItem("theme") || "auto"; } catch { return "auto"; }
  },
  set(name) {
    try { localStorage.setItem("theme", name); } catch { /* Then it lasts until the page is left. */ }
    document.documentElement.dataset.theme = name;
  },
};
document.documentElement.dataset.theme = globalThis.theme.get();
