// Queues: the threads, with the errors, pending events and runs of each.

import { html } from "../vendor/preact.js";
import { Halves, LogOut, Theme } from "../nav.js";
import { visible } from "../text.js";
import { state } from "../state.js";
import { Thread } from "./thread.js";
import { Threads } from "./threads.js";
import * as address from "../address.js";

export function Look({ onHelp }) {
  const { route } = state;
  return html`<main class="look">
    <div class="top">
      <${Halves} />
      <${Crumbs} route=${route} />
      <span class="space"></span>
      <${Theme} />
      <button type="button" class="quiet" onClick=${onHelp}>Keys</button>
      <${LogOut} />
    </div>
    ${route.thread ? html`<${Thread} key=${route.thread} route=${route} />` : html`<${Threads} />`}
  </main>`;
}

/** The way back up. */
function Crumbs({ route: { page, thread, consumer, event, run } }) {
  if (!thread) return null;
  const here = [[address.look(), "All threads"], [address.look(thread), state.threadName ?? "thread"]];
  if (consumer) here.push([address.look(thread, "c", consumer), visible(consumer)]);
  if (run) here.push([null, "run"]);
  if (event || page === "events") here.push([address.eventsAddress(thread), "events"]);
  if (event) here.push([address.eventsAddress(thread, { event }), `${event}`]);
  if (page === "trace") here.push([null, "trace"]);
  if (page === "dead") here.push([null, "dead letters"]);
  if (page === "push") here.push([null, "push"]);
  return html`<nav class="crumbs" aria-label="Where you are"><ol>${here.map(([to, name], n) => html`<li key=${n}>
    ${to && n < here.length - 1 ? html`<a href=${to}>${name}</a>` : html`<span aria-current="location">${name}</span>`}</li>`)}</ol></nav>`;
}

export function lookTitle({ thread, consumer, event, run }) {
  if (!thread) return "Queues";
  return [run && "run", event && `event ${event}`, consumer, state.threadName].filter(Boolean).join(" – ");
}
