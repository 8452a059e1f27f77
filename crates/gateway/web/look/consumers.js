// The consumers of a thread as a table, those first that need somebody. Each has its reason, its actions and its
// commands below it, if it is one of few, or needs somebody, or was opened.

import { html, useState } from "../vendor/preact.js";
import { t } from "../language.js";
import { duration } from "../time.js";
import { visible } from "../text.js";
import { Body, Pending, byNeed, needs } from "./consumer.js";
import { For, NUMBER, Word, wordOf } from "./words.js";
import * as address from "../address.js";

/** With so many consumers at most, all of them are open. */
const FEW = 4;

/** After this time, in milliseconds, how fast a consumer was says nothing about now. */
const LATELY = 15 * 60_000;

const COLUMNS = [
  [t("consumer")], [t("state")], [t("waiting_2")], [t("oldest")],
  [t("rate"), t("events_handled_in_a_minute_by_its_last")],
  [t("failed_3"), t("of_the_same_runs")], ["p50", t("half_of_those_runs_took_less")],
  ["p95", t("_95_of_100_of_them_took_less")],
  [t("done_in"), t("when_nothing_would_wait_any_more_if_it")],
];

/** The name of a column, for each value where there is no head. */
const named = (n) => COLUMNS[n][0].toLowerCase();

export function Consumers({ thread }) {
  const consumers = [...thread.consumers_state].sort(byNeed);
  const [turned, setTurned] = useState(() => new Map());
  if (!consumers.length) return null;
  const isOpen = (consumer) => turned.get(consumer.name) ?? (consumers.length <= FEW || needs(consumer));
  const turn = (consumer) => setTurned(new Map(turned).set(consumer.name, !isOpen(consumer)));
  const head = ([name, about]) => html`<th key=${name} scope="col" title=${about}>${name}</th>`;
  return html`<div class="consumers-box"><table class="consumers rows">
    <thead><tr>${COLUMNS.map(head)}</tr></thead>
    ${consumers.map((consumer) => html`<${Consumer} key=${consumer.name} thread=${thread} consumer=${consumer}
      isOpen=${isOpen(consumer)} onTurn=${() => turn(consumer)} />`)}
  </table></div>`;
}

function Consumer({ thread, consumer, isOpen, onTurn }) {
  const { name, state, pending, oldest_pending_at: oldest } = consumer;
  const { rate, failed, p50, p95, left } = figures(consumer);
  return html`<tbody class=${`consumer ${state}${needs(consumer) ? " needed" : ""}`}>
    <tr class="figures">
      <th scope="row"><button type="button" class="fold-toggle" aria-expanded=${isOpen} onClick=${onTurn}
          aria-label=${t("more_about_name", { name: visible(name) })}>${isOpen ? "▾" : "▸"}</button>
        <h2><a class="row" href=${address.look(thread.id, "c", name)}>${visible(name)}</a></h2></th>
      <td><${Word} state=${wordOf(thread, consumer)} /></td>
      <td data-name=${named(2)}>${pending > 0 && html`<${Pending} thread=${thread} consumer=${consumer} brief />`}</td>
      <td data-name=${named(3)}>${oldest && html`<${For} time=${oldest} />`}</td>
      <td data-name=${named(4)}>${rate}</td>
      <td data-name=${named(5)} class=${failed && "failure"}>${failed}</td>
      <td data-name="p50">${p50}</td><td data-name="p95">${p95}</td><td data-name=${named(8)}>${left}</td>
    </tr>
    ${isOpen && html`<tr><td colspan=${COLUMNS.length} class="more">
      <${Body} thread=${thread} consumer=${consumer} /></td></tr>`}
  </tbody>`;
}

/** Its speed and its failures, in words; empty if it did not run lately. */
function figures({ recent, pending, state, run, last_run: last }) {
  const isLately = run || Date.now() - Date.parse(last?.ended_at) < LATELY;
  if (!recent) return {};
  const { runs, failed, p50_ms: p50, p95_ms: p95, per_minute: rate } = recent;
  const moves = isLately && rate > 0 && !["stalled", "paused"].includes(state);
  return {
    rate: isLately && rate > 0 ? `${NUMBER.format(rate >= 10 ? Math.round(rate) : rate)}/min` : "",
    failed: failed > 0 ? t("n_of_all", { n: failed, all: runs }) : "",
    p50: duration(p50), p95: duration(p95),
    left: pending > 0 && moves ? duration((pending / rate) * 60_000) : "",
  };
}
