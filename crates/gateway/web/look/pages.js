// Lists that come page by page, the newest first.

import { useEffect, useRef, useState } from "../vendor/preact.js";
import { get } from "./api.js";

/** `url(before)`: the URL of a page; `name`: the key of the list in the answer; `idOf(item)`: its id. Whenever `version`
 * changes, the newest page is read again, and older pages are kept. */
export function usePages(url, name, version = "", idOf = (item) => item.id) {
  const [list, setList] = useState({ items: null, next: null, error: null, answer: null });
  const [loading, setLoading] = useState(false);
  const reads = useRef(0);
  const isOpen = useRef(true);
  const read = async (before) => {
    const own = ++reads.current;
    setLoading(true);
    try {
      const answer = await get(url(before));
      if (!isOpen.current || own !== reads.current) return;
      setList((list) => {
        const known = new Set(answer[name].map(idOf));
        const kept = (list.items ?? []).filter((item) => !known.has(idOf(item)));
        const next = answer.next_before ?? null;
        if (before !== undefined) return { items: [...(list.items ?? []), ...answer[name]], next, error: null, answer: list.answer };
        // If the new page is full, there may be a gap before the older ones.
        return next !== null && kept.length && list.items.every((item) => !known.has(idOf(item)))
          ? { items: answer[name], next, error: null, answer }
          : { items: [...answer[name], ...kept], next: kept.length ? list.next : next, error: null, answer };
      });
    } catch (error) {
      if (isOpen.current && own === reads.current) setList((list) => ({ ...list, error: error.message }));
    }
    if (isOpen.current && own === reads.current) setLoading(false);
  };
  useEffect(() => { read(); }, [version]);
  useEffect(() => () => { isOpen.current = false; }, []);
  return { ...list, loading, older: () => read(list.next) };
}
