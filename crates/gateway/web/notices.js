// Notices outside of the page: the number of sessions that ask, in the title, and notifications of the browser when a
// session asks or ends while nobody looks.

import { html, useState } from "./vendor/preact.js";
import { t } from "./language.js";
import { beginning, unmarked, visible } from "./text.js";
import * as address from "./address.js";

const { Notification } = globalThis;

/** How often a hidden page looks, in milliseconds. */
const PAUSE = 20_000;

/** Has the list read while the page is hidden, if notifications are allowed: nothing else asks for it then. */
export function lookWhileHidden(refresh) {
  setInterval(() => { if (document.hidden && Notification?.permission === "granted") refresh(); }, PAUSE);
}

/** The state of each session at the last look. */
let before = null;

/** Takes the list of sessions, and tells what has changed since. */
export function notice(list) {
  const now = new Map(list.map(({ id, state }) => [id, state ?? ""]));
  if (before && (document.hidden || !document.hasFocus()) && Notification?.permission === "granted") {
    for (const session of list) {
      const was = before.get(session.id), is = now.get(session.id);
      if (was === is) continue;
      if (is === "asks") tell(session, t("the_agent_asks_for_permission"));
      else if (is === "failed") tell(session, t("the_agent_has_failed"));
      else if (is === "" && was) tell(session, unmarked(session.lastMessage ?? "") || t("done_2"));
    }
  }
  before = now;
}

function tell({ id, title }, text) {
  try {
    const options = { body: visible(beginning(text, 200)), tag: id, icon: "page/icon.svg" };
    const notification = new Notification(visible(title) || "thread", options);
    notification.onclick = () => {
      window.focus();
      address.go(address.sessionAddress(id));
      notification.close();
    };
  } catch { /* Some browsers allow it to service workers only. */ }
}

/** How many sessions ask, in front of a title. */
export function counted(title, list) {
  const asking = list.filter(({ state }) => state === "asks").length;
  return asking ? `(${asking}) ${title}` : title;
}

/** A button that asks for the permission to notify, as long as that is open. */
export function Notify() {
  const [how, setHow] = useState(Notification?.permission);
  if (how !== "default" || !isSecureContext) return null;
  return html`<button type="button" class="quiet" title=${t("tells_you_when_an_agent_asks_or_is_done")}
    onClick=${async () => setHow(await Notification.requestPermission())}>${t("notify_me")}</button>`;
}
