// The start: exchanges the token, then shows the page.

import { html, render, useEffect, useErrorBoundary, useState } from "./vendor/preact.js";
import { t } from "./language.js";
import { Announcer } from "./announce.js";
import { Help, useKeys } from "./keys.js";
import { Login, hasToken, learnAgent, takeToken } from "./login.js";
import { later } from "./later.js";
import { counted } from "./notices.js";
import { state } from "./state.js";
import { Chat } from "./talk.js";
import { visible } from "./text.js";
import * as address from "./address.js";

const Look = later(() => import("./look/look.js").then((look) => look.Look));

/** What each kind of address shows. */
const VIEWS = { list: Chat, new: Chat, session: Chat, look: Look };

function lookTitle({ thread, consumer, event, run }) {
  if (!thread) return t("queues");
  return [run && t("run"), event && t("event_id_2", { id: String(event) }), consumer, state.threadName].filter(Boolean).join(" – ");
}

function App({ refused }) {
  const [, redraw] = useState(0);
  const [help, setHelp] = useState(false);
  const [broken] = useErrorBoundary((error) => console.error(error));
  useEffect(() => state.listen(() => redraw((n) => n + 1)), []);
  useKeys(() => setHelp(true));
  useEffect(() => {
    const title = state.route.view === "look" ? lookTitle(state.route) : state.conversation && state.titleOf(state.conversation);
    document.title = counted(title ? `${visible(title)} – thread` : "thread", state.sessions.list);
  });
  if (broken) return html`<main class="login"><p class="error" role="alert">${t("the_page_has_failed_why_reload_it", { why: broken.message })}</p></main>`;
  if (state.connection.state === "refused") {
    return html`<${Login} error=${refused} onDone=${() => state.connection.connect()} />`;
  }
  return html`<${VIEWS[state.route.view]} onHelp=${() => setHelp(true)} /><${Announcer} />
    ${help && html`<${Help} onClose=${() => setHelp(false)} />`}`;
}

// For debugging in the console.
globalThis.thread = { state };

const refused = await takeToken();
await learnAgent();
// The link with a token may be opened in a tab that has the page open already.
addEventListener("hashchange", async () => {
  if (!hasToken()) return;
  await takeToken();
  state.connection.connect();
  dispatchEvent(new HashChangeEvent("hashchange"));
});
// Without an agent to talk to, the gateway names another start address.
if (document.documentElement.dataset.opens === "look" && address.current().view === "list") {
  state.opensOnly = true;
  history.replaceState(null, "", address.look());
}
state.start();
render(html`<${App} refused=${refused} />`, document.body);
