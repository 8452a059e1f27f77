// A conversation as a file: its messages as Markdown, or all that is known of it as JSON. Loaded when it is asked for.

import { locale, t } from "./language.js";
import { contentOf, stoppedText } from "./text.js";

/** How many messages, and how many steps, are read at once. */
const MESSAGES = 200, STEPS = 1000;

/** All pages of something, the oldest first. `read(before)` returns `[items, hasMore]`. */
async function all(read) {
  const found = [];
  let before, hasMore;
  do {
    let page;
    [page, hasMore] = await read(before);
    found.unshift(...page);
    before = page[0]?.seq;
  } while (hasMore && before);
  return found;
}

/** `ask(method, params)` sends a request. */
async function messagesOf(ask, sessionId) {
  return all(async (before) => {
    const { messages, hasMore } = await ask("sessions.history", { sessionId, before, limit: MESSAGES });
    return [messages, hasMore];
  });
}

export async function asJson(ask, { id: sessionId, title, agent }) {
  const messages = await messagesOf(ask, sessionId);
  const steps = await all(async (before) => {
    const { events, hasMore } = await ask("sessions.steps", { sessionId, before, limit: STEPS });
    return [events, hasMore];
  });
  return JSON.stringify({ sessionId, title, agent, messages, steps }, null, 2);
}

export async function asMarkdown(ask, { id, title }) {
  const messages = await messagesOf(ask, id);
  const parts = messages.map((message) => {
    const { text, files } = contentOf(message.content);
    const names = files.map((file) => t("attachment_name", { name: file.name })).join("\n");
    const who = { user: t("user"), system: t("gateway") }[message.role] ?? t("agent");
    const end = message.role === "error" ? `**${t("failed")}** ${message.metadata?.error ?? ""}`
      : message.role === "cancelled" ? `*${stoppedText(String(message.metadata?.why ?? ""))}*` : "";
    const about = message.large ? t("n_bytes_which_are_not_part_of_this_file", { n: message.large.bytes }) : "";
    return [`## ${who}, ${new Date(message.timestamp).toLocaleString(locale)}`, text, names, about, end].filter(Boolean).join("\n\n");
  });
  return `# ${title || t("untitled")}\n\n${parts.join("\n\n")}\n`;
}

/** Gives the browser a file to keep. */
export function save(name, type, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
