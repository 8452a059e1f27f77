// Dialogs over the page: the browser's own, which keeps the focus inside and gives it back.

import { html, useLayoutEffect, useRef } from "./vendor/preact.js";

export function Dialog({ title, onClose, children, class: name = "" }) {
  const ref = useRef();
  // Open as soon as it is there, so that no key is lost.
  useLayoutEffect(() => {
    const dialog = ref.current;
    dialog.showModal();
    return () => dialog.close();
  }, []);
  return html`<dialog ref=${ref} class=${name} aria-label=${title} onClose=${onClose} onCancel=${onClose}
    onClick=${(event) => { if (event.target === ref.current) onClose(); }}>
    <div class="dialog">
      <h2>${title}</h2>
      ${children}
    </div>
  </dialog>`;
}
