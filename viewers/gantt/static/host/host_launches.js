/** What launched each interval of a GPU; the columns hold its compute, collectives and copies, one after the other. */

import { laneOf } from "../data/rows.js";
import { above } from "../data/lod.js";
import { unpack } from "../data/columns.js";

const ROLES = ["compute", "collectives", "memory"];
/** Values are packed plus 1, and 0 where they are unknown. */
const known = (packed) => (packed ? packed - 1 : null);

/** Undo differences: even numbers are increases, odd ones the others. */
function sums(steps) {
  let value = 0;
  return Float64Array.from(steps, (step) => (value += step % 2 ? -(step + 1) / 2 : step / 2));
}

export class HostLaunches {
  static async of(packed, scene, track) {
    const keys = ["start", "length", "thread", "correlation", "detail"];
    const columns = Object.fromEntries(await Promise.all(keys.map(async (key) => [key, await unpack(packed[key])])));
    return new HostLaunches({ ...columns, start: sums(columns.start), correlation: sums(columns.correlation) }, scene, track);
  }

  #sorted = null;

  constructor(columns, scene, track) {
    let first = 0;
    this.columns = columns;
    this.parts = ROLES.map((role) => laneOf(scene, track, role)).filter((lane) => lane >= 0).map((lane) => {
      const { count } = scene.lanes[lane];
      first += count;
      return { lane, first: first - count, count };
    });
  }

  /** Return what launched the interval at a position of a lane: { start, end, thread, correlation, detail }, null where unknown. */
  of({ lane, position }) {
    const part = this.parts.find((one) => one.lane === lane);
    return part ? this.#at(part.first + position) : null;
  }

  #at(place) {
    const { start, length, thread, correlation, detail } = this.columns, begin = length[place] ? start[place] : null;
    const end = begin === null ? null : begin + length[place] - 1;
    return { start: begin, end, thread: known(thread[place]), correlation: known(correlation[place]), detail: known(detail[place]) };
  }

  /** Return the intervals { lane, position } launched by calls of a thread that begin in [from, to), in order. */
  launchedIn(thread, from, to, most) {
    this.#sorted ??= this.#byLaunch();
    const { times, places } = this.#sorted, found = [];
    for (let i = above(times, 0, times.length, from - 1); i < times.length && times[i] < to && found.length < most; i++) {
      if (known(this.columns.thread[places[i]]) !== thread) continue;
      const part = this.parts.find(({ first, count }) => places[i] < first + count);
      found.push({ lane: part.lane, position: places[i] - part.first });
    }
    return found;
  }

  #byLaunch() {
    const { start, length } = this.columns, places = Int32Array.from(start.keys()).filter((place) => length[place]);
    places.sort((a, b) => start[a] - start[b] || a - b);
    return { times: Float64Array.from(places, (place) => start[place]), places };
  }
}
