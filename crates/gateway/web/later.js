// Parts of the page that are loaded when they are first shown.

import { html, useEffect, useState } from "./vendor/preact.js";
import { t } from "./language.js";

/** The component that `load` resolves to. Nothing is shown in its place until it is there. */
export function later(load) {
  let View = null;
  return function Later(props) {
    const [error, setError] = useState(null);
    const [, redraw] = useState(0);
    useEffect(() => {
      if (!View) load().then((found) => { View = found; redraw(1); }, setError);
    }, []);
    if (error) return html`<p class="empty error" role="alert">${t("this_part_could_not_be_loaded_reload")}</p>`;
    return View && html`<${View} ...${props} />`;
  };
}
