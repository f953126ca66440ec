/**
 * The intervals that a served page has: those on the screen, which each view replaces, and before them those that it
 * holds longer, such as a selected one. Both have an index in the same columns.
 */

import { Lod } from "../data/lod.js";

/** Number of intervals that are held longer; the oldest ones make room. */
const PINS = 16384;
const COLUMNS = {
  ...{ start: Float64Array, duration: Float64Array, category: Uint8Array, name: Uint32Array, stream: Uint16Array },
  ...{ lane: Int32Array, position: Float64Array, exposed: Float64Array, wait: Float64Array, waitsFor: Float64Array },
};

export class KnownIntervals {
  #pins = new Map();
  #keys = [];
  #next = 0;

  constructor(scene, lanes) {
    Object.assign(this, { scene, every: new Set(), touching: new Map() });
    // Collectives and their further columns have the same index here.
    this.exposedFrom = scene.tracks.map(() => 0);
    this.#allocate(0);
    this.#index(lanes, []);
  }

  /** Make room for a number of intervals after those that are held. */
  #allocate(count) {
    for (const [key, Type] of Object.entries(COLUMNS)) {
      const old = this[key];
      this[key] = new Type(PINS + count);
      if (old) this[key].set(old.subarray(0, PINS));
    }
  }

  /** Replace the intervals of the screen; `rows` by lane, each as takeRows returns it. */
  replace(lanes, rows) {
    const ordered = [...rows].sort((a, b) => a.lane - b.lane);
    this.#allocate(ordered.reduce((sum, { count }) => sum + count, 0));
    let at = PINS;
    for (const one of ordered) {
      for (let i = 0; i < one.count; i++) this.#put(at + i, one, i);
      at += one.count;
    }
    this.#index(lanes, ordered);
  }

  #put(index, rows, i) {
    const role = this.scene.lanes[rows.lane].role;
    for (const key of ["start", "duration", "category", "name", "stream", "position"]) this[key][index] = rows[key][i];
    this.lane[index] = rows.lane;
    if (role !== "collectives" && role !== "stream") return;
    const [first, second, third, lane, position] = rows.more;
    if (role === "stream") {
      // It belongs to the lane that it was recorded in.
      this.lane[index] = lane[i];
      this.position[index] = position[i];
    }
    this.exposed[index] = first[i];
    this.wait[index] = second[i];
    this.waitsFor[index] = third[i];
  }

  #index(lanes, rows) {
    const counts = new Map(rows.map(({ lane, count }) => [lane, count])), offsets = new Int32Array(lanes + 1).fill(PINS);
    for (let lane = 0; lane < lanes; lane++) offsets[lane + 1] = offsets[lane] + (counts.get(lane) ?? 0);
    this.offsets = offsets;
    this.every = new Set(rows.filter(({ every }) => every).map(({ lane }) => lane));
    this.touching = new Map(rows.map(({ lane, touching }) => [lane, touching]));
    const { start, duration, category } = this;
    this.lod = new Lod({ start, duration, category, offsets, categories: this.scene.categories.length });
  }

  /** Hold the intervals of a lane; return their indices. */
  pin(rows) {
    return Array.from({ length: rows.count }, (_, i) => {
      const key = `${rows.lane}/${rows.position[i]}`;
      let index = this.#pins.get(key);
      if (index === undefined) {
        index = this.#next++ % PINS;
        this.#pins.delete(this.#keys[index]);
        this.#keys[index] = key;
        this.#pins.set(key, index);
      }
      this.#put(index, rows, i);
      return index;
    });
  }

  /** Return the index of a held interval, or undefined. */
  pinned(lane, position) {
    return this.#pins.get(`${lane}/${position}`);
  }
}
