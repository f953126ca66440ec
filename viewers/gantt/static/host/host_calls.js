/** The calls of one GPU's host threads: unpacked from the page, or asked of its server, and searched by place and time. */

import { laneAt } from "../stage/extra_rows.js";
import { Lod, above } from "../data/lod.js";
import { texts, unpack } from "../data/columns.js";

/** The flames of a thread: operators and calls, annotations and modules, Python functions; see timeline/host_calls.py. */
export const CALLS = 0;
export const LABELS = 1;
export const PYTHON = 2;
/** Kinds of host calls. */
export const KIND = { operator: 0, runtime: 1, allocator: 2, synchronizing: 3, annotation: 4, module: 5, python: 6 };
/** Kinds of calls that can block: allocator calls and synchronization. */
export const BLOCKING = [KIND.allocator, KIND.synchronizing];
const KINDS = 7;

/** Fields of `details`, in the order of timeline's EventDetails. */
const DETAILS = ["shapes", "dtypes", "grid", "block", "bytes", "stack"];

/** Return an entry of a table of details by name. */
export function detailsAt(table, index) {
  return Object.fromEntries(DETAILS.map((key, i) => [key, table?.[index]?.[i] ?? (key === "bytes" ? -1 : "")]));
}

export class HostCalls {
  /** `packed` is the result of window_data() in viewers/gantt/host.py. */
  static async of({ levels, columns, names, details, window, total, leftOut, shortest }) {
    const keys = ["delta", "duration", "kind", "name", "detail"];
    const [delta, duration, kind, name, detail] = await Promise.all(keys.map((key) => unpack(columns[key])));
    const offsets = new Int32Array(levels.length + 1), start = new Float64Array(delta.length);
    levels.forEach(([, , , count, first], i) => {
      offsets[i + 1] = offsets[i] + count;
      let time = first;
      for (let j = offsets[i]; j < offsets[i + 1]; j++) start[j] = time += delta[j];
    });
    const lod = new Lod({ start, duration, category: kind, offsets, categories: KINDS });
    const found = { lod, kind, name, detail, window, total, leftOut, shortest };
    return new HostCalls({ ...found, names: await texts(names), details: await texts(details), levels: levels.map(([thread, flame, depth]) => ({ thread, flame, depth })) });
  }

  constructor(fields) {
    Object.assign(this, fields);
    this.#place = new Map(this.levels.map(({ thread, flame, depth }, lane) => [`${thread} ${flame} ${depth}`, lane]));
  }

  #place;

  /** Return the lanes of a thread's flame, outermost first. */
  lanesOf(thread, flame) {
    return this.levels.flatMap((level, lane) => (level.thread === thread && level.flame === flame ? [lane] : []));
  }

  /** Return the numbers of all kinds. */
  kinds() {
    return Object.values(KIND);
  }

  /** Whether a lane holds the profiler's marks of steps. */
  marksSteps(lane) {
    return this.nameOf(this.lod.offsets[lane]).startsWith("ProfilerStep#");
  }

  levelOf(index) {
    return this.levels[laneAt(this.lod, index)];
  }

  nameOf(index) {
    return this.names[this.name[index]];
  }

  /** Return the innermost call of a thread's flame that runs at a time, at most `deepest` deep, or -1. */
  at(thread, flame, time, deepest = Infinity) {
    for (const lane of this.lanesOf(thread, flame).toReversed()) {
      if (this.levels[lane].depth > deepest) continue;
      const found = this.lod.at(lane, time);
      if (found >= 0) return found;
    }
    return -1;
  }

  /** Return the calls around one, the innermost first. */
  around(index) {
    const { thread, flame, depth } = this.levelOf(index), found = [];
    for (let level = depth - 1; level >= 0; level--) {
      const lane = this.#place.get(`${thread} ${flame} ${level}`), call = lane === undefined ? -1 : this.lod.at(lane, this.lod.start[index]);
      if (call >= 0) found.push(call);
    }
    return found;
  }

  /** Return the call of a thread that begins at a time and is no operator, or else is one, or -1: what launched work. */
  launchAt(thread, time) {
    const { start, offsets } = this.lod;
    let operator = -1;
    for (const lane of this.lanesOf(thread, CALLS)) {
      const index = above(start, offsets[lane], offsets[lane + 1], time) - 1;
      if (index < offsets[lane] || start[index] !== time) continue;
      if (this.kind[index] !== KIND.operator) return index;
      if (operator < 0) operator = index;
    }
    return operator;
  }
}
