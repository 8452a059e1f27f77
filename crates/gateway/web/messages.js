// The list of messages, and the reader's position in it.

import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/preact.js";
import { t } from "./language.js";
import { Content, Copy, Do, Large, Versioned } from "./parts.js";
import { Dialog } from "./dialog.js";
import { Run } from "./run.js";
import { PRIORITY, waiting } from "./strip.js";
import { Clock, Stamp } from "./time.js";
import { mark, unmark } from "./mark.js";
import { beginning, contentOf, jsonText, visible, whoText } from "./text.js";
import { readOnly, state } from "./state.js";
import * as address from "./address.js";

/** How near to the end a position counts as the end, and how near to the beginning older messages are fetched. */
const NEAR = 48, AHEAD = 400;

export function Messages({ conversation }) {
  const box = useRef(), inside = useRef();
  /** Whether the view stays at the end when something is added. */
  const stays = useRef(true);
  const lastTop = useRef(0);
  const anchor = useRef(null);
  const found = useRef(null);
  /** The last request that was shown from its start on, because it is higher than the view. */
  const begun = useRef(null);
  const [isBelow, setBelow] = useState(false);
  const [loading, setLoading] = useState(false);
  const [error, setError] = useState(null);
  const newest = conversation.lastSeq;

  const toEnd = () => {
    stays.current = true;
    setBelow(false);
    box.current.scrollTop = box.current.scrollHeight;
    lastTop.current = box.current.scrollTop;
  };
  const keep = () => {
    const { scrollTop, scrollHeight, clientHeight } = box.current;
    // Scrolled up just now; the scroll event is still to come.
    if (scrollTop < lastTop.current - 1 && scrollHeight - scrollTop - clientHeight >= NEAR) stays.current = false;
    if (stays.current && !beginRequest()) box.current.scrollTop = scrollHeight;
    lastTop.current = box.current.scrollTop;
  };
  /** What is to be decided on is read from its start. Returns whether there is such a request, for the first time. */
  const beginRequest = () => {
    const card = box.current.querySelector(".permission.open");
    if (!card || card === begun.current || card.offsetHeight <= box.current.clientHeight) return false;
    begun.current = card;
    stays.current = false;
    card.scrollIntoView({ block: "start" });
    return true;
  };
  const older = async () => {
    if (loading || !conversation.hasOlder) return;
    const first = inside.current.querySelector(".exchange, .note");
    if (!first) return;
    setLoading(true);
    setError(null);
    try {
      anchor.current = { element: first, top: () => first.getBoundingClientRect().top };
      anchor.current.was = anchor.current.top();
      await state.older();
    } catch (error) {
      setError(error.message);
    }
    setLoading(false);
  };
  const scrolled = () => {
    const { scrollTop, scrollHeight, clientHeight } = box.current;
    if (scrollHeight - scrollTop - clientHeight < NEAR) {
      stays.current = true;
      setBelow(false);
    } else if (scrollTop < lastTop.current - 1) {
      stays.current = false;
    }
    lastTop.current = scrollTop;
    if (scrollTop < AHEAD && !stays.current) older();
    if (anchor.current) anchor.current.was = anchor.current.top();
  };

  // The view does not move when something is added before it.
  useLayoutEffect(() => {
    const held = anchor.current;
    if (held?.element.isConnected && !stays.current) {
      const moved = held.top() - held.was;
      if (Math.abs(moved) > 1) box.current.scrollTop += moved;
      held.was = held.top();
    }
    if (!loading) anchor.current = null;
    keep();
  });
  useEffect(() => {
    const watch = new ResizeObserver(keep);
    watch.observe(inside.current);
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  useEffect(() => { if (!stays.current) setBelow(true); }, [newest]);
  // The reader's own message is always brought into view. It may have come back before it was rendered as being sent.
  useLayoutEffect(() => { if (conversation.sent) toEnd(); }, [conversation.sent]);
  useEffect(() => unmark, []);
  useEffect(() => {
    // The item that the address names is brought into view, once.
    const { seq, edits, find } = state.route, place = `${seq} ${find}`;
    if (found.current === place) return;
    if (!find) unmark();
    if (!seq) found.current = place;
    const item = seq && conversation.itemAt(seq);
    const element = item && conversation.isRead(item) && document.getElementById(item.key);
    if (element) {
      found.current = place;
      stays.current = false;
      anchor.current = null;
      element.scrollIntoView({ block: edits ? "nearest" : "start" });
      if (!edits) element.focus({ preventScroll: true });
      lastTop.current = box.current.scrollTop;
      if (!find) return;
      conversation.find(item, seq);
      const { step } = conversation.found;
      const within = seq === item.seq ? ".said" : step ? `[data-seq="${step.seq}"]` : ".run";
      mark(box.current, element, within, find, () => { stays.current = false; lastTop.current = box.current.scrollTop; });
    } else if (seq && !item && conversation.hasOlder && seq < (conversation.oldestSeq ?? 0)) {
      older();
    }
  });

  // The reader wants to read what they open, so the view does not jump to its end.
  const opening = (event) => {
    if (!event.target.closest("summary")) return;
    stays.current = false;
    setTimeout(() => {
      const { scrollTop, scrollHeight, clientHeight } = box.current ?? {};
      if (scrollHeight - scrollTop - clientHeight < NEAR) stays.current = true;
    }, 100);
  };

  // These are above the box.
  const waits = new Set(waiting(conversation).map(({ item }) => item));
  return html`<div class="scroll" ref=${box} onScroll=${scrolled} onClick=${opening}
      tabIndex="0" role="region" aria-label=${t("conversation")}>
    <div class="messages" ref=${inside}>
      ${conversation.hasOlder && html`<p class="older"><button type="button" class="quiet" disabled=${loading} onClick=${older}>
        ${loading ? t("older_messages_are_coming") : t("older_messages")}</button></p>`}
      ${error && html`<p class="error" role="alert">${error}</p>`}
      ${conversation.entered && conversation.items.length === 0 && conversation.sending.length === 0
        && html`<p class="hint">${t("no_messages_yet")}</p>`}
      ${conversation.items.filter((item) => !waits.has(item)).map((item) => {
        const isNext = item.run && state.agentIsThere(conversation) && conversation.position(item) !== null;
        const variants = item.message && state.variants.at(conversation, item);
        return html`<${Versioned} key=${item.key} of=${item.kind === "note" ? Note : Exchange} item=${item} version=${item.version}
          isNext=${isNext} variant=${variants ? `${variants.at}/${variants.all.length}` : ""} />`;
      })}
      ${conversation.sending.map((entry) => html`<${Sending} key=${entry.key} entry=${entry} error=${entry.error} />`)}
    </div>
    ${isBelow && html`<div class="below"><button type="button" onClick=${toEnd}>${t("new_below")}</button></div>`}
  </div>`;
}

function Exchange({ item, isNext }) {
  const { message, run } = item;
  return html`<article class="exchange" id=${item.key} tabIndex="-1" aria-label=${message ? t("message_and_answer") : t("answer")}>
    ${message && html`<${Said} item=${item} isNext=${isNext} />`}
    <${Run} run=${run} />
  </article>`;
}

function Said({ item, isNext }) {
  const { message, run } = item;
  const [events, setEvents] = useState(false);
  const text = contentOf(message.content).text;
  return html`<div class=${message.mine ? "said mine" : "said"}>
    <div class="head"><span>
      <${Who} message=${message} /> · <a class="time"
        href=${address.sessionAddress(state.conversation.id, item.seq)}><${Clock} time=${message.at} /></a>
      ${PRIORITY[item.priority] && html` · <span class="priority">${PRIORITY[item.priority]}</span>`}
      </span>
      <div class="actions">
        <${Copy} text=${text} />
        ${!readOnly && html`<${Do} action=${() => state.sendCopy(item, message.content)} title=${IN_A_COPY}>${t("try_again")}<//>
          <a href=${address.editAddress(state.conversation.id, item.seq)} title=${IN_A_COPY}>${t("edit")}</a>`}
        <button type="button" onClick=${() => setEvents(true)}>${t("events")}</button>
        <${Copy} text=${() => linkTo(item)} label=${t("link")} />
      </div>
      <${Switch} item=${item} />
    </div>
    <${Content} content=${message.content} plain=${true} />
    ${message.large && html`<${Large} large=${message.large} what=${t("this_message")} />`}
    ${isNext && html`<p class="queue"><span>${t("waits_for_the_agent")}</span>
      ${run.runId && !readOnly && html` <${Do} class="quiet" action=${() => state.cancel(run)}>${t("take_back")}<//>`}
    </p>`}
    ${events && html`<${Events} run=${run} onClose=${() => setEvents(false)} />`}
  </div>`;
}

const IN_A_COPY = t("as_a_variant_what_was_said_stays_as_it");

function Who({ message }) {
  if (message.mine) return t("you");
  return html`<span title=${visible(message.source ?? "")}>${whoText(message.source)}</span>`;
}

/** The address of a message, for others. */
const linkTo = (item) => new URL(address.sessionAddress(state.conversation.id, item.seq), document.baseURI).href;

/** The switch between the variants of a message. */
function Switch({ item }) {
  const variants = state.variants.at(state.conversation, item);
  if (!variants) return null;
  const { all, at } = variants;
  const way = (n, sign, label) => {
    if (!all[n]) return html`<span aria-hidden="true">${sign}</span>`;
    return html`<a href=${address.sessionAddress(all[n].id, all[n].seq)} aria-label=${label}>${sign}</a>`;
  };
  return html`<span class="variants" role="group" aria-label=${t("variants")}>${way(at - 1, "◂", t("previous_variant"))}
    <span class="figure">${at + 1}/${all.length}</span>${way(at + 1, "▸", t("next_variant"))}</span>`;
}

function Note({ item }) {
  return html`<div class="note" id=${item.key} tabIndex="-1">
    <div class="head">${item.from === "system" ? t("gateway_2") : visible(item.from ?? "")} · <${Clock} time=${item.at} /></div>
    <${Content} content=${item.content} plain=${item.from === "system"} />
    ${item.large && html`<${Large} large=${item.large} what=${t("this_event")} />`}
  </div>`;
}

function Sending({ entry, error }) {
  const { conversation } = state;
  const again = () => {
    state.unsend(conversation, entry);
    state.dispatch(conversation, { ...entry, error: null });
  };
  const edit = () => {
    state.edit(conversation, entry);
    state.unsend(conversation, entry);
  };
  return html`<article class="exchange sending"><div class="said mine">
    <div class="head"><span>${t("you")} · <${Clock} time=${entry.at} /></span></div>
    <${Content} content=${entry.content} plain=${true} />
    ${error
      ? html`<p class="error" role="alert">${t("not_sent_why", { why: error })} ${" "}
          <button type="button" onClick=${again}>${t("send_again")}</button> ${" "}
          <button type="button" onClick=${edit}>${t("edit")}</button> ${" "}
          <button type="button" onClick=${() => state.unsend(conversation, entry)}>${t("discard")}</button></p>`
      : html`<p class="queue">${state.connection.state === "open" ? t("is_being_sent") : t("will_be_sent_when_the_connection_is")}</p>`}
  </div></article>`;
}

function inQueues({ runId, of }) {
  const filter = runId && `metadata ->> 'run_id' = '${runId.replaceAll("'", "''")}'`;
  return address.eventsAddress(state.conversation.id, filter ? { filter } : { event: of.seq });
}

function Events({ run, onClose }) {
  const [page, setPage] = useState(null);
  const [error, setError] = useState(null);
  const [looked, setLooked] = useState(null);
  const { id } = state.conversation;
  useEffect(() => {
    state.eventsOf(run).then(setPage, (error) => setError(error.message));
    // The events come anyway.
    state.lookedAt(run).then(setLooked, () => {});
  }, []);
  return html`<${Dialog} title=${t("what_the_agent_did_event_by_event")} class="wide" onClose=${onClose}>
    <p><a href=${address.look(id, "c", "agent", ...(looked ? [looked.id] : []))}>${
      looked ? t("this_run_in_queues") : t("the_agent_in_queues")}</a>
      <span class="hint"> ${t("shows_where_the_time_went")}</span></p>
    ${error && html`<p class="error" role="alert">${error}</p>`}
    <p class="hint">${page?.hasMore && `${t("the_last_n", { n: page.events.length })} `}<a href=${inQueues(run)}>${t("all_of_them_in_queues")}</a></p>
    ${page && page.events.length === 0 && html`<p class="hint">${t("there_are_none_yet")}</p>`}
    <ol class="events">${page?.events.map((event) => html`<li key=${event.seq}><details>
      <summary><span class="figure">${event.seq}</span><${Stamp} time=${event.time} /><span>${event.event}</span>
        <span class="gist">${gistOf(event)}</span></summary>
      <pre class="plain" tabIndex="0">${visible(JSON.stringify(event.payload, null, 2))}</pre>
    </details></li>`)}</ol>
    ${page?.events.some(({ seq }, n, all) => n > 0 && seq !== all[n - 1].seq + 1) &&
      html`<p class="hint">${t("the_numbers_between_are_messages_and")}</p>`}
    <p class="buttons"><button type="button" onClick=${onClose}>${t("close")}</button></p>
  <//>`;
}

/** An event, in a few words. */
function gistOf({ payload }) {
  const { toolName, title, content, status, message, choice, error, result } = payload;
  const parts = [toolName, title, status, choice, content ?? message ?? error ?? result];
  const said = parts.filter((part) => part !== undefined && part !== null);
  return visible(beginning(said.map(jsonText).join(" "), 120));
}
