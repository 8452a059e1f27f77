// Small components that others use.

import { Component, html, useEffect, useState } from "./vendor/preact.js";
import { t } from "./language.js";
import { Dialog } from "./dialog.js";
import { bytesText, contentOf, showable, visible } from "./text.js";
import { Markdown } from "./markdown.js";

/** A button for an action that may fail: the error is shown next to it, and it is disabled while the action runs. */
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

/** A component that can be opened; its content is rendered only then. It is opened if it contains the search hit. */
export function Fold({ class: name = "", summary, open = false, isFound = false, children, label, ...others }) {
  const [isOpen, setOpen] = useState(open || isFound);
  useEffect(() => { if (isFound) setOpen(true); }, [isFound]);
  return html`<details class=${`fold ${name}`} ...${others} open=${isOpen} onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary aria-label=${label}>${summary}</summary>
    ${isOpen && html`<div class="inside">${typeof children === "function" ? children() : children}</div>`}
  </details>`;
}

/** Rendered again only when its version has grown or another property has changed. */
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

/** Cuts a long text until all of it is requested. Returns the shown part, and the button for the rest. */
function useCut(text) {
  const [all, setAll] = useState(false);
  if (all || text.length <= MUCH) return [text, null];
  const more = html`<button type="button" onClick=${() => setAll(true)}>${t("show_all_size", { size: bytesText(text.length) })}</button>`;
  return [text.slice(0, MUCH), more];
}

/** Text of any length, verbatim: output of a program. */
export function Plain({ text, label }) {
  const [shown, more] = useCut(text);
  return html`<pre class="plain" tabIndex="0" aria-label=${label}>${shown}</pre>${more}`;
}

/** Text of any length, verbatim: written by a person. */
function Words({ text }) {
  const [shown, more] = useCut(text);
  return html`<div class="words">${shown}</div>${more}`;
}

export function Large({ large, what }) {
  return html`<p class="large">${t("what_has_size", { what, size: bytesText(large.bytes) })} ${" "}
    <a href=${large.url} target="_blank" rel="noopener noreferrer">${t("open_it_2")}</a></p>`;
}

/** Text and files of a message. */
export function Content({ content, plain = false }) {
  const { text, files } = contentOf(content);
  return html`${text && (plain ? html`<${Words} text=${text} />` : html`<${Markdown} text=${text} />`)}
    ${files.length > 0 && html`<ul class="files">${files.map((file) => html`<li><${File} file=${file} /></li>`)}</ul>`}`;
}

function File({ file }) {
  const kind = showable(file);
  if (kind === "image") return html`<${Picture} file=${file} />`;
  if (kind === "audio") return html`<audio controls src=${file.url} aria-label=${file.name}></audio>`;
  let url = null;
  try { url = new URL(file.url, document.baseURI); } catch { /* Then it is a name only. */ }
  const leads = url && ["http:", "https:"].includes(url.protocol);
  if (!leads) return html`<span>${file.name} (${file.type || t("a_file")})</span>`;
  return html`<a href=${url.href} target="_blank" rel="noopener noreferrer">${file.name}</a>${
    url.origin !== location.origin && html`<span class="leads-to"> (${url.host})</span>`}`;
}

/** An image, which opens large. */
function Picture({ file }) {
  const [isLarge, setLarge] = useState(false);
  const name = visible(file.name), image = html`<img src=${file.url} alt=${name} loading="lazy" />`;
  return html`<button type="button" class="picture" aria-label=${t("name_show_it_large", { name })}
      onClick=${() => setLarge(true)}>${image}</button>
    ${isLarge && html`<${Dialog} title=${name} class="large-picture" onClose=${() => setLarge(false)}>${image}
      <p class="buttons">${!file.url.startsWith("data:") && html`<a class="button" href=${file.url} target="_blank"
        rel="noopener noreferrer">${t("open_by_itself")}</a>`}
        <button type="button" onClick=${() => setLarge(false)}>${t("close")}</button></p><//>`}`;
}

/** Copies text to the clipboard, also outside of a secure context. */
export async function copy(text) {
  if (navigator.clipboard && isSecureContext) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (!done) throw new Error(t("the_browser_does_not_allow_copying_here"));
}

/** `text`: or a function that returns it. */
export function Copy({ text, label = t("copy") }) {
  const [done, setDone] = useState(false);
  const action = async () => {
    await copy(typeof text === "function" ? text() : text);
    setDone(true);
    setTimeout(() => setDone(false), 2000);
  };
  return html`<${Do} action=${action}>${done ? t("copied") : label}<//>`;
}
