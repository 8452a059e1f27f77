// What Queues is for and what to do first, shown while there is nothing.

import { html } from "../vendor/preact.js";
import { t } from "../language.js";
import { Line, command } from "./command.js";

/** A consumer to begin with: it keeps what comes in a file. */
const subscribe = (thread) => `${command(thread, "subscribe", "keeper", "cat >>kept.ndjson")} --deliver stdin`;

/** `thread`: one without consumers; else there is none. */
export function First({ thread }) {
  const named = { path: "inbox" };
  const lines = thread ? [subscribe(thread), command(thread, "push", "Good morning")]
    : ["thread init inbox", subscribe(named), command(named, "push", "Good morning"), "thread serve --thread inbox"];
  return html`<section class="first" aria-label=${t("what_this_is_for")}>
    <p>${t("a_queue_keeps_what_is_pushed_into_it")} ${t("here_one_sees_what_came_what_waits_what")}</p>
    <p>${thread ? t("subscribe_a_consumer_and_push_something") : t("make_a_queue_with_a_consumer_and_look")}</p>
    <${Line} lines=${lines} />
  </section>`;
}
