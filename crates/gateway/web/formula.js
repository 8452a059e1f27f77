// Shows formulas as MathML, which needs no fonts and no styles. KaTeX is loaded when the first one comes. Its tree is
// turned into elements one by one; no text is ever used as HTML.

import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/preact.js";
import { t } from "./language.js";

const MATHML = "http://www.w3.org/1998/Math/MathML";

const TAGS = new Set([
  "math",
  "mtext",
  "mn",
  "mo",
  "mi",
  "mspace",
  "mover",
  "munder",
  "munderover",
  "msup",
  "msub",
  "msubsup",
  "mfrac",
  "mroot",
  "msqrt",
  "mtable",
  "mtr",
  "mtd",
  "mlabeledtr",
  "mrow",
  "menclose",
  "mstyle",
  "mpadded",
  "mphantom",
]);

const ATTRIBUTES = new Set([
  "accent",
  "accentunder",
  "columnalign",
  "columnlines",
  "columnspacing",
  "depth",
  "display",
  "displaystyle",
  "fence",
  "form",
  "height",
  "largeop",
  "linethickness",
  "lspace",
  "mathbackground",
  "mathcolor",
  "mathsize",
  "mathvariant",
  "maxsize",
  "minsize",
  "movablelimits",
  "notation",
  "rowlines",
  "rowspacing",
  "rspace",
  "scriptlevel",
  "separator",
  "side",
  "stretchy",
  "symmetric",
  "voffset",
  "width",
]);

/** The longest formula that is set, and what it may become. */
const LONGEST = 5000,
  OPTIONS = { output: "mathml", throwOnError: true, strict: "ignore", trust: false, maxExpand: 200, maxSize: 20 };

let loading = null;

/** KaTeX sets a global, as it is not a module. */
const load = () => (loading ??= import("./vendor/katex.js").then(() => globalThis.katex));

/** The element of a formula. Throws an error if it has mistakes. */
function mathOf(katex, text, isBlock) {
  const tree = katex.__renderToDomTree(text, { ...OPTIONS, displayMode: isBlock });
  const find = (node) => (node.type === "math" ? node : (node.children ?? []).map(find).find(Boolean));
  return elementOf(find(tree));
}

function elementOf(node) {
  if (node.text !== undefined) return document.createTextNode(node.text);
  if (node.type === undefined) {
    if (node.character) return document.createTextNode(node.character);
    if (node.children) return fragment(node.children);
    return withAttributes(document.createElementNS(MATHML, "mspace"), { width: `${Number(node.width) || 0}em` });
  }
  // The annotation has the source again.
  if (node.type === "semantics") return elementOf(node.children[0]);
  if (!TAGS.has(node.type)) return fragment(node.children);
  const element = withAttributes(document.createElementNS(MATHML, node.type), node.attributes);
  element.append(...node.children.map(elementOf));
  return element;
}

function fragment(children) {
  const made = document.createDocumentFragment();
  made.append(...children.map(elementOf));
  return made;
}

function withAttributes(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) if (ATTRIBUTES.has(name)) element.setAttribute(name, value);
  return element;
}

export function Formula({ text, isBlock }) {
  const box = useRef();
  const [katex, setKatex] = useState(globalThis.katex);
  const [isWrong, setWrong] = useState(false);
  useEffect(() => {
    if (!katex)
      load().then(
        (katex) => setKatex(() => katex),
        () => {},
      );
  }, []);
  useLayoutEffect(() => {
    if (!katex || !box.current) return;
    try {
      if (text.length > LONGEST) throw new Error("it is too long");
      box.current.replaceChildren(mathOf(katex, text, isBlock));
      setWrong(false);
    } catch {
      box.current.replaceChildren(text);
      setWrong(true);
    }
  }, [text, isBlock, katex]);
  const name = `formula${isBlock ? " by-itself" : ""}${isWrong || !katex ? " source" : ""}`;
  const title = isWrong ? t("this_formula_cannot_be_read") : null;
  return html`<span class=${name} ref=${box} title=${title} tabIndex=${isBlock ? 0 : null}>
    ${katex ? null : text}</span>`;
}
