/** Deep links: the view settings in the page's address. */

/** Maximum length of a search text or step name, and of the whole hash, in characters. */
const MAX_TEXT = 200, MAX_HASH = 4000;
/** What each setting may be. */
const SETTINGS = {
  ...{ rank: /^\d{1,6}$/, theme: /^(light|dark)$/, pin: /^\d{1,6}(\.\d{1,3})?(,\d{1,6}(\.\d{1,3})?){0,63}$/, few: /^1$/ },
  ...Object.fromEntries(["step", "find", "order"].map((key) => [key, new RegExp(`^[^]{1,${MAX_TEXT}}$`)])),
};
const TIMES = /^(-?\d{1,16}(?:\.\d{1,9})?),(-?\d{1,16}(?:\.\d{1,9})?)$/;

/**
 * Parse `#t=FROM,TO&step=4&rank=0&find=gemm&theme=dark&order=by dp&few=1&pin=0,3`; times are in ns since the first step.
 * Invalid settings are ignored.
 */
export function readHash(hash) {
  const state = {};
  if (typeof hash !== "string" || hash.length > MAX_HASH) return state;
  let given;
  try {
    given = new URLSearchParams(hash.replace(/^#/, ""));
  } catch {
    return state;
  }
  const times = TIMES.exec(given.get("t") ?? "");
  if (times && Number(times[2]) > Number(times[1])) state.t = { from: Number(times[1]), to: Number(times[2]) };
  for (const [key, form] of Object.entries(SETTINGS)) if (form.test(given.get(key) ?? "")) state[key] = given.get(key);
  if ("rank" in state) state.rank = Number(state.rank);
  return state;
}

/** Write the hash that readHash parses; "" without settings. */
export function writeHash({ t, ...settings }) {
  const parts = [];
  if (t) parts.push(`t=${Math.round(t.from)},${Math.round(t.to)}`);
  for (const [key, value] of Object.entries(settings))
    if (value !== undefined && value !== null && value !== "") parts.push(`${key}=${encodeURIComponent(value)}`);
  return parts.length ? `#${parts.join("&")}` : "";
}

/** Find a step by its name or by the number at its end: { strip, step }, or null. */
export function stepNamed(strips, text) {
  for (let strip = 0; strip < strips.length; strip++) {
    const { names } = strips[strip];
    const exact = names.indexOf(text), step = exact >= 0 ? exact : names.findIndex((name) => /\d+$/.exec(name)?.[0] === text);
    if (step >= 0) return { strip, step };
  }
  return null;
}

/** Keeps the address and the view in sync: calls `show(state)` when the address changes, writes `pageState()` to it. */
export class Link {
  #written = null;
  #waiting = 0;

  constructor({ show, pageState, intervalMs = 400 }) {
    Object.assign(this, { show, pageState, intervalMs });
    addEventListener("hashchange", () => location.hash !== this.#written && this.read());
  }

  read() {
    this.show(readHash(location.hash));
  }

  /** Write the address soon, at most a few times a second: browsers refuse more. */
  moved() {
    if (this.#waiting) return;
    this.#waiting = setTimeout(() => {
      this.#waiting = 0;
      this.write();
    }, this.intervalMs);
  }

  write() {
    const hash = writeHash(this.pageState());
    if (hash === location.hash) return;
    this.#written = hash;
    try {
      history.replaceState(history.state, "", hash || location.pathname + location.search);
    } catch {
      // Browsers refuse this in some frames and at high rates; the page works without it.
    }
  }
}
