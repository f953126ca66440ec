/**
 * Exact level of detail: the busy share of each pixel column, and the intervals that are wide enough to be drawn whole.
 *
 * A lane is a list of intervals sorted by start. Intervals of a lane can overlap (kernels of several streams), so there
 * are two indices: per (lane, category) the covered time, with overlaps counted once, as running sums; and per (lane,
 * power of two of the duration) the recorded intervals. Times are ns in float64, which is exact below 2^53, so sums
 * over whole intervals are exact, too.
 */

/** Columns for each stretch from which stretches are drawn one by one, not column by column. */
const SPARSE = 8;
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
  return duration < 4294967296 ? 31 - Math.clz32(duration | 1) : 63 - Math.clz32(duration / 4294967296);
}

/** Turn counts, stored one position late, into running sums in place: those before each. */
function toOffsets(counts) {
  for (let i = 0, sum = 0; i < counts.length; i++) counts[i] = sum += counts[i];
  return counts;
}

export class Lod {
  /** Entries `offsets[lane]` to `offsets[lane + 1]` of `start`, `duration` and `category` belong to a lane. */
  constructor({ start, duration, category, offsets, categories }) {
    Object.assign(this, { start, duration, category, offsets, categories });
    this.lanes = offsets.length - 1;
    this.#indexCover();
    this.#indexDurations();
  }

  /**
   * Index per (lane, category) where covered stretches begin, and the running sums of their lengths: those of a group are
   * entries `offsets[group]` to `ends[group]`, with room for as many as it has intervals.
   */
  #indexCover() {
    const { start, duration, category, categories, lanes, offsets: own } = this, groups = lanes * categories;
    const offsets = new Int32Array(groups + 1), begins = new Float64Array(start.length), sums = new Float64Array(start.length + 1);
    for (let lane = 0; lane < lanes; lane++) for (let i = own[lane]; i < own[lane + 1]; i++) offsets[lane * categories + category[i] + 1]++;
    const ends = toOffsets(offsets).slice(0, groups), reach = new Float64Array(groups).fill(-Infinity);
    for (let lane = 0; lane < lanes; lane++)
      for (let i = own[lane]; i < own[lane + 1]; i++) {
        const group = lane * categories + category[i], from = start[i], to = from + duration[i], covered = Math.max(from, reach[group]);
        if (from > reach[group]) begins[ends[group]++] = from;
        sums[ends[group]] += Math.max(0, to - covered);
        reach[group] = Math.max(to, covered);
      }
    this.cover = { offsets, ends, begins, sums: toOffsets(sums) };
  }

  /** Index per (lane, power of two of the duration) the intervals in order of their starts. */
  #indexDurations() {
    const { duration, lanes, offsets: own } = this, offsets = new Int32Array(lanes * BUCKETS + 1), bucket = new Uint8Array(duration.length);
    for (let lane = 0; lane < lanes; lane++)
      for (let i = own[lane]; i < own[lane + 1]; i++) offsets[lane * BUCKETS + (bucket[i] = bucketOf(duration[i])) + 1]++;
    const next = toOffsets(offsets).slice(), items = new Int32Array(duration.length);
    for (let lane = 0; lane < lanes; lane++) for (let i = own[lane]; i < own[lane + 1]; i++) items[next[lane * BUCKETS + bucket[i]]++] = i;
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
    return this.cover.ends[group] > this.cover.offsets[group];
  }

  /** Return the ns that a group covers before `time`; `index` is the first of its stretches that begins after it. */
  #coverBefore(group, index, time) {
    const { offsets, begins, sums } = this.cover, first = offsets[group];
    return index === first ? 0 : sums[index - 1] - sums[first] + Math.min(sums[index] - sums[index - 1], time - begins[index - 1]);
  }

  /** Return the ns of [from, to] that a category covers on a lane, with overlaps counted once. */
  busy(lane, category, from, to) {
    if (!(to > from)) return 0;
    const group = lane * this.categories + category, { offsets, ends, begins } = this.cover;
    const until = (time) => this.#coverBefore(group, above(begins, offsets[group], ends[group], time), time);
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
    const { offsets, ends, begins, sums } = this.cover, pixel = (to - from) / width;
    let index = above(begins, offsets[group], ends[group], from);
    const last = above(begins, index, ends[group], to);
    if (last - index < width / SPARSE) return this.#stretches(Math.max(offsets[group], index - 1), last, from, to, width, out, at);
    let previous = this.#coverBefore(group, index, from);
    for (let column = 0; column < width; column++) {
      const time = from + (column + 1) * pixel;
      if (index < last && begins[index] <= time) {
        // Galloping search: the next column's index is near for few intervals per column, far for many.
        let stride = 1;
        while (index + stride < last && begins[index + stride] <= time) stride <<= 1;
        index = above(begins, index + (stride >>> 1), Math.min(last, index + stride), time);
      }
      const covered = this.#coverBefore(group, index, time);
      out[at + column] = (covered - previous) / pixel;
      previous = covered;
    }
  }

  /** Add the shares of some stretches, one by one. */
  #stretches(first, last, from, to, width, out, at) {
    const { begins, sums } = this.cover, pixel = (to - from) / width;
    for (let i = first; i < last; i++) {
      const begin = Math.max(0, (begins[i] - from) / pixel), end = Math.min(width, (begins[i] + sums[i + 1] - sums[i] - from) / pixel);
      for (let x = Math.floor(begin); x < end; x++) out[at + x] += Math.min(end, x + 1) - Math.max(begin, x);
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
