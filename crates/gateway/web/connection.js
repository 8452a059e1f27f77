// The WebSocket: requests and their responses, events, and reconnecting.

import { t } from "./language.js";

/** The request was refused by the gateway. */
export class Refused extends Error {}

/** The connection was lost before there was a response. */
export class Lost extends Error {
  constructor() { super(t("the_connection_was_lost")); }
}

const WAITS = [250, 500, 1000, 2000, 4000, 8000, 10_000];

/** How long the connection may be silent before the gateway is asked for a response, and before it counts as gone. */
const QUIET = 20_000, GONE = 30_000;

export class Connection {
  /** `onOpen` is called after each connect, before anything else is sent; `onChange` when `state` has changed. */
  constructor({ clientId, onOpen, onEvent, onChange }) {
    Object.assign(this, { clientId, onOpen, onEvent, onChange });
    /** "connecting", "open", "waiting" (until `nextTry`), "refused" (the token is missing or wrong). */
    this.state = "connecting";
    this.failures = 0;
    this.why = "";
    this.count = 0;
    this.answers = new Map();
    /** The agents that a session can have; a new one gets the first. */
    this.agents = [];
    addEventListener("online", () => this.retry());
    document.addEventListener("visibilitychange", () => { if (!document.hidden) { this.check(); this.retry(); } });
    setInterval(() => this.check(), 5000);
  }

  /** Connects, without waiting for the next try. */
  retry() {
    if (this.state === "waiting") this.connect();
  }

  connect() {
    clearTimeout(this.timer);
    this.set("connecting");
    const url = new URL("ws", document.baseURI);
    url.protocol = url.protocol.replace("http", "ws");
    url.hash = url.search = "";
    const socket = this.socket = new WebSocket(url);
    this.heard = Date.now();
    socket.onmessage = (message) => { if (socket === this.socket) this.receive(message.data); };
    socket.onclose = (close) => { if (socket === this.socket) this.lost(close); };
    socket.onopen = async () => {
      try {
        const { agents } = await this.request("connect", { version: "1", clientType: "page", clientId: this.clientId });
        this.failures = 0;
        this.agents = agents ?? [];
        this.set("open");
        await this.onOpen();
      } catch (error) {
        if (!(error instanceof Refused)) return;
        this.why = error.message;
        if (/token/.test(error.message)) this.set("refused");
      }
    };
  }

  /** Resolves to the payload. Throws `Refused` or `Lost`. */
  request(method, params = {}) {
    if (this.socket?.readyState !== WebSocket.OPEN) return Promise.reject(new Lost());
    const id = String(++this.count);
    return new Promise((resolve, reject) => {
      this.answers.set(id, { resolve, reject });
      this.socket.send(JSON.stringify({ type: "req", id, method, params }));
    });
  }

  receive(text) {
    this.heard = Date.now();
    let frame;
    try { frame = JSON.parse(text); } catch { return; }
    if (frame.type === "event") return this.onEvent(frame);
    const answer = this.answers.get(frame.id);
    this.answers.delete(frame.id);
    if (frame.ok) answer?.resolve(frame.payload);
    else answer?.reject(new Refused(frame.error));
  }

  /** Detects a connection that is gone without a close, for example after a sleep. */
  check() {
    if (this.state !== "open") return;
    const quiet = Date.now() - this.heard;
    if (quiet > GONE) {
      const { socket } = this;
      socket.onclose = null;
      socket.close();
      this.lost({});
    } else if (quiet > QUIET) {
      this.request("status").catch(() => {});
    }
  }

  lost({ code }) {
    for (const { reject } of this.answers.values()) reject(new Lost());
    this.answers.clear();
    this.socket = null;
    if (this.state === "refused") return;
    if (code !== 1013) this.why = "";
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
