/** An idle gap of a GPU: its causes, what the host did in it, and what ended it. */

import { laneOf } from "./rows.js";

/** Roles of the intervals that end a gap. */
const WORK = ["compute", "collectives", "memory"];

/** Return the idle time of a track around a time, joined across causes: { track, from, to, causes: [{ category, ns }] }, or null. */
export function gapAt(lod, scene, track, time) {
  const lane = laneOf(scene, track, "idle"), index = lane < 0 ? -1 : lod.at(lane, time);
  if (index < 0) return null;
  const { start, duration, category } = lod, end = (i) => start[i] + duration[i];
  let first = index, last = index;
  while (first > lod.offsets[lane] && end(first - 1) === start[first]) first--;
  while (last + 1 < lod.offsets[lane + 1] && start[last + 1] === end(last)) last++;
  const ns = new Map();
  for (let i = first; i <= last; i++) ns.set(category[i], (ns.get(category[i]) ?? 0) + duration[i]);
  const causes = [...ns].map(([cause, time]) => ({ category: cause, ns: time })).sort((a, b) => b.ns - a.ns);
  return { track, from: start[first], to: end(last), causes };
}

/** Return the index of the interval that begins where a gap ends, or -1. */
export function endOf(lod, scene, { track, to }) {
  for (const role of WORK) {
    const lane = laneOf(scene, track, role), next = lane < 0 ? -1 : lod.near(lane, to, 0);
    if (next >= 0 && lod.start[next] === to) return next;
  }
  return -1;
}
