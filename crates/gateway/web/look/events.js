// The event browser: a filter, a list with its live tail, and the event that is open.

import { html, useEffect, useMemo, useState } from "../vendor/preact.js";
import { list, t } from "../language.js";
import { Do, Fold, Versioned } from "../parts.js";
import { Offline } from "../offline.js";
import { Stamp } from "../time.js";
import { termsOf, visible } from "../text.js";
import { AsCommand, command } from "./command.js";
import { Event } from "./event.js";
import { Facets } from "./facets.js";
import { Rows } from "./rows.js";
import { Tail } from "./tail.js";
import * as address from "../address.js";

/** Operators that only a filter has. SQL without one is a constant or a column, which is no useful filter. */
const SQL = /[=<>()|&~]|\w\s*%\s*\w|\b(id|created_at|source|type|subtype|content|metadata)\s+(not\s+)?(like|glob|in|is|isnull|notnull|between)\b/i;

/** The filter that finds events whose content has all of these words and phrases. */
const finding = (terms) => terms
  .map((term) => `content LIKE '%${term.replace(/[\\%_]/g, "\\$&").replaceAll("'", "''")}%' ESCAPE '\\'`).join(" AND ");

/** What was typed for such a filter, or null if nothing that can be typed leads to it. */
function foundBy(filter) {
  const parts = [...filter.matchAll(/content LIKE '%((?:[^']|'')*)%' ESCAPE '\\'/g)];
  const terms = parts.map(([, part]) => part.replaceAll("''", "'").replace(/\\([\\%_])/g, "$1"));
  const words = terms.map((term) => (/\s/.test(term) ? `"${term}"` : term)).join(" ");
  return words && filterOf(words) === filter ? words : null;
}

/** Typed text, as a filter. */
const filterOf = (text) => (!text || SQL.test(text) ? text : finding(termsOf(text)));

const EXAMPLES = [
  ["type = 'message'", t("what_was_said")],
  ["subtype = 'error'", t("of_one_kind")],
  ["source LIKE 'external:%'", t("from_outside")],
  ["content LIKE '%timeout%'", t("with_a_word_in_it")],
  ["created_at >= '2026-01-31T12:00'", t("since_a_time_utc")],
  ["metadata ->> 'run_id' = '17'", t("by_a_key_of_the_metadata")],
];

export function Events({ thread, route }) {
  const filter = route.params.filter ?? "";
  return html`<div class=${route.event ? "events-page with-event" : "events-page"}>
    <h1 class="unseen">${t("events_of_name", { name: visible(thread.name) })}</h1>
    <section class="event-list" aria-label=${t("events")}>
      <${Filter} thread=${thread} filter=${filter} />
      <${List} key=${filter} thread=${thread} filter=${filter} open=${route.event} />
    </section>
    ${route.event && html`<${Event} key=${route.event} thread=${thread} id=${route.event} filter=${filter} />`}
  </div>`;
}

