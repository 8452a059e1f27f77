// The settings that the first paint needs, the system's or the user's choice: light or dark, and the language. A classic
// script, so that it runs before the page is shown.

(() => {
  /** The languages that there are words for: the first one is that of everybody else. */
  const LANGUAGES = ["en", "de"];
  const root = document.documentElement;
  const kept = (name) => {
    try { return localStorage.getItem(name) || "auto"; } catch { return "auto"; }
  };
  const keep = (name, value) => {
    try { localStorage.setItem(name, value); } catch { /* Then it lasts until the page is left. */ }
  };
  const primary = (language) => language.split("-")[0].toLowerCase();

  globalThis.theme = {
    get: () => kept("theme"),
    set(name) { keep("theme", name); root.dataset.theme = name; },
  };
  root.dataset.theme = globalThis.theme.get();

  globalThis.language = {
    get: () => kept("language"),
    set: (name) => keep("language", name),
    /** Whose dates and numbers are used: the reader's own, if it is of the page's language. */
    locale: () => navigator.languages.find((language) => primary(language) === root.lang) ?? root.lang,
  };
  const chosen = globalThis.language.get();
  root.lang = LANGUAGES.find((language) => language === chosen)
    ?? navigator.languages.map(primary).find((language) => LANGUAGES.includes(language)) ?? LANGUAGES[0];
  // Its words are needed before anything else can be shown.
  const words = document.createElement("link");
  words.rel = "modulepreload";
  words.href = `page/words/${root.lang}.js`;
  document.head.append(words);
})();
