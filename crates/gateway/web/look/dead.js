// Dead letters: by reason, then one by one; one, some or all can be retried or discarded.

import { html, useState } from "../vendor/preact.js";
import { t } from "../language.js";
import { visible } from "../text.js";
import { api } from "./api.js";
import { AsCommand, command } from "./command.js";
import { before } from "./given.js";
import { Again, CameOf, Letter, canRetry, reasonsOf } from "./letter.js";
import { usePages } from "./pages.js";
import { NUMBER } from "./words.js";
import * as address from "../address.js";

const keyOf = ({ consumer, id }) => `${consumer} ${id}`;

export function Dead({ thread, route }) {
  const { consumer, reason } = route.params;
  return html`<${Letters} key=${`${consumer} ${reason}`} thread=${thread} consumer=${consumer} reason=${reason} />`;
}

/** As they are listed: the newest events first. */
const inOrder = (a, b) => b.id - a.id || (a.consumer < b.consumer ? -1 : 1);

function Letters({ thread, consumer, reason }) {
  const [chosen, setChosen] = useState(new Set());
  const [done, setDone] = useState(0);
  // Until the page is left: those that were retried one by one, `{letter, given}`, and several at once.
  const [given, setGiven] = useState(new Map());
  const [tried, setTried] = useState([]);
  const url = (before) => api([thread.id, "dead"], { consumer, reason, before });
  const about = [done, thread.dead, ...thread.consumers_state.map(({ name, dead, dead_to_retry: retried, last_run: last }) => `${name} ${dead} ${retried} ${last?.id}`)].join();
  const { items, answer, next, error, older, loading } = usePages(url, "dead", about, keyOf);
  if (!items) return html`<div class="page"><h1>${t("dead_letters")}</h1>${error ? html`<p class="error" role="alert">${error}</p>` : html`<p class="hint">${t("looking")}</p>`}</div>`;
  const total = answer?.total ?? items.length, reasons = answer?.reasons ?? [];
  const shown = items.slice(0, Math.max(total, 0)), known = new Set(shown.map(keyOf));
  const gone = [...given.values()].filter(({ letter }) => !known.has(keyOf(letter))).map(({ letter }) => letter);
  const ticked = shown.filter((letter) => chosen.has(keyOf(letter)));
  const names = [...new Set(ticked.map((letter) => letter.consumer))];
  const tick = (letter) => setChosen((chosen) => {
    const now = new Set(chosen);
    if (!now.delete(keyOf(letter))) now.add(keyOf(letter));
    return now;
  });
  const onDone = () => { setChosen(new Set()); setDone((n) => n + 1); };
  const onTried = (one) => {
    // One by itself is followed, so that no other run is taken for its own.
    const [only, ...more] = shown.filter((letter) => isMeant(letter, one));
    if (one.n === 1 && only && !more.length) one.given = before(thread, one.consumer, only.id, only);
    setTried((tried) => [...tried.filter((other) => placeOf(other) !== placeOf(one)), one]);
  };
  const triedAt = (consumer, which) => tried.find((one) => placeOf(one) === placeOf({ consumer, which }));
  const whole = { thread, onDone, onTried };
  const letterRow = (letter) => html`<li key=${keyOf(letter)}><${Letter} thread=${thread} letter=${letter} onDone=${onDone}
    given=${given.get(keyOf(letter))?.given} isDone=${!known.has(keyOf(letter))}
    onGiven=${(now) => setGiven((given) => new Map(given).set(keyOf(letter), { letter, given: now }))}>
    ${!thread.read_only && known.has(keyOf(letter)) && html`<input type="checkbox" checked=${chosen.has(keyOf(letter))}
      aria-label=${t("choose_event_id_of_name", { id: String(letter.id), name: letter.consumer })}
      onChange=${() => tick(letter)} />`}<//></li>`;
  return html`<div class="page">
    <h1>${t("dead_letters")}</h1>
    <p class=${total ? "verdict wrong" : "verdict"}>${total ? t("n_events_that_a_handler_could_not_deal", { n: total }) : t("there_are_none")}
      ${(consumer || reason) && html` ${onlyThose(consumer, reason)}
        ${" "}<a href=${address.deadAddress(thread.id)}>${t("show_all")}</a>`}</p>
    ${error && html`<p class="error" role="alert">${error}</p>`}
    <${Ended} thread=${thread} tried=${tried.filter((one) => !hasPlace(one, reasons, total))} />
    ${total > 0 && !reason && html`<${Reasons} ...${whole} reasons=${reasons} triedAt=${triedAt} />`}
    ${total > 0 && reason && consumer && html`<${Again} ...${whole} consumer=${consumer} which=${{ reason }} n=${total}
      what=${those(total)} why=${[{ reason, count: total }]} tried=${triedAt(consumer, { reason })} />`}
    ${total > 0 && html`<h2>${t("one_by_one")}</h2>
      ${!thread.read_only && html`<div class="chosen bar">
        <button type="button" onClick=${() => setChosen(new Set(ticked.length === shown.length ? [] : shown.map(keyOf)))}>${ticked.length === shown.length ? t("choose_none") : t("choose_these_n", { n: shown.length })}</button>
        ${names.map((name) => {
          const those = ticked.filter((letter) => letter.consumer === name), n = those.length;
          return html`<${Again} key=${name} ...${whole} consumer=${name} which=${{ ids: those.map(({ id }) => id) }} n=${n} what=${t("n_of_name", { n, name: visible(name) })} why=${reasonsOf(those)} />`;
        })}
        ${tried.filter(({ which }) => which.ids).map((one) => html`<${CameOf} key=${one.consumer} thread=${thread} tried=${one} />`)}
      </div>`}`}
    <ul class="letters rows">${[...shown, ...gone].sort(inOrder).map(letterRow)}</ul>
    ${next !== null && html`<p><button type="button" disabled=${loading} onClick=${older}>${t("show_more")}</button></p>`}
    ${total > 0 && html`<${AsCommand} lines=${[...new Set(items.map((letter) => letter.consumer))].flatMap((name) =>
      [command(thread, "dead list", name), command(thread, "dead retry", name, "--all")])} />`}
  </div>`;
}

