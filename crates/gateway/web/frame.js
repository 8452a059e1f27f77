// Work that is done once before the next frame, however often it is requested.

/** A function that runs `work` at most once per frame. In a hidden page, once a second. */
export function oncePerFrame(work) {
  let waits = false;
  const run = () => { waits = false; work(); };
  return () => {
    if (waits) return;
    waits = true;
    if (document.hidden) setTimeout(run, 1000);
    else requestAnimationFrame(run);
  };
}

/** Listeners for changes. */
export class Changes {
  constructor() {
    this.listeners = new Set();
    this.changed = oncePerFrame(() => { for (const listener of [...this.listeners]) listener(); });
  }

  listen(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }
}
