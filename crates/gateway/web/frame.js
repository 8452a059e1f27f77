// Work that is done once before the next picture, however often it is asked for.

/** A function that runs `work` once per frame at most. In a page that nobody sees, once a second. */
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

/** Who wants to know when something has changed. */
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
