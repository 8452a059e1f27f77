// Variants of a conversation. Trying again and changing a message make a copy of the session that goes on differently
// from there. Copies are sessions like any other; the page shows them as one conversation, with a switch at the message.
//
// A place in a conversation is named by the time of the last message of a person before it: copies keep their times, so
// it has the same name in all variants.

/** The place before the first message. */
const START = 0;

/** How many messages are read to find the place at which a copy begins. */
const AROUND = 20;

const timeOf = (message) => Date.parse(message.timestamp);

export class Variants {
  /** `ask(method, params)` sends a request; `changed()` is called when more is known. */
  constructor(ask, changed) {
    Object.assign(this, { ask, changed });
    this.sessions = new Map();
    /** Where copies begin: `{place, at, seq}`, with the time and the `seq` of their first own message; null while that
     * is being read. */
    this.begins = new Map();
    /** The copies among the variants of a conversation, in order, as long as nothing has changed. */
    this.copies = null;
  }

  /** Takes the list of sessions. */
  take(list) {
    this.sessions = new Map(list.map((session) => [session.id, session]));
    this.copies = null;
  }

  /** The first of the sessions that one was copied from; it may be deleted. */
  rootOf(id) {
    for (let parent; (parent = this.sessions.get(id)?.forkedFrom?.sessionId); id = parent);
    return id;
  }

  /** All variants of a conversation, itself included, the most recently active first. */
  of(id) {
    const root = this.rootOf(id);
    return [...this.sessions.values()].filter((session) => this.rootOf(session.id) === root);
  }

  /** One session for each conversation: the open one, or one that needs somebody, or else the most recent. */
  together(list, open) {
    const rank = ({ id, state }) => (id === open ? 0 : state === "asks" ? 1 : state === "running" ? 2 : 3);
    const best = new Map(), counts = new Map();
    for (const session of list) {
      const root = this.rootOf(session.id), known = best.get(root);
      counts.set(root, (counts.get(root) ?? 0) + 1);
      if (!known || rank(session) < rank(known)) best.set(root, session);
    }
    return [...best].map(([root, session]) => ({ session, count: counts.get(root) }));
  }

  /** Reads where the copies among the variants of a conversation begin. */
  async learn(id) {
    await Promise.all(this.of(id).map(async ({ id, forkedFrom }) => {
      if (!forkedFrom || this.begins.has(id)) return;
      this.begins.set(id, null);
      try {
        const params = { sessionId: id, before: forkedFrom.seq + AROUND, limit: 2 * AROUND };
        const { messages, hasMore } = await this.ask("sessions.history", params);
        const said = messages.filter(({ role }) => role === "user");
        const last = said.findLast(({ seq }) => seq < forkedFrom.seq);
        const own = said.find(({ seq }) => seq > forkedFrom.seq), place = last ? timeOf(last) : START;
        if (!own) this.begins.delete(id);
        else if (last || !hasMore) this.begins.set(id, { place, at: timeOf(own), seq: own.seq });
        this.copies = null;
        this.changed();
      } catch {
        this.begins.delete(id);
      }
    }));
  }

  copiesOf(open) {
    if (this.copies?.of !== open) {
      const all = this.of(open).map(({ id, forkedFrom }) => ({ id, forkedFrom, ...this.begins.get(id) }));
      this.copies = { of: open, all: all.filter(({ at }) => at).sort((one, other) => one.at - other.at) };
    }
    return this.copies.all;
  }

  /** The variants of a message: `{all, at}`, each with its session and its `seq`, and which of them is shown. Null if
   * there is one only. */
  at(conversation, exchange) {
    const { items, hasOlder, id: open } = conversation, known = this.copiesOf(open);
    if (!known.length) return null;
    const before = items.slice(0, items.indexOf(exchange)).findLast(({ message }) => message);
    if (!before && hasOlder) return null;
    const place = before ? before.message.at : START;
    const copies = known.filter((copy) => copy.place === place);
    if (!copies.length) return null;
    const [{ forkedFrom: first }] = copies;
    const isThere = this.sessions.has(first.sessionId) && first.before !== null;
    const original = isThere ? [{ id: first.sessionId, seq: first.before }] : [];
    const all = [...original, ...copies.map(({ id, seq }) => ({ id, seq }))];
    let own = open;
    while (own && this.begins.get(own)?.place !== place) own = this.sessions.get(own)?.forkedFrom?.sessionId;
    const at = own ? all.findIndex(({ id }) => id === own) : 0;
    return all.length > 1 && at >= 0 ? { all, at } : null;
  }
}
