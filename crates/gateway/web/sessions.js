// The list of sessions: the title of each, its last activity, and what it needs.

import { html, useRef, useState } from "./vendor/preact.js";
import { t } from "./language.js";
import { Halves, Language, LogOut, Theme } from "./nav.js";
import { Notify } from "./notices.js";
import { Do } from "./parts.js";
import { Ago, useClock, duration } from "./time.js";
import { readOnly, state } from "./state.js";
import { termsOf, unmarked, visible } from "./text.js";
import * as address from "./address.js";

const DAYS = [["", t("any_time")], ["today", t("today")], ["yesterday", t("yesterday")], ["this_week", t("this_week")], ["last_week", t("last_week")]];

/** How many characters are shown before a hit. */
const BEFORE = 16;

/** How long after the last key the search starts. */
const PAUSE = 250;

export function Sessions({ onHelp }) {
  const { sessions, search, route } = state;
  const shown = search?.found ? search.found.map((session) => ({ session }))
    : state.variants.together(sessions.list, state.conversation?.id);
  return html`<nav class="sessions" aria-label=${t("sessions")}>
    ${route.view === "list" && html`<h1 class="unseen">${t("sessions")}</h1>`}
    <div class="top">
      <${Halves} />
      ${!readOnly && html`<a class="button new" href=${address.newAddress()}
        aria-current=${route.view === "new" ? "page" : null}>${t("new")}</a>`}
      <${Search} />
    </div>
    ${sessions.error && html`<p class="error" role="alert">${t("the_list_cannot_be_read_why", { why: sessions.error })}</p>`}
    ${search?.error && html`<p class="error" role="alert">${search.error}</p>`}
    ${search?.truncated && html`<p class="hint">${t("not_everything_could_be_searched_in_two")}</p>`}
    ${search?.found && shown.length === 0 && html`<p class="hint">${t("nothing_found_in_titles_messages_and")}</p>`}
    ${sessions.loaded && !search && shown.length === 0 && html`<p class="hint">${t("there_are_no_sessions_yet")}</p>`}
    <ul>
      ${shown.map(({ session, count }) => html`<li key=${session.id}><${Row} session=${session} count=${count} /></li>`)}
    </ul>
    ${!search && sessions.total > sessions.list.length && html`<p class="hint">
      <${Do} action=${() => state.more()}>${t("show_more")}<//> ${" "}${t("n_of_all", { n: sessions.list.length, all: sessions.total })}</p>`}
    <div class="bottom">
      <${Theme} />
      <${Language} />
      <${Notify} />
      <button type="button" class="quiet" onClick=${onHelp}>${t("keys")}</button>
      <${LogOut} />
    </div>
  </nav>`;
}

function Search() {
  const [query, setQuery] = useState("");
  const [day, setDay] = useState("");
  const timer = useRef();
  const find = (query, day, pause) => {
    setQuery(query);
    setDay(day);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => state.find(query, day), pause);
  };
  const leave = (event) => {
    if (event.key === "Escape" && query) { event.stopPropagation(); find("", "", 0); }
    if (event.key === "Enter") document.querySelector(".sessions a.session")?.focus();
  };
  return html`<div class="search" role="search">
    <input id="search" type="search" placeholder=${t("search")} aria-label=${t("search_sessions")} value=${query}
      onInput=${(event) => find(event.target.value, day, PAUSE)} onKeyDown=${leave} />
    <select aria-label=${t("when")} value=${day} onChange=${(event) => find(query, event.target.value, 0)}>
      ${DAYS.map(([value, name]) => html`<option value=${value}>${name}</option>`)}
    </select>
  </div>`;
}

function Row({ session, count }) {
  const { id, title, state: what, since, match, matchSeq, lastActivity, lastMessage } = session;
  const isCurrent = state.conversation?.id === id;
  const unread = state.isUnread(session);
  return html`<a class=${`session ${what ?? ""} ${unread ? "unread" : ""}`} href=${address.sessionAddress(id, matchSeq, state.search?.query?.trim())}
      aria-current=${isCurrent ? "page" : null}>
    <span class="title">${visible(title) || t("untitled")}</span>
    <span class="about">
      ${what === "asks" && html`<strong class="needs asks">${t("asks_you")}</strong>`}
      ${what === "running" && html`<span class="needs">${t("running")}<${Since} since=${since} /></span>`}
      ${what === "waiting" && html`<span class="needs">${t("waiting")}<${Since} since=${since} /></span>`}
      ${what === "failed" && html`<span class="needs">${t("failed_2")}</span>`}
      ${unread && html`<strong class="needs">${t("unread")}</strong>`}
      ${count > 1 && html`<span class="part">${t("n_variants", { n: count })}</span>`}
      ${!since && html`<span class="part"><${Ago} time=${lastActivity} /></span>`}
    </span>
    ${match && html`<span class="excerpt found"><${Match} text=${match} /></span>`}
    ${!match && lastMessage && lastMessage !== title &&
      html`<span class="excerpt">${visible(unmarked(lastMessage))}</span>`}
  </a>`;
}

function Since({ since }) {
  useClock(10_000);
  return since ? ` · ${duration(Date.now() - Date.parse(since))}` : null;
}

/** The place of the first term that is in a text: `{at, length}`; null if there is none. */
function hitIn(text, terms) {
  const lower = text.toLowerCase(), term = terms.find((term) => lower.includes(term));
  return term === undefined ? null : { at: lower.indexOf(term), length: term.length };
}

/** The found text, with the hit marked. */
function Match({ text: raw }) {
  const terms = termsOf((state.search?.query ?? "").toLowerCase()), plain = unmarked(raw);
  const text = hitIn(plain, terms) ? plain : raw, found = hitIn(text, terms);
  if (!found) return visible(text);
  const { at, length } = found;
  // The hit is near the beginning, so that it is visible in a narrow column.
  const from = at <= BEFORE ? 0 : text.indexOf(" ", at - BEFORE) + 1 || at;
  const before = text.slice(Math.min(from, at), at), hit = text.slice(at, at + length);
  return html`${from > 0 && "…"}${visible(before)}<mark>${visible(hit)}</mark>${visible(text.slice(at + length))}`;
}
