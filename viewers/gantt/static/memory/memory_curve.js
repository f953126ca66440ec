/** A device's memory over time: unpacked, and looked up by time. */

import { unpack } from "../data/columns.js";
import { above } from "../data/lod.js";

/** Undo the folding of differences: even numbers are increases, odd ones decreases. */
export function unfolded(folded) {
  const values = new Float64Array(folded.length);
  for (let i = 0, sum = 0; i < folded.length; i++) values[i] = sum += folded[i] % 2 ? -(folded[i] + 1) / 2 : folded[i] / 2;
  return values;
}

export class MemoryCurve {
  static async of({ delta, bytes, reserved, ...facts }) {
    const time = Float64Array.from(await unpack(delta));
    for (let i = 1; i < time.length; i++) time[i] += time[i - 1];
    return new MemoryCurve({ time, bytes: unfolded(await unpack(bytes)), reserved: unfolded(await unpack(reserved)), ...facts });
  }

  constructor(fields) {
    Object.assign(this, fields);
  }

  /** Return the point that shows the level at a time, or -1 before the first. */
  at(time) {
    return above(this.time, 0, this.time.length, time) - 1;
  }

  /**
   * Return the levels of a view as steps [{ x, bytes, reserved }], each up to the next one's x in pixels, with the highest
   * level of each pixel: that which the pixel begins with counts, too.
   */
  steps(from, to, width) {
    const { time, bytes, reserved } = this, px = (to - from) / width, pixels = [];
    for (let i = Math.max(0, this.at(from)); i < time.length && time[i] <= to; i++) {
      const x = Math.max(0, Math.floor((time[i] - from) / px)), open = pixels.at(-1);
      if (open?.x !== x) pixels.push({ x, high: open && bytes[open.last] > bytes[i] ? open.last : i, last: i });
      else Object.assign(open, { high: bytes[i] > bytes[open.high] ? i : open.high, last: i });
    }
    const step = (x, i) => ({ x, bytes: bytes[i], reserved: reserved[i] });
    return pixels.flatMap(({ x, high, last }) => [step(x, high), ...(high === last ? [] : [step(x + 1, last)])]);
  }
}
