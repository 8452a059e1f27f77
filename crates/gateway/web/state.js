// The state of the page and its actions: the list of sessions, the open conversation, the connection.

import { t } from "./language.js";
import { Connection, Refused } from "./connection.js";
import { Conversation } from "./conversation.js";
import { clientId, drafts, forgetSession, lastSession, outbox, randomId, seen } from "./kept.js";
import { announce } from "./announce.js";
import { lookWhileHidden, notice } from "./notices.js";
import { beginning, contentOf, draftOf, sentence } from "./text.js";
import { api, get, post } from "./look/api.js";
import { Stream } from "./look/stream.js";
import { Variants } from "./variants.js";
import { MESSAGES, Reader } from "./reader.js";
import * as address from "./address.js";

/** The largest message, in characters: a frame may have a mebibyte. */
const LONGEST = 300_000;

class State extends Reader {
  constructor() {
    super();
    this.route = address.current();
    this.sessions = { list: [], total: 0, error: null, loaded: false, wanted: 50 };
    /** `{query, day, found, truncated, error}` during a search. */
    this.search = null;
    this.conversation = null;
    /** Sessions that were left just now, with everything in them seen. */
    this.left = new Set();
    this.connection = new Connection({
      clientId: clientId(),
      onOpen: () => this.opened(),
      onEvent: (frame) => this.event(frame),
      onChange: () => { this.watchAll(); this.changed(); },
    });
    this.watch = null;
    /** The conversation that is watched with it. */
    this.watched = null;
    /** How many queues need somebody, as far as is known in Chat; requests for permission are in its list. */
    this.needing = 0;
    this.variants = new Variants((method, params) => this.connection.request(method, params), () => this.changed());
  }

  start() {
    addEventListener("hashchange", () => this.follow());
    document.addEventListener("visibilitychange", () => this.refreshSeen());
    lookWhileHidden(() => this.refresh());
    this.follow();
    this.connection.connect();
  }

  // The address

  follow() {
    const before = this.route.view;
    this.route = address.current();
    if (before === "look") this.refreshSeen();
    this.watchAll();
    const { session } = this.route;
    if (session) lastSession.set(session);
    if (this.conversation && this.conversation.id !== session) {
      this.left.add(this.conversation.id);
      this.refresh();
    }
    if (session && this.conversation?.id !== session) {
      this.conversation = this.newConversation(session);
      this.enter();
      this.variants.learn(session);
    } else if (!session) {
      this.conversation = null;
    }
    this.changed();
  }

  /** The address of the link to Chat: from Queues back to the last one there. */
  talkAddress() {
    const last = this.route.view === "look" && lastSession.get();
    return last ? address.sessionAddress(last) : address.listAddress();
  }

  newConversation(session) {
    const conversation = new Conversation(session, () => { if (conversation === this.conversation) this.changed(); });
    conversation.clientId = this.connection.clientId;
    conversation.title = this.sessions.list.find((known) => known.id === session)?.title ?? "";
    conversation.sending = outbox.get(session);
    return conversation;
  }

  // The connection

  async opened() {
    // Requests are answered one after the other, and the list may take longer.
    const entered = this.enter();
    this.refresh();
    await entered;
  }

  /** Enters the open session, or continues in it from the last known event. */
  async enter() {
    const { conversation, connection } = this;
    if (!conversation || connection.state !== "open") return;
    const params = { sessionId: conversation.id };
    if (conversation.entered) params.after = conversation.lastSeq;
    try {
      const switched = await connection.request("sessions.switch", params);
      if (conversation.entered) {
        conversation.lastSeq = Math.max(conversation.lastSeq, switched.lastSeq);
      } else {
        conversation.enter(switched, switched.recentMessages.length >= MESSAGES);
        await this.fillSteps(conversation, conversation.oldestSeq ?? 0, switched.lastSeq + 1);
      }
      this.flush(conversation);
    } catch (error) {
      if (error instanceof Refused) {
        conversation.gone = sentence(error);
        lastSession.set(null);
      }
    }
    this.changed();
  }

  event(frame) {
    const { conversation } = this;
    const here = conversation?.id === frame.payload?.sessionId;
    if (here && conversation.entered) {
      conversation.event(frame);
      announce.event(frame, conversation);
    }
    if (["message", "final", "error", "cancelled", "title", "permission"].includes(frame.event)) this.refreshSoon();
  }

  // The list

  refreshSeen() {
    if (!document.hidden && this.route.view !== "look") this.refresh();
  }

