/** Exact exposed, waiting and overlapped time per kind of collective in any time range. */

import { Lod } from "./lod.js";
import { isExposed, laneOf } from "./rows.js";

/** Index some of the intervals of each track's lane; `categoryOf(i)` is -1 for those that are left out. */
function indexed(lod, lanes, categories, categoryOf) {
  const chosen = [], offsets = [0];
  for (const lane of lanes) {
    if (lane >= 0) for (let i = lod.offsets[lane]; i < lod.offsets[lane + 1]; i++) if (categoryOf(i) >= 0) chosen.push(i);
    offsets.push(chosen.length);
  }
  const take = (values) => Float64Array.from(chosen, (i) => values[i]);
  return new Lod({ start: take(lod.start), duration: take(lod.duration), category: Uint16Array.from(chosen, categoryOf), offsets: Int32Array.from(offsets), categories });
}

export class CollectiveKinds {
  /** Index the communication intervals by kind: two categories (exposed, overlapped) per kind, and the waits apart. */
  constructor(lod, scene, columns) {
    this.scene = scene;
    this.kinds = [...new Set(scene.collectives.map(({ kind }) => kind || "other"))];
    const place = new Map(this.kinds.map((kind, i) => [kind, i]));
    const kindOf = scene.collectives.map(({ kind }) => place.get(kind || "other"));
    const lanes = scene.tracks.map((_, track) => laneOf(scene, track, "exposure"));
    const kind = (i) => kindOf[columns.name[i]];
    this.lod = indexed(lod, lanes, 2 * this.kinds.length, (i) => 2 * kind(i) + (isExposed(scene, lod.category[i]) ? 0 : 1));
    // Apart, since one collective can wait while another of its kind transfers.
    this.waits = indexed(lod, lanes, this.kinds.length, (i) => (lod.category[i] === scene.special.waiting ? kind(i) : -1));
  }

  /**
   * Return [{ kind, exposed, waiting, overlapped }] in ns within [from, to] and the steps, over all tracks or the
   * `chosen` ones; waiting is part of exposed.
   */
  figures(from, to, chosen = null) {
    const sums = this.kinds.map((kind) => ({ kind, exposed: 0, waiting: 0, overlapped: 0 }));
    this.scene.tracks.forEach(({ bounds }, track) => {
      if (chosen && !chosen.includes(track)) return;
      const begin = Math.max(from, bounds[0]), end = Math.min(to, bounds.at(-1));
      sums.forEach((sum, i) => {
        sum.exposed += this.lod.busy(track, 2 * i, begin, end);
        sum.waiting += this.waits.busy(track, i, begin, end);
        sum.overlapped += this.lod.busy(track, 2 * i + 1, begin, end);
      });
    });
    return sums.filter(({ exposed, overlapped }) => exposed + overlapped > 0).sort((a, b) => b.exposed + b.overlapped - a.exposed - a.overlapped);
  }
}
