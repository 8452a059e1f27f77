// A run as a timeline: what its time was spent on, and what happened when, minute by minute.

import { html, useState } from "../vendor/preact.js";
import { duration, useClock } from "../time.js";
import { beginning, stoppedBy, visible } from "../text.js";
import { count } from "./words.js";
import * as address from "../address.js";

const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const NAMES = { waiting: "waits", thinking: "thinks", text: "writes", tool: "tool", permission: "asks", answer: "answers", message: "message", status: "status",
  error: "error", cancelled: "cancelled", sub_agent: "sub-agent", event: "event", given: "is given", idle: "idle" };

/** The kinds of time in the sums. */
const SPENT = { permission: "waiting for permission", sub_agent: "sub-agents", tool: "tools", thinking: "thinking", text: "writing", waiting: "waiting",
  idle: "idle, open for a next message" };

/** Kinds that add nothing to the steps next to them. */
const isNoise = ({ kind, label }) => kind === "status" && !/^attempt/.test(label);

/** How many spans are shown at first. */
const SHOWN = 300;

/** The endings of an agent's run, and after how many milliseconds without a next message it counts as idle. */
const ENDINGS = ["answer", "cancelled"], IDLE = 1000;

/** How a tool ended, where it has no result. */
const ENDED = { failed: "failed", rejected: "rejected", no_result: "no result" };

/** The parts of a tool's time in which it did not wait for permission. */
function atWork({ at_ms: at, duration_ms: took, event }, asks) {
  let parts = [[at, at + took]];
  for (const { call, at_ms: from, duration_ms: waited = 0 } of asks) {
    if (call !== event) continue;
    parts = parts.flatMap(([begin, end]) => [[begin, Math.min(end, from)], [Math.max(begin, from + waited), end]].filter(([a, b]) => a < b));
  }
  return parts;
}

/** The spans, of which open ones last until now, and the pauses between an answer and the next message. */
function whole(all, run) {
  const isOver = run.outcome !== "running";
  const now = isOver ? run.duration_ms ?? 0 : Date.now() - Date.parse(run.started_at);
  const spans = all.filter((span) => !isNoise(span)).map((span) =>
    !isOver && ["tool", "permission"].includes(span.kind) && span.duration_ms === undefined ? { ...span, duration_ms: Math.max(0, now - span.at_ms), isOpen: true } : span);
  const pauses = spans.flatMap((span, n) => {
    if (!ENDINGS.includes(span.kind)) return [];
    const took = (spans[n + 1]?.at_ms ?? now) - span.at_ms;
    return took > IDLE ? [{ kind: "idle", at_ms: span.at_ms, duration_ms: took, label: "open for a next message", isOpen: !isOver && n === spans.length - 1 }] : [];
  });
  const asks = spans.filter(({ kind }) => kind === "permission");
  for (const span of spans) {
    if (span.kind !== "tool" || !(span.duration_ms > 0)) continue;
    span.parts = atWork(span, asks);
    span.isOpen &&= !asks.some(({ call, isOpen }) => call === span.event && isOpen);
  }
  return [...spans, ...pauses].sort((a, b) => a.at_ms - b.at_ms || (a.kind === "idle") - (b.kind === "idle"));
}

/** Whether an agent has answered and only waits for the next message. */
export function isIdle({ outcome, timeline = [] }) {
  return outcome === "running" && ENDINGS.includes(timeline.findLast((span) => !isNoise(span))?.kind);
}

