// Modal dialogs: the browser's own element, which keeps the focus inside and restores it.

import { html, useLayoutEffect, useRef } from "./vendor/preact.js";

export function Dialog({ title, onClose, children, class: name = "" }) {
  const ref = useRef();
  // Opened as soon as it is rendered, so that no key is lost.
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
