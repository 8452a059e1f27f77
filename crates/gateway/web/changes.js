// What a tool call changes in files, from the forms in which agents say it: ACP's diffs, arguments of tools that edit, and
// patches. Nothing is lost: what is not part of a change is returned too.

/** The names of arguments, by what they mean. */
const PATHS = ["file_path", "path", "filePath", "filepath", "filename", "file", "target_file"];
const OLD = ["old_string", "oldText", "old_str", "old_text", "oldString", "old"];
const NEW = ["new_string", "newText", "new_str", "new_text", "newString", "new"];
const WHOLE = ["content", "file_text", "contents", "text"];

/** The tools that write whole files, unless their kind says so. */
const WRITES = /(^|[_\W])(write|create|overwrite)/i;

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const nameIn = (object, names) => names.find((name) => typeof object[name] === "string");

/** `{path, before, after}`: a change of a text, which is null if there was none; or `{patch}`. */
export function isPatch(text) {
  return (
    typeof text === "string" &&
    /^(diff --git |--- \S.*\n\+\+\+ |\*\*\* Begin Patch|Index: |@@ -\d)/m.test(text.slice(0, 2000))
  );
}

/** The change that a part of a call's content is; null if it is none. */
function changeOf(part) {
  if (!isObject(part) || part.type !== "diff" || typeof part.newText !== "string") return null;
  const { oldText } = part;
  return { path: String(part.path ?? ""), before: typeof oldText === "string" ? oldText : null, after: part.newText };
}

/** Changes in the content of a call: `{changes, rest}`. */
export function inContent(content) {
  const changes = [],
    rest = [];
  for (const part of Array.isArray(content) ? content : []) {
    const change = changeOf(part);
    if (change) changes.push(change);
    else rest.push(part);
  }
  return { changes, rest };
}

/** Changes in the details of a request, in which each diff is a line of JSON. */
export function inDetails(details) {
  if (isPatch(details)) return { changes: [{ patch: details }], rest: "" };
  const changes = [],
    rest = [];
  for (const line of String(details ?? "").split("\n")) {
    let change = null;
    if (line.startsWith("{"))
      try {
        change = changeOf(JSON.parse(line));
      } catch {
        /* Then it is text. */
      }
    if (change) changes.push(change);
    else rest.push(line);
  }
  return { changes, rest: changes.length ? rest.join("\n").trim() : details };
}

/** Changes in the arguments of a call. `rest`: the other arguments, null if there are none. */
export function inArguments(given, { kind, name = "" } = {}) {
  if (isPatch(given)) return { changes: [{ patch: given }], rest: null };
  if (!isObject(given)) return { changes: [], rest: given ?? null };
  const path = nameIn(given, PATHS),
    used = new Set(path ? [path] : []),
    changes = [];
  const edit = (object) => {
    const before = nameIn(object, OLD),
      after = nameIn(object, NEW);
    if (!before || !after) return null;
    return {
      names: [before, after],
      change: { path: path ? given[path] : "", before: object[before], after: object[after], isPart: true },
    };
  };
  const own = edit(given),
    edits = Array.isArray(given.edits) ? given.edits.map((one) => isObject(one) && edit(one)) : [];
  const patch = Object.keys(given).find((key) => isPatch(given[key]));
  const whole = nameIn(given, WHOLE);
  if (own) {
    own.names.forEach((name) => used.add(name));
    changes.push(own.change);
  } else if (
    edits.length &&
    edits.every((one) => one && one.names.length === Object.keys(given.edits[edits.indexOf(one)]).length)
  ) {
    used.add("edits");
    changes.push(...edits.map(({ change }) => change));
  } else if (patch) {
    used.add(patch);
    changes.push({ patch: given[patch] });
    if (path) used.delete(path);
  } else if (path && whole && (kind === "edit" || WRITES.test(name))) {
    used.add(whole);
    changes.push({ path: given[path], before: null, after: given[whole] });
  }
  if (!changes.length) return { changes, rest: given };
  const rest = Object.entries(given).filter(([key]) => !used.has(key));
  return { changes, rest: rest.length ? Object.fromEntries(rest) : null };
}

/** The lines of a text, without the marks of their ends. */
export function linesOf(text) {
  const lines = text.split("\n");
  if (lines.at(-1) === "") lines.pop();
  return lines;
}

/** Every line of a patch: `{sign, text, before, after}` with its numbers, or `{head}`, which stands between changes. */
export function linesOfPatch(patch) {
  const lines = [];
  // How many lines of the old and of the new text are still to come, and their numbers.
  let left = [0, 0],
    numbers = [null, null],
    isFree = false;
  for (const text of linesOf(patch)) {
    const hunk = /^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@/.exec(text),
      sign = text[0] ?? " ";
    const isInside = left[0] > 0 || left[1] > 0 || (isFree && !/^(\*\*\* |@@)/.test(text));
    if (isInside && " +-".includes(sign)) {
      const isOf = [sign !== "+", sign !== "-"];
      const [before, after] = numbers.map((number, n) => (isOf[n] ? number : null));
      numbers = numbers.map((number, n) => (number !== null && isOf[n] ? number + 1 : number));
      left = left.map((count, n) => (isOf[n] ? count - 1 : count));
      lines.push({ sign, text: text.slice(1), before, after });
      continue;
    }
    lines.push({ head: text });
    left = hunk ? [Number(hunk[2] ?? 1), Number(hunk[4] ?? 1)] : [0, 0];
    numbers = hunk ? [Number(hunk[1]), Number(hunk[3])] : [null, null];
    // The patches of some models have no numbers.
    isFree = !hunk && /^(@@|\*\*\* (Update|Add) File: )/.test(text);
  }
  return lines;
}
