// The events of a thread that match a filter, the newest first: older ones page by page, new ones as they come.

import { Changes } from "../frame.js";
import { beginning, visible } from "../text.js";
import { api, get } from "./api.js";
import { Stream } from "./stream.js";

/** How many events are requested at once. */
const PAGE = 200;

/** How many are kept while new ones come and the list is at its top. */
const KEPT = 2000;

/** The part of a content that the list shows. */
const SHOWN = 160;

function short({ id, created_at, source, type, subtype, content }) {
  const kind = visible(subtype ? `${type} · ${subtype}` : type);
  return { id, at: Date.parse(created_at), source: visible(source), kind, text: visible(beginning(content, SHOWN)), values: { type, subtype, source } };
}

export class Tail extends Changes {
  constructor(thread, filter, newest) {
    super();
    Object.assign(this, { thread, filter, newest });
    this.items = [];
    this.waits = [];
    /** How many came since the start, and were added before the others. */
    this.added = 0;
    this.next = undefined;
    this.isTop = true;
    this.loading = false;
    this.isLive = true;
    this.stream = new Stream({
      url: (id) => api([thread, "events", "stream"], { after: id ?? this.newest, filter }),
      onEvent: ({ data }) => this.came(data),
      onChange: this.changed,
    });
  }

  async open() {
    await this.older();
    if (this.error || this.isClosed) return;
    this.newest = Math.max(this.newest, this.items[0]?.id ?? 0);
    this.isOpen = true;
    if (this.isLive) this.stream.start();
  }

  close() {
    this.isClosed = true;
    this.gone?.abort();
    this.live(false);
  }

  /** A tail that was stopped continues at its position. */
  live(isLive) {
    if (this.isOpen && isLive !== this.isLive) {
      if (isLive) this.stream.start();
      else this.stream.close();
    }
    this.isLive = isLive;
    this.changed();
  }

  /** The reader scrolls near to the end. */
  more() {
    if (this.isOpen) this.older();
  }

  /** `onwards`: continue also if a filter was cut off. */
  async older(onwards = false) {
    if (this.loading || this.next === null || this.error || (this.incomplete && !onwards)) return;
    this.loading = true;
    this.incomplete = null;
    this.changed();
    try {
      this.gone = new AbortController();
      const page = await get(api([this.thread, "events"], { before: this.next, limit: PAGE, filter: this.filter }), this.gone.signal);
      const last = this.items.at(-1)?.id ?? Infinity;
      this.items = [...this.items, ...page.events.filter(({ id }) => id < last).map(short)];
      this.next = page.next_before ?? null;
      this.incomplete = page.incomplete ?? null;
      this.failures = page.filter_failures ?? null;
    } catch (error) {
      if (error.name !== "AbortError") Object.assign(this, { error: error.message, isRefused: error.status === 400 });
    }
    this.loading = false;
    this.changed();
  }

  again() {
    Object.assign(this, { error: null, isRefused: false });
    return this.isOpen ? this.older() : this.open();
  }

  came(event) {
    if (event.id <= (this.waits.at(-1) ?? this.items[0])?.id) return;
    this.waits.push(short(event));
    this.changed();
  }

  /** Adds the new events to the list: once per frame, however many there are. */
  take() {
    const came = this.waits;
    if (!came.length) return;
    this.waits = [];
    this.items = [...came.reverse(), ...this.items];
    this.added += came.length;
    if (this.isTop && this.items.length > 2 * KEPT) {
      this.items = this.items.slice(0, KEPT);
      this.next = this.items.at(-1).id;
    }
  }
}
