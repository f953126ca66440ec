/** Running sums of many small numbers in four bytes each: a base at every 64th position, and the sum since the base. */

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
