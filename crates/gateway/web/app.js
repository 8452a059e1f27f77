// The beginning: the token, then the page.

import { html, render, useEffect, useErrorBoundary, useState } from "./vendor/preact.js";
import { Announcer } from "./announce.js";
import { Help, useKeys } from "./keys.js";
import { Login, takeToken } from "./login.js";
import { state } from "./state.js";
import { Talk } from "./talk.js";
import { visible } from "./text.js";

/** What each kind of address shows. */
const VIEWS = { list: Talk, new: Talk, session: Talk };

function App({ refused }) {
  const [, redraw] = useState(0);
  const [help, setHelp] = useState(false);
  const [broken] = useErrorBoundary((error) => console.error(error));
  useEffect(() => state.listen(() => redraw((n) => n + 1)), []);
  useKeys(() => setHelp(true));
  useEffect(() => {
    const title = state.conversation && state.titleOf(state.conversation);
    document.title = title ? `${visible(title)} – thread` : "thread";
  });
  if (broken) return html`<main class="login"><p class="error" role="alert">The page has failed: ${broken.message}. Reload it.</p></main>`;
  if (state.connection.state === "refused") {
    return html`<${Login} error=${refused} onDone=${() => state.connection.connect()} />`;
  }
  return html`<${VIEWS[state.route.view]} onHelp=${() => setHelp(true)} /><${Announcer} />
    ${help && html`<${Help} onClose=${() => setHelp(false)} />`}`;
}

// For whoever looks at the page in the console.
globalThis.thread = { state };

const refused = await takeToken();
state.start();
render(html`<${App} refused=${refused} />`, document.body);
