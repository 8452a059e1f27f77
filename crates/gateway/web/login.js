// The token: from the link, or typed. It is exchanged for a cookie that no script can read.

import { html, useState } from "./vendor/preact.js";
import { t } from "./language.js";

const IN_ADDRESS = /^#token=([^&/]+)/;

export const hasToken = () => IN_ADDRESS.test(location.hash);

/** Removes the token from the address, so that it is in no history and on no screen, and logs in. Returns why it was
 * refused. */
export async function takeToken() {
  const token = IN_ADDRESS.exec(location.hash)?.[1];
  if (!token) return null;
  history.replaceState(null, "", `${location.pathname}${location.search}#/`);
  return login(decodeURIComponent(token));
}

/** Returns why the token was refused, or null. */
export async function login(token) {
  try {
    const answer = await fetch("api/v1/login", { method: "POST", headers: { Authorization: `Bearer ${token}` } });
    if (answer.ok) {
      await learnAgent();
      return null;
    }
    if (answer.status === 401) return t("this_is_not_the_token");
    return (await answer.json().catch(() => ({}))).error ?? t("the_gateway_answered_status", { status: String(answer.status) });
  } catch {
    return t("the_gateway_cannot_be_reached");
  }
}

/** Takes the name of the agent from the page, which has it only for requests with a login: not for the first one, nor for
 * one that follows a link from elsewhere. */
export async function learnAgent() {
  const { dataset } = document.documentElement;
  // Without an agent to talk to, the page says which address it opens.
  if ("agent" in dataset || "opens" in dataset) return;
  const page = await fetch("./", { signal: AbortSignal.timeout(3000) }).then((answer) => answer.text()).catch(() => "");
  const name = /<html[^>]* data-agent="([^"]*)"/.exec(page)?.[1];
  if (name !== undefined) dataset.agent = name;
}

/** Ends the login of this browser, and with it all connections of the page. */
export async function logout() {
  const answer = await fetch("api/v1/logout", { method: "POST" }).catch(() => null);
  if (!answer) throw new Error(t("the_gateway_cannot_be_reached"));
  if (!answer.ok && answer.status !== 401) throw new Error(t("the_gateway_answered_status", { status: String(answer.status) }));
  location.reload();
}

export function Login({ error, onDone }) {
  const [token, setToken] = useState("");
  const [wrong, setWrong] = useState(error);
  const submit = async (event) => {
    event.preventDefault();
    const why = await login(token.trim());
    setWrong(why);
    if (!why) onDone();
  };
  return html`<main class="login">
    <form onSubmit=${submit}>
      <h1>thread</h1>
      <p>${t("open_the_link_that_command_printed_when",
        { command: html`<code>thread serve</code>`, file: html`<code>token</code>` })}</p>
      <label for="token">${t("token")}</label>
      <input id="token" type="password" autocomplete="current-password" value=${token}
        aria-describedby="token-error" onInput=${(event) => setToken(event.target.value)} />
      <p id="token-error" class="error" role="alert">${wrong}</p>
      <button class="primary" disabled=${!token.trim()}>${t("enter")}</button>
    </form>
  </main>`;
}
