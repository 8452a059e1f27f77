// Server-sent events, read by `fetch`, so that the page can say why there are none and when it tries again. A hidden
// page has no stream open, because a browser allows only six to one gateway.

import { useEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { oncePerFrame } from "../frame.js";
import { Refusal, refusal } from "./api.js";

const WAITS = [250, 500, 1000, 2000, 4000, 8000, 10_000];

/** How long the stream may be silent before it counts as gone. */
const GONE = 45_000;

export class Stream {
  /** `url(id)` gives the URL for each connect, with the id of the last event; `onEvent({event, data, id})`; `onChange()` when
   * `state` has changed. */
  constructor({ url, onEvent, onChange }) {
    Object.assign(this, { url, onEvent, onChange });
    /** "connecting", "open", "waiting" (until `nextTry`), "refused" (`why` says it; there is no further try). */
    this.state = "connecting";
    this.failures = 0;
    this.why = "";
  }

  start() {
    this.seen = () => { if (document.hidden) this.leave(); else if (!this.abort) this.connect(); };
    document.addEventListener("visibilitychange", this.seen);
    this.online = () => this.retry();
    addEventListener("online", this.online);
    this.watch = setInterval(() => { if (this.state === "open" && Date.now() - this.heard > GONE) this.lost(); }, 5000);
    if (!document.hidden) this.connect();
  }

  close() {
    document.removeEventListener("visibilitychange", this.seen);
    removeEventListener("online", this.online);
    clearInterval(this.watch);
    this.leave();
  }

  leave() {
    clearTimeout(this.timer);
    this.abort?.abort();
    this.abort = null;
  }

  /** At once, if it waits to try again. */
  retry() {
    if (this.state === "waiting") this.connect();
  }

  async connect() {
    this.leave();
    const abort = this.abort = new AbortController();
    this.set("connecting");
    try {
      const answer = await fetch(this.url(this.lastId), { signal: abort.signal, headers: { Accept: "text/event-stream" } });
      if (!answer.ok) throw await refusal(answer);
      this.failures = 0;
      this.heard = Date.now();
      this.set("open");
      await this.read(answer.body.pipeThrough(new TextDecoderStream()).getReader(), abort);
      if (abort === this.abort) this.lost();
    } catch (error) {
      if (abort !== this.abort) return;
      const isFinal = error instanceof Refusal && error.status < 500 && error.status !== 401 && error.status !== 429;
      if (isFinal) this.refuse(error.message);
      else this.lost(error instanceof Refusal ? error.message : "");
    }
  }

  async read(reader, abort) {
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done || abort !== this.abort) return;
      this.heard = Date.now();
      text += value;
      const events = text.split("\n\n");
      text = events.pop();
      for (const event of events) this.take(event);
    }
  }

  take(lines) {
    const event = { event: "message", data: "", id: null };
    for (const line of lines.split("\n")) {
      const [, name, value] = /^(event|data|id): ?(.*)$/.exec(line) ?? [];
      if (name) event[name] = name === "data" && event.data ? `${event.data}\n${value}` : value;
    }
    // The id to continue from; it may come alone.
    this.lastId = event.id ?? this.lastId;
    if (!event.data) return;
    try { event.data = JSON.parse(event.data); } catch { return; }
    if (event.event === "failed") this.refuse(event.data.error);
    else this.onEvent(event);
  }

  refuse(why) {
    this.leave();
    this.why = why;
    this.set("refused");
  }

  lost(why = "") {
    this.leave();
    this.why = why;
    const wait = WAITS[Math.min(this.failures++, WAITS.length - 1)];
    this.nextTry = Date.now() + wait;
    this.timer = setTimeout(() => this.connect(), wait);
    this.set("waiting");
  }

  set(state) {
    this.state = state;
    this.onChange();
  }
}

/** The last data of a stream of states, and the stream. What is there stays until another address has said something. */
export function useWatch(url) {
  const [, redraw] = useState(0);
  const last = useRef(null);
  const watch = useMemo(() => {
    const changed = oncePerFrame(() => redraw((n) => n + 1));
    const watch = { data: last.current };
    watch.stream = new Stream({ url: () => url, onEvent: ({ data }) => { watch.data = last.current = data; changed(); }, onChange: changed });
    return watch;
  }, [url]);
  useEffect(() => {
    watch.stream.start();
    return () => watch.stream.close();
  }, [watch]);
  return watch;
}
