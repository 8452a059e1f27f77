// A thread: its errors, its consumers and its last events.

import { html, useEffect, useRef } from "../vendor/preact.js";
import { t } from "../language.js";
import { Offline } from "../offline.js";
import { Do } from "../parts.js";
import { Ago, Stamp } from "../time.js";
import { bytesText, visible } from "../text.js";
import { state } from "../state.js";
import { api, post } from "./api.js";
import { Charts } from "./charts.js";
import { AsCommand, command } from "./command.js";
import { ConsumerPage, byNeed, needs } from "./consumer.js";
import { Consumers } from "./consumers.js";
import { Dead } from "./dead.js";
import { Events } from "./events.js";
import { First } from "./first.js";
import { Push } from "./push.js";
import { RunPage } from "./run.js";
import { useWatch } from "./stream.js";
import { TracePage } from "./trace.js";
import { NUMBER } from "./words.js";
import * as address from "../address.js";

/** How many consumers the first line names. */
const NAMED = 3;

const PAGES = { thread: Overview, consumer: ConsumerPage, run: RunPage, events: Events, trace: TracePage, dead: Dead, push: Push };

export function Thread({ route }) {
  const { data, stream } = useWatch(api([route.thread, "watch"]));
  // What was seen last stays while the thread cannot be looked at: what is open and typed in it must not vanish.
  const seen = useRef(null);
  if (data && (!data.error || seen.current?.id !== data.id)) seen.current = data;
  const thread = seen.current;
  const trouble = data?.error;
  const name = thread ? visible(thread.title || thread.name) : null;
  useEffect(() => {
    state.threadName = name;
    state.changed();
  }, [name]);
  const Page = PAGES[route.page];
  return html`
    <${Offline} connection=${stream} />
    ${stream.state === "refused" && html`<div class="page"><p class="error" role="alert">${stream.why}</p><p><a href=${address.look()}>${t("all_threads")}</a></p></div>`}
    ${thread && html`<${Tabs} thread=${thread} page=${route.page} />
      ${thread.read_only && html`<p class="hint read-only">${t("only_looking_the_gateway_was_started")}</p>`}
      ${trouble && html`<p class="page error" role="alert">${visible(trouble.message ?? trouble)}</p>`}
      ${!thread.error && html`<${Page} key=${route.page + (route.consumer ?? "") + (route.run ?? "") + (route.page === "trace" ? route.event : "")} thread=${thread} route=${route} />`}`}`;
}

function Tabs({ thread, page }) {
  const { id, events, dead, consumers_state: consumers = [] } = thread, needing = consumers.filter(needs).length;
  const bad = needing > 0 && html` <span class="figure failure" title=${t("n_consumers_need_attention", { n: needing })}>■ ${
    NUMBER.format(needing)}</span>`;
  const tab = (pages, to, name, n, wrong, more) => html`<a href=${to} aria-current=${pages.includes(page) ? "page" : null}>${name}${
    n !== undefined && html` <span class=${wrong ? "figure failure" : "figure"}>${NUMBER.format(n)}</span>`}${more}</a>`;
  return html`<nav class="tabs" aria-label=${t("in_this_thread")}>
    ${tab(["thread", "consumer", "run"], address.look(id), t("consumers"), consumers.length, false, bad)}
    ${tab(["events", "trace"], address.eventsAddress(id), t("events"), events)}
    ${tab(["dead"], address.deadAddress(id), t("dead_letters"), dead ?? 0, dead > 0)}
    ${!thread.read_only && tab(["push"], address.look(id, "push"), t("push_2"))}
    ${thread.kind === "session" && html`<a href=${address.sessionAddress(id)}>${t("conversation")}</a>`}
  </nav>`;
}

function Overview({ thread, route }) {
  const { consumers_state: consumers = [], id, path, dead } = thread;
  const needing = consumers.filter(needs).sort(byNeed), isWrong = needing.length > 0 || dead > 0;
  const asks = /^the agent asks/.test(thread.attention ?? "");
  return html`<div class="page">
    <h1>${visible(thread.title || thread.name)}</h1>
    <p class=${isWrong ? "verdict wrong" : "verdict"}>${needing.length > 0 && html`<${Needing} thread=${thread} consumers=${needing} /> `}
      ${dead > 0 && html`<a href=${address.deadAddress(id)}>${t("n_dead_letters", { n: dead })}</a>.`}
      ${!isWrong && !asks && t("nothing_is_wrong")}</p>
    ${asks && html`<p class="verdict"><a href=${address.sessionAddress(id)}>${t("the_agent_asks_for_permission_answer_it")}</a></p>`}
    <${Consumers} thread=${thread} />
    ${consumers.length === 0 && html`<p class="hint">${t("no_consumer_is_subscribed_events_are")}</p><${First} thread=${thread} />`}
    ${thread.to_come?.length > 0 && html`<${ToCome} thread=${thread} />`}
    <${Charts} thread=${thread} params=${route.params} />
    <p class="hint">${t("events_in_all",
      { events: html`<a href=${address.eventsAddress(id)}>${t("n_events", { n: thread.events })}</a>` })}${
      thread.first_at && html`, ${t("the_first_time", { time: html`<${Ago} time=${thread.first_at} />` })}`}${
      thread.newest_at && html`, ${t("the_last_time", { time: html`<${Ago} time=${thread.newest_at} />` })}`}${
      thread.size_bytes >= 0 && ` · ${t("size_on_disk", { size: bytesText(thread.size_bytes) })}`} · <code>${visible(path)}</code></p>
    <${AsCommand} lines=${[command(thread, "info"), `${command(thread, "peek")} -n 20 --follow`]} />
  </div>`;
}

/** How many consumers need attention, and the first of them. */
function Needing({ thread, consumers }) {
  const link = ({ name }, n) => html`${n > 0 && ", "}<a key=${name} href=${address.look(thread.id, "c", name)}>${visible(name)}</a>`;
  return html`${t("n_consumers_need_attention", { n: consumers.length })}: ${consumers.slice(0, NAMED).map(link)}${
    consumers.length > NAMED ? ", …" : "."}`;
}

/** What can be done with a scheduled event. */
function Scheduled({ thread, id }) {
  const button = (verb, name) => html`<${Do} class="quiet" title=${command(thread, "scheduled", verb, id)}
    action=${() => post(api([thread.id, "scheduled", id, verb]))}>${name}<//>`;
  return html`${button("now", t("push_now"))} ${button("cancel", t("cancel"))}`;
}

function ToCome({ thread }) {
  const { to_come: list, scheduled } = thread;
  const hidden = scheduled - list.filter(({ rule }) => !rule).length;
  return html`<h2>${t("what_is_to_come")}</h2>
    <table class="to-come"><thead><tr><th scope="col">${t("what")}</th><th scope="col">${t("when")}</th><th scope="col">${t("content")}</th><td></td></tr></thead>
      <tbody>${list.map(({ id, next, rule, content }) => html`<tr key=${id}><th scope="row"><code>${visible(id)}</code></th>
        <td>${next ? html`<${Stamp} time=${next} />` : t("paused")}${rule && html`<br /><small>${visible(rule)}</small>`}</td>
        <td>${visible(content)}</td>
        <td>${!rule && !thread.read_only && html`<${Scheduled} thread=${thread} id=${id} />`}</td></tr>`)}</tbody></table>
    ${hidden > 0 && html`<p class="hint">${t("n_scheduled_events_more", { n: hidden })}</p>`}
    <${AsCommand} lines=${[command(thread, "scheduled"), command(thread, "schedule", "list")]} />`;
}
