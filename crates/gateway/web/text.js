// Prepares foreign texts for display.

import { ONE, t } from "./language.js";

// Characters that are invisible or reorder the rest: controls, bidi marks, zero-width characters.
// (A zero-width joiner is not among them: emoji use it.)
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200c\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

/** The text with hidden characters made visible: for texts on which a decision depends. */
export function visible(text) {
  return String(text).replace(HIDDEN, (c) => `‹U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}›`);
}

/** The beginning of a text, in one line. */
export function beginning(text, length) {
  const line = String(text).slice(0, length * 4).replace(/\s+/g, " ").trim();
  return line.length > length ? line.slice(0, length - 1) + "…" : line;
}

/** What a search is for: words, and phrases in quotes, as the gateway reads it. */
export function termsOf(query) {
  const parts = query.split(/["“”„]/);
  const terms = parts.flatMap((part, n) => (n % 2 ? [part.trim()] : part.split(/\s+/)));
  return terms.filter((term) => term !== "");
}

/** A line of Markdown without its marks: for excerpts. */
export function unmarked(text) {
  return text
    .replace(/!?\[([^\]]*)\]\([^)\s]*\)/g, "$1")
    .replace(/(`{3,}|~{3,})\w*/g, "")
    .replace(/(`+)(.+?)\1/g, "$2")
    .replace(/(\*\*|__|~~)(?=\S)(.+?)(?<=\S)\1/g, "$2")
    .replace(/(^|[\s(])([*_])(?=\S)([^*_]+?)(?<=\S)\2(?=[\s).,:;!?]|$)/g, "$1$3")
    .replace(/(^|\s)(#{1,6}|>)\s+/g, "$1")
    .replace(/\s+/g, " ").trim();
}

/** Why something was cancelled, without the client ids. */
export function stoppedBy(why = "") {
  const client = /^cancelled by external:gateway:([^:]*):\S*: requested by a client$/.exec(why)?.[1];
  if (client === undefined) return why;
  return client === "page" ? t("stopped_by_someone_on_this_page") : t("stopped_by_a_client_client", { client });
}

/** An error as a sentence. */
export function sentence(error) {
  const text = error.message || String(error);
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?)]$/.test(text) ? "" : ".");
}

/** The sender of something, as shown to `client`. */
export function whoText(source, client) {
  const [, kind, id] = /^external:gateway:([^:]*):dm:[^:]*:([^:]*)$/.exec(source ?? "") ?? [];
  if (kind && id === client) return t("you");
  if (kind) return kind === "page" ? t("another_browser") : t("another_client_kind", { kind: visible(kind) });
  return source ? visible(source) : t("another_client");
}

/** Why a run ended without an answer, in the words of the agent's side, as shown to `client`. `isTaken`: it had not
 * begun. */
export function stoppedText(why, client, isTaken = false) {
  const [, asked, by, reason] = /^(?:(cancelled by)|interrupted by event \d+ from) (\S+?)(?:: ([^]*))?$/.exec(why) ?? [];
  if (!by) return sentence({ message: visible(why || t("cancelled_2")) });
  const who = whoText(by, client);
  if (!asked) return who === t("you") ? t("interrupted_by_your_next_message") : t("interrupted_by_a_message_from_who", { who });
  const words = isTaken ? t("taken_back_by_who", { who }) : t("stopped_by_who", { who });
  return `${words}${reason && reason !== "requested by a client" ? `: ${visible(reason)}` : ""}`;
}

/** Any JSON value as text: strings verbatim, the rest indented. */
export function jsonText(value) {
  if (typeof value === "string") return value;
  try { return JSON.stringify(value, null, 2) ?? ""; } catch { return String(value); }
}

export function bytesText(bytes) {
  if (bytes < 1024) return t("n_bytes", { n: bytes });
  if (bytes < 1024 * 1024) return `${Math.round(bytes / 1024)} KiB`;
  return `${ONE.format(bytes / 1024 / 1024)} MiB`;
}

/** Text and attachments of a message's content: a text, or an array of parts. */
export function contentOf(content) {
  if (!Array.isArray(content)) return { text: String(content ?? ""), files: [] };
  const texts = [], files = [];
  for (const part of content) {
    if (typeof part?.text === "string") texts.push(part.text);
    else files.push(fileOf(part));
  }
  return { text: texts.join("\n"), files };
}

/** The text of a message for the composer. */
export function draftOf({ content, priority, due }) {
  const { text, files } = contentOf(content);
  return { text, files: files.map(({ name, type, part }) => ({ name, type, part })), priority, due };
}

function fileOf(part) {
  const source = part?.source ?? part ?? {};
  const type = String(source.mimeType ?? part?.mimeType ?? "");
  if (source.type === "data" && typeof source.value === "string") {
    return { type, url: `data:${type};base64,${source.value}`, name: type || "file", part };
  }
  const url = String(source.url ?? source.value ?? "");
  let name = String(part?.filename ?? part?.name ?? "");
  if (!name) {
    const last = url.split("?")[0].split("/").pop() ?? "";
    try { name = decodeURIComponent(last); } catch { name = last; }
  }
  return { type, url, name: name || type || "file", part };
}

/** How a browser may show a file: "image", "audio", or not at all, but as a link. Only what the gateway itself
 * serves, or what is in the message itself, is ever loaded. */
export function showable(file) {
  const own = ownUrl(file.url);
  if (/^image\/(png|jpeg|gif|webp|avif)$/.test(file.type) && own) return "image";
  if (/^audio\/[a-z0-9.+-]+$/.test(file.type) && own) return "audio";
  return null;
}

function ownUrl(url) {
  if (url.startsWith("data:")) return true;
  try { return new URL(url, document.baseURI).origin === location.origin; } catch { return false; }
}

/** A URL if a link may have it, or null. */
export function linkUrl(url) {
  let parsed;
  try { parsed = new URL(url); } catch { return null; }
  return ["http:", "https:", "mailto:"].includes(parsed.protocol) ? parsed : null;
}
