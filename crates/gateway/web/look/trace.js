// What became of an event, as a table of bars: waits, attempts, the turns of a model, tools, sub-agents, steps.

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { ONE, t } from "../language.js";
import { Stamp, duration, useClock } from "../time.js";
import { beginning, stoppedBy, visible, whoText } from "../text.js";
import { state } from "../state.js";
import { api, get } from "./api.js";
import { Card, hasCard } from "./card.js";
import { scaleOf } from "./scale.js";
import { Spent, busy, partsOf } from "./spent.js";
import * as address from "../address.js";

const NAMES = {
  pushed: t("pushed"), waiting: t("waits"), run: t("run"), model: t("model"), thinking: t("thinks"), text: t("writes"), tool: t("tool"),
  permission: t("asks"), sub_agent: t("sub_agent"), step: t("step_2"), sleep: t("sleeps"), await: t("awaits"), plan: t("plan"),
  event: t("event_2"), answer: t("answers"), done: t("done"), error: t("error"), cancelled: t("cancelled_2"), dead: t("dead_letter_2"),
};

const ENDED = {
  failed: t("failed_2"), rejected: t("rejected"), no_result: t("no_result"), cancelled: t("cancelled_2"), cut: t("cut_off"),
  timed_out: t("timed_out"), stopped: t("stopped"), deferred: t("deferred"), interrupted: t("interrupted"), unknown: t("killed"),
  dead: t("dead_letter_2"),
};

/** Ends that are nobody's fault. */
const PALE = new Set(["rejected", "no_result", "cancelled", "cut", "deferred", "interrupted"]);

/** How many rows are shown at first, and how many more on request. */
const SHOWN = 200, MORE = 1000;

/** How often the trace of something that is not over is read again, at most, in milliseconds. */
const AGAIN = 1000;

/** The trace, read again whenever `version` has changed as long as something is not over. */
function useTrace(thread, event, version) {
  const [{ trace, error }, setFound] = useState({});
  const last = useRef({ at: 0, isOver: false });
  useEffect(() => {
    if (last.current.isOver) return undefined;
    const gone = new AbortController();
    const read = () => {
      last.current.at = Date.now();
      get(api([thread, "events", event, "trace"]), gone.signal).then((trace) => {
        last.current.isOver = trace.bars.length > 0 && !trace.bars.some(({ is_open: isOpen }) => isOpen);
        setFound({ trace: { ...trace, read: Date.now() } });
      }, ({ name, message }) => { if (name !== "AbortError") setFound(({ trace }) => ({ trace, error: message })); });
    };
    const timer = setTimeout(read, Math.max(0, last.current.at + AGAIN - Date.now()));
    return () => { clearTimeout(timer); gone.abort(); };
  }, [thread, event, version]);
  return { trace, error };
}

/** `only`: the consumer whose bars are shown. */
export function Trace({ thread, event, version, only }) {
  const { trace, error } = useTrace(thread, event, version);
  return html`${error && html`<p class="error" role="alert">${error}</p>`}
    ${trace && html`<${Bars} thread=${thread} trace=${trace} only=${only} />`}
    ${!trace && !error && html`<p class="hint">${t("looking")}</p>`}`;
}

/** The bars, of which open ones last until now; first the event itself. */
function barsOf({ event, bars, now_ms: then, read }, only) {
  const now = then + Date.now() - read;
  const all = only ? bars.filter(({ consumer }) => consumer === only) : bars;
  // One consumer needs no line of its own.
  const consumers = all.filter(({ kind }) => kind === "consumer").length;
  const less = consumers === 1 ? 1 : 0;
  const rows = all.filter(({ kind }) => !less || kind !== "consumer").map((bar) => ({
    ...bar, depth: bar.depth - less, duration_ms: bar.is_open ? Math.max(0, now - bar.at_ms) : bar.duration_ms,
  }));
  rows.forEach((bar, n) => { bar.inside = insideOf(rows, n); });
  const { id, content } = event, who = whoText(event.source, state.connection.clientId);
  const pushed = { kind: "pushed", depth: 0, at_ms: 0, label: content, given: t("by_who", { who }), event: id, inside: 0 };
  return [pushed, ...rows];
}

/** How many bars are inside of one. */
function insideOf(rows, n) {
  let end = n + 1;
  while (end < rows.length && rows[end].depth > rows[n].depth) end++;
  return end - n - 1;
}

/** The set with or without an element. */
function turned(set, key) {
  const next = new Set(set);
  if (!next.delete(key)) next.add(key);
  return next;
}

const keyOf = ({ kind, event, at_ms: at, label, depth }) => `${kind} ${event ?? at} ${depth} ${label.slice(0, 20)}`;

