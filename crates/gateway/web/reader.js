// Reads what has happened in the open conversation: older messages, and what the agent did for each.

import { t } from "./language.js";
import { Lost } from "./connection.js";
import { Changes } from "./frame.js";
import { api, get } from "./look/api.js";
import { sentence } from "./text.js";

/** How many messages are requested at once, and how many steps between them. */
export const MESSAGES = 20, STEPS = 1000;

/** Needs a `connection`, and the open `conversation`. */
export class Reader extends Changes {
  /** A request whose outcome the user waits for. Throws an error with a sentence for the user. */
  async ask(method, params) {
    try {
      return await this.connection.request(method, params);
    } catch (error) {
      throw new Error(error instanceof Lost ? t("there_is_no_connection_try_again_in_a") : sentence(error));
    }
  }

  /** Reads the steps between the events `from` and `before`. Of very many, only the last are read; the others on
   * request. */
  async fillSteps(conversation, from, before, most = 5000) {
    const steps = [];
    let page, reached = before;
    try {
      do {
        const params = { sessionId: conversation.id, after: Math.max(from - 1, 0), before: reached, limit: STEPS };
        page = await this.connection.request("sessions.steps", params);
        steps.unshift(...page.events);
        reached = page.events[0]?.seq ?? from;
      } while (page.hasMore && reached > from && steps.length < most);
    } finally {
      conversation.fill(steps, page && !page.hasMore ? from : reached);
    }
  }

  /** Reads the steps of one run, if they were too many. */
  async stepsOf(run) {
    const conversation = this.conversation;
    try {
      await this.fillSteps(conversation, run.of.seq, run.stepsBefore, 20_000);
    } catch (error) {
      throw new Error(sentence(error));
    }
  }

  async older() {
    const { conversation } = this;
    const before = conversation.oldestSeq;
    const page = await this.connection.request("sessions.history", { sessionId: conversation.id, before, limit: MESSAGES });
    conversation.hasOlder = page.hasMore && page.messages.length > 0;
    conversation.history(page.messages);
    await this.fillSteps(conversation, conversation.oldestSeq ?? 0, before);
  }

  /** The run of the session's agent, as Queues has it, in which a run was worked on; null if it is not kept. */
  async lookedAt(run) {
    const at = run.firstBegan ?? run.ending?.at;
    const list = [this.conversation.id, "consumers", "agent", "runs"];
    let before;
    do {
      const { runs, next_before: next } = await get(api(list, { before, limit: 200 }));
      const found = runs.find(({ started_at: began }) => Date.parse(began) <= at);
      if (found) return !found.ended_at || Date.parse(found.ended_at) >= at ? found : null;
      before = next;
    } while (before);
    return null;
  }

  /** The last events of a run, in order: those of other runs may be between them. */
  async eventsOf(run, most = 200) {
    const { id } = this.conversation;
    let before = run.ending ? run.ending.seq + 1 : undefined, events = [], page;
    do {
      page = await this.ask("sessions.steps", { sessionId: id, after: Math.max(run.of.seq - 1, 0), before, limit: STEPS });
      events.unshift(...page.events.filter(({ payload }) => payload.runId === run.runId));
      before = page.events[0]?.seq;
    } while (page.hasMore && before && events.length < most);
    return { events: events.slice(-most), hasMore: page.hasMore || events.length > most };
  }
}
