// All threads: those with errors first.

import { html, useEffect, useState } from "../vendor/preact.js";
import { Offline } from "../offline.js";
import { Ago } from "../time.js";
import { visible } from "../text.js";
import { state } from "../state.js";
import { api } from "./api.js";
import { Spark } from "./plot.js";
import { useWatch } from "./stream.js";
import { For, NUMBER, OPEN, count } from "./words.js";
import * as address from "../address.js";

/** How many are shown at first, and at most how many are announced at once. */
const SHOWN = 200, MOST = 1000;

const isWrong = ({ consumers, dead, error, attention }) => Boolean(error || attention || consumers?.stalled || dead);
const nameOf = (thread) => visible(thread.title || thread.name);

export function Threads() {
  const [query, setQuery] = useState("");
  const [{ limit, offset }, setPlace] = useState({ limit: SHOWN, offset: 0 });
  const { data, stream } = useWatch(api(["watch"], { limit: query ? MOST : limit, offset: offset || null }));
  useEffect(() => {
    state.threadName = null;
    if (!data || !state.opensOnly) return;
    state.opensOnly = false;
    if (data.threads.length === 1) address.replace(address.look(data.threads[0].id));
  }, [data]);
  return html`<div class="page"><h1>Threads</h1>
    <${Offline} connection=${stream} />
    ${stream.state === "refused" && html`<p class="error" role="alert">${stream.why}</p>`}
    <p role="search"><input id="search" type="search" placeholder="Find a thread" aria-label="Find a thread" value=${query} onInput=${(event) => setQuery(event.target.value)}
      onKeyDown=${(event) => { if (event.key === "Escape" && query) { event.stopPropagation(); setQuery(""); } }} /></p>
    ${data ? html`<${Found} data=${data} query=${query} />` : stream.state === "open" && html`<p class="hint">Looking …</p>`}
    ${data && data.total > data.threads.length && html`<p class="hint">${NUMBER.format(offset + 1)} to ${NUMBER.format(offset + data.threads.length)} of ${count(data.total, "thread")} ${" "}
      ${offset + data.threads.length < data.total && html`<button type="button" onClick=${() =>
        setPlace(limit < MOST ? { limit: MOST, offset } : { limit, offset: offset + MOST })}>Show more</button>`}
      ${offset > 0 && html`${" "}<button type="button" onClick=${() => setPlace({ limit: MOST, offset: offset - MOST })}>Show those before</button>`}</p>`}
  </div>`;
}

function Found({ data, query }) {
  const wanted = query.trim().toLowerCase();
  const all = data.threads.filter(({ name, title, path }) => !wanted || `${name} ${title ?? ""} ${path}`.toLowerCase().includes(wanted));
  const wrong = all.filter(isWrong), well = all.filter((thread) => !isWrong(thread));
  // Hidden threads may have errors too.
  const hidden = data.threads.filter(isWrong).length - wrong.length;
  const needs = (n, what) => `${count(n, what)} ${n === 1 ? "needs" : "need"} attention.`;
  return html`
    <p class=${wrong.length || hidden ? "verdict wrong" : "verdict"}>
      ${wanted && `${all.length ? NUMBER.format(all.length) : "None"} of ${count(data.threads.length, "thread")} ${all.length === 1 ? "has" : "have"} that in the name. `}
      ${wrong.length > 0 && needs(wrong.length, "thread")}${hidden > 0 && ` ${needs(hidden, "other")}`}
      ${!wanted && !wrong.length && (all.length ? "Nothing is wrong." : "There are no threads yet: a session makes one, and --thread DIR names others.")}</p>
    ${data.unread > 0 && html`<p class="hint">${count(data.unread, "thread")} ${data.unread === 1 ? "is" : "are"} still to be read.</p>`}
    <div class="rows">
      ${wrong.length > 0 && html`<h2>Needs attention</h2><${List} threads=${wrong} />`}
      ${well.length > 0 && html`${wrong.length > 0 && html`<h2>All is well</h2>`}<${List} threads=${well} />`}
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

const KINDS = { session: "session", sub_agent: "sub-agent", thread: "" };

function Row({ thread }) {
  const { id, kind, path, events, events_is_exact: exact, rate, consumers = {}, dead, oldest_pending_at: oldest, newest_at: newest, error, unread, attention, agent_is_idle: isOpen } = thread;
  const { total = 0, stalled = 0, waiting = 0, paused = 0 } = consumers;
  const here = address.look(id), running = (consumers.running ?? 0) - (isOpen ? 1 : 0);
  const parts = [running && `${running} running`, isOpen && `1 ${OPEN}`, waiting && `${waiting} waiting`, paused && `${paused} paused`].filter(Boolean);
  return html`
    <span class="name"><a class="row" href=${here} title=${visible(path)}>${nameOf(thread)}</a> <span class="hint">${KINDS[kind] ?? ""}</span></span>
    ${unread && html`<span class="hint">not read yet</span>`}
    ${error && html`<span class="error">${visible(error.message)}</span>`}
    ${!error && !unread && html`
      <a href=${address.eventsAddress(id)} class="figure">${exact === false ? "at least " : ""}${count(events, "event")}</a>
      <${Spark} rate=${rate} />
      <span>${total > 0 && html`<a href=${here}>${count(total, "consumer")}</a>`}${parts.map((part) => html`, <a href=${here}>${part}</a>`)}${
        stalled > 0 && html`${", "}<a class="failure" href=${here}>■ ${stalled} stalled</a>`}${
        dead > 0 && html`${", "}<a class="failure" href=${address.deadAddress(id)}>${count(dead, "dead letter")}</a>`}</span>
      <span class="hint">${oldest ? html`oldest waits for <${For} time=${oldest} />` : newest ? html`last event <${Ago} time=${newest} />` : ""}</span>
      ${attention && html`<span class="attention">${visible(attention)}</span>`}`}`;
}
