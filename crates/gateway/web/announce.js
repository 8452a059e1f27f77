// Announcements for screen readers: that something has come, not each piece of it.

import { html, useEffect, useState } from "./vendor/preact.js";
import { t } from "./language.js";
import { beginning, contentOf } from "./text.js";

let say = () => {};

export function announce(text) {
  say(text);
}

announce.event = ({ event, payload }, conversation) => {
  if (event === "final") say(t("answer_text", { text: beginning(contentOf(payload.content).text, 300) }));
  else if (event === "permission" && payload.title) say(t("the_agent_asks_for_permission_text", { text: beginning(payload.title, 200) }));
  else if (event === "error" && !payload.retryable) say(t("failed_text", { text: beginning(payload.message, 200) }));
  else if (event === "cancelled") say(t("cancelled"));
  else if (event === "status" && payload.status === "started") say(t("the_agent_is_working"));
  else if (event === "message" && !payload.fromSelf) say(t("message_text", { text: beginning(contentOf(payload.content).text, 200) }));
};

export function Announcer() {
  const [text, setText] = useState("");
  useEffect(() => { say = setText; }, []);
  return html`<div class="unseen" role="status" aria-live="polite">${text}</div>`;
}
