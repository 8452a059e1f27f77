// One address for each view. Chat: #/ the list, #/new, #/s/<session>, #/s/<session>/<seq> for a message in it,
// #/s/<session>/<seq>?find=<text> for an event in it with a marked text, #/s/<session>/<seq>/edit for a changed copy of a
// message, and #/s/<session>?trace=<seq> with what became of a message beside it.
// Queues: #/look the threads, #/look/<thread>, and in a thread: /events?filter=…, /events/<id>, /events/<id>/trace,
// /dead?consumer=…, /push, /c/<consumer>, and /c/<consumer>/<run>. What its charts show is kept from the thread to a
// consumer and its runs, and back: ?span=…&from=…&to=…, and in the thread &consumer=….

const PAGES = { events: "events", dead: "dead", push: "push" };

export function parse(hash) {
  const [path, query = ""] = split(hash.replace(/^#\/?/, ""), "?");
  const [view, ...parts] = path.split("/");
  if (view === "look") return { view: "look", ...place(parts.map(decoded)), params: Object.fromEntries(new URLSearchParams(query)) };
  const [id, digits, what] = parts;
  const seq = /^\d+$/.test(digits ?? "") ? Number(digits) : null;
  if (view === "s" && /^[0-9a-f-]{36}$/i.test(id ?? "")) {
    const params = new URLSearchParams(query);
    const find = (seq !== null && params.get("find")) || null;
    const trace = Number(/^\d+$/.exec(params.get("trace") ?? "")?.[0]) || null;
    return { view: "session", session: id.toLowerCase(), seq, find, edits: seq !== null && what === "edit", trace };
  }
  return { view: view === "new" ? "new" : "list" };
}

function place([thread, page, what, run]) {
  if (!thread) return { page: "threads" };
  if (page === "c" && what) return run ? { page: "run", thread, consumer: what, run } : { page: "consumer", thread, consumer: what };
  if (page === "events" && /^\d+$/.test(what ?? "")) return { page: run === "trace" ? "trace" : "events", thread, event: Number(what) };
  return { page: PAGES[page] ?? "thread", thread };
}

function split(text, at) {
  const n = text.indexOf(at);
  return n < 0 ? [text] : [text.slice(0, n), text.slice(n + 1)];
}

function decoded(part) {
  try { return decodeURIComponent(part); } catch { return part; }
}

export const current = () => parse(location.hash);
export const listAddress = () => "#/";
export const newAddress = () => "#/new";
export const sessionAddress = (session, seq, find) => `#/s/${session}${seq ? `/${seq}${search({ find })}` : ""}`;

/** The conversation with what became of a message beside it. */
export const besideAddress = (session, seq) => `#/s/${session}?trace=${seq}`;

export const editAddress = (session, seq) => `${sessionAddress(session, seq)}/edit`;

/** An address in Queues: of the list of threads, or of the part of a thread that `parts` name. */
export function look(...parts) {
  return ["#/look", ...parts.map(encodeURIComponent)].join("/");
}

/** The events of a thread that match a filter; `event` is open. */
export function eventsAddress(thread, { filter, event } = {}) {
  return look(thread, "events", ...(event ? [event] : [])) + search({ filter });
}

/** A thread with what its charts show: how far back (`span`), a `consumer`, and the part of the time `from` `to`. */
export function chartsAddress(thread, { span, consumer, from, to } = {}) {
  return look(thread) + search(span || from ? { span, consumer, from, to } : {});
}

/** The runs of a consumer: those with an `outcome`, the `longest` first, or those between `from` and `to`. */
export const runsAddress = (thread, consumer, params) => look(thread, "c", consumer) + search(params);

/** A run, from a list of runs that `params` say. */
export const runAddress = (thread, consumer, run, params) => look(thread, "c", consumer, run) + search(params);

/** What became of an event. */
export const traceAddress = (thread, event) => look(thread, "events", event, "trace");

export const deadAddress = (thread, params = {}) => look(thread, "dead") + search(params);

function search(params) {
  const given = Object.entries(params).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

/** The address that Escape leads to; null if there is nothing to close. */
export function above(route) {
  if (route.edits || route.trace) return sessionAddress(route.session);
  if (route.view !== "look") return null;
  const { page, thread, consumer, event, params } = route;
  if (page === "run") return runsAddress(thread, consumer, params);
  if (page === "consumer") return chartsAddress(thread, { ...params, consumer });
  if (page === "trace") return eventsAddress(thread, { event });
  if (page === "events" && event) return eventsAddress(thread, params);
  return page === "thread" || page === "threads" ? look() : look(thread);
}

export function go(address) {
  location.hash = address;
}

/** Replaces the current address in the history. */
export function replace(address) {
  history.replaceState(null, "", address);
  dispatchEvent(new HashChangeEvent("hashchange"));
}
