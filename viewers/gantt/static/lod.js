/**
 * Exact level of detail: how busy each pixel column is, and which intervals are wide enough to be drawn whole.
 *
 * A lane is a run of intervals sorted by start. Those of one lane may overlap (kernels of several streams), so two
 * indices are kept: per (lane, category) the time covered, with overlaps counted once, as running sums; and per
 * (lane, power of two of the duration) the intervals as recorded. All times are nanoseconds in float64, which is
 * exact below 2^53; sums over whole intervals are therefore exact, too.
 */

import { windowTotalsOf } from "./window_totals.js";

/** Powers of two of a duration that is exact in float64. */
const BUCKETS = 54;

/** First index in [low, high) of the ascending `values` that is greater than `limit`; `high` when none is. */
export function above(values, low, high, limit) {
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (values[middle] <= limit) low = middle + 1;
    else high = middle;
  }
  return low;
}

function bucketOf(duration) {
  const high = duration / 4294967296;
  return high >= 1 ? 63 - Math.clz32(high) : 31 - Math.clz32(duration | 1);
}

/** Turn counts, each one place after its own, into where each begins. */
function summed(counts) {
  for (let i = 1; i < counts.length; i++) counts[i] += counts[i - 1];
  return counts;
}

export class Lod {
  /**
   * `offsets[lane]` to `offsets[lane + 1]` are the lane's entries in `start`, `duration` and `category`. At ten million
   * kernels memory counts: what can be told from other columns is not kept.
   */
  constructor({ start, duration, category, offsets, categories }) {
    Object.assign(this, { start, duration, category, offsets, categories });
    this.lanes = offsets.length - 1;
    this.#indexCover();
    this.#indexDurations();
  }

