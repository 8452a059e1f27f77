// Chat: the list of sessions, and the open conversation.

import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { t } from "./language.js";
import { Moves, Options } from "./agents.js";
import { Composer } from "./composer.js";
import { Dialog } from "./dialog.js";
import { focusRequest } from "./focus.js";
import { Messages } from "./messages.js";
import { Halves } from "./nav.js";
import { Offline } from "./offline.js";
import { Do } from "./parts.js";
import { Scheduled } from "./scheduled.js";
import { Sessions } from "./sessions.js";
import { Strip } from "./strip.js";
import { visible } from "./text.js";
import { readOnly, state } from "./state.js";
import { later } from "./later.js";
import * as address from "./address.js";

const Beside = later(() => import("./look/trace.js").then((trace) => trace.Beside));

export function Chat({ onHelp }) {
  const { route, conversation, sessions } = state;
  // On a phone the list is a page of its own, once there are sessions.
  const isList = route.view === "list" && !(sessions.loaded && !sessions.list.length && !readOnly && !opens);
  return html`<main class="talk" data-view=${isList ? "list" : "conversation"}>
    <${Sessions} onHelp=${onHelp} />
    <div class="open-session">
      ${conversation && html`<${Open} key=${conversation.id} conversation=${conversation} />`}
      ${route.view === "new" && html`<${New} />`}
      ${route.view === "list" && (readOnly || opens ? html`<p class="empty hint">${
        readOnly ? t("choose_a_session") : t("choose_a_session_or_begin",
          { begin: html`<a href=${address.newAddress()}>${t("begin_a_new_one")}</a>` })}</p>` : html`<${Welcome} />`)}
    </div>
    ${conversation && route.trace && html`<${Beside} conversation=${conversation} seq=${route.trace} />`}
  </main>`;
}

/** Set if there is no agent to talk to. */
const { opens } = document.documentElement.dataset;

/** A page to begin on: who answers, and a box to write in. */
function Begin({ head }) {
  const [dropped, drop] = useDrop();
  return html`<section class="conversation welcome" ...${drop}>
    ${head}
    <${Offline} connection=${state.connection} />
    <div class="scroll"><${Write} session="new" dropped=${dropped} /></div>
  </section>`;
}

const Welcome = () => html`<${Begin} head=${html`<header class="narrow"><${Halves} /></header>`} />`;

const New = () => html`<${Begin} head=${html`<header><${Back} /><h1>${t("new_session_2")}</h1></header>`} />`;

function Open({ conversation }) {
  const [dropped, drop] = useDrop();
  if (conversation.gone) {
    return html`<section class="conversation"><header><${Back} /><h1>${visible(state.titleOf(conversation)) || t("session")}</h1></header>
      <p class="empty error" role="alert">${conversation.gone}</p></section>`;
  }
  const asked = conversation.openPermissions().length;
  const { edits, seq } = state.route;
  const exchange = edits ? conversation.bySeq.get(seq) : null;
  const edited = exchange?.message ? exchange : null;
  return html`<section class="conversation" ...${drop}>
    <${Header} conversation=${conversation} title=${state.titleOf(conversation)} clients=${conversation.clients} />
    <${Messages} conversation=${conversation} />
    <${Question} asked=${asked} />
    <${Strip} conversation=${conversation} />
    <${Scheduled} conversation=${conversation} />
    <${Offline} connection=${state.connection} />
    ${!(edits && conversation.isToBeRead(seq)) && html`<${Write} key=${`${conversation.drafts} ${edited?.key}`}
      session=${edited ? `${conversation.id}/${seq}` : conversation.id} edited=${edited} dropped=${dropped}
      activeRun=${conversation.activeRun} isBusy=${conversation.openRuns().length > 0} />`}
  </section>`;
}

function Write(given) {
  if (!readOnly) return html`<${Composer} ...${given} />`;
  return html`<p class="composer hint">${t("only_looking_the_gateway_was_started")}</p>`;
}

