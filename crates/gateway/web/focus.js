// Where the focus goes when what had it is gone.

/** On a phone, Enter makes a new line, and the focus would open its keyboard. */
export const hasKeyboard = () => matchMedia("(hover: hover)").matches;

/** To the box to write in. */
export function focusBox() {
  if (hasKeyboard()) document.querySelector("#message")?.focus();
}

/** To the next open request for permission. Returns whether there is one. */
export function focusRequest(answered) {
  const open = [...document.querySelectorAll(".permission.open")].find((card) => card !== answered);
  open?.scrollIntoView({ block: "start" });
  open?.focus({ preventScroll: true });
  return Boolean(open);
}
