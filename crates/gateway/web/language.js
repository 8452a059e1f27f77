// The words of the page, in the language that `settings.js` has chosen. What comes from elsewhere is shown as it is: the
// texts of agents and of the gateway, commands, and names.

const { lang } = document.documentElement;
const { default: words } = await import(`./words/${lang}.js`);

/** Whose dates and numbers are used. */
export const locale = globalThis.language.locale();

const PLURAL = new Intl.PluralRules(lang), NUMBER = new Intl.NumberFormat(locale);
const LIST = new Intl.ListFormat(locale, { type: "conjunction" });

/** Numbers with one decimal. */
export const ONE = new Intl.NumberFormat(locale, { minimumFractionDigits: 1, maximumFractionDigits: 1 });

/** Words as a list: "a, b and c". */
export const list = (parts) => LIST.format(parts);

/** Each text that was used, in pieces: what stands at odd places is a name. */
const pieces = new Map();

function piecesOf(text) {
  if (!pieces.has(text)) pieces.set(text, text.split(/\{(\w+)\}/));
  return pieces.get(text);
}

/** The words under a key, with what is given for the names in them: numbers are formatted, and `n` chooses the plural. A
 * text, or what a template takes if elements were given. */
export function t(key, given = {}) {
  const found = words[key];
  const text = typeof found === "object" ? found[PLURAL.select(given.n)] ?? found.other : found;
  const shown = piecesOf(text).map((piece, n) => (n % 2 ? wordsOf(given[piece]) : piece));
  return shown.some((piece) => typeof piece === "object") ? shown : shown.join("");
}

const wordsOf = (value) => (typeof value === "number" ? NUMBER.format(value) : value ?? "");
