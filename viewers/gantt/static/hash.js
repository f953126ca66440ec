/** Deep links: what part of the picture a page's address asks for, and the address of what is shown. */

/** Characters of a search or a step's name; and of all. */
const LONGEST = 200, LONGEST_HASH = 4000;
const TIMES = /^(-?\d{1,16}(?:\.\d{1,9})?),(-?\d{1,16}(?:\.\d{1,9})?)$/;

/**
 * Read `#t=FROM,TO&step=4&rank=0&find=gemm&theme=dark`: times in ns since the first step. What cannot be read is left
 * out, however it came about.
 */
export function readHash(hash) {
  const found = {};
  if (typeof hash !== "string" || hash.length > LONGEST_HASH) return found;
  let given;
  try {
    given = new URLSearchParams(hash.replace(/^#/, ""));
  } catch {
    return found;
  }
  const times = TIMES.exec(given.get("t") ?? "");
  if (times && Number(times[2]) > Number(times[1])) found.t = { from: Number(times[1]), to: Number(times[2]) };
  if (/^\d{1,6}$/.test(given.get("rank") ?? "")) found.rank = Number(given.get("rank"));
  if (["light", "dark"].includes(given.get("theme"))) found.theme = given.get("theme");
  for (const key of ["step", "find"]) {
    const text = given.get(key);
    if (text && text.length <= LONGEST) found[key] = text;
  }
  return found;
}

/** Write what readHash reads; "" when there is nothing to say. */
export function writeHash({ t, step, rank, find, theme }) {
  const parts = [];
  if (t) parts.push(`t=${Math.round(t.from)},${Math.round(t.to)}`);
  for (const [key, value] of Object.entries({ step, rank, find, theme }))
    if (value !== undefined && value !== null && value !== "") parts.push(`${key}=${encodeURIComponent(value)}`);
  return parts.length ? `#${parts.join("&")}` : "";
}

/** Index of the step that a name, or the number at its end, means: { strip, step }, or null. */
export function stepNamed(strips, text) {
  for (let strip = 0; strip < strips.length; strip++) {
    const { names } = strips[strip];
    const exact = names.indexOf(text), step = exact >= 0 ? exact : names.findIndex((name) => /\d+$/.exec(name)?.[0] === text);
    if (step >= 0) return { strip, step };
  }
  return null;
}

/** Keeps a page's address and what it shows in step: `show(asked)` when the address changes, `pageState()` to write it. */
export class Link {
  #written = null;
  #waiting = 0;

  constructor({ show, pageState, pace = 400 }) {
    Object.assign(this, { show, pageState, pace });
    addEventListener("hashchange", () => location.hash !== this.#written && this.read());
  }

  read() {
    this.show(readHash(location.hash));
  }

  /** Write the address soon, and at most a few times a second: browsers refuse more. */
  moved() {
    if (this.#waiting) return;
    this.#waiting = setTimeout(() => {
      this.#waiting = 0;
      this.write();
    }, this.pace);
  }

  write() {
    const hash = writeHash(this.pageState());
    if (hash === location.hash) return;
    this.#written = hash;
    try {
      history.replaceState(history.state, "", hash || location.pathname + location.search);
    } catch {
      // A page inside another, or one that moves too often, may not; it shows the same without.
    }
  }
}
