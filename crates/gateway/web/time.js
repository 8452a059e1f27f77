// Times and durations for display.

import { html, useEffect, useState } from "./vendor/preact.js";
import { ONE, locale, t } from "./language.js";

const FULL = new Intl.DateTimeFormat(locale, { dateStyle: "full", timeStyle: "medium" });
const CLOCK = new Intl.DateTimeFormat(locale, { hour: "2-digit", minute: "2-digit" });
const SECOND = new Intl.DateTimeFormat(locale, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const MILLISECOND = new Intl.DateTimeFormat(locale, { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3 });
const DAY = new Intl.DateTimeFormat(locale, { day: "numeric", month: "short" });
const DAY_OF_YEAR = new Intl.DateTimeFormat(locale, { day: "numeric", month: "short", year: "numeric" });

/** Milliseconds as "30 ms", "4.1 s", "41 s", "3 min", "2 h". */
export function duration(ms) {
  if (!(ms >= 0)) return "";
  if (ms < 999.5) return `${Math.round(ms)} ms`;
  if (ms < 9950) return `${ONE.format(ms / 1000)} s`;
  if (ms < 120_000) return `${Math.round(ms / 1000)} s`;
  if (ms < 7_200_000) return `${Math.round(ms / 60_000)} min`;
  return `${Math.round(ms / 3_600_000)} h`;
}

export function ago(time, now = Date.now()) {
  const seconds = (now - time) / 1000;
  if (seconds < 60) return t("just_now");
  if (seconds < 3600) return t("n_min_ago", { n: Math.floor(seconds / 60) });
  const then = new Date(time), today = new Date(now);
  if (then.toDateString() === today.toDateString()) return CLOCK.format(then);
  const yesterday = new Date(now);
  yesterday.setDate(yesterday.getDate() - 1);
  if (then.toDateString() === yesterday.toDateString()) return t("yesterday");
  return (then.getFullYear() === today.getFullYear() ? DAY : DAY_OF_YEAR).format(then);
}

/** Renders again every so many milliseconds. */
export function useClock(every) {
  const [, tick] = useState(0);
  useEffect(() => {
    if (!every) return;
    const timer = setInterval(() => { if (!document.hidden) tick((n) => n + 1); }, every);
    return () => clearInterval(timer);
  }, [every]);
}

/** How long ago; the full time on hover. */
export function Ago({ time }) {
  useClock(30_000);
  const at = typeof time === "number" ? time : Date.parse(time);
  if (!(at >= 0)) return null;
  return html`<time dateTime=${new Date(at).toISOString()} title=${FULL.format(at)}>${ago(at)}</time>`;
}

/** The time of day. */
export function Clock({ time }) {
  if (!(time >= 0)) return null;
  const text = Date.now() - time < 86_400_000 ? CLOCK.format(time) : `${DAY.format(time)}, ${CLOCK.format(time)}`;
  return html`<time dateTime=${new Date(time).toISOString()} title=${FULL.format(time)}>${text}</time>`;
}

/** The time of day with its seconds, or `exact` to the millisecond; before today with the day. */
export function Stamp({ time, exact = false }) {
  const at = typeof time === "number" ? time : Date.parse(time);
  if (!(at >= 0)) return null;
  const then = new Date(at), today = new Date();
  const day = (then.getFullYear() === today.getFullYear() ? DAY : DAY_OF_YEAR).format(at);
  const isToday = then.toDateString() === today.toDateString();
  return html`<time dateTime=${then.toISOString()} title=${FULL.format(at)}>${isToday ? "" : `${day}, `}${
    (exact ? MILLISECOND : SECOND).format(at)}</time>`;
}

/** Whether two times are of the same second, so that only more of them tells them apart. */
export const isSameSecond = (one, other) => Math.floor(Date.parse(one) / 1000) === Math.floor(Date.parse(other) / 1000);

/** A duration: counts up while there is no end. */
export function Elapsed({ from, to }) {
  useClock(to ? 0 : 1000);
  if (!from) return null;
  return html`<span class="figure">${duration((to || Math.max(Date.now(), from)) - from)}</span>`;
}
