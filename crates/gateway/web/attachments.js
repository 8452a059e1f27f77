// Files attached to a message: chosen, dropped or pasted, and uploaded at once.

import { t } from "./language.js";
import { bytesText } from "./text.js";

const LARGEST = 25 * 1024 * 1024;

/** Stores a file. Returns it as a draft keeps it: its name, type, and the part of the message that names it. */
export async function upload(file) {
  const name = file.name || "pasted";
  if (file.size > LARGEST) throw new Error(t("name_has_size_25_mib_are_the_most", { name, size: bytesText(file.size) }));
  const form = new FormData();
  form.append("file", file, name);
  let answer;
  try {
    answer = await fetch("api/v1/agent/attachments", { method: "POST", body: form });
  } catch {
    throw new Error(t("name_could_not_be_sent_there_is_no", { name }));
  }
  const stored = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(t("name_was_refused_why", { name, why: stored.error ?? answer.status }));
  const { mime_type: type, url } = stored;
  return { name, type, part: { type: "binary", mimeType: type, url, filename: name } };
}
