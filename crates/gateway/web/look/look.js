// Queues: the threads, with the errors, pending events and runs of each.

import { html } from "../vendor/preact.js";
import { t } from "../language.js";
import { Halves, Language, LogOut, Theme } from "../nav.js";
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
      <${Language} />
      <button type="button" class="quiet" onClick=${onHelp}>${t("keys")}</button>
      <${LogOut} />
    </div>
    ${route.thread ? html`<${Thread} key=${route.thread} route=${route} />` : html`<${Threads} />`}
  </main>`;
}

/** The way back up. */
function Crumbs({ route: { page, thread, consumer, event, run, params } }) {
  if (!thread) return null;
  const up = consumer ? address.chartsAddress(thread, { ...params, consumer }) : address.look(thread);
  const here = [[address.look(), t("all_threads")], [up, state.threadName ?? t("thread")]];
  if (consumer) here.push([address.runsAddress(thread, consumer, params), visible(consumer)]);
  if (run) here.push([null, t("run")]);
  if (event || page === "events") here.push([address.eventsAddress(thread), t("events_2")]);
  if (event) here.push([address.eventsAddress(thread, { event }), `${event}`]);
  if (page === "trace") here.push([null, t("trace_2")]);
  if (page === "dead") here.push([null, t("dead_letters_2")]);
  if (page === "push") here.push([null, t("push")]);
  return html`<nav class="crumbs" aria-label=${t("where_you_are")}><ol>${here.map(([to, name], n) => html`<li key=${n}>
    ${to && n < here.length - 1 ? html`<a href=${to}>${name}</a>` : html`<span aria-current="location">${name}</span>`}</li>`)}</ol></nav>`;
}
