// What becomes of an event that a consumer is given again: it is followed until its run has ended.

import { html, useEffect, useState } from "../vendor/preact.js";
import { t } from "../language.js";
import { visible } from "../text.js";
import { api, get } from "./api.js";
import * as address from "../address.js";

/** How many runs are searched for the one that it led to. */
const RUNS = 200;

/** What to follow, as it is before the event is given again. `letter`: the dead letter that it is. */
export function before(thread, name, id, letter) {
  const consumer = thread.consumers_state.find((one) => one.name === name);
  const after = Math.max(...[consumer?.run, consumer?.last_run].map((run) => Number(run?.id ?? 0)));
  return { consumer: name, id, after, attempts: letter?.attempts ?? 0 };
}

async function follow(thread, { consumer, id, after }, signal) {
  const [{ dead }, { runs }] = await Promise.all([get(api([thread, "events", id]), signal),
    get(api([thread, "consumers", consumer, "runs"], { limit: RUNS }), signal)]);
  return {
    letter: dead.find((letter) => letter.consumer === consumer),
    run: runs.find((run) => Number(run.id) > after && run.events === 1 && run.last_event === id),
  };
}

/** The words for it, and whether they are bad. */
function became({ letter, run, isGone }, { attempts }, isPaused) {
  if (isGone) return [t("the_event_or_its_consumer_is_gone"), true];
  if (run?.outcome === "running") return [t("it_runs"), false];
  if (letter?.retrying) return [isPaused ? t("it_is_not_started_until_it_is_resumed") : t("it_is_being_started"), false];
  if (!letter) return [run?.outcome === "succeeded" ? t("it_ran_and_succeeded") : t("it_is_no_dead_letter_any_more"), false];
  return run || letter.attempts > attempts ? [t("it_ran_and_failed_again_why", { why: visible(letter.reason) }), true] : [];
}

/** `given`: what `before` has returned. */
export function Given({ thread, given }) {
  const [found, setFound] = useState(null);
  const consumer = thread.consumers_state.find(({ name }) => name === given.consumer);
  const { state, run, last_run: last, dead, dead_to_retry: again } = consumer ?? {};
  useEffect(() => {
    if (found?.isGone) return undefined;
    const gone = new AbortController();
    // What cannot be read now is read when something changes.
    follow(thread.id, given, gone.signal).then(setFound, ({ status }) => { if (status === 404) setFound({ isGone: true }); });
    return () => gone.abort();
  }, [given, [state, run?.id, last?.id, dead, again].join()]);
  const [text, isWrong] = found ? became(found, given, state === "paused") : [t("it_is_being_started"), false];
  return text && html`<span class=${isWrong ? "came-of failure" : "came-of hint"} role="status">${t("retried_what", { what: text })}${
    found?.run && html` <a href=${address.look(thread.id, "c", given.consumer, found.run.id)}>${t("the_run")}</a>`}</span>`;
}
