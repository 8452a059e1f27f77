// The command lines that do the same as the page, so that one can learn them.

import { html } from "../vendor/preact.js";
import { t } from "../language.js";
import { Copy, Fold } from "../parts.js";
import { visible } from "../text.js";

/** A word, quoted for a shell if necessary. */
export function quoted(word) {
  const text = String(word);
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** A command on a thread; what is undefined is left out. */
export function command(thread, name, ...words) {
  const given = words.filter((word) => word !== undefined && word !== null && word !== "");
  return [`thread ${name} -t`, quoted(thread.path), ...given.map(quoted)].join(" ");
}

/** `lines`: one or several commands. */
export function Line({ lines }) {
  const text = [lines].flat().join("\n");
  return html`<div class="command"><pre class="plain" tabIndex="0" aria-label=${t("command")}>${visible(text)}</pre><${Copy} text=${text} /></div>`;
}

export function AsCommand({ lines }) {
  return html`<${Fold} class="as-command" summary=${t("as_a_command")}>${() => html`<${Line} lines=${lines} />`}<//>`;
}
