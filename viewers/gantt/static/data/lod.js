/**
 * Exact level of detail: the busy share of each pixel column, and the intervals that are wide enough to be drawn whole.
 *
 * A lane is a list of intervals sorted by start. Intervals of a lane can overlap (kernels of several streams), so there
 * are two indices: per (lane, category) the covered time, with overlaps counted once, as running sums; and per (lane,
 * power of two of the duration) the recorded intervals. Times are ns in float64, which is exact below 2^53, so sums
 * over whole intervals are exact, too.
 */

// Running sums of many small numbers in four bytes each: a base at every 64th position, and the sum since the base.

const BLOCK = 6;
const LIMIT = 2 ** 32;

class WindowTotals {
  /** Takes over the array `values` of non-negative integers and overwrites it. */
  constructor(values) {
    this.count = values.length;
    this.bases = new Float64Array((values.length >>> BLOCK) + 1);
    this.since = values;
    this.total = 0;
    // null if a block's sum does not fit in 32 bits; see windowTotalsOf.
    if (!this.#accumulate()) this.since = null;
  }

  /** Turn the values into sums in place; false if the sum of a block does not fit. */
  #accumulate() {
    const { bases, since } = this, bounded = since instanceof Uint32Array;
    let total = 0, base = 0;
    for (let i = 0; i < since.length; i++) {
      if ((i & ((1 << BLOCK) - 1)) === 0) base = bases[i >>> BLOCK] = total;
      const value = since[i];
      if (bounded && total - base >= LIMIT) return false;
      since[i] = total - base;
      total += value;
    }
    this.total = total;
    return true;
  }

  /** Return the sum of the values before position `i`. */
  before(i) {
    return i < this.count ? this.bases[i >>> BLOCK] + this.since[i] : this.total;
  }
}

/** Return the sums of values that `fill(array)` writes, in four bytes each if possible, else in eight. */
export function windowTotalsOf(count, fill) {
  const narrow = new Uint32Array(count);
  if (fill(narrow) < LIMIT) {
    const totals = new WindowTotals(narrow);
    if (totals.since) return totals;
  }
  const wide = new Float64Array(count);
  fill(wide);
  return new WindowTotals(wide);
}

/** Number of powers of two of durations that float64 holds exactly. */
const BUCKETS = 54;

/** Return the first index in [low, high) of the ascending `values` whose value is greater than `limit`, else `high`. */
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

/** Turn counts, stored one position late, into start offsets in place. */
function toOffsets(counts) {
  for (let i = 1; i < counts.length; i++) counts[i] += counts[i - 1];
  return counts;
}

export class Lod {
  /**
   * Entries `offsets[lane]` to `offsets[lane + 1]` of `start`, `duration` and `category` belong to a lane. The indices
   * store nothing that these columns hold, to save memory at ten million kernels.
   */
  constructor({ start, duration, category, offsets, categories }) {
    Object.assign(this, { start, duration, category, offsets, categories });
    this.lanes = offsets.length - 1;
    this.#indexCover();
    this.#indexDurations();
  }

