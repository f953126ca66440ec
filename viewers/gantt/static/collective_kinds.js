/** Exact exposed and overlapped time per kind of collective in any time range. */

import { Lod } from "./lod.js";
import { isExposed, laneOf } from "./rows.js";

export class CollectiveKinds {
  /** Index the communication intervals by kind: one lane per track, two categories (exposed, overlapped) per kind. */
  constructor(lod, scene, columns) {
    this.scene = scene;
    this.kinds = [...new Set(scene.collectives.map(({ kind }) => kind || "other"))];
    const place = new Map(this.kinds.map((kind, i) => [kind, i]));
    const kindOf = scene.collectives.map(({ kind }) => place.get(kind || "other"));
    const lanes = scene.tracks.map((_, track) => laneOf(scene, track, "exposure"));
    const bounds = lanes.map((lane) => (lane < 0 ? [0, 0] : [lod.offsets[lane], lod.offsets[lane + 1]]));
    const offsets = new Int32Array(lanes.length + 1);
    bounds.forEach(([from, to], track) => (offsets[track + 1] = offsets[track] + to - from));
    const count = offsets.at(-1), start = new Float64Array(count), duration = new Float64Array(count), category = new Uint16Array(count);
    let next = 0;
    for (const [from, to] of bounds)
      for (let i = from; i < to; i++, next++) {
        start[next] = lod.start[i];
        duration[next] = lod.duration[i];
        category[next] = 2 * kindOf[columns.name[i]] + (isExposed(scene, lod.category[i]) ? 0 : 1);
      }
    this.lod = new Lod({ start, duration, category, offsets, categories: 2 * this.kinds.length });
  }

  /** Return [{ kind, exposed, overlapped }] in ns within [from, to] and the steps, over all tracks or the `chosen` ones. */
  figures(from, to, chosen = null) {
    const sums = this.kinds.map((kind) => ({ kind, exposed: 0, overlapped: 0 }));
    this.scene.tracks.forEach(({ bounds }, track) => {
      if (chosen && !chosen.includes(track)) return;
      const begin = Math.max(from, bounds[0]), end = Math.min(to, bounds.at(-1));
      sums.forEach((sum, i) => {
        sum.exposed += this.lod.busy(track, 2 * i, begin, end);
        sum.overlapped += this.lod.busy(track, 2 * i + 1, begin, end);
      });
    });
    return sums.filter(({ exposed, overlapped }) => exposed + overlapped > 0).sort((a, b) => b.exposed + b.overlapped - a.exposed - a.overlapped);
  }
}