  /** Notified when something has happened in any session: only then is the list read again. Also when something has in
   * the open one: what is to come there. */
  watchAll() {
    const isWanted = this.connection.state === "open" && this.route.view !== "look";
    const thread = this.route.session ?? null;
    if (isWanted === Boolean(this.watch) && thread === this.watched) return;
    this.watch?.close();
    this.watch = null;
    this.watched = thread;
    if (!isWanted) return;
    let known = null;
    const onEvent = ({ event, data }) => {
      if (event === "thread") return this.tookToCome(data);
      const needing = data.threads.filter(({ error, consumers }) => error || consumers?.attention > 0).length;
      if (needing !== this.needing) { this.needing = needing; this.changed(); }
      const now = data.threads.map(({ id, title, last_event_id: last, attention }) => [id, title, last, attention].join()).sort().join();
      if (known !== null && now !== known) this.refreshSoon();
      known = now;
    };
    this.watch = new Stream({ url: () => api(["watch"], { limit: 30, ...(thread && { thread }) }), onEvent, onChange: () => {} });
    this.watch.start();
  }

  refreshSoon() {
    this.soon ??= setTimeout(() => { this.soon = null; this.refresh(); }, 300);
  }

  async refresh() {
    const { sessions, connection } = this;
    if (connection.state !== "open") return;
    if (this.refreshing) { this.again = true; return; }
    this.refreshing = true;
    try {
      const list = [];
      let total = 0;
      do {
        const limit = Math.min(sessions.wanted - list.length, 100);
        const page = await connection.request("sessions.list", { limit, offset: list.length });
        total = page.total;
        list.push(...page.sessions);
        if (!page.sessions.length) break;
      } while (list.length < Math.min(sessions.wanted, total));
      Object.assign(sessions, { list, total, error: null, loaded: true });
      this.variants.take(list);
      notice(list);
      if (this.conversation) this.variants.learn(this.conversation.id);
      this.sawConversation();
    } catch (error) {
      if (error instanceof Refused) sessions.error = sentence(error);
    }
    this.refreshing = false;
    if (this.again) {
      this.again = false;
      this.refreshSoon();
    }
    this.changed();
  }

  more() {
    this.sessions.wanted += 100;
    return this.refresh();
  }

  sawConversation() {
    for (const { id, messageCount } of this.sessions.list) {
      const isOpen = id === this.conversation?.id && this.conversation.entered && !document.hidden;
      if (isOpen || this.left.has(id)) seen.set(id, messageCount);
    }
    this.left.clear();
  }

  /** The chosen title, or the beginning of the first message. */
  titleOf(conversation) {
    if (conversation.title) return conversation.title;
    const first = !conversation.hasOlder && conversation.items.find((item) => item.message);
    return first ? beginning(contentOf(first.message.content).text, 60) : "";
  }

  /** Whether there is an agent to wait for, as far as is known. */
  agentIsThere(conversation) {
    const known = this.sessions.list.find((session) => session.id === conversation.id);
    return ["asks", "running", "waiting"].includes(known?.state);
  }

  isUnread(session) {
    if (session.id === this.conversation?.id && !document.hidden) return false;
    const count = seen.get(session.id);
    return count === null ? Date.parse(session.lastActivity) > seen.began : session.messageCount > count;
  }

  async find(query, day) {
    if (!query.trim() && !day) {
      this.search = null;
      return this.changed();
    }
    const search = this.search = { ...this.search, query, day, error: null };
    const params = { limit: 50 };
    if (query.trim()) params.query = query.trim();
    if (day) params.date_filter = day;
    try {
      const { sessions, truncated } = await this.connection.request("sessions.search", params);
      Object.assign(search, { found: sessions, truncated });
      if (search === this.search) announce(t("n_found", { n: sessions.length }));
    } catch (error) {
      search.error = sentence(error);
    }
    this.changed();
  }

  // The conversation

  /** Sends a message. It is kept in the browser until the gateway has it. */
  async send(content, { priority, agent, at } = {}) {
    if (JSON.stringify(content).length > LONGEST) throw new Error(t("the_message_is_too_long_attach_it_as_a"));
    if (["new", "list"].includes(this.route.view)) {
      const { sessionId } = await this.ask("sessions.new", agent ? { agent } : {});
      outbox.add(sessionId, this.entry(content, priority, at));
      drafts.set("new", { text: "", files: [] });
      address.replace(address.sessionAddress(sessionId));
      return;
    }
    this.dispatch(this.conversation, this.entry(content, priority, at));
  }

  /** `due`: when it is to be sent, if that is later. */
  entry(content, priority, due) {
    return { key: randomId(), content, priority, due, at: Date.now() };
  }

  dispatch(conversation, entry) {
    outbox.add(conversation.id, entry);
    conversation.sending = [...conversation.sending, entry];
    conversation.sent++;
    this.changed();
    if (this.connection.state === "open" && conversation.entered) this.deliver(conversation, entry);
  }

  /** Sends unconfirmed messages again: the gateway stores each only once. */
  flush(conversation) {
    for (const entry of conversation.sending) if (!entry.runId && !entry.error) this.deliver(conversation, entry);
  }

