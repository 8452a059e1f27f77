// A dead letter: an event on which a handler failed until no attempts were left.

import { html, useState } from "../vendor/preact.js";
import { t } from "../language.js";
import { Do, Fold, Plain } from "../parts.js";
import { announce } from "../announce.js";
import { Ago } from "../time.js";
import { beginning, visible } from "../text.js";
import { Question } from "./actions.js";
import { api, post } from "./api.js";
import { command, quoted } from "./command.js";
import { Given, before } from "./given.js";
import { NUMBER, cameOfSeveral } from "./words.js";
import * as address from "../address.js";

/** Whether a consumer can retry dead letters. */
export function canRetry(thread, name) {
  return thread.consumers_state.some((consumer) => consumer.name === name && consumer.settings.deliver !== "wake");
}

/** The command for those with one reason: "exit 1: what was printed last". */
function withReason(thread, consumer, reason, verb) {
  const said = JSON.stringify(reason.replace(/^[^:]*: /, ""));
  return [`${command(thread, "dead list", consumer)} --json |`,
    `  jq ${quoted(`select(.last_error | rtrimstr("\n") | endswith(${said})) | .event_id`)} |`,
    `  xargs -n 1 ${command(thread, `dead ${verb}`, consumer)}`].join("\n");
}

/** The results of retries: of several, or of one that is `given`. */
export function CameOf({ thread, tried }) {
  if (tried?.given) return html`<${Given} thread=${thread} given=${tried.given} />`;
  const consumer = thread.consumers_state.find(({ name }) => name === tried?.consumer);
  if (!consumer) return null;
  const { n, before } = tried;
  const [text, isWrong] = cameOfSeveral(consumer, before, n);
  const ran = consumer.last_run?.id !== before.last_run?.id;
  return html`<span class=${isWrong ? "came-of failure" : "came-of hint"} role="status">${t("retried_what", { what: text })}${
    ran && html` <a href=${address.look(thread.id, "c", consumer.name)}>${t("the_runs")}</a>`}</span>`;
}

/** Buttons for dead letters of one consumer. `which`: `{ids}`, `{reason}` or `{all: true}`, which are `n`; `why`: their
 * reasons, `[{reason, count}]`. `onTried(tried)`: they were retried, `{consumer, before, n, which}`; the consumer was as
 * `before`. What came of `tried` is shown below. */
export function Again({ thread, consumer, which, n, what, why, tried, onDone, onTried }) {
  const [asked, setAsked] = useState(false);
  if (thread.read_only) return null;
  const act = async (verb) => {
    const before = thread.consumers_state.find(({ name }) => name === consumer);
    const answer = await post(api([thread.id, "dead", verb]), { consumer, ...which });
    if (verb === "retry" && before) onTried({ consumer, before, n: answer.retried, which });
    announce(`${t("n_dead_letters", { n: answer.retried ?? answer.discarded })}: ${verb}`);
    onDone?.();
  };
  const lines = (verb) => which.ids ? which.ids.map((id) => command(thread, `dead ${verb}`, consumer, id))
    : which.all ? command(thread, `dead ${verb}`, consumer, "--all") : withReason(thread, consumer, which.reason, verb);
  return html`<div class="buttons">
    ${canRetry(thread, consumer) && html`<${Do} action=${() => act("retry")} title=${[lines("retry")].flat().join("\n")}>${what ? t("retry_what", { what }) : t("retry")}<//>`}
    <button type="button" class="danger" onClick=${() => setAsked(true)}>${what ? t("discard_what", { what }) : t("discard_2")}</button>
    ${asked && html`<${Question} title=${t("discard_n_dead_letters", { n })} verb=${t("discard")} action=${() => act("discard")} lines=${lines("discard")} onClose=${() => setAsked(false)}>
      <div>${why.slice(0, REASONS).map(({ reason, count: of }) => html`<p key=${reason}><span class="figure">${NUMBER.format(of)} ×</span> <span class="failure">${visible(reason)}</span></p>`)}
        ${why.length > REASONS && html`<p class="hint">${t("and_n_other_reasons", { n: why.length - REASONS })}</p>`}</div>
      <p>${t("name_is_not_given_them_again_the_events",
        { n, name: visible(consumer) })}</p>
    <//>`}</div>
    <${CameOf} thread=${thread} tried=${tried} />`;
}

/** How many reasons a question lists. */
const REASONS = 5;

/** The reasons of dead letters, the most frequent first. */
export function reasonsOf(letters) {
  const counts = new Map();
  for (const { reason } of letters) counts.set(reason, (counts.get(reason) ?? 0) + 1);
  return [...counts].map(([reason, count]) => ({ reason, count })).sort((a, b) => b.count - a.count);
}

/** `children` come before it: a check box. `inEvent`: its event is shown already. `given`: it was given again, and what
 * becomes of it is shown; `isDone` once it is no dead letter any more. */
export function Letter({ thread, letter, children, inEvent = false, given, isDone = false, onGiven, onDone }) {
  const { id, consumer, reason, error, attempts, at, retrying, event } = letter;
  const here = address.look(thread.id, "c", consumer);
  const give = () => onGiven(before(thread, consumer, id, letter));
  return html`<div class=${isDone ? "letter done" : "letter"}>
    <p>${children} <a class="row" href=${address.eventsAddress(thread.id, { event: id })}>${t("event_id_2", { id: String(id) })}</a>
      ${" "}<span class="failure">${visible(reason)}</span></p>
    <p class="hint"><a href=${here}>${visible(consumer)}</a> · <a href=${here}>${t("n_attempts", { n: attempts })}</a>${
      " "}· <${Ago} time=${at} />${retrying && !given && html` · <strong>${t("is_tried_again")}</strong>`}</p>
    ${!inEvent && (event ? html`<p class="gist">${visible(beginning(event.content, 200))}</p>` : html`<p class="hint">${t("the_event_is_not_stored_any_more")}</p>`)}
    ${error && error.includes("\n") && html`<${Fold} summary=${t("what_it_printed")}>${() => html`<${Plain} text=${visible(error)} label=${t("output")} />`}<//>`}
    ${!isDone && html`<${Again} thread=${thread} consumer=${consumer} which=${{ ids: [id] }} n=${1} what=""
      why=${[{ reason, count: 1 }]} onTried=${give} onDone=${onDone} />`}
    ${given && html`<${Given} thread=${thread} given=${given} />`}
  </div>`;
}
