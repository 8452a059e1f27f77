// Announcements for screen readers: that something has come, not each piece of it.

import { html, useEffect, useState } from "./vendor/preact.js";
import { beginning, contentOf } from "./text.js";

let say = () => {};

export function announce(text) {
  say(text);
}

announce.event = ({ event, payload }, conversation) => {
  if (event === "final") say(`Answer: ${beginning(contentOf(payload.content).text, 300)}`);
  else if (event === "permission" && payload.title) say(`The agent asks for permission: ${beginning(payload.title, 200)}`);
  else if (event === "error" && !payload.retryable) say(`Failed: ${beginning(payload.message, 200)}`);
  else if (event === "cancelled") say("Cancelled");
  else if (event === "status" && payload.status === "started") say("The agent is working");
  else if (event === "message" && !payload.fromSelf) say(`Message: ${beginning(contentOf(payload.content).text, 200)}`);
};

export function Announcer() {
  const [text, setText] = useState("");
  useEffect(() => { say = setText; }, []);
  return html`<div class="unseen" role="status" aria-live="polite">${text}</div>`;
}
