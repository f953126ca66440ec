/** An idle gap of a GPU: its causes, what the host did in it, and what ended it. */

import { laneOf } from "../data/rows.js";

/** Roles of the intervals that end a gap. */
const WORK = ["compute", "collectives", "memory"];
/** Idle intervals of one gap at most, one per cause in turn. */
const MAX_PIECES = 400;

/** Return the idle time of a track around a time, joined across causes: { track, from, to, causes: [{ category, ns }] }, or null. */
export async function gapAt(lod, scene, track, time) {
  const lane = laneOf(scene, track, "idle"), index = lane < 0 ? -1 : lod.at(lane, time);
  if (index < 0) return null;
  const piece = (i) => ({ from: lod.start[i], to: lod.start[i] + lod.duration[i], category: lod.category[i] });
  const pieces = [piece(index)], { position: own } = lod.placeOf(index), { count } = scene.lanes[lane];
  for (const step of [-1, 1])
    for (let position = own + step; position >= 0 && position < count && pieces.length < MAX_PIECES; position += step) {
      const [next] = await lod.hold([{ lane, position }]), found = piece(next);
      if (step < 0 ? found.to !== pieces[0].from : found.from !== pieces.at(-1).to) break;
      pieces[step < 0 ? "unshift" : "push"](found);
    }
  const ns = new Map();
  for (const { from, to, category } of pieces) ns.set(category, (ns.get(category) ?? 0) + to - from);
  const causes = [...ns].map(([category, total]) => ({ category, ns: total })).sort((a, b) => b.ns - a.ns);
  return { track, from: pieces[0].from, to: pieces.at(-1).to, causes };
}

/** Return the index of the interval that begins where a gap ends, or -1. */
export function endOf(lod, scene, { track, to }) {
  for (const role of WORK) {
    const lane = laneOf(scene, track, role), next = lane < 0 ? -1 : lod.near(lane, to, 0);
    if (next >= 0 && lod.start[next] === to) return next;
  }
  return -1;
}
