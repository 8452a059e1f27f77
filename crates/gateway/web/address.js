// One address for each thing: #/ the list, #/new, #/s/<session>, and #/s/<session>/<seq> for a message in it.

export function parse(hash) {
  const [view, id, seq] = hash.replace(/^#\/?/, "").split("/");
  if (view === "s" && /^[0-9a-f-]{36}$/i.test(id ?? "")) {
    return { view: "session", session: id.toLowerCase(), seq: /^\d+$/.test(seq ?? "") ? Number(seq) : null };
  }
  return { view: view === "new" ? "new" : "list" };
}

export const current = () => parse(location.hash);
export const listAddress = () => "#/";
export const newAddress = () => "#/new";
export const sessionAddress = (session, seq) => `#/s/${session}${seq ? `/${seq}` : ""}`;

export function go(address) {
  location.hash = address;
}

/** Goes there without a way back. */
export function replace(address) {
  history.replaceState(null, "", address);
  dispatchEvent(new HashChangeEvent("hashchange"));
}