export function Timeline({ thread, run, spans: all }) {
  const isOver = run.outcome !== "running";
  useClock(isOver ? 0 : 1000);
  const spans = whole(all, run);
  const [shown, setShown] = useState(SHOWN);
  const began = Date.parse(run.started_at);
  // A long pause at the end would leave no room for the rest.
  const busy = spans.at(-1)?.kind === "idle" ? spans.slice(0, -1) : spans;
  const end = Math.max(busy === spans ? run.duration_ms ?? 0 : 0, 1, ...busy.map(({ at_ms: at, duration_ms: took = 0 }) => at + took));
  const start = Math.min(0, ...spans.map(({ at_ms: at }) => at));
  const rows = [...spans.filter(({ at_ms: at }) => at < 0), { kind: "begin", at_ms: 0, label: "the run begins" }, ...given(run), ...spans.filter(({ at_ms: at }) => at >= 0),
    ...(isOver ? [{ kind: "end", at_ms: run.duration_ms ?? end, label: "the run ends" }] : [])];
  // The end stays in view however much comes before it.
  const some = rows.length > shown ? [...rows.slice(0, shown), ...rows.slice(-1)] : rows;
  let minute = null;
  return html`<div class="timeline">
    <${Spent} spans=${spans} total=${end - start} />
    <table><thead><tr><th scope="col">Time</th><th scope="col" class="after">After</th><th scope="col">Took</th><th scope="col" class="bars"><span class="unseen">Where in the run</span></th><th scope="col">What</th></tr></thead>
    <tbody>${some.map((span, n) => {
      const now = Math.floor(span.at_ms / 60_000), isNew = end > 120_000 && now !== minute;
      minute = now;
      return html`${isNew && html`<tr class="minute"><th colspan="5" scope="rowgroup">${now < 0 ? "before" : `minute ${now + 1}`}</th></tr>`}
        <tr key=${n} class=${`is-${span.kind}${["rejected", "no_result"].includes(span.ended) ? " pale" : ""}`}>
          <td class="figure">${CLOCK.format(began + span.at_ms)}</td>
          <td class="figure after">${after(span.at_ms)}</td>
          <td class="figure">${lasted(span) > 0 && `${duration(lasted(span))}${span.isOpen ? " so far" : ""}`}</td>
          <td class="bars"><svg viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true"><rect class="floor" x="0" y="4.5" width="1000" height="1" />
            ${partsOf(span).map(([from, to]) => html`<rect x=${scale(from)} y="0" height="10" width=${Math.max(6, scale(to) - scale(from))} />`)}</svg></td>
          <td><span class="what">${NAMES[span.kind] ?? (span.kind === "begin" || span.kind === "end" ? "" : visible(span.kind))}</span> ${" "}${label(span)}${span.given && html` <code class="gist">${visible(span.given)}</code>`}${
            ENDED[span.ended] && html` <strong class=${span.ended === "failed" ? "failure" : ""}>${ENDED[span.ended]}</strong>`}</td>
        </tr>`;
    })}</tbody></table>
    ${rows.length > shown && html`<p><button type="button" onClick=${() => setShown(shown + 1000)}>Show more of ${count(rows.length, "step")}</button></p>`}
  </div>`;

  function scale(at) {
    return Math.min(994, Math.round(((at - start) / (end - start)) * 1000));
  }

  function label({ kind, label, event }) {
    const text = label === kind ? "" : visible(beginning(kind === "cancelled" ? stoppedBy(label) : label ?? "", 200));
    return event ? html`<a href=${address.eventsAddress(thread.id, { event })}>${text || `event ${event}`}</a>` : text;
  }
}

/** The bar of a span; one that took no time is a point. */
function partsOf({ parts, at_ms: at, duration_ms: took = 0 }) {
  return parts?.length ? parts : [[at, parts ? at : at + took]];
}

const lasted = (span) => partsOf(span).reduce((sum, [from, to]) => sum + to - from, 0);

/** The messages given at its start; later ones are among the spans. */
function given({ handled = [], started_at: began }) {
  return handled.filter(({ created_at: at }) => Date.parse(at) <= Date.parse(began)).slice(0, 20)
    .map(({ id, content }) => ({ kind: "given", at_ms: 0, label: content || `event ${id}`, event: id }));
}

function after(ms) {
  const sign = ms < 0 ? "−" : "+", all = Math.abs(ms) / 1000, minutes = Math.floor(all / 60);
  if (all < 1) return `${sign}${duration(all * 1000)}`;
  return minutes ? `${sign}${minutes}:${String(Math.floor(all % 60)).padStart(2, "0")}` : `${sign}${all.toFixed(1)} s`;
}

/** How long each kind lasted. Of several at a time only one counts, the first in the order of SPENT: a tool that waits for
 * permission does nothing else. */
function sumsOf(spans) {
  const kinds = Object.keys(SPENT), edges = [], sums = kinds.map(() => 0), open = kinds.map(() => 0);
  for (const span of spans) {
    const n = kinds.indexOf(span.kind);
    if (n >= 0 && span.ended !== "rejected") for (const [from, to] of partsOf(span)) if (from < to) edges.push([from, n, 1], [to, n, -1]);
  }
  edges.sort(([a], [b]) => a - b);
  let before = 0;
  for (const [at, n, step] of edges) {
    const doing = open.findIndex((many) => many > 0);
    if (doing >= 0) sums[doing] += at - before;
    before = at;
    open[n] += step;
  }
  return kinds.map((kind, n) => [kind, sums[n]]).filter(([, sum]) => sum > 0);
}

/** The sums, as a bar in pieces and in words. */
function Spent({ spans, total }) {
  const sums = sumsOf(spans);
  if (!sums.length) return null;
  const known = sums.reduce((sum, [, ms]) => sum + ms, 0), all = Math.max(total, known), rest = all - known;
  let at = 0;
  return html`<svg class="spent" viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true"><rect class="rest" x="0" y="0" width="1000" height="10" />
      ${sums.map(([kind, ms]) => { const x = at; at += (ms / all) * 1000; return html`<rect key=${kind} class=${`is-${kind}`} x=${x} y="0" width=${Math.max(2, at - x - 2)} height="10" />`; })}</svg>
    <p class="spent-words">${sums.map(([kind, ms], n) => html`${n > 0 && " · "}<span class=${`key is-${kind}`} aria-hidden="true"></span> ${SPENT[kind]} ${duration(ms)}`)}${
      rest >= 100 && html` · <span class="key is-rest" aria-hidden="true"></span> the rest ${duration(rest)}`}</p>`;
}