const isMeant = ({ id, consumer, reason }, { consumer: name, which: { ids, reason: only, all } }) =>
  consumer === name && (all || reason === only || Boolean(ids?.includes(id)));

/** What tells retries of several apart: where their buttons are. */
const placeOf = ({ consumer, which: { ids, reason, all } }) => JSON.stringify([consumer, ids ? "ids" : "", reason, all]);

/** Whether the buttons are still there, where what came of it is shown. */
function hasPlace({ consumer, which: { ids, reason, all } }, reasons, total) {
  const own = reasons.filter((one) => one.consumer === consumer);
  if (ids) return total > 0;
  return all ? own.length > 1 : own.some((one) => one.reason === reason);
}

/** Of those that are no dead letters any more, what came of it. */
function Ended({ thread, tried }) {
  return tried.length > 0 && html`<ul class="plain-list">${tried.map((one) => html`<li key=${placeOf(one)}>
    ${visible(one.consumer)}${one.which.reason && html` · ${visible(one.which.reason)}`}: <${CameOf} thread=${thread} tried=${one} /></li>`)}</ul>`;
}

const those = (n) => (n === 1 ? t("this_one") : t("these_n", { n }));

function onlyThose(consumer, reason) {
  const given = { name: html`<strong>${visible(consumer)}</strong>`, reason: html`<strong>${visible(reason)}</strong>` };
  if (!reason) return t("only_those_of_name", given);
  return consumer ? t("only_those_of_name_with_the_reason", given) : t("only_those_with_the_reason_reason", given);
}

function Reasons({ thread, reasons, triedAt, ...others }) {
  const names = [...new Set(reasons.map(({ consumer }) => consumer))];
  return names.map((name) => {
    const of = reasons.filter(({ consumer }) => consumer === name);
    const all = thread.consumers_state.find((consumer) => consumer.name === name)?.dead ?? of.reduce((sum, { count }) => sum + count, 0);
    return html`<section key=${name} class="reasons" aria-label=${t("reasons_of_name", { name: visible(name) })}>
      <h2><a href=${address.look(thread.id, "c", name)}>${visible(name)}</a>: ${t("why")}</h2>
      <ul>${of.map(({ reason, count: n }) => html`<li key=${reason}>
        <a href=${address.deadAddress(thread.id, { consumer: name, reason })}><span class="figure">${NUMBER.format(n)} ×</span> ${visible(reason)}</a>
        <${Again} thread=${thread} ...${others} consumer=${name} which=${{ reason }} n=${n} what=${those(n)}
          why=${[{ reason, count: n }]} tried=${triedAt(name, { reason })} /></li>`)}</ul>
      ${of.length > 1 && html`<div class="all"><${Again} thread=${thread} ...${others} consumer=${name} which=${{ all: true }} n=${all}
        what=${t("all_n", { n: all })} why=${of} tried=${triedAt(name, { all: true })} /></div>`}
      ${!thread.read_only && !canRetry(thread, name) && html`<p class="hint">${thread.consumers_state.some((consumer) => consumer.name === name)
        ? t("name_pops_for_itself_so_nothing_can_be", { name: visible(name) })
        : t("name_is_not_subscribed_any_more", { name: visible(name) })}</p>`}
    </section>`;
  });
}
