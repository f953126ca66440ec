/** What launched each interval of a GPU; the columns hold its compute, collectives and copies, one after the other. */

import { laneOf } from "./rows.js";
import { laneAt } from "./extra_rows.js";
import { unpack } from "./columns.js";

const ROLES = ["compute", "collectives", "memory"];
/** Values are packed plus 1, and 0 where they are unknown. */
const known = (packed) => (packed ? packed - 1 : null);

export class HostLaunches {
  static async of(packed, lod, scene, track) {
    const keys = ["ahead", "length", "thread", "correlation", "detail"];
    const columns = Object.fromEntries(await Promise.all(keys.map(async (key) => [key, await unpack(packed[key])])));
    let id = 0;
    columns.correlation = Float64Array.from(columns.correlation, (step) => (id += step % 2 ? -(step + 1) / 2 : step / 2));
    return new HostLaunches(columns, lod, scene, track);
  }

  #sorted = null;

  constructor(columns, lod, scene, track) {
    Object.assign(this, { columns, lod, track });
    let before = 0;
    this.parts = ROLES.flatMap((role) => {
      const lane = laneOf(scene, track, role);
      if (lane < 0) return [];
      const from = lod.offsets[lane], count = lod.offsets[lane + 1] - from;
      before += count;
      return [{ lane, from, first: before - count, count }];
    });
  }

  /** Return what launched an interval: { start, end, thread, correlation, detail }, null where it is not known. */
  of(index) {
    const lane = laneAt(this.lod, index), part = this.parts.find((one) => one.lane === lane);
    return part ? this.#at(part.first + index - part.from, index) : null;
  }

  #at(place, index) {
    const { ahead, length, thread, correlation, detail } = this.columns;
    const start = ahead[place] ? this.lod.start[index] - ahead[place] + 1 : null;
    const end = start === null || !length[place] ? null : start + length[place] - 1;
    return { start, end, thread: known(thread[place]), correlation: known(correlation[place]), detail: known(detail[place]) };
  }

  /** Return the intervals launched by calls of a thread that begin in [from, to), in the order of their launches. */
  launchedIn(thread, from, to, most) {
    this.#sorted ??= this.#byLaunch();
    const { times, indices } = this.#sorted, found = [];
    let low = 0, high = times.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (times[middle] < from) low = middle + 1;
      else high = middle;
    }
    for (; low < times.length && times[low] < to && found.length < most; low++) if (this.of(indices[low]).thread === thread) found.push(indices[low]);
    return found;
  }

  #byLaunch() {
    const all = this.parts.flatMap(({ from, first, count }) => Array.from({ length: count }, (_, i) => [this.#at(first + i, from + i).start, from + i]));
    const launched = all.filter(([time]) => time !== null).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    return { times: Float64Array.from(launched, ([time]) => time), indices: Int32Array.from(launched, ([, index]) => index) };
  }
}