  /** Call `begin(group, index)` where a covered stretch of a category begins, and `grow(group, ns)` as it gets longer. */
  #stretches(begin, grow) {
    const { start, duration, category, categories, offsets } = this;
    const reach = new Float64Array(categories);
    for (let lane = 0; lane < this.lanes; lane++) {
      reach.fill(-Infinity);
      for (let i = offsets[lane]; i < offsets[lane + 1]; i++) {
        const k = category[i], group = lane * categories + k, stop = start[i] + duration[i];
        if (!(start[i] <= reach[k])) {
          begin(group, i);
          reach[k] = start[i];
        }
        if (stop > reach[k]) grow(group, stop - reach[k]);
        reach[k] = Math.max(reach[k], stop);
      }
    }
  }

  /** Index per (lane, category) the first interval of each covered stretch, and the running sum of their lengths. */
  #indexCover() {
    const offsets = new Int32Array(this.lanes * this.categories + 1);
    this.#stretches((group) => offsets[group + 1]++, () => {});
    toOffsets(offsets);
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

  /** Index per (lane, power of two of the duration) the intervals in order of their starts. */
  #indexDurations() {
    const { duration, offsets: lanes } = this;
    const offsets = new Int32Array(this.lanes * BUCKETS + 1);
    for (let lane = 0; lane < this.lanes; lane++)
      for (let i = lanes[lane]; i < lanes[lane + 1]; i++) offsets[lane * BUCKETS + bucketOf(duration[i]) + 1]++;
    toOffsets(offsets);
    const next = offsets.slice(), items = new Int32Array(duration.length);
    for (let lane = 0; lane < this.lanes; lane++)
      for (let i = lanes[lane]; i < lanes[lane + 1]; i++) items[next[lane * BUCKETS + bucketOf(duration[i])]++] = i;
    this.buckets = { offsets, items };
  }

  /** Return the first position in [low, high) of `items` whose interval begins after `limit`, else `high`. */
  #beginsAfter(items, low, high, limit) {
    const { start } = this;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (start[items[middle]] <= limit) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** Return the lane of an interval. */
  laneAt(index) {
    return above(this.offsets, 0, this.offsets.length, index) - 1;
  }

  /** Return the lane of an interval and its position there. */
  placeOf(index) {
    const lane = this.laneAt(index);
    return { lane, position: index - this.offsets[lane] };
  }

  /** Return the index of the interval at a position of a lane. */
  indexOf(lane, position) {
    return this.offsets[lane] + position;
  }

  /** Return the indices of intervals { lane, position }; those of a served page are fetched first. */
  async hold(places) {
    return places.map(({ lane, position }) => this.indexOf(lane, position));
  }

  /** Return the interval of a lane at a time, or -1; that of a served page is fetched first. */
  async find(lane, time) {
    return this.at(lane, time);
  }

  /** Whether a lane has intervals of a category. */
  has(lane, category) {
    const group = lane * this.categories + category;
    return this.cover.offsets[group + 1] > this.cover.offsets[group];
  }

  /** Return the ns that a group covers before `time`; `index` is the number of its stretches that begin until then. */
  #coverBefore(begin, index, time) {
    if (index <= begin) return 0;
    const { first, sums } = this.cover;
    const before = sums.before(index - 1), length = sums.before(index) - before;
    return before - sums.before(begin) + Math.min(length, time - this.start[first[index - 1]]);
  }

  /** Return the ns of [from, to] that a category covers on a lane, with overlaps counted once. */
  busy(lane, category, from, to) {
    if (!(to > from)) return 0;
    const group = lane * this.categories + category;
    const first = this.cover.offsets[group], last = this.cover.offsets[group + 1];
    const until = (time) => this.#coverBefore(first, this.#beginsAfter(this.cover.first, first, last, time), time);
    return until(to) - until(from);
  }

  /** The same, for what is drawn: of a served page to a pixel. */
  about(lane, category, from, to) {
    return this.busy(lane, category, from, to);
  }

  /**
   * Write the busy share of each of `width` pixel columns of [from, to] to `out`, at
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
        // Galloping search: the next column's index is near for few intervals per column, far for many.
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

  /** Return the shortest interval of a lane that runs at `time`, or -1; eachLong draws it on top. */
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

  /** Return the interval at `time`, else the nearest one that begins or ends within `slack`, else -1. */
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

  /** Whether an interval of a lane begins inside (from, to). */
  begins(lane, from, to) {
    const last = this.offsets[lane + 1], next = above(this.start, this.offsets[lane], last, from);
    return next < last && this.start[next] < to;
  }

  /** Return the number of intervals of a lane that touch [from, to]. */
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
      if (first === offsets[lane * BUCKETS + bucket + 1]) continue;
      const last = this.#beginsAfter(items, first, offsets[lane * BUCKETS + bucket + 1], time);
      for (let j = last - 1; j >= first && start[items[j]] > time - 2 ** (bucket + 1); j--)
        if (start[items[j]] + duration[items[j]] >= time) running++;
    }
    return running;
  }
}
