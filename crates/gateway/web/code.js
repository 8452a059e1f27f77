// Code, in the colours of its language. highlight.js and its languages are loaded when they are needed. Its tree of
// tokens is turned into elements one by one, and the HTML that it also makes is not used.

import { h, html, useEffect, useRef, useState } from "./vendor/preact.js";
import { t } from "./language.js";
import { Copy } from "./parts.js";
import { beginning, visible } from "./text.js";

/** The languages, with their other names; after a colon what else may be in them. */
const LANGUAGES = `bash sh zsh shellscript|c h|cpp c++ cc cxx hpp h++|csharp cs c#|css|dart|diff patch|
  dockerfile docker containerfile|elixir ex exs|go golang|graphql gql|haskell hs|ini toml cfg conf|java|
  javascript js jsx mjs cjs|json jsonc json5 jsonl ndjson|
  kotlin kt kts|lua|makefile make mk|markdown md: xml|nginx|perl pl|php: xml|powershell ps ps1 pwsh|python py py3 gyp|r|
  ruby rb|rust rs|scala|shell console shellsession sh-session terminal: bash|sql postgres postgresql sqlite mysql|swift|
  typescript ts tsx mts cts|xml html xhtml svg vue svelte rss plist: javascript css|yaml yml`;

const names = new Map(),
  insides = new Map();
for (const line of LANGUAGES.split("|")) {
  const [all, inside = ""] = line.trim().split(": "),
    [name, ...others] = all.split(" ");
  for (const known of [name, ...others]) names.set(known, name);
  insides.set(name, inside.split(" ").filter(Boolean));
}

/** The language of a file, by the end of its name. */
export function languageOf(path) {
  const file = String(path).split(/[\\/]/).pop().toLowerCase();
  return names.get(file) ?? names.get(file.split(".").pop()) ?? null;
}

/** The libraries of highlight.js that are loaded, by language. */
const loaded = new Map();
let core = null;

async function load(name) {
  core ??= import("./vendor/highlight/core.js");
  const parts = [name, ...insides.get(name)].map((part) =>
    import(`./vendor/highlight/languages/${part}.js`).then((grammar) => [part, grammar.default]),
  );
  const [{ default: library }, ...grammars] = await Promise.all([core, ...parts]);
  for (const [part, grammar] of grammars) if (!library.getLanguage(part)) library.registerLanguage(part, grammar);
  loaded.set(name, library);
}

/** The most characters that are coloured at once, and how many times the work must be idle in between. */
const MOST = 50_000,
  AT_FIRST = 4000,
  RESTS = 20;

/** Elements of a text in a language; null as long as it is not loaded. */
function lit(text, name) {
  const library = loaded.get(name);
  if (!library || text.length > MOST) return null;
  return library.highlight(text, { language: name, ignoreIllegals: true })._emitter.rootNode.children.map(tokenElement);
}

function tokenElement(node) {
  if (typeof node === "string") return node;
  const children = node.children.map(tokenElement);
  return node.scope ? h("span", { class: `t-${String(node.scope).split(".")[0]}` }, children) : children;
}

/** The elements of a text that may grow: as long as it grows fast, its last part has no colours. */
export function useColours(text, name) {
  const kept = useRef({ text: "", name: null, elements: null, took: 0, at: 0 }).current;
  const [, redraw] = useState(0);
  const isDone = () => !name || (kept.name === name && kept.text === text) || text.length > MOST;
  const colour = () => {
    const began = performance.now(),
      elements = lit(text, name),
      now = performance.now();
    if (elements) Object.assign(kept, { text, name, elements, took: now - began, at: now });
  };
  const mayNow = kept.name === name ? performance.now() - kept.at > RESTS * kept.took : text.length <= AT_FIRST;
  if (!isDone() && mayNow) colour();
  useEffect(() => {
    if (isDone()) return undefined;
    let isLeft = false;
    const later = () => {
      if (!isLeft && !isDone()) {
        colour();
        redraw((n) => n + 1);
      }
    };
    const timer = setTimeout(
      () => (loaded.has(name) ? later() : load(name).then(later, () => {})),
      loaded.has(name) ? 250 : 0,
    );
    return () => {
      isLeft = true;
      clearTimeout(timer);
    };
  }, [text, name]);
  if (kept.name !== name || !name || !text.startsWith(kept.text)) return text;
  return kept.text === text ? kept.elements : [...kept.elements, text.slice(kept.text.length)];
}

/** The code of a block and of those that continue it, since a very large one is cut. */
function wholeCode(element) {
  if (!element.closest(".block")) return element.querySelector("pre").textContent;
  let text = "";
  for (
    let block = element.closest(".block"), isFirst = true;
    block && (isFirst || block.matches(".goes-on"));
    block = block.nextElementSibling
  ) {
    text += (isFirst ? element : block).querySelector("pre").textContent;
    isFirst = false;
  }
  return text;
}

/** A block of code. `info` is what stands after its fence: the name of its language; `name` that of its file. */
export function Code({ text, info = "", name }) {
  const [wraps, setWraps] = useState(false);
  const box = useRef();
  const label = /^[^\s{,:]*/.exec(info.trim())[0];
  const elements = useColours(text, names.get(label.toLowerCase()) ?? null);
  return html`<div class=${wraps ? "code wraps" : "code"} ref=${box}>
    <div class="bar"><span class="language">${name ? visible(name) : visible(beginning(label, 30))}</span>
      <button type="button" aria-pressed=${wraps} onClick=${() => setWraps(!wraps)}>${t("wrap")}</button>
      <${Copy} text=${() => wholeCode(box.current)} /></div>
    <pre tabIndex="0"><code>${elements}</code></pre>
  </div>`;
}
