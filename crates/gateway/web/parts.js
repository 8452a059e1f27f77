// Small pieces that many others use.

import { Component, html, useEffect, useState } from "./vendor/preact.js";
import { bytesText, contentOf, showable } from "./text.js";
import { Markdown } from "./markdown.js";

/** A button that does something which may fail: the error stands beside it, and it cannot be pressed twice. */
export function Do({ action, children, class: name = "", ...others }) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  const run = async () => {
    setBusy(true);
    setError(null);
    try { await action(); } catch (error) { setError(error.message); }
    setBusy(false);
  };
  return html`<button type="button" class=${name} disabled=${busy} onClick=${run} ...${others}>${children}</button>${
    error && html`<span class="error" role="alert">${error}</span>`}`;
}

/** Something that can be opened; its inside is made when it is. It is opened for what was found inside. */
export function Fold({ class: name = "", summary, open = false, isFound = false, children, label, ...others }) {
  const [isOpen, setOpen] = useState(open || isFound);
  useEffect(() => { if (isFound) setOpen(true); }, [isFound]);
  return html`<details class=${`fold ${name}`} ...${others} open=${isOpen} onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary aria-label=${label}>${summary}</summary>
    ${isOpen && html`<div class="inside">${typeof children === "function" ? children() : children}</div>`}
  </details>`;
}

/** Is rendered again only when its version has grown, or another property is another. */
export class Versioned extends Component {
  shouldComponentUpdate(next) {
    const { props } = this;
    for (const key in next) if (key !== "children" && next[key] !== props[key]) return true;
    return false;
  }

  render({ of: render, ...props }) {
    return render(props);
  }
}

const MUCH = 20_000;

/** A long text is cut, until all of it is asked for. Returns what is shown, and the button for the rest. */
function useCut(text) {
  const [all, setAll] = useState(false);
  if (all || text.length <= MUCH) return [text, null];
  const more = html`<button type="button" onClick=${() => setAll(true)}>Show all (${bytesText(text.length)})</button>`;
  return [text.slice(0, MUCH), more];
}

/** Text of any length as it is: what a program wrote. */
export function Plain({ text, label }) {
  const [shown, more] = useCut(text);
  return html`<pre class="plain" tabIndex="0" aria-label=${label}>${shown}</pre>${more}`;
}

/** Text of any length as it is: what somebody wrote. */
function Words({ text }) {
  const [shown, more] = useCut(text);
  return html`<div class="words">${shown}</div>${more}`;
}

export function Large({ large, what }) {
  return html`<p class="large">${what} has ${bytesText(large.bytes)}. ${" "}<a href=${large.url} target="_blank" rel="noopener noreferrer">Open it</a></p>`;
}

/** Text and files of a message. */
export function Content({ content, plain = false }) {
  const { text, files } = contentOf(content);
  return html`${text && (plain ? html`<${Words} text=${text} />` : html`<${Markdown} text=${text} />`)}
    ${files.length > 0 && html`<ul class="files">${files.map((file) => html`<li><${File} file=${file} /></li>`)}</ul>`}`;
}

function File({ file }) {
  const kind = showable(file);
  if (kind === "image") {
    const image = html`<img src=${file.url} alt=${file.name} loading="lazy" />`;
    return file.url.startsWith("data:") ? image : html`<a href=${file.url} target="_blank" rel="noopener noreferrer">${image}</a>`;
  }
  if (kind === "audio") return html`<audio controls src=${file.url} aria-label=${file.name}></audio>`;
  let url = null;
  try { url = new URL(file.url, document.baseURI); } catch { /* Then it is a name only. */ }
  const leads = url && ["http:", "https:"].includes(url.protocol);
  if (!leads) return html`<span>${file.name} (${file.type || "a file"})</span>`;
  return html`<a href=${url.href} target="_blank" rel="noopener noreferrer">${file.name}</a>${
    url.origin !== location.origin && html`<span class="leads-to"> (${url.host})</span>`}`;
}

/** Puts text on the clipboard, also where there is no secure context. */
export async function copy(text) {
  if (navigator.clipboard && isSecureContext) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (!done) throw new Error("The browser does not allow copying here.");
}

export function Copy({ text, label = "Copy" }) {
  const [done, setDone] = useState(false);
  const action = async () => {
    await copy(text);
    setDone(true);
    setTimeout(() => setDone(false), 2000);
  };
  return html`<${Do} action=${action}>${done ? "Copied" : label}<//>`;
}
