/** A row of memory below each GPU's own rows: allocated and reserved over time, the peak, calls of the allocator. */

import { line } from "../../../base/static/dom.js";
import { FONT_FAMILY } from "../../../base/static/theme.js";
import { foldedSums, sums, unpackAll } from "../data/columns.js";
import { above } from "../data/lod.js";
import { rowOf } from "../data/rows.js";
import { bytes, moment } from "../data/text.js";

// A device's memory over time: unpacked, and looked up by time.

export class MemoryCurve {
  static async of({ delta, bytes, reserved, ...facts }) {
    const columns = await unpackAll({ delta, bytes, reserved });
    return new MemoryCurve({ time: sums(columns.delta), bytes: foldedSums(columns.bytes), reserved: foldedSums(columns.reserved), ...facts });
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

/** Height of a row in pixels, folded and unfolded; half the size of the peak's mark; height of a call's tick. */
const LOW = 28, TALL = 96, MARK = 4, TICK = 5;

export class MemoryRows {
  #curves = new Map();

  constructor({ stage, scene }) {
    Object.assign(this, { stage, scene, tall: new Set() });
  }

  /** Show the rows of the GPUs that have any. */
  async begin() {
    const tracks = Object.entries(this.scene.memory?.tracks ?? {});
    for (const [track, packed] of tracks) {
      this.#curves.set(Number(track), await MemoryCurve.of(packed));
      this.#lay(Number(track));
    }
  }

  /** Show a GPU's row taller, or flat again. */
  toggle(track) {
    if (!this.#curves.has(track)) return;
    if (!this.tall.delete(track)) this.tall.add(track);
    this.#lay(track);
  }

  #lay(track) {
    const curve = this.#curves.get(track), open = this.tall.has(track), title = "Show this rank's memory taller, or flat again", { stage } = this;
    const row = { ...rowOf(this.scene, { track, role: "memory_use", label: `memory ${bytes(curve.peak[1])}`, h: open ? TALL : LOW }), extra: true };
    stage.extend(track, "memory_use", [{ ...row, memory: this, curve, open, title, toggle: () => this.toggle(track) }]);
  }

  /** Return the tooltip of a row at { time, pixel, width } as lines. */
  tip({ curve }, { time, pixel, width }) {
    const point = curve.at(time);
    if (point < 0) return null;
    const held = curve.reserved[point], peak = `peak ${bytes(curve.peak[1])} at ${moment(curve.peak[0], pixel * width)}`;
    const counts = curve.fromStart ? [line("counts from the start of the recording", "dim")] : [];
    const coarse = curve.exact ? [] : [line("the most in this stretch of time", "dim")];
    return [line(`${sized(curve.bytes[point])} allocated`, "head"), ...(held ? [line(`${bytes(held)} reserved by the allocator`)] : []), line(peak), ...counts, ...coarse];
  }

  /** Draw the rows of memory among `rows`; the context is in CSS pixels. */
  draw(context, view, rows, { chrome }) {
    for (const row of rows) if (row.memory) this.#row(context, view, row, chrome);
  }

  #row(context, { from, to, width }, { y, h, curve }, chrome) {
    const { least, most, peak } = curve, top = y + MARK + 1, scale = (h - MARK - 2) / (most - least);
    const at = (size) => y + h - 1 - (size - least) * scale, steps = curve.steps(from, to, width), px = (to - from) / width;
    context.save();
    context.beginPath();
    context.rect(0, y, width, h);
    context.clip();
    context.fillStyle = chrome.edge;
    steps.forEach(({ x, bytes: size }, i) => context.fillRect(x, at(size), (steps[i + 1]?.x ?? width) - x, at(least) - at(size)));
    if (curve.reserved.some((size) => size > 0)) this.#reserved(context, steps, at, width, chrome);
    context.fillStyle = chrome.alarm;
    for (const call of curve.calls) context.fillRect((call - from) / px - 0.5, y + h - TICK, 1.5, TICK);
    const x = (peak[0] - from) / px, high = Math.max(at(peak[1]), top);
    if (x >= -MARK && x <= width + MARK) this.#peak(context, { x, y: high, row: y + h, width, text: bytes(peak[1]) }, chrome);
    context.restore();
  }

  #reserved(context, steps, at, width, chrome) {
    context.strokeStyle = chrome.quiet;
    context.setLineDash([4, 3]);
    context.beginPath();
    steps.forEach(({ x, reserved }, i) => {
      const high = Math.round(at(reserved)) + 0.5;
      context.lineTo(x, high);
      context.lineTo(steps[i + 1]?.x ?? width, high);
    });
    context.stroke();
    context.setLineDash([]);
  }

  /** Mark the peak; its size stands beside it where the row is high enough. */
  #peak(context, { x, y, row, width, text }, chrome) {
    context.fillStyle = chrome.text;
    context.beginPath();
    for (const [dx, dy] of [[0, -MARK], [MARK, 0], [0, MARK], [-MARK, 0]]) context.lineTo(x + dx, y + dy);
    context.fill();
    if (row - y < 14) return;
    context.font = `11px ${FONT_FAMILY}`;
    context.textBaseline = "middle";
    const wide = context.measureText(text).width, left = x + MARK + 3 + wide > width;
    context.fillStyle = chrome.paper;
    context.fillRect(left ? x - MARK - wide - 5 : x + MARK + 2, y - MARK, wide + 4, 13);
    context.fillStyle = chrome.text;
    context.fillText(text, left ? x - MARK - wide - 3 : x + MARK + 4, y + 3);
  }
}

/** Write a size; what was there before the recording and has been freed makes it less than 0. */
function sized(size) {
  return size < 0 ? `−${bytes(-size)}` : bytes(size);
}