function Bars({ thread, trace, only }) {
  const bars = barsOf(trace, only);
  const isOpen = bars.some((bar) => bar.is_open);
  useClock(isOpen ? 1000 : 0);
  const [view, setView] = useState(null);
  const [opened, setOpened] = useState(() => new Set());
  const [folded, setFolded] = useState(() => new Map());
  const [most, setMost] = useState(SHOWN);
  const ends = bars.map(({ at_ms: at, duration_ms: took = 0 }) => at + took);
  const whole = [Math.min(0, ...bars.map(({ at_ms: at }) => at)), Math.max(1, ...ends)];
  const scale = scaleOf(busy(bars), ...(view ?? whole));
  // Sub-agents are folded at first.
  const isFolded = (bar) => folded.get(keyOf(bar)) ?? bar.kind === "sub_agent";
  const rows = [];
  for (let n = 0; n < bars.length; n++) {
    rows.push(bars[n]);
    if (isFolded(bars[n])) n += bars[n].inside;
  }
  const isIn = ({ at_ms: at, duration_ms: took = 0 }) => at <= scale.to && at + took >= scale.from;
  const seen = rows.filter(isIn);
  const cards = useRef({ of: null });
  if (cards.current.of !== trace) cards.current = { of: trace };
  const row = (bar, drag) => {
    const key = keyOf(bar);
    const onOpen = () => setOpened(turned(opened, key));
    const onFold = () => setFolded(new Map(folded).set(key, !isFolded(bar)));
    return html`<${Row} key=${key} bar=${bar} bars=${bars} scale=${scale} drag=${drag} thread=${thread} trace=${trace}
      cards=${cards.current} isOpened=${opened.has(key)} onOpen=${onOpen}
      isFolded=${isFolded(bar)} onFold=${onFold} />`;
  };
  return html`<div class="trace">
    <${Spent} bars=${bars} />
    <${Zoom} view=${view} scale=${scale} onView=${setView} isMuch=${rows.length > 2} />
    <${Table} scale=${scale} onView=${setView}>${(drag) => seen.slice(0, most).map((bar) => row(bar, drag))}<//>
    ${seen.length > most && html`<p><button type="button" onClick=${() => setMost(most + MORE)}>
      ${t("show_more_of_n_lines", { n: seen.length })}</button></p>`}
    ${trace.is_truncated && html`<p class="hint">${t("there_is_more_than_what_was_read")}</p>`}
  </div>`;
}

/** For those who cannot drag, too. */
function Zoom({ view, scale, onView, isMuch }) {
  if (!isMuch) return null;
  const by = (share) => {
    const [from, to] = [0.5 - share / 2, 0.5 + share / 2].map(scale.time);
    if (to - from >= 1) onView([from, to]);
  };
  return html`<p class="zoom"><span class="hint">${t("drag_over_the_bars_to_zoom")}</span>
    <button type="button" onClick=${() => by(0.5)}>${t("zoom_in")}</button>
    ${view && html`<button type="button" onClick=${() => onView(null)}>${t("show_all_of_it")}</button>`}</p>`;
}

/** The table. A drag over its bars chooses the part of the time that is shown. */
function Table({ scale, onView, children }) {
  const [drag, setDrag] = useState(null);
  const at = ({ clientX }, box) => Math.min(1, Math.max(0, (clientX - box.left) / box.width));
  const down = (event) => {
    const svg = event.button === 0 && event.target.closest("td.bars")?.querySelector("svg");
    if (!svg) return;
    const box = svg.getBoundingClientRect();
    setDrag({ box, from: at(event, box), to: at(event, box) });
    event.currentTarget.setPointerCapture(event.pointerId);
  };
  const move = (event) => { if (drag) setDrag({ ...drag, to: at(event, drag.box) }); };
  const up = () => {
    setDrag(null);
    if (!drag || Math.abs(drag.to - drag.from) < 0.01) return;
    const [from, to] = [drag.from, drag.to].sort((a, b) => a - b).map(scale.time);
    if (to - from >= 1) onView([from, to]);
  };
  const cancel = () => setDrag(null);
  return html`<table onPointerDown=${down} onPointerMove=${move} onPointerUp=${up} onPointerCancel=${cancel}>
    <thead><tr><th scope="col">${t("what")}</th><th scope="col" class="after">${t("after")}</th><th scope="col">${t("took")}</th>
      <th scope="col" class="bars"><span class="unseen">${t("when")}</span><${Axis} scale=${scale} /></th></tr></thead>
    <tbody>${children(drag)}</tbody></table>`;
}

const percent = (place) => `${(place * 100).toFixed(2)}%`;

/** From when to when the bars are, and how long the waits are that are folded. */
function Axis({ scale }) {
  const middle = ({ begin, end }) => (begin + end) / 2;
  const anchor = (place) => (place < 0.1 ? "start" : place > 0.9 ? "end" : "middle");
  return html`<svg class="axis" aria-hidden="true">
    <text x="0" y="12">${after(scale.from)}</text>
    <text x="100%" y="12" text-anchor="end">${after(scale.to)}</text>
    ${scale.folds.map((fold) => html`<text key=${fold.from} class="fold-mark" x=${percent(middle(fold))} y="24"
      text-anchor=${anchor(middle(fold))}>${duration(fold.to - fold.from)}</text>`)}
  </svg>`;
}

