/** Full-text search over the names of kernels, operators, collectives and copies. */

import { callsIn } from "./calls.js";
import { above } from "./lod.js";
import { RECORDED } from "./rows.js";
import { shortName } from "./text.js";

/** Return the first position in [0, items.length] whose interval comes after (start, index). */
function after(items, starts, start, index) {
  let low = 0, high = items.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (starts[middle] < start || (starts[middle] === start && items[middle] <= index)) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Return the sum of the values before each position. */
function prefixSums(sorted) {
  const before = new Float64Array(sorted.length + 1);
  for (let i = 0; i < sorted.length; i++) before[i + 1] = before[i] + sorted[i];
  return before;
}

/** The hits of one lane: `items` are their indices sorted by start; `reach` is the latest end of the hits up to each. */
class LaneHits {
  constructor(lane, items, lod) {
    const count = items.length;
    Object.assign(this, { ...lane, items, starts: new Float64Array(count), ends: new Float64Array(count), reach: new Float64Array(count) });
    let reach = -Infinity;
    for (let i = 0; i < count; i++) {
      this.starts[i] = lod.start[items[i]];
      this.ends[i] = this.starts[i] + lod.duration[items[i]];
      this.reach[i] = reach = Math.max(reach, this.ends[i]);
    }
    this.ends.sort();
    this.started = prefixSums(this.starts);
    this.ended = prefixSums(this.ends);
  }

  #until(values, before, time) {
    const count = above(values, 0, values.length, time);
    return count * time - before[count];
  }

  /** Time of the hits within [from, to] in ns; hits that overlap count each. */
  time(from, to) {
    const until = (time) => this.#until(this.starts, this.started, time) - this.#until(this.ends, this.ended, time);
    return to > from ? until(to) - until(from) : 0;
  }

  /** Return the ranges [left, right) of pixel columns that hits touch, at most one per column for any number of hits. */
  touched({ from, px, width }) {
    const { starts, reach } = this, runs = [];
    let column = 0;
    while (column < width) {
      const begin = from + column * px, place = above(starts, 0, starts.length, begin);
      const running = place > 0 && reach[place - 1] > begin;
      if (!running) {
        if (place >= starts.length) break;
        const next = Math.floor((starts[place] - from) / px);
        if (next >= width) break;
        column = Math.max(column, next);
      }
      const until = running ? reach[place - 1] : Math.max(reach[place], starts[place]);
      const right = Math.min(width, Math.max(column + 1, Math.ceil((until - from) / px)));
      const last = runs.at(-1);
      if (last && last[1] >= column) last[1] = right;
      else runs.push([column, right]);
      column = right;
    }
    return runs;
  }

  /** Number of hits that touch [from, to]. */
  count(from, to) {
    return above(this.starts, 0, this.starts.length, to) - above(this.ends, 0, this.ends.length, from);
  }
}

export class Hits {
  constructor(text, lanes) {
    Object.assign(this, { text, lanes, count: lanes.reduce((sum, { items }) => sum + items.length, 0) });
    this.byLane = new Map(lanes.map((hits) => [hits.lane, hits]));
  }

  /** Hits within [from, to] by track: [{ track, count, time }]. */
  perTrack(from, to) {
    const tracks = new Map();
    for (const lane of this.lanes) {
      const sum = tracks.get(lane.track) ?? { track: lane.track, count: 0, time: 0 };
      sum.count += lane.count(from, to);
      sum.time += lane.time(from, to);
      tracks.set(lane.track, sum);
    }
    return [...tracks.values()].sort((a, b) => a.track - b.track);
  }

  /** Return the hit after { start, index } (before it with -1), wrapping around; { start, index, track, role, lane } or null. */
  next({ start, index }, direction = 1) {
    let best = null, round = null;
    const sooner = (a, b) => !b || (a.start - b.start || a.index - b.index) * direction < 0;
    for (const { items, starts, track, role, lane } of this.lanes) {
      const place = direction > 0 ? after(items, starts, start, index) : after(items, starts, start, index - 1) - 1;
      const hit = (i) => ({ start: starts[i], index: items[i], track, role, lane });
      if (place >= 0 && place < items.length && sooner(hit(place), best)) best = hit(place);
      const first = direction > 0 ? 0 : items.length - 1;
      if (items.length && sooner(hit(first), round)) round = hit(first);
    }
    return best ?? round;
  }

  /** Position of an interval among the hits in order of time, from 1. */
  ordinal({ start, index }) {
    return this.lanes.reduce((sum, { items, starts }) => sum + after(items, starts, start, index), 0);
  }
}

export class SearchIndex {
  #names = null;
  #collectives = null;

  constructor(lod, scene, columns) {
    Object.assign(this, { lod, scene, columns });
  }

  #texts() {
    this.#names ??= this.scene.names.map((name) => `${name}\n${shortName(name)}`.toLowerCase());
    this.#collectives ??= this.scene.collectives.map(({ name, kind, group, label = "", title = "" }) =>
      [name, kind, kind.replaceAll("_", "-"), kind.replaceAll("_", " "), group, label, title].join("\n").toLowerCase(),
    );
  }

  /** Find everything whose name, kind, group or label contains the text, ignoring case; null for an empty text. */
  find(text) {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return null;
    const { names, collectives } = this.masks(wanted);
    return this.#hits(text, RECORDED, this.columns.name, (role) => (role === "collectives" ? collectives : names));
  }

  /** Return the intervals of a range as a list, see callsIn(). */
  calls(asked) {
    return callsIn(this.lod, this.scene, this.columns, (text) => this.masks(text), asked);
  }

  /** Return which names and which collectives contain a text. */
  masks(text) {
    this.#texts();
    const wanted = text.trim().toLowerCase(), matches = (texts) => Uint8Array.from(texts, (one) => (one.includes(wanted) ? 1 : 0));
    return { names: matches(this.#names), collectives: matches(this.#collectives) };
  }

  /** Return the intervals of lanes of some roles by the numbers of their names, or of their categories; on all tracks or `chosen` ones. */
  pick({ roles, field, keys, chosen = null }) {
    const wanted = [];
    for (const key of keys) wanted[key] = 1;
    return this.#hits("", roles, field === "name" ? this.columns.name : this.lod.category, () => wanted, chosen);
  }

  #hits(text, roles, values, wantedOf, tracks = null) {
    const { offsets } = this.lod, lanes = [];
    this.scene.lanes.forEach(({ track, role }, lane) => {
      if (!roles.includes(role) || (tracks && !tracks.includes(track))) return;
      const items = chosen(wantedOf(role), values, offsets[lane], offsets[lane + 1]);
      if (items.length) lanes.push(new LaneHits({ lane, track, role }, items, this.lod));
    });
    return new Hits(text, lanes);
  }
}

/** Return the indices from `first` to `last` whose values are wanted. */
function chosen(wanted, values, first, last) {
  let count = 0;
  for (let i = first; i < last; i++) if (wanted[values[i]]) count++;
  const items = new Int32Array(count);
  for (let i = first, next = 0; i < last; i++) if (wanted[values[i]]) items[next++] = i;
  return items;
}