function List({ thread, filter, open }) {
  const [, redraw] = useState(0);
  const tail = useMemo(() => new Tail(thread.id, filter, thread.last_event_id ?? 0), []);
  useEffect(() => {
    const leave = tail.listen(() => { tail.take(); redraw((n) => n + 1); });
    tail.open();
    return () => { leave(); tail.close(); };
  }, []);
  const { items, error, isRefused, incomplete, failures, loading, next, isLive, stream } = tail;
  const words = foundBy(filter), mayBeWords = isRefused && words === null;
  const row = (event) => html`<${Versioned} of=${Row} key=${event.id} event=${event} thread=${thread.id} filter=${filter} isOpen=${event.id === open} />`;
  return html`<div class="bar">
      <button type="button" aria-pressed=${isLive} onClick=${() => tail.live(!isLive)}>${isLive ? t("live_pause") : t("paused_go_on")}</button>
      <span class="hint" role="status">${error || !items.length ? "" : next !== null ? t("the_newest_n", { n: items.length })
        : filter ? t("n_events_match", { n: items.length }) : t("n_events", { n: items.length })}</span>
      ${!thread.read_only && html`<a class="button" href=${address.look(thread.id, "push")}>${t("push_an_event")}</a>`}
    </div>
    ${(items.length > 0 || filter) && html`<${Facets} thread=${thread.id} filter=${filter} items=${items} />`}
    ${words !== null && html`<p class="hint">${t("events_whose_content_has_words_in_it_as",
      { words: visible(words.replace(/^"([^"]*)"$/, "$1")), filter: html`<code>${visible(filter)}</code>` })}</p>`}
    ${isLive && html`<${Offline} connection=${stream} />`}
    ${error && html`<p class="error" role="alert">${error} ${" "}${mayBeWords
      ? html`<a class="button" href=${address.eventsAddress(thread.id, { filter: finding(termsOf(filter)) })}>${t("search_the_contents_for_it")}</a>`
      : html`<button type="button" onClick=${() => tail.again()}>${t("try_again")}</button>`}</p>`}
    ${isLive && stream.state === "refused" && html`<p class="error" role="alert">${t("new_events_are_not_shown_as_they_come", { why: stream.why })}</p>`}
    ${failures && html`<p class="hint">${t("on_n_events_the_filter_itself_failed_so",
      { n: failures.events, why: visible(failures.message) })}</p>`}
    ${!loading && !error && items.length === 0 && !incomplete && html`<p class="hint">${filter ? t("no_event_matches") : t("there_are_no_events_yet")}</p>`}
    <${Rows} items=${items} row=${row} added=${tail.added} label=${t("events_the_newest_first")} onEnd=${() => tail.more()} onTop=${(is) => { tail.isTop = is; }} />
    ${loading && html`<p class="hint">${items.length ? t("older_events_are_coming") : t("looking")}</p>`}
    ${incomplete && html`<p class="hint">${t("searched_back_to_event_n_why",
      { n: incomplete.searched_to, why: visible(incomplete.reason) })} ${" "}
      <${Do} action=${() => tail.older(true)}>${t("search_on")}<//></p>`}`;
}

function Row({ event, thread, filter, isOpen }) {
  return html`<li><a class="row" href=${address.eventsAddress(thread, { event: event.id, filter })} aria-current=${isOpen ? "true" : null}>
    <span class="figure">${event.id}</span><${Stamp} time=${event.at} /><span class="kind">${event.kind}</span><span class="source">${event.source}</span><span class="text">${event.text}</span>
  </a></li>`;
}

function Filter({ thread, filter }) {
  const shown = foundBy(filter) ?? filter;
  const [text, setText] = useState(shown);
  useEffect(() => setText(shown), [shown]);
  const show = (text) => address.go(address.eventsAddress(thread.id, { filter: filterOf(text.trim()) }));
  const submit = (event) => { event.preventDefault(); show(text); };
  return html`<form class="filter" role="search" onSubmit=${submit}>
    <label for="search">${t("filter_or_words")}</label>
    <input id="search" value=${text} placeholder="type = 'message' AND content LIKE '%invoice%'" spellcheck=${false} autocomplete="off"
      onInput=${(event) => setText(event.target.value)} onKeyDown=${(event) => { if (event.key === "Escape") setText(shown); }} />
    <button class="primary" disabled=${text.trim() === shown}>${t("show")}</button>
    ${filter && html`<a class="button" href=${address.eventsAddress(thread.id)}>${t("all")}</a>`}
    <${Fold} class="examples" summary=${t("examples")}>${() => html`
      <p class="hint">${t("sql_over_columns_as_peek_and_subscribe", {
        columns: list(["id", "created_at", "source", "type", "subtype", "content", "metadata"]),
        peek: html`<code>thread peek --filter</code>`, subscribe: html`<code>thread subscribe --filter</code>` })}</p>
      <ul>${EXAMPLES.map(([example, about]) => html`<li><button type="button" onClick=${() => { setText(example); show(example); }}><code>${example}</code></button> <span class="hint">${about}</span></li>`)}</ul>
      <${AsCommand} lines=${command(thread, "peek", "-n", "100", ...(filter ? ["--filter", filter] : []), "--follow")} />`}<//>
  </form>`;
}
