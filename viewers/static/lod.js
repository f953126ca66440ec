/**
 * Exact level of detail: how busy each pixel column is, and which intervals are wide enough to be drawn whole.
 *
 * A lane is a run of intervals sorted by start. Those of one lane may overlap (kernels of several streams), so two
 * indices are kept: per (lane, category) the time covered, with overlaps counted once, as prefix sums; and per
 * (lane, power of two of the duration) the intervals as recorded. All times are nanoseconds in float64, which is
 * exact below 2^53; sums over whole intervals are therefore exact, too.
 */

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

/** Indices 0..n-1 grouped by key, in order within each group: { offsets, items }. */
function groups(count, keys, keyOf) {
  const offsets = new Int32Array(keys + 1);
  for (let i = 0; i < count; i++) offsets[keyOf(i) + 1]++;
  for (let key = 0; key < keys; key++) offsets[key + 1] += offsets[key];
  const next = offsets.slice(0, keys);
  const items = new Int32Array(count);
  for (let i = 0; i < count; i++) items[next[keyOf(i)]++] = i;
  return { offsets, items };
}

export class Lod {
  /** `offsets[lane]` to `offsets[lane + 1]` are the lane's entries in `start`, `duration` and `category`. */
  constructor({ start, duration, category, offsets, categories }) {
    Object.assign(this, { start, duration, category, offsets, categories });
    this.lanes = offsets.length - 1;
    const laneOf = new Int32Array(start.length);
    for (let lane = 0; lane < this.lanes; lane++) laneOf.fill(lane, offsets[lane], offsets[lane + 1]);
    this.#indexCover(laneOf);
    this.#indexDurations(laneOf);
  }

  #indexCover(laneOf) {
    const { start, duration, category, categories } = this;
    const count = start.length;
    const { offsets, items } = groups(count, this.lanes * categories, (i) => laneOf[i] * categories + category[i]);
    const cover = { offsets, start: new Float64Array(count), end: new Float64Array(count) };
    cover.before = new Float64Array(count + 1);
    for (let group = 0; group < offsets.length - 1; group++) {
      let reach = -Infinity;
      for (let j = offsets[group]; j < offsets[group + 1]; j++) {
        const i = items[j];
        cover.start[j] = Math.max(start[i], reach);
        reach = cover.end[j] = Math.max(start[i] + duration[i], reach);
        cover.before[j + 1] = cover.before[j] + cover.end[j] - cover.start[j];
      }
    }
    this.cover = cover;
  }

  #indexDurations(laneOf) {
    const { start, duration } = this;
    const { offsets, items } = groups(start.length, this.lanes * BUCKETS, (i) => laneOf[i] * BUCKETS + bucketOf(duration[i]));
    const starts = new Float64Array(items.length);
    for (let j = 0; j < items.length; j++) starts[j] = start[items[j]];
    this.buckets = { offsets, items, starts };
  }

  /** Nanoseconds of group's cover before `time`; `index` is how many of its stretches begin at or before it. */
  #coverBefore(first, index, time) {
    if (index <= first) return 0;
    const { end, before } = this.cover;
    return before[index] - before[first] - Math.max(0, end[index - 1] - time);
  }

  /** Nanoseconds of [from, to] that a category covers on a lane. */
  busy(lane, category, from, to) {
    if (!(to > from)) return 0;
    const group = lane * this.categories + category;
    const first = this.cover.offsets[group], last = this.cover.offsets[group + 1];
    const until = (time) => this.#coverBefore(first, above(this.cover.start, first, last, time), time);
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
    const { offsets, start, end } = this.cover;
    const first = offsets[group], pixel = (to - from) / width;
    const last = above(start, first, offsets[group + 1], to);
    let index = above(start, first, last, from);
    if (index === last && (index === first || end[index - 1] <= from)) return;
    let previous = this.#coverBefore(first, index, from);
    for (let column = 1; column <= width; column++) {
      const time = from + column * pixel;
      if (index < last && start[index] <= time) {
        // Gallop, then search: the next column's index is near when there is little in a column, and far when much.
        let stride = 1;
        while (index + stride < last && start[index + stride] <= time) stride <<= 1;
        index = above(start, index + (stride >>> 1), Math.min(last, index + stride), time);
      }
      const covered = this.#coverBefore(first, index, time);
      out[at + column - 1] = (covered - previous) / pixel;
      previous = covered;
    }
  }

  /** Call `visit(index)` for each interval of a lane of at least `shortest` ns that touches (from, to), longest first. */
  eachLong(lane, from, to, shortest, visit) {
    const { offsets, items, starts } = this.buckets;
    const lowest = shortest < 1 ? 0 : bucketOf(shortest);
    for (let bucket = BUCKETS - 1; bucket >= lowest; bucket--) {
      const first = offsets[lane * BUCKETS + bucket], last = offsets[lane * BUCKETS + bucket + 1];
      if (first === last) continue;
      for (let j = above(starts, first, last, from - 2 ** (bucket + 1)); j < last && starts[j] < to; j++) {
        const i = items[j];
        if (this.duration[i] >= shortest && this.start[i] + this.duration[i] > from) visit(i);
      }
    }
  }

  /** The shortest interval of a lane that runs at `time`, or -1: what eachLong, drawn in its order, leaves on top. */
  at(lane, time) {
    const { offsets, items, starts } = this.buckets;
    for (let bucket = 0; bucket < BUCKETS; bucket++) {
      const first = offsets[lane * BUCKETS + bucket];
      const last = above(starts, first, offsets[lane * BUCKETS + bucket + 1], time);
      for (let j = last - 1; j >= first && starts[j] > time - 2 ** (bucket + 1); j--)
        if (starts[j] + this.duration[items[j]] > time) return items[j];
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
    const { offsets, items, starts } = this.buckets;
    let running = 0;
    for (let bucket = 0; bucket < BUCKETS; bucket++) {
      const first = offsets[lane * BUCKETS + bucket];
      const last = above(starts, first, offsets[lane * BUCKETS + bucket + 1], time);
      for (let j = last - 1; j >= first && starts[j] > time - 2 ** (bucket + 1); j--)
        if (starts[j] + this.duration[items[j]] >= time) running++;
    }
    return running;
  }
}