function Row({ bar, bars, scale, drag, thread, isOpened, onOpen, isFolded, onFold, trace, cards }) {
  const { kind, depth, at_ms: at, duration_ms: took, is_open: isOpen, ended, inside } = bar;
  const parts = partsOf(bar, bars);
  const lasted = parts.reduce((sum, [from, to]) => sum + to - from, 0);
  const name = NAMES[kind] ?? "";
  const what = html`${name && html`<span class="what">${name}</span>${" "}`}<${Label} bar=${bar} />`;
  const isBad = ["error", "cancelled", "dead"].includes(kind) || (ended && !PALE.has(ended));
  const line = hasCard(bar)
    ? html`<button type="button" class="line row" aria-expanded=${isOpened} onClick=${onOpen}>${what}</button>`
    : html`<span class="line">${what}</span>`;
  const toggle = inside > 0
    ? html`<button type="button" class="fold-toggle" aria-expanded=${!isFolded} onClick=${onFold}
        aria-label=${t("what_is_inside_of_name", { name: `${name} ${visible(bar.label)}` })}>${isFolded ? "▸" : "▾"}</button>`
    : html`<span class="fold-toggle"></span>`;
  return html`<tr class=${`is-${kind}${isBad ? " bad" : PALE.has(ended) ? " pale" : ""}`}>
      <td class=${`step depth-${Math.min(depth, 6)}`}>${toggle}${line}</td>
      <td class="figure after">${after(at)}</td>
      <td class="figure">${took >= 0 && (lasted > 0 || isOpen) && `${duration(lasted)}${isOpen ? ` ${t("so_far")}` : ""}`}</td>
      <td class="bars"><svg aria-hidden="true">
        ${scale.folds.map(({ begin, end }) => html`<${Band} key=${begin} name="folded" from=${begin} to=${end} />`)}
        <rect class="floor" x="0" y="50%" width="100%" height="1" />
        ${parts.map(([from, to], n) => html`<${Part} key=${n} scale=${scale} from=${from} to=${to} />`)}
        ${drag && html`<${Band} name="drag" from=${Math.min(drag.from, drag.to)} to=${Math.max(drag.from, drag.to)} />`}
      </svg></td>
    </tr>
    ${isOpened && html`<tr class="card"><td colspan="4">
      <${Card} thread=${thread} bar=${bar} trace=${trace} cards=${cards} /></td></tr>`}`;
}

function Band({ name, from, to }) {
  return html`<rect class=${name} x=${percent(from)} width=${percent(to - from)} y="0" height="100%" />`;
}

/** One that took no time is a point. */
function Part({ scale, from, to }) {
  if (to < scale.from || from > scale.to) return null;
  const [begin, end] = [from, to].map((ms) => scale.place(Math.min(scale.to, Math.max(scale.from, ms))));
  const width = percent(Math.max(0.008, end - begin));
  return html`<rect class="part" x=${percent(Math.min(begin, 0.992))} width=${width} y="0" height="100%" rx="1.5" />`;
}

function Label({ bar: { kind, label, given, ended } }) {
  const text = visible(beginning(kind === "cancelled" ? stoppedBy(label) : label, 200));
  const isTime = kind === "waiting" && given, how = kind !== "dead" && ENDED[ended];
  const isName = ["tool", "step", "await", "consumer"].includes(kind);
  return html`<span class=${isName ? "name" : ""}>${text}</span>${
    how && html` <strong class=${PALE.has(ended) ? "" : "failure"}>${how}</strong>`}${
    isTime ? html` ${t("until_time", { time: html`<${Stamp} time=${given} />` })}` : given && html` <code class="gist">${visible(given)}</code>`}`;
}

/** How long after the event was stored. */
function after(ms) {
  const sign = ms < 0 ? "−" : "+", all = Math.abs(ms) / 1000, minutes = Math.floor(all / 60);
  if (all < 1) return `${sign}${Math.round(all * 1000)} ms`;
  if (minutes >= 120) return `${sign}${duration(Math.abs(ms))}`;
  return minutes ? `${sign}${minutes}:${String(Math.floor(all % 60)).padStart(2, "0")}` : `${sign}${ONE.format(all)} s`;
}

/** A page of its own. */
export function TracePage({ thread, route: { event } }) {
  return html`<div class="page">
    <h1>${t("what_became_of_event", { event: html`<a href=${address.eventsAddress(thread.id, { event })}>${
      t("event_id_2", { id: String(event) })}</a>` })}</h1>
    ${thread.kind === "session" && html`<p class="hint">
      <a href=${address.sessionAddress(thread.id, event)}>${t("in_the_conversation")}</a></p>`}
    <${Trace} thread=${thread.id} event=${event} version=${thread} />
  </div>`;
}

/** Beside the conversation. */
export function Beside({ conversation, seq }) {
  const item = conversation.bySeq.get(seq);
  return html`<aside class="beside" aria-label=${t("trace")}>
    <div class="bar"><h2>${t("trace")}</h2><span class="space"></span>
      <a class="button" href=${address.traceAddress(conversation.id, seq)}>${t("in_queues")}</a>
      <a class="button" href=${address.sessionAddress(conversation.id)} aria-label=${t("close_the_trace")}>✕</a></div>
    <${Trace} key=${seq} thread=${conversation.id} event=${seq} version=${item?.version} />
  </aside>`;
}
