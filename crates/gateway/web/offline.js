// A quiet line while there is no connection.

import { html } from "./vendor/preact.js";
import { t } from "./language.js";
import { useClock } from "./time.js";

/** `connection`: with its `state`, `failures`, `nextTry`, `why` and `retry()`. */
export function Offline({ connection }) {
  useClock(connection.state === "waiting" ? 500 : 0);
  // The first moments of a connection are not shown.
  const isTold = connection.state === "waiting" || (connection.state === "connecting" && connection.failures > 0);
  if (!isTold) return null;
  const left = Math.max(0, Math.ceil((connection.nextTry - Date.now()) / 1000));
  return html`<p class="offline" role="status">
    ${connection.why ? `${connection.why} · ` : `${t("no_connection")} · `}
    <span aria-hidden="true">${connection.state === "connecting" ? t("trying") : `${t("next_try_in_n_s", { n: left })} `}</span>
    ${connection.state === "waiting" && html`<button type="button" class="quiet" onClick=${() => connection.retry()}>${t("try_now")}</button>`}
  </p>`;
}
