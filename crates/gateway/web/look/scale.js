// A scale of time on which waits take little room, so that a run is seen however long somebody was waited for.

/** The union of spans `[from, to]`, in order. */
export function union(spans) {
  const all = [];
  for (const [from, to] of [...spans].sort(([a], [b]) => a - b)) {
    const last = all[all.length - 1];
    if (last && from <= last[1]) last[1] = Math.max(last[1], to);
    else if (from < to) all.push([from, to]);
  }
  return all;
}

/** The parts of spans that lie outside of others. */
export function without(spans, others) {
  let parts = spans;
  for (const [from, to] of others) {
    const cut = ([begin, end]) => [[begin, Math.min(end, from)], [Math.max(begin, to), end]];
    parts = parts.flatMap(cut).filter(([begin, end]) => begin < end);
  }
  return parts;
}

/** A wait is folded if it is longer than this, in milliseconds, and than this part of the work; then it takes as much
 * room as that part of it. */
const LONG = 1000, MORE = 0.5, SHARE = 0.08;

/** The scale of the time from `from` to `to`, in which `busy` are the spans of work. `place(ms)` is between 0 and 1,
 * and `time(place)` the reverse. `folds` are the waits that are folded. */
export function scaleOf(busy, from, to) {
  const inside = union(busy.map(([a, b]) => [Math.max(a, from), Math.min(b, to)]).filter(([a, b]) => a < b));
  const work = inside.reduce((sum, [a, b]) => sum + b - a, 0);
  const pieces = [];
  let at = from;
  const waits = (end) => {
    const took = end - at;
    if (took <= 0) return;
    const isFolded = work > 0 && took > LONG && took > work * MORE;
    pieces.push({ from: at, to: end, isFolded, size: isFolded ? work * SHARE : took });
  };
  for (const [a, b] of inside) {
    waits(a);
    pieces.push({ from: a, to: b, size: b - a });
    at = b;
  }
  waits(to);
  const whole = pieces.reduce((sum, { size }) => sum + size, 0) || 1;
  let sum = 0;
  for (const piece of pieces) {
    piece.begin = sum / whole;
    sum += piece.size;
    piece.end = sum / whole;
  }
  const place = (ms) => {
    const piece = pieces.find((piece) => ms <= piece.to) ?? pieces[pieces.length - 1];
    if (!piece) return 0;
    const share = (ms - piece.from) / (piece.to - piece.from);
    return piece.begin + Math.min(1, Math.max(0, share)) * (piece.end - piece.begin);
  };
  const time = (place) => {
    const piece = pieces.find((piece) => place <= piece.end) ?? pieces[pieces.length - 1];
    if (!piece) return from;
    return piece.from + ((place - piece.begin) / (piece.end - piece.begin || 1)) * (piece.to - piece.from);
  };
  return { from, to, place, time, folds: pieces.filter(({ isFolded }) => isFolded) };
}
