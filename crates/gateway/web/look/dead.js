// Dead letters: by reason, then one by one; one, some or all can be retried or discarded.

import { html, useState } from "../vendor/preact.js";
import { visible } from "../text.js";
import { api } from "./api.js";
import { AsCommand, command } from "./command.js";
import { Again, CameOf, Letter, canRetry, reasonsOf } from "./letter.js";
import { usePages } from "./pages.js";
import { NUMBER, count } from "./words.js";
import * as address from "../address.js";

const keyOf = ({ consumer, id }) => `${consumer} ${id}`;

export function Dead({ thread, route }) {
  const { consumer, reason } = route.params;
  return html`<${Letters} key=${`${consumer} ${reason}`} thread=${thread} consumer=${consumer} reason=${reason} />`;
}

function Letters({ thread, consumer, reason }) {
  const [chosen, setChosen] = useState(new Set());
  const [done, setDone] = useState(0);
  const [tried, setTried] = useState(null);
  const url = (before) => api([thread.id, "dead"], { consumer, reason, before });
  const about = [done, thread.dead, ...thread.consumers_state.map(({ name, dead, dead_to_retry: retried, last_run: last }) => `${name} ${dead} ${retried} ${last?.id}`)].join();
  const { items, answer, next, error, older, loading } = usePages(url, "dead", about, keyOf);
  if (!items) return html`<div class="page"><h1>Dead letters</h1>${error ? html`<p class="error" role="alert">${error}</p>` : html`<p class="hint">Looking …</p>`}</div>`;
  const total = answer?.total ?? items.length;
  const shown = items.slice(0, Math.max(total, 0));
  const ticked = shown.filter((letter) => chosen.has(keyOf(letter)));
  const names = [...new Set(ticked.map((letter) => letter.consumer))];
  const tick = (letter) => setChosen((chosen) => {
    const now = new Set(chosen);
    if (!now.delete(keyOf(letter))) now.add(keyOf(letter));
    return now;
  });
  const onDone = () => { setChosen(new Set()); setDone((n) => n + 1); };
  const whole = { thread, onDone };
  return html`<div class="page">
    <h1>Dead letters</h1>
    <p class=${total ? "verdict wrong" : "verdict"}>${total ? `${count(total, "event")} that a handler could not deal with.` : "There are none."}
      ${(consumer || reason) && html` Only those${consumer && html` of <strong>${visible(consumer)}</strong>`}${reason && html` with the reason <strong>${visible(reason)}</strong>`}. <a href=${address.deadAddress(thread.id)}>Show all</a>`}</p>
    ${error && html`<p class="error" role="alert">${error}</p>`}
    ${total > 0 && !reason && html`<${Reasons} ...${whole} reasons=${answer?.reasons ?? []} />`}
    ${total > 0 && reason && consumer && html`<${Again} ...${whole} consumer=${consumer} which=${{ reason }} n=${total} what=${total === 1 ? "this one" : `these ${NUMBER.format(total)}`} why=${[{ reason, count: total }]} />`}
    ${total > 0 && html`<h2>One by one</h2>
      ${!thread.read_only && html`<div class="chosen bar">
        <button type="button" onClick=${() => setChosen(new Set(ticked.length === shown.length ? [] : shown.map(keyOf)))}>${ticked.length === shown.length ? "Choose none" : `Choose these ${NUMBER.format(shown.length)}`}</button>
        ${names.map((name) => {
          const those = ticked.filter((letter) => letter.consumer === name), n = those.length;
          return html`<${Again} key=${name} ...${whole} consumer=${name} which=${{ ids: those.map(({ id }) => id) }} n=${n} what=${`${NUMBER.format(n)} of ${visible(name)}`} why=${reasonsOf(those)} onTried=${setTried} />`;
        })}
        <${CameOf} thread=${thread} tried=${tried} />
      </div>`}`}
    <ul class="letters rows">${shown.map((letter) => html`<li key=${keyOf(letter)}><${Letter} ...${whole} letter=${letter}>
      ${!thread.read_only && html`<input type="checkbox" aria-label=${`Choose event ${letter.id} of ${letter.consumer}`} checked=${chosen.has(keyOf(letter))} onChange=${() => tick(letter)} />`}<//></li>`)}</ul>
    ${next !== null && html`<p><button type="button" disabled=${loading} onClick=${older}>Show more</button></p>`}
    ${total > 0 && html`<${AsCommand} lines=${[...new Set(items.map((letter) => letter.consumer))].flatMap((name) =>
      [command(thread, "dead list", name), command(thread, "dead retry", name, "--all")])} />`}
  </div>`;
}

function Reasons({ thread, reasons, onDone }) {
  const names = [...new Set(reasons.map(({ consumer }) => consumer))];
  return names.map((name) => {
    const of = reasons.filter(({ consumer }) => consumer === name);
    const all = thread.consumers_state.find((consumer) => consumer.name === name)?.dead ?? of.reduce((sum, { count }) => sum + count, 0);
    return html`<section key=${name} class="reasons" aria-label=${`Reasons of ${visible(name)}`}>
      <h2><a href=${address.look(thread.id, "c", name)}>${visible(name)}</a>: why</h2>
      <ul>${of.map(({ reason, count: n }) => html`<li key=${reason}>
        <a href=${address.deadAddress(thread.id, { consumer: name, reason })}><span class="figure">${NUMBER.format(n)} ×</span> ${visible(reason)}</a>
        <${Again} thread=${thread} onDone=${onDone} consumer=${name} which=${{ reason }} n=${n} what=${n === 1 ? "this one" : `these ${NUMBER.format(n)}`} why=${[{ reason, count: n }]} /></li>`)}</ul>
      ${of.length > 1 && html`<div class="all"><${Again} thread=${thread} onDone=${onDone} consumer=${name} which=${{ all: true }} n=${all} what=${`all ${NUMBER.format(all)}`} why=${of} /></div>`}
      ${!thread.read_only && !canRetry(thread, name) && html`<p class="hint">${visible(name)} ${thread.consumers_state.some((consumer) => consumer.name === name)
        ? "pops for itself, so nothing can be delivered to it again." : "is not subscribed any more. Subscribe it again with --deliver stdin to retry."}</p>`}
    </section>`;
  });
}
