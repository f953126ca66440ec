/** Draws the host's calls in their rows: each level as a row of its own, by the exact time shares of its kinds. */

import { FONT_FAMILY } from "../../../base/static/theme.js";
import { BLOCKING } from "./host_calls.js";
import { Raster } from "../drawing/raster.js";
import { visible } from "../data/text.js";

/** Minimum width of a labelled call, margin of its text, and minimum height of a labelled level, in pixels. */
const MIN_WIDTH = 30, PADDING = 3, MIN_LEVEL = 10;
const MAX_LABELS = 600;
/** Kinds that are drawn over all others: synchronization and allocator calls, which are rare, short and telling. */
const ORDER = [3, 2, 1, 4, 5, 0, 6];

/** Return a name without what every operator shares. */
export function shortCall(name) {
  return visible(name.replace(/^nn\.Module: /, "").replace(/^autograd::engine::evaluate_function: /, "evaluate: "));
}

export class Flame {
  #raster = null;
  #canvas = null;
  #widths = new Map();

  constructor(kinds) {
    const hidden = Uint8Array.from(kinds, (_, kind) => (BLOCKING.includes(kind) ? 0 : 1));
    Object.assign(this, { kinds, none: new Uint8Array(kinds.length), allButBlocking: hidden });
    this.dress({ name: "light", chrome: {} });
  }

  dress({ name, chrome }) {
    const themed = (kind) => (name === "dark" ? kind.dark : kind);
    this.inks = this.kinds.map((kind) => themed(kind).ink);
    this.colors = this.kinds.map((kind) => themed(kind).color);
    this.chrome = chrome;
    this.#raster?.paint(this.colors, chrome.baseline, chrome.paper);
  }

  /** Draw the rows of hosts among `rows`; the context is in CSS pixels. */
  draw(context, { from, to, width }, rows) {
    const hosts = rows.filter(({ host }) => host), levels = hosts.flatMap(levelsOf);
    if (!levels.length) return;
    const top = Math.floor(Math.min(...levels.map(({ y }) => y))), bottom = Math.ceil(Math.max(...levels.map(({ y, h }) => y + h)));
    const deeper = hosts.flatMap(deeperOf), view = { from, to, width, top, height: bottom - top, px: (to - from) / width };
    this.#pixels(context, levels, view, this.none);
    if (deeper.length) this.#pixels(context, deeper, view, this.allButBlocking);
    let left = MAX_LABELS;
    context.textBaseline = "middle";
    for (const level of [...levels, ...deeper]) left -= this.#labels(context, level, view, left);
  }

  #pixels(context, placed, { from, to, width, top, height }, hidden) {
    const rows = placed.map((level) => ({ ...level, y: level.y - top }));
    if (!this.#raster) {
      this.#raster = new Raster(rows[0].lod, rows, { colors: this.colors, order: ORDER, exposed: -1, idle: -1, patterns: {} });
      this.#raster.paint(this.colors, this.chrome.baseline, this.chrome.paper);
    }
    Object.assign(this.#raster, { rows, lod: rows[0].lod });
    // A saved picture has shapes instead of pixels.
    if (context.drawRows) return context.drawRows(this.#raster, placed, { from, to, width, columns: Math.round(width), hidden });
    const scale = context.getTransform().a, size = { width: Math.round(width * scale), height: Math.round(height * scale) };
    const image = this.#raster.draw({ from, to, ...size, scale, hidden });
    this.#canvas ??= document.createElement("canvas");
    Object.assign(this.#canvas, size);
    this.#canvas.getContext("2d").putImageData(new ImageData(new Uint8ClampedArray(image.buffer), size.width, size.height), 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.#canvas, 0, top, size.width / scale, size.height / scale);
  }

  /** Label the calls of a level, at most `most`; returns how many. */
  #labels(context, { y, h, lane, lod, calls, deeper, blockingOnly }, { from, to, width, px }, most) {
    let drawn = 0;
    if (h < MIN_LEVEL) return drawn;
    context.font = `${Math.min(12, Math.floor(h - 2.5))}px ${FONT_FAMILY}`;
    lod.eachLong(lane, from, to, MIN_WIDTH * px, (index) => {
      if (drawn >= most || (blockingOnly && !BLOCKING.includes(calls.kind[index]))) return;
      const begin = Math.max(0, (lod.start[index] - from) / px) + PADDING;
      const room = Math.min(width, (lod.start[index] + lod.duration[index] - from) / px) - PADDING - begin;
      const text = this.#fitting(context, shortCall(calls.nameOf(index)), room);
      if (!text || covered(lod, deeper, from + begin * px, from + (begin + this.#width(context, text)) * px)) return;
      context.fillStyle = this.inks[calls.kind[index]];
      context.fillText(text, begin, y + h / 2);
      drawn++;
    });
    return drawn;
  }

  /** Return a text, or its beginning, that fits in a width; "" if too little of it would. */
  #fitting(context, text, room) {
    if (this.#width(context, text) <= room) return text;
    const letters = Math.floor((text.length * room) / this.#width(context, text)) - 1;
    return letters < 3 ? "" : `${text.slice(0, letters)}…`;
  }

  #width(context, text) {
    const key = `${context.font} ${text}`;
    let width = this.#widths.get(key);
    if (width === undefined) {
      if (this.#widths.size > 20_000) this.#widths.clear();
      this.#widths.set(key, (width = context.measureText(text).width));
    }
    return width;
  }
}

/** Whether blocking calls of other levels are drawn over a range. */
function covered(lod, lanes, from, to) {
  return lanes.some((lane) => BLOCKING.some((kind) => lod.busy(lane, kind, from, to) > 0));
}

/** Return a row's levels as rows of the raster. */
function levelsOf(row) {
  const { lanes, deeper } = row.host;
  return lanes.map((lane, i) => ({ ...levelOf(row, lane, i), deeper: i === lanes.length - 1 ? deeper : [] }));
}

/** Return the levels that a row is too low for, all in the place of its last one. */
function deeperOf(row) {
  const { lanes, deeper } = row.host, shared = { separated: -1, floor: 4, blockingOnly: true };
  return deeper.map((lane, i) => ({ ...levelOf(row, lane, lanes.length - 1), ...shared, deeper: deeper.slice(i + 1) }));
}

function levelOf({ y, h, host: { lanes, calls } }, lane, place) {
  const level = h / lanes.length;
  return { lod: calls.lod, calls, lane, separated: lane, y: y + place * level, h: level - 1, idle: false, floor: 1, from: -Infinity, to: Infinity };
}
