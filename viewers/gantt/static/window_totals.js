/** Running sums of many small numbers in four bytes each: the sum at each 64th place, and how much has come since. */

const BLOCK = 6;
const LIMIT = 2 ** 32;

export class WindowTotals {
  /** `values` are integers of 0 and more, which are taken over and overwritten. */
  constructor(values) {
    this.count = values.length;
    this.bases = new Float64Array((values.length >>> BLOCK) + 1);
    this.since = values;
    this.total = 0;
    // What does not fit 32 bits is kept as it is, at twice the memory.
    if (!this.#add()) this.since = null;
  }

  /** Turn values into sums in place; false, and nothing usable, when the sum of a block does not fit. */
  #add() {
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

  /** Sum of the values before place `i`. */
  before(i) {
    return i < this.count ? this.bases[i >>> BLOCK] + this.since[i] : this.total;
  }
}

/** Sums of values that `fill(array)` writes, in four bytes each if that is enough, else in eight. */
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