  /** Call `begin(group, index)` where a category begins on a lane, and `grow(group, ns)` as its stretch gets longer. */
  #stretches(begin, grow) {
    const { start, duration, category, categories, offsets } = this;
    const reach = new Float64Array(categories);
    for (let lane = 0; lane < this.lanes; lane++) {
      reach.fill(-Infinity);
      for (let i = offsets[lane]; i < offsets[lane + 1]; i++) {
        const own = category[i], group = lane * categories + own, stop = start[i] + duration[i];
        if (!(start[i] <= reach[own])) {
          begin(group, i);
          reach[own] = start[i];
        }
        if (stop > reach[own]) grow(group, stop - reach[own]);
        reach[own] = Math.max(reach[own], stop);
      }
    }
  }

  /** Per (lane, category): the interval that begins each of its stretches, and how long they are in sum. */
  #indexCover() {
    const offsets = new Int32Array(this.lanes * this.categories + 1);
    this.#stretches((group) => offsets[group + 1]++, () => {});
    summed(offsets);
    const count = offsets[offsets.length - 1], first = new Int32Array(count);
    const sums = windowTotalsOf(count, (lengths) => {
      const next = offsets.slice();
      let longest = 0;
      this.#stretches(
        (group, index) => (first[next[group]++] = index),
        (group, ns) => {
          const length = lengths[next[group] - 1] + ns;
          lengths[next[group] - 1] = length;
          if (length > longest) longest = length;
        },
      );
      return longest;
    });
    this.cover = { offsets, first, sums };
  }

  /** Per (lane, power of two of the duration): its intervals in order of their starts. */
  #indexDurations() {
    const { duration, offsets: lanes } = this;
    const offsets = new Int32Array(this.lanes * BUCKETS + 1);
    for (let lane = 0; lane < this.lanes; lane++)
      for (let i = lanes[lane]; i < lanes[lane + 1]; i++) offsets[lane * BUCKETS + bucketOf(duration[i]) + 1]++;
    summed(offsets);
    const next = offsets.slice(), items = new Int32Array(duration.length);
    for (let lane = 0; lane < this.lanes; lane++)
      for (let i = lanes[lane]; i < lanes[lane + 1]; i++) items[next[lane * BUCKETS + bucketOf(duration[i])]++] = i;
    this.buckets = { offsets, items };
  }

  /** First place in [low, high) of `items` whose interval begins after `limit`; `high` when none does. */
  #beginsAfter(items, low, high, limit) {
    const { start } = this;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (start[items[middle]] <= limit) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** Tell whether a lane has anything of a category. */
  has(lane, category) {
    const group = lane * this.categories + category;
    return this.cover.offsets[group + 1] > this.cover.offsets[group];
  }

  /** Nanoseconds of group's cover before `time`; `index` is how many of its stretches begin at or before it. */
  #coverBefore(begin, index, time) {
    if (index <= begin) return 0;
    const { first, sums } = this.cover;
    const before = sums.before(index - 1), length = sums.before(index) - before;
    return before - sums.before(begin) + Math.min(length, time - this.start[first[index - 1]]);
  }

  /** Nanoseconds of [from, to] that a category covers on a lane. */
  busy(lane, category, from, to) {
    if (!(to > from)) return 0;
    const group = lane * this.categories + category;
    const first = this.cover.offsets[group], last = this.cover.offsets[group + 1];
    const until = (time) => this.#coverBefore(first, this.#beginsAfter(this.cover.first, first, last, time), time);
    return until(to) - until(from);
  }

  /**
   * Busy share of each of `width` pixel columns of [from, to], into `out`: entry
   * (position of the lane in `lanes` * categories + category) * width + column.
   */
  density(from, to, width, lanes, out) {
    out.fill(0);
    for (let position = 0; position < lanes.length; position++)
      for (let category = 0; category < this.categories; category++)
        this.#densityOf(lanes[position] * this.categories + category, from, to, width, out, (position * this.categories + category) * width);
    return out;
  }

  #densityOf(group, from, to, width, out, at) {
    const { start } = this, { offsets, first: begins } = this.cover;
    const first = offsets[group], pixel = (to - from) / width;
    const last = this.#beginsAfter(begins, first, offsets[group + 1], to);
    let index = this.#beginsAfter(begins, first, last, from);
    if (index === last && this.#coverBefore(first, index, from) === this.#coverBefore(first, index, to)) return;
    let previous = this.#coverBefore(first, index, from);
    for (let column = 1; column <= width; column++) {
      const time = from + column * pixel;
      if (index < last && start[begins[index]] <= time) {
        // Gallop, then search: the next column's index is near when there is little in a column, and far when much.
        let stride = 1;
        while (index + stride < last && start[begins[index + stride]] <= time) stride <<= 1;
        index = this.#beginsAfter(begins, index + (stride >>> 1), Math.min(last, index + stride), time);
      }
      const covered = this.#coverBefore(first, index, time);
      out[at + column - 1] = (covered - previous) / pixel;
      previous = covered;
    }
  }

  /** Call `visit(index)` for each interval of a lane of at least `shortest` ns that touches (from, to), longest first. */
  eachLong(lane, from, to, shortest, visit) {
    const { offsets, items } = this.buckets, { start, duration } = this;
    const lowest = shortest < 1 ? 0 : bucketOf(shortest);
    for (let bucket = BUCKETS - 1; bucket >= lowest; bucket--) {
      const first = offsets[lane * BUCKETS + bucket], last = offsets[lane * BUCKETS + bucket + 1];
      if (first === last) continue;
      for (let j = this.#beginsAfter(items, first, last, from - 2 ** (bucket + 1)); j < last && start[items[j]] < to; j++) {
        const i = items[j];
        if (duration[i] >= shortest && start[i] + duration[i] > from) visit(i);
      }
    }
  }

  /** The shortest interval of a lane that runs at `time`, or -1: what eachLong, drawn in its order, leaves on top. */
  at(lane, time) {
    const { offsets, items } = this.buckets, { start, duration } = this;
    for (let bucket = 0; bucket < BUCKETS; bucket++) {
      const first = offsets[lane * BUCKETS + bucket];
      const last = this.#beginsAfter(items, first, offsets[lane * BUCKETS + bucket + 1], time);
      for (let j = last - 1; j >= first && start[items[j]] > time - 2 ** (bucket + 1); j--)
        if (start[items[j]] + duration[items[j]] > time) return items[j];
    }
    return -1;
  }

  /** The interval at `time`, else the nearest one that begins or ends within `slack`, or -1. */
  near(lane, time, slack) {
    const found = this.at(lane, time);
    if (found >= 0) return found;
    const first = this.offsets[lane], last = this.offsets[lane + 1];
    const next = above(this.start, first, last, time), before = next - 1;
    const ahead = next < last ? this.start[next] - time : Infinity;
    const behind = before >= first ? time - this.start[before] - this.duration[before] : Infinity;
    if (Math.min(ahead, behind) > slack) return -1;
    return ahead < behind ? next : before;
  }

  /** Tell whether an interval of a lane begins inside (from, to). */
  begins(lane, from, to) {
    const last = this.offsets[lane + 1], next = above(this.start, this.offsets[lane], last, from);
    return next < last && this.start[next] < to;
  }

  /** How many intervals of a lane touch [from, to]. */
  count(lane, from, to) {
    const first = this.offsets[lane], last = this.offsets[lane + 1];
    const started = above(this.start, first, last, from);
    return above(this.start, first, last, to) - started + this.#running(lane, from);
  }

  #running(lane, time) {
    const { offsets, items } = this.buckets, { start, duration } = this;
    let running = 0;
    for (let bucket = 0; bucket < BUCKETS; bucket++) {
      const first = offsets[lane * BUCKETS + bucket];
      const last = this.#beginsAfter(items, first, offsets[lane * BUCKETS + bucket + 1], time);
      for (let j = last - 1; j >= first && start[items[j]] > time - 2 ** (bucket + 1); j--)
        if (start[items[j]] + duration[items[j]] >= time) running++;
    }
    return running;
  }
}
