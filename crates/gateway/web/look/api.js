// Requests of Queues, and their answers.

import { t } from "../language.js";
import { sentence } from "../text.js";

/** The gateway's error message, as a sentence, with the status of its answer. */
export class Refusal extends Error {
  constructor(status, words) {
    super(sentence({ message: words }));
    this.status = status;
  }
}

/** The URL below `api/v1/threads` that the parts name. */
export function api(parts, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const path = ["api/v1/threads", ...parts.map(encodeURIComponent)].join("/");
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

export async function refusal(answer) {
  const words = await answer.json().then(({ error }) => error, () => null);
  return new Refusal(answer.status, words || t("the_gateway_answered_status_2", { status: String(answer.status) }));
}

async function ask(url, options) {
  let answer;
  try {
    answer = await fetch(url, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error(t("the_gateway_cannot_be_reached_try_again"));
  }
  if (!answer.ok) throw await refusal(answer);
  return answer.json();
}

export const get = (url, signal) => ask(url, { signal });

export function post(url, body = {}) {
  return ask(url, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
}
