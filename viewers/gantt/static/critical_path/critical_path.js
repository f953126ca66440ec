/** A step's critical path: its pieces from first to last, where they lie, and the slack of what is not on it. */

import { unpack, unpackAll } from "../data/columns.js";
import { above } from "../data/lod.js";
import { laneOf, RECORDED, recordedPlace } from "../data/rows.js";

/** The lanes of the intervals that pieces can be of, by the number that viewers/gantt/critical_path.py gives. */
const LANES = ["", ...RECORDED];
/** Packed slack of what the step does not wait for. */
const UNLIMITED = 1;

export class PathData {
  /** Unpack the path of a scene. */
  static async of(scene) {
    const { columns, slack, ...facts } = scene.path;
    return new PathData(scene, { ...facts, ...(await unpackAll(columns)), packedSlack: await unpack(slack) });
  }

  /** `facts`: step, label, length, kinds, names, gains, and a typed array for each column. */
  constructor(scene, { first, start, ...facts }) {
    Object.assign(this, facts, { scene, count: start.length });
    this.start = Float64Array.from(start, (time) => time + first);
    this.end = this.start.map((time, i) => time + facts.duration[i]);
    this.byTrack = scene.tracks.map(() => []);
    this.byInterval = new Map();
    for (let i = 0; i < this.count; i++) {
      if (facts.track[i]) this.byTrack[facts.track[i] - 1].push(i);
      if (facts.position[i]) this.byInterval.set(`${this.laneOf(i)} ${facts.position[i] - 1}`, i);
    }
    // In the order of the path: as recorded, neighbours can overlap.
    this.runs = this.byTrack.map((pieces) => this.#runs(pieces));
    for (const pieces of this.byTrack) pieces.sort((a, b) => this.start[a] - this.start[b]);
    // The latest end of the pieces up to each one, which grows even where pieces overlap.
    this.reach = this.byTrack.map((pieces) => Float64Array.from(pieces, ((end) => (i) => (end = Math.max(end, this.end[i])))(-Infinity)));
    this.starts = this.byTrack.map((pieces) => Float64Array.from(pieces, (i) => this.start[i]));
  }

  /** Return the runs of pieces of one kind that follow each other: { first, last, longest, kind }. */
  #runs(pieces) {
    const found = [];
    for (const i of pieces) {
      const open = found.at(-1), length = this.end[i] - this.start[i];
      if (open?.last === i - 1 && open.kind === this.kind[i]) Object.assign(open, { last: i, longest: Math.max(open.longest, length) });
      else found.push({ first: i, last: i, longest: length, kind: this.kind[i] });
    }
    return found;
  }

  /** The number of a piece's GPU, or -1 if it is not shown. */
  trackOf(i) {
    return this.track[i] - 1;
  }

  /** The role of the lane that has a piece's interval; "" for calls, pauses and latencies. */
  roleOf(i) {
    return LANES[this.role[i]];
  }

  /** The lane that has a piece's interval, or -1. */
  laneOf(i) {
    return this.role[i] ? laneOf(this.scene, this.trackOf(i), this.roleOf(i)) : -1;
  }

  /** Return the pieces of a GPU from the first to the last that lie between two times, and few others. */
  within(track, from, to) {
    const count = this.byTrack[track].length;
    return this.byTrack[track].slice(above(this.reach[track], 0, count, from), above(this.starts[track], 0, count, to));
  }

  /** Return the piece of a GPU at a time, or the nearest within `slack`; -1 without one. */
  at(track, time, slack) {
    const pieces = this.byTrack[track] ?? [], { start, end } = this;
    const after = above(this.starts[track] ?? [], 0, pieces.length, time), near = pieces.slice(Math.max(0, after - 2), after + 1);
    const distance = (i) => Math.max(start[i] - time, time - end[i], 0);
    const best = near.reduce((one, i) => (one < 0 || distance(i) < distance(one) ? i : one), -1);
    return best >= 0 && distance(best) <= slack ? best : -1;
  }

  /** Return the piece that is the time of an interval { lane, position }, or -1. */
  ofInterval({ lane, position }) {
    return this.byInterval.get(`${lane} ${position}`) ?? -1;
  }

  /** Return the slack of an interval { lane, position } in ns: Infinity where the step does not wait for it, null if it is not of the step. */
  slackOf(place) {
    const packed = this.packedSlack[recordedPlace(this.scene, place)];
    return !packed ? null : packed === UNLIMITED ? Infinity : packed - 2;
  }

  /** What a step gains with a tenth less of all that is like a piece, in ns; null where it was not computed. */
  gainOf(i) {
    return this.item[i] ? this.gains[this.item[i] - 1] : null;
  }
}

/** Join spans [from, to] in pixels, sorted by start, that lie less than `gap` apart. */
export function joined(spans, gap) {
  const found = [];
  for (const [from, to] of spans) {
    const last = found.at(-1);
    if (last && from - last[1] < gap) last[1] = Math.max(last[1], to);
    else found.push([from, to]);
  }
  return found;
}

/** Return what spans, joined and sorted, leave of [0, width]. */
export function between(spans, width) {
  const edges = [0, ...spans.flat(), width], found = [];
  for (let i = 0; i < edges.length; i += 2) if (edges[i + 1] > edges[i]) found.push([Math.max(0, edges[i]), Math.min(width, edges[i + 1])]);
  return found;
}
