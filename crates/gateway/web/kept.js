// What the browser keeps for this page, so that a reload loses nothing: what is being typed, messages that are
// on their way, and what was seen. Everything else is on the gateway's disk.

/** What the browser does not keep, because it is full or may not. It lasts until the page is left. */
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

/** An id that nobody else has. */
export function randomId() {
  const bytes = crypto.getRandomValues(new Uint8Array(8));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** This browser, as the gateway knows it: its messages stay its own over a reload. */
export function clientId() {
  let id = read("client", null);
  if (typeof id !== "string") write("client", id = randomId());
  return id;
}

/** What is being typed in a session: `{text, files, priority}`. "new" is the session that is not made yet,
 * "<session>/<seq>" a changed copy of a message. */
export const drafts = {
  get: (session) => read(`draft:${session}`, { text: "", files: [] }),
  set: (session, draft) => write(`draft:${session}`, draft.text || draft.files.length ? draft : null),
};

/** What is being typed in the form that pushes an event, by thread. */
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

/** How many messages of a session were seen. What was there before this browser came counts as seen. */
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