  async deliver(conversation, entry) {
    const params = { sessionId: conversation.id, message: entry.content, idempotencyKey: entry.key };
    if (entry.priority && entry.priority !== "next") params.priority = entry.priority;
    if (entry.due) params.at = entry.due;
    try {
      const accepted = await this.connection.request("agent", params);
      outbox.remove(conversation.id, entry.key);
      entry.runId = accepted.runId;
      const isThere = !accepted.runId || accepted.scheduled || conversation.items.some((item) => item.message && item.run?.runId === accepted.runId);
      if (isThere) this.unsend(conversation, entry);
      if (accepted.scheduled) {
        announce(t("scheduled_as_id", { id: accepted.scheduled }));
        this.learnToCome(conversation);
      }
      if (!accepted.runId && accepted.sessionId && accepted.sessionId !== this.conversation?.id) {
        // A command has switched to another session.
        address.go(address.sessionAddress(accepted.sessionId));
      }
    } catch (error) {
      // Lost messages are sent again after a reconnect.
      if (error instanceof Refused) entry.error = sentence(error);
    }
    this.changed();
  }

  /** Puts a refused message back into the composer, to be changed. */
  edit(conversation, message) {
    drafts.set(conversation.id, draftOf(message));
    conversation.drafts = (conversation.drafts ?? 0) + 1;
  }

  unsend(conversation, entry) {
    outbox.remove(conversation.id, entry.key);
    conversation.sending = conversation.sending.filter((sent) => sent !== entry);
    this.changed();
  }

  /** What is scheduled in a conversation is read. */
  tookToCome({ id, to_come: toCome = [], scheduled = 0 }) {
    if (id === this.conversation?.id) Object.assign(this.conversation, { toCome, scheduled });
    this.changed();
  }

  /** Reads it at once, after a change. */
  async learnToCome(conversation) {
    try {
      this.tookToCome(await get(api([conversation.id])));
    } catch { /* It is read again when something changes. */ }
  }

  /** Does something with a scheduled event of the open conversation: `cancel`, or `now`. */
  async doScheduled(id, verb) {
    const { conversation } = this;
    await post(api([conversation.id, "scheduled", id, verb])).finally(() => this.learnToCome(conversation));
  }

  /** Gives the open session another agent. */
  async moveTo(agent) {
    const { conversation } = this;
    conversation.agent = (await this.ask("sessions.update", { sessionId: conversation.id, agent })).agent;
    this.changed();
  }

  /** Chooses a value of an option of the open session's agent. */
  async choose(id, value) {
    const { conversation } = this;
    conversation.refused = null;
    const { options } = await this.ask("sessions.update", { sessionId: conversation.id, options: { [id]: value } });
    conversation.options = options ?? [];
    this.changed();
  }

  cancel(run) {
    return this.ask("agent.cancel", { sessionId: this.conversation.id, runId: run.runId });
  }

  /** Cancels a waiting message, and sends it again so that it interrupts. */
  async urgent(exchange) {
    const { conversation } = this;
    await this.cancel(exchange.run);
    this.dispatch(conversation, this.entry(exchange.message.content, "now"));
  }

  permit(asked, choice) {
    return this.ask("permission.answer", { sessionId: this.conversation.id, requestId: asked.requestId, choice });
  }

  /** Gives the conversation a title, in all its variants. */
  async rename(title) {
    const { conversation } = this;
    await this.ask("sessions.rename", { sessionId: conversation.id, title });
    conversation.title = title;
    const others = this.variants.of(conversation.id).filter(({ id }) => id !== conversation.id);
    for (const { id } of others) await this.ask("sessions.rename", { sessionId: id, title });
    this.refreshSoon();
  }

  /** Saves the open conversation as a file: "md" or "json". */
  async export(kind) {
    const { id, agent } = this.conversation, title = this.titleOf(this.conversation);
    const { asJson, asMarkdown, save } = await import("./export.js");
    const text = await (kind === "json" ? asJson : asMarkdown)((method, params) => this.ask(method, params), { id, title, agent });
    const name = title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60) || "conversation";
    save(`${name}.${kind}`, kind === "json" ? "application/json" : "text/markdown", text);
  }

  async delete() {
    const { id } = this.conversation;
    await this.ask("sessions.delete", { sessionId: id });
    forgetSession(id);
    address.replace(address.listAddress());
    this.refresh();
  }

  /** Copies the session up to a message, and sends this content there in place of the message. */
  async sendCopy(exchange, content) {
    const { conversation } = this;
    const { sessionId } = await this.ask("sessions.fork", { sessionId: conversation.id, before: exchange.message.id });
    outbox.add(sessionId, this.entry(content));
    await this.refresh();
    address.go(address.sessionAddress(sessionId));
  }

  /** Copies the session up to a step of a run, named by the event that ends it. The agent continues from there. */
  async goOnFrom(step) {
    const { sessionId } = await this.ask("sessions.fork", { sessionId: this.conversation.id, step });
    await this.refresh();
    address.go(address.sessionAddress(sessionId));
  }
}

export const state = new State();

/** Whether the gateway was started with --read-only: then controls are hidden. */
export const readOnly = "readOnly" in document.documentElement.dataset;
