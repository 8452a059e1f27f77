// All threads: those with errors first.

import { html, useEffect, useState } from "../vendor/preact.js";
import { t } from "../language.js";
import { Offline } from "../offline.js";
import { Ago } from "../time.js";
import { visible } from "../text.js";
import { state } from "../state.js";
import { api } from "./api.js";
import { First } from "./first.js";
import { Spark } from "./plot.js";
import { useWatch } from "./stream.js";
import { For, OPEN } from "./words.js";
import * as address from "../address.js";

/** How many are shown at first, and at most how many are announced at once. */
const SHOWN = 200, MOST = 1000;

const isWrong = ({ error, attention }) => Boolean(error || attention);
const nameOf = (thread) => visible(thread.title || thread.name);

export function Threads() {
  const [query, setQuery] = useState("");
  const [{ limit, offset }, setPlace] = useState({ limit: SHOWN, offset: 0 });
  const { data, stream } = useWatch(api(["watch"], { limit: query ? MOST : limit, offset: offset || null }));
  useEffect(() => {
    state.threadName = null;
    if (!data || !state.opensOnly) return;
    state.opensOnly = false;
    // Unless somebody has gone on since that was drawn.
    if (data.threads.length === 1 && !address.current().thread) address.replace(address.look(data.threads[0].id));
  }, [data]);
  return html`<div class="page"><h1>${t("threads")}</h1>
    <${Offline} connection=${stream} />
    ${stream.state === "refused" && html`<p class="error" role="alert">${stream.why}</p>`}
    <p role="search"><input id="search" type="search" placeholder=${t("find_a_thread")} aria-label=${t("find_a_thread")} value=${query} onInput=${(event) => setQuery(event.target.value)}
      onKeyDown=${(event) => { if (event.key === "Escape" && query) { event.stopPropagation(); setQuery(""); } }} /></p>
    ${data && !offset && !data.unread && data.threads.every(({ kind }) => kind !== "thread") && html`<${First} />`}
    ${data ? html`<${Found} data=${data} query=${query} />` : stream.state === "open" && html`<p class="hint">${t("looking")}</p>`}
    ${data && data.total > data.threads.length && html`<p class="hint">${t("from_to_to_of_n_threads",
      { from: offset + 1, to: offset + data.threads.length, n: data.total })} ${" "}
      ${offset + data.threads.length < data.total && html`<button type="button" onClick=${() =>
        setPlace(limit < MOST ? { limit: MOST, offset } : { limit, offset: offset + MOST })}>${t("show_more")}</button>`}
      ${offset > 0 && html`${" "}<button type="button" onClick=${() => setPlace({ limit: MOST, offset: offset - MOST })}>${t("show_those_before")}</button>`}</p>`}
  </div>`;
}

function Found({ data, query }) {
  const wanted = query.trim().toLowerCase();
  const all = data.threads.filter(({ name, title, path }) => !wanted || `${name} ${title ?? ""} ${path}`.toLowerCase().includes(wanted));
  const wrong = all.filter(isWrong), well = all.filter((thread) => !isWrong(thread));
  // Hidden threads may have errors too.
  const hidden = data.threads.filter(isWrong).length - wrong.length;
  return html`
    <p class=${wrong.length || hidden ? "verdict wrong" : "verdict"}>
      ${wanted && `${t("n_of_all_threads_have_that_in_the_name",
        { n: all.length, all: data.threads.length })} `}
      ${wrong.length > 0 && t("n_threads_need_attention", { n: wrong.length })}${
        hidden > 0 && ` ${t("n_others_need_attention", { n: hidden })}`}
      ${!wanted && !wrong.length && (all.length ? t("nothing_is_wrong")
        : t("there_are_no_threads_yet_a_session"))}</p>
    ${data.unread > 0 && html`<p class="hint">${t("n_threads_are_still_to_be_read", { n: data.unread })}</p>`}
    <div class="rows">
      ${wrong.length > 0 && html`<h2>${t("needs_attention")}</h2><${List} threads=${wrong} />`}
      ${well.length > 0 && html`${wrong.length > 0 && html`<h2>${t("all_is_well")}</h2>`}<${List} threads=${well} />`}
    </div>`;
}

/** Sub-agents are listed below their session. */
function nested(threads) {
  const ids = new Set(threads.map(({ id }) => id)), inside = new Map();
  const isInside = ({ parent }) => parent && ids.has(parent);
  for (const thread of threads) if (isInside(thread)) inside.set(thread.parent, [...(inside.get(thread.parent) ?? []), thread]);
  return threads.filter((thread) => !isInside(thread)).flatMap((thread) => [thread, ...(inside.get(thread.id) ?? [])]);
}

function List({ threads }) {
  return html`<ul class="threads">${nested(threads).map((thread) => html`<li key=${thread.id} class=${`is-${thread.kind}`}><${Row} thread=${thread} /></li>`)}</ul>`;
}

const KINDS = { session: t("session_2"), sub_agent: t("sub_agent"), thread: "" };

function Row({ thread }) {
  const { id, kind, path, events, events_is_exact: exact, rate, consumers = {}, dead, oldest_pending_at: oldest, newest_at: newest, error, unread, attention, agent_is_idle: isOpen } = thread;
  const { total = 0, stalled = 0, waiting = 0, paused = 0 } = consumers;
  const here = address.look(id), running = (consumers.running ?? 0) - (isOpen ? 1 : 0);
  const parts = [running && t("n_running", { n: running }), isOpen && `1 ${OPEN}`, waiting && t("n_waiting", { n: waiting }),
    paused && t("n_paused", { n: paused })].filter(Boolean);
  return html`
    <span class="name"><a class="row" href=${here} title=${visible(path)}>${nameOf(thread)}</a> <span class="hint">${KINDS[kind] ?? ""}</span></span>
    ${unread && html`<span class="hint">${t("not_read_yet")}</span>`}
    ${error && html`<span class="error">${visible(error.message)}</span>`}
    ${!error && !unread && html`
      <a href=${address.eventsAddress(id)} class="figure">${exact === false ? `${t("at_least")} ` : ""}${t("n_events", { n: events })}</a>
      <${Spark} rate=${rate} />
      <span>${total > 0 && html`<a href=${here}>${t("n_consumers", { n: total })}</a>`}${parts.map((part) => html`, <a href=${here}>${part}</a>`)}${
        stalled > 0 && html`${", "}<a class="failure" href=${here}>■ ${t("n_stalled", { n: stalled })}</a>`}${
        dead > 0 && html`${", "}<a class="failure" href=${address.deadAddress(id)}>${t("n_dead_letters", { n: dead })}</a>`}</span>
      <span class="hint">${oldest ? t("oldest_waits_for_time", { time: html`<${For} time=${oldest} />` })
        : newest ? t("last_event_time", { time: html`<${Ago} time=${newest} />` }) : ""}</span>
      ${attention && html`<span class="attention">${visible(attention)}</span>`}`}`;
}
