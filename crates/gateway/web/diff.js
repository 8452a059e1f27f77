// Shows what changes in a file: side by side if there is room, else one below the other. The comparison of lines is
// jsdiff's, which is loaded when the first change comes.

import { h, html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/preact.js";
import { t } from "./language.js";
import { linesOf, linesOfPatch } from "./changes.js";
import { visible } from "./text.js";

/** How many unchanged lines are shown around a change, how many lines at first, and from how many pixels on there is
 * room for two sides. */
const AROUND = 3,
  MOST = 400,
  ROOM = 960;

/** How long a comparison may take, in milliseconds. After that, all is shown as removed and added. */
const LIMIT = 200;

let compare = null;
let loading = null;

const load = () =>
  (loading ??= import("./vendor/diff/diff/line.js").then(({ diffLines }) => {
    compare = diffLines;
  }));

/** The lines of a change: `{sign, text, before, after}`, `{head}` between them, or `{note}` below one. */
function linesOfChange({ patch, before, after, isPart }) {
  if (patch !== undefined) return linesOfPatch(patch);
  const parts = before === null ? null : compare(before, after, { timeout: LIMIT });
  const all = parts ?? [...(before ? [{ value: before, removed: true }] : []), { value: after, added: true }];
  const lines = [],
    numbers = isPart ? [null, null] : [1, 1];
  const next = (n) => (numbers[n] === null ? null : numbers[n]++);
  const endsOpen = [before, after].map((text) => Boolean(text) && !text.endsWith("\n"));
  for (const { value, added, removed } of all) {
    for (const text of linesOf(value)) {
      lines.push({
        sign: added ? "+" : removed ? "-" : " ",
        text,
        before: added ? null : next(0),
        after: removed ? null : next(1),
      });
    }
    if (!value.endsWith("\n") && endsOpen[0] !== endsOpen[1] && before !== null && !isPart)
      lines.push({ note: t("no_line_end_here") });
  }
  return lines;
}

/** Puts removed and added lines next to each other: rows of `{left, right}`, or a line that goes over both. */
function pairs(lines) {
  const rows = [];
  let removed = [],
    added = [];
  const flush = () => {
    for (let n = 0; n < Math.max(removed.length, added.length); n++) rows.push({ left: removed[n], right: added[n] });
    [removed, added] = [[], []];
  };
  for (const line of lines) {
    if (line.sign === "-") {
      if (added.length) flush();
      removed.push(line);
    } else if (line.sign === "+") {
      added.push(line);
    } else {
      flush();
      rows.push(line.sign ? { left: line, right: line } : line);
    }
  }
  flush();
  return rows;
}

/** Tells which part of two lines differs. */
function differing(line, other) {
  const one = line.text,
    two = other.text,
    most = Math.min(one.length, two.length);
  let begin = 0,
    end = 0;
  while (begin < most && one[begin] === two[begin]) begin++;
  while (end < most - begin && one.at(-1 - end) === two.at(-1 - end)) end++;
  // Half of a pair of surrogates is no character.
  if (/[\ud800-\udbff]/.test(one[begin - 1] ?? "")) begin--;
  if (/[\udc00-\udfff]/.test(one[one.length - end] ?? "")) end--;
  return begin + end > most / 3 ? [begin, one.length - end] : null;
}

/** Leaves out unchanged lines that are far from a change. */
function folded(lines) {
  const near = new Uint8Array(lines.length);
  lines.forEach(({ sign }, n) => {
    if (sign !== " ") near.fill(1, Math.max(0, n - AROUND), n + AROUND + 1);
  });
  const shown = [];
  for (let n = 0; n < lines.length; n++) {
    if (near[n]) {
      shown.push(lines[n]);
      continue;
    }
    const from = n;
    while (n + 1 < lines.length && !near[n + 1]) n++;
    shown.push({ hidden: n - from + 1 });
  }
  return shown;
}

/** Whether the column of the conversation is wide. */
function useRoom(box) {
  const [isWide, setWide] = useState(false);
  useLayoutEffect(() => {
    const column = box.current.closest(".scroll") ?? document.documentElement;
    const look = () => setWide(column.clientWidth >= ROOM);
    const watch = new ResizeObserver(look);
    watch.observe(column);
    look();
    return () => watch.disconnect();
  }, []);
  return isWide;
}

export function Diff({ change }) {
  const box = useRef();
  const [, redraw] = useState(0);
  const [isWhole, showWhole] = useState(false);
  const [most, setMost] = useState(MOST);
  const isWide = useRoom(box);
  const isReady = compare || change.patch !== undefined || change.before === null;
  useEffect(() => {
    if (!isReady)
      load().then(
        () => redraw((n) => n + 1),
        () => {},
      );
  }, []);
  const kept = useRef({}).current;
  if (isReady && kept.of !== change) Object.assign(kept, { of: change, lines: linesOfChange(change) });
  const lines = kept.lines ?? [];
  const shown = isWhole ? lines : folded(lines),
    some = shown.slice(0, most);
  const count = (sign) => lines.filter((line) => line.sign === sign).length;
  const isTwo = isWide && lines.some(({ sign }) => sign === "-") && lines.some(({ sign }) => sign === "+");
  return html`<div class=${isTwo ? "diff two" : "diff"} ref=${box}>
    <div class="bar"><span class="file">${visible(change.path ?? t("patch"))}</span>
      ${change.before === null && html`<span>${t("the_whole_file")}</span>`}
      <span class="plus">+${count("+")}</span><span class="minus">−${count("-")}</span></div>
    <div class="lines" tabIndex="0" role="region" aria-label=${t("change_of_file", { file: visible(change.path ?? t("a_file")) })}>
      <table>${isTwo && html`<colgroup>${COLUMNS}</colgroup><colgroup>${COLUMNS}</colgroup>`}
        ${
          isTwo
            ? pairs(some).map((row) => html`<${Two} row=${row} onWhole=${() => showWhole(true)} />`)
            : some.map((line) => html`<${One} line=${line} onWhole=${() => showWhole(true)} />`)
        }</table>
    </div>
    ${
      shown.length > most &&
      html`<p class="rest"><button type="button" onClick=${() => setMost(Infinity)}>
      ${t("show_all_n_lines", { n: shown.length })}</button></p>`
    }
  </div>`;
}

const COLUMNS = html`<col class="number" /><col class="sign" /><col />`;

const SIGNS = { "+": "+", "-": "−", " ": "" },
  KINDS = { "+": "added", "-": "removed", " ": "same" };

function One({ line, onWhole }) {
  if (!line.sign) return html`<${Between} line=${line} columns=${4} onWhole=${onWhole} />`;
  return html`<tr class=${KINDS[line.sign]}><td class="number">${line.before}</td><td class="number">${line.after}</td>
    <td class="sign">${SIGNS[line.sign]}</td><td class="line">${visible(line.text)}</td></tr>`;
}

function Two({ row, onWhole }) {
  const { left, right } = row;
  if (!left && !right) return html`<${Between} line=${row} columns=${6} onWhole=${onWhole} />`;
  return html`<tr>${side(left, "before", right)}${side(right, "after", left)}</tr>`;
}

function side(line, which, other) {
  if (!line) return html`<td class="number"></td><td class="sign"></td><td class="line none"></td>`;
  const kind = KINDS[line.sign],
    part = other && line !== other && differing(line, other);
  const text = !part
    ? visible(line.text)
    : [visible(line.text.slice(0, part[0])), h("mark", null, visible(line.text.slice(...part))), visible(line.text.slice(part[1]))];
  return html`<td class=${`number ${kind}`}>${line[which]}</td><td class=${`sign ${kind}`}>${SIGNS[line.sign]}</td>
    <td class=${`line ${kind}`}>${text}</td>`;
}

/** A row over all columns. */
function Between({ line, columns, onWhole }) {
  const { head, hidden, note } = line;
  return html`<tr class="between"><td colSpan=${columns}>${
    hidden
      ? html`<button type="button" onClick=${onWhole}>${t("n_unchanged_lines", { n: hidden })}</button>`
      : visible(head ?? note)
  }</td></tr>`;
}

/** Several changes, each with its file. */
export function Changes({ changes }) {
  return changes.map((change, n) => html`<${Diff} key=${n} change=${change} />`);
}
