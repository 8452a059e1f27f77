// What waits, above the box: the messages behind the answer that is under way, in the order in which they will be
// answered.

import { html } from "./vendor/preact.js";
import { t } from "./language.js";
import { Do } from "./parts.js";
import { beginning, contentOf, visible, whoText } from "./text.js";
import { readOnly, state } from "./state.js";

/** The priority of a message, if it is not the default. */
export const PRIORITY = { now: t("interrupts"), steer: t("in_the_middle"), later: t("when_idle") };

/** The exchanges that wait behind an answer, each with its place. */
export function waiting(conversation) {
  if (!conversation.activeRun || !state.agentIsThere(conversation)) return [];
  const items = conversation.openRuns().map((run) => run.of).filter((item) => item.message && !item.message.large);
  const all = items.map((item) => ({ item, position: conversation.position(item) }));
  return all.filter(({ position }) => position !== null).sort((one, other) => one.position - other.position);
}

export function Strip({ conversation }) {
  const all = waiting(conversation);
  if (!all.length) return null;
  return html`<section class="strip" aria-label=${t("waiting_messages")}><ol tabIndex="0" role="list">
    ${all.map(({ item }, n) => html`<${Waiting} key=${item.key} item=${item} place=${n} />`)}
  </ol></section>`;
}

function Waiting({ item, place }) {
  const { message, run, priority } = item, { text, files } = contentOf(message.content);
  const names = files.map(({ name }) => name).join(", ");
  return html`<li id=${item.key}>
    <span class="place">${place === 0 ? t("next") : `${place + 1}.`}</span>
    <span class="words">${!message.mine && `${whoText(message.source)}: `}${visible(beginning(text || names, 300))}</span>
    ${PRIORITY[priority] && html`<span class="hint">${PRIORITY[priority]}</span>`}
    ${run.runId && !readOnly && html`<span class="doing-with">
      ${message.mine && html`<${Do} class="quiet" title=${t("stops_what_is_under_way")}
        action=${() => state.urgent(item)}>${t("send_now")}<//>`}
      <${Do} class="quiet" action=${() => state.cancel(run)}>${t("take_back")}<//></span>`}
  </li>`;
}
