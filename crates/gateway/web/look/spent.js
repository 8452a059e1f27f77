// How long each kind of work and wait lasted.

import { html } from "../vendor/preact.js";
import { t } from "../language.js";
import { duration } from "../time.js";
import { beginning, visible } from "../text.js";
import { union, without } from "./scale.js";

/** The kinds of time. Of several at once only the first counts: a tool that waits for permission does nothing else. */
const SPENT = {
  permission: t("waiting_for_permission"), sub_agent: t("sub_agents"), tool: t("tools"), thinking: t("thinking_3"),
  text: t("writing"), model: t("the_model_before_that"), step: t("steps_2"), run: t("the_handler"),
  attempt: t("the_agent_otherwise"), sleep: t("asleep"), await: t("waiting_for_an_event"), waiting: t("waiting"),
};

/** How many tools are named. */
const TOOLS = 3;

/** From when to when a bar lasts, without what lies inside of it and is a wait. */
export function partsOf(bar, bars) {
  const { at_ms: from, duration_ms: took = 0, kind, event } = bar;
  if (kind !== "tool") return [[from, from + took]];
  const asks = bars.filter(({ kind, call }) => kind === "permission" && call === event);
  return without([[from, from + took]], asks.map(spanOf));
}

export const spanOf = ({ at_ms: from, duration_ms: took = 0 }) => [from, from + took];

/** The spans in which somebody works. */
export function busy(bars) {
  const asks = bars.filter(({ kind }) => kind === "permission").map(spanOf);
  const runs = bars.filter(({ kind }) => ["attempt", "run"].includes(kind)).map(spanOf);
  const inside = bars.filter(({ kind }) => ["tool", "model", "sub_agent", "step"].includes(kind));
  return union([...without(union(runs), union(asks)), ...inside.flatMap((bar) => partsOf(bar, bars))]);
}

function sumsOf(bars) {
  let taken = [];
  const sums = [];
  for (const kind of Object.keys(SPENT)) {
    const those = bars.filter((bar) => bar.kind === kind && bar.ended !== "rejected");
    const own = without(union(those.flatMap((bar) => partsOf(bar, bars))), taken);
    const ms = own.reduce((sum, [from, to]) => sum + to - from, 0);
    if (ms > 0) sums.push({ kind, ms, most: kind === "tool" ? longest(those, bars) : "" });
    taken = union([...taken, ...own]);
  }
  return sums;
}

/** The tools that took the most time, if there are several. */
function longest(calls, bars) {
  const took = new Map();
  for (const bar of calls) {
    const ms = partsOf(bar, bars).reduce((sum, [from, to]) => sum + to - from, 0);
    took.set(bar.label, (took.get(bar.label) ?? 0) + ms);
  }
  const most = [...took].filter(([, ms]) => ms >= 1).sort(([, a], [, b]) => b - a).slice(0, TOOLS);
  if (took.size < 2 || !most.length) return "";
  const words = most.map(([name, ms]) => `${visible(beginning(name, 30))} ${duration(ms)}`);
  return ` (${[...words, ...(took.size > TOOLS ? ["…"] : [])].join(", ")})`;
}

/** The sums, as a bar in pieces and in words. */
export function Spent({ bars }) {
  const sums = sumsOf(bars), all = sums.reduce((sum, { ms }) => sum + ms, 0);
  if (!all) return null;
  let at = 0;
  const pieces = sums.map(({ kind, ms }) => {
    const x = at;
    at += (ms / all) * 1000;
    const width = Math.max(2, at - x - 2);
    return html`<rect key=${kind} class=${`is-${kind}`} x=${x} y="0" width=${width} height="10" />`;
  });
  return html`<svg class="spent" viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true">${pieces}</svg>
    <p class="spent-words">${sums.map(({ kind, ms, most }, n) => html`${n > 0 && " · "}<span>
      <span class=${`key is-${kind}`} aria-hidden="true"></span> ${SPENT[kind]} ${duration(ms)}</span>${most}`)}</p>`;
}
