// Data in the browser's storage, so that a reload loses nothing: drafts, messages that are being sent, and how far was
// read. Everything else is on the gateway's disk.

/** Data that the browser does not store, because its storage is full or forbidden. It lasts until the page is left. */
const memory = new Map();

function read(key, otherwise) {
  try {
    return JSON.parse(memory.get(key) ?? localStorage.getItem(key)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function write(key, value) {
  const text = JSON.stringify(value);
  memory.delete(key);
  try {
    if (value === null) localStorage.removeItem(key);
    else localStorage.setItem(key, text);
  } catch {
    memory.set(key, text);
  }
}

/** A unique id. */
export function randomId() {
  const bytes = crypto.getRandomValues(new Uint8Array(8));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The client id of this browser: its messages stay its own over a reload. */
export function clientId() {
  let id = read("client", null);
  if (typeof id !== "string") write("client", id = randomId());
  return id;
}

/** What is being typed in a session: `{text, files, priority, due}`, `due` if it was to be sent later. "new" is the session that is not made yet,
 * "<session>/<seq>" a changed copy of a message. */
export const drafts = {
  get: (session) => read(`draft:${session}`, { text: "", files: [] }),
  set: (session, draft) => write(`draft:${session}`, draft.text || draft.files.length ? draft : null),
};

/** The draft in the form that pushes an event, by thread. */
export const forms = {
  get: (thread) => read(`push:${thread}`, null),
  set: (thread, form) => write(`push:${thread}`, form),
};

/** The session that was open last. */
export const lastSession = { get: () => read("last", null), set: (session) => write("last", session) };

/** Messages that the gateway has not confirmed, by session. */
export const outbox = {
  get: (session) => read(`outbox:${session}`, []),
  add: (session, entry) => write(`outbox:${session}`, [...outbox.get(session), entry]),
  remove(session, key) {
    const left = outbox.get(session).filter((entry) => entry.key !== key);
    write(`outbox:${session}`, left.length ? left : null);
  },
};

/** How many messages of a session were seen. Messages from before this browser's first visit count as seen. */
export const seen = {
  began: read("began", null) ?? (write("began", Date.now()), Date.now()),
  get: (session) => read(`seen:${session}`, null),
  set: (session, count) => { if (seen.get(session) !== count) write(`seen:${session}`, count); },
};

export function forgetSession(session) {
  for (const what of ["draft", "outbox", "seen"]) write(`${what}:${session}`, null);
  try {
    for (const key of Object.keys(localStorage)) if (key.startsWith(`draft:${session}/`)) write(key, null);
  } catch { /* Then the browser keeps nothing. */ }
  if (lastSession.get() === session) lastSession.set(null);
}