/** A link to the open request, unless it is in view. */
function Question({ asked }) {
  const [isSeen, see] = useState(false);
  useEffect(() => {
    const card = document.querySelector(".permission.open");
    if (!card) return undefined;
    const options = { root: card.closest(".scroll"), threshold: [0.99, 1] };
    const watch = new IntersectionObserver(([entry]) => see(entry.intersectionRatio > 0.99), options);
    watch.observe(card);
    return () => watch.disconnect();
  });
  if (!asked || (isSeen && asked === 1)) return null;
  return html`<p class="question"><button type="button" class="quiet" onClick=${() => focusRequest()}>
    ${asked > 1 ? t("the_agent_asks_for_permission_n_show", { n: asked }) : t("the_agent_asks_for_permission_show")}</button></p>`;
}

function Back() {
  return html`<a class="back" href=${address.listAddress()} aria-label=${t("all_sessions")}>‹</a>`;
}

function Header({ conversation, title, clients }) {
  const [doing, setDoing] = useState(null);
  const done = () => setDoing(null);
  return html`<header>
    <${Back} />
    <h1>${visible(title) || t("untitled")}</h1>
    <span class="here" title=${t("clients_in_this_session_this_one")}>${clients > 1 ? t("n_here", { n: clients }) : ""}</span>
    <${Moves} conversation=${conversation} />
    <${Options} conversation=${conversation} />
    <a class="look-link" href=${address.look(conversation.id)} title=${t("its_events_its_agents_runs_and_what")}>${t("queue")}</a>
    <button type="button" class="quiet" onClick=${() => setDoing("export")}>${t("export")}</button>
    ${!readOnly && html`<button type="button" class="quiet" onClick=${() => setDoing("rename")}>${t("rename")}</button>
      <button type="button" class="quiet" onClick=${() => setDoing("delete")}>${t("delete")}</button>`}
    ${doing === "export" && html`<${Export} onClose=${done} />`}
    ${doing === "rename" && html`<${Rename} title=${title} onClose=${done} />`}
    ${doing === "delete" && html`<${Delete} title=${title} onClose=${done} />`}
  </header>`;
}

function Export({ onClose }) {
  const save = (kind) => async () => {
    await state.export(kind);
    onClose();
  };
  return html`<${Dialog} title=${t("export_the_conversation")} onClose=${onClose}>
    <p>${t("markdown_has_the_messages_and_answers")}</p>
    <p class="buttons"><${Do} action=${save("md")}>Markdown<//><${Do} action=${save("json")}>JSON<//>
      <span class="space"></span><button type="button" onClick=${onClose}>${t("cancel")}</button></p>
  <//>`;
}

function Rename({ title, onClose }) {
  const [name, setName] = useState(title);
  const [error, setError] = useState(null);
  const input = useRef();
  useEffect(() => { input.current.focus(); input.current.select(); }, []);
  const submit = async (event) => {
    event.preventDefault();
    try {
      await state.rename(name.trim());
      onClose();
    } catch (error) {
      setError(error.message);
    }
  };
  return html`<${Dialog} title=${t("rename_the_session")} onClose=${onClose}>
    <form onSubmit=${submit}>
      <input ref=${input} aria-label=${t("title")} value=${name} onInput=${(event) => setName(event.target.value)} />
      ${error && html`<p class="error" role="alert">${error}</p>`}
      <p class="buttons"><button type="button" onClick=${onClose}>${t("keep_it")}</button>
        <button class="primary" disabled=${!name.trim()}>${t("rename")}</button></p>
    </form>
  <//>`;
}

function Delete({ title, onClose }) {
  const others = state.variants.of(state.conversation.id).length - 1;
  return html`<${Dialog} title=${others > 0 ? t("delete_this_variant") : t("delete_the_session")} onClose=${onClose}>
    <p>${t("title_its_messages_and_files_are",
      { title: visible(title) || t("untitled") })}${others > 0 && ` ${t("the_other_n_variants_stay", { n: others })}`}</p>
    <p class="buttons"><button type="button" onClick=${onClose}>${t("keep_it")}</button>
      <${Do} class="danger" action=${() => state.delete()}>${t("delete")}<//></p>
  <//>`;
}

/** Files that are dropped on the conversation. */
function useDrop() {
  const [dropped, setDropped] = useState(null);
  const [over, setOver] = useState(false);
  return [dropped, readOnly ? {} : {
    "data-drop": over ? "over" : null,
    onDragOver: (event) => { event.preventDefault(); setOver(true); },
    onDragLeave: () => setOver(false),
    onDrop: (event) => { event.preventDefault(); setOver(false); setDropped([...event.dataTransfer.files]); },
  }];
}
