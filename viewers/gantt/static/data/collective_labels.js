/** Texts of collectives: what one is called, and what a wait in it is for. */

import { bytes, collectiveWord, duration, visible } from "./text.js";

/** Return what a collective is called: by bucket, layer or peer where that is known ("AR bucket 0"), else by its kind. */
export function collectiveName(known) {
  return known.title || collectiveWord(known) || (known.short ?? known.name);
}

/** Return the candidate labels of a collective, best first; empty where the trace tells nothing but its kernel. */
export function collectiveTexts(known) {
  if (!known.title && !collectiveWord(known)) return [];
  const name = visible(collectiveName(known));
  return known.bytes ? [`${name} · ${bytes(known.bytes)}`, name] : [name];
}

/** Return the rank that a wait is for, in words; `rank` is -1 where no rank stands out. */
export function waitedFor(rank) {
  return `waiting for ${rank < 0 ? "other ranks" : `rank ${rank}`}`;
}

/** Return the candidate labels of a wait, best first; `ns` is null where compute interrupts it. */
export function waitTexts(rank, ns) {
  const whom = waitedFor(rank);
  return ns === null ? [whom, "waiting"] : [`${whom} · ${duration(ns)}`, `waiting · ${duration(ns)}`, duration(ns)];
}
