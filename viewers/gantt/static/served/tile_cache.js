/**
 * Tiles of shares that the page has: 512 columns of a power of two of ns each. They are drawn while the view moves, at
 * any zoom: the finest ones that are there, and coarser ones where they are missing.
 */

/** Columns of a tile, and the bytes of all tiles at most. */
export const TILE = 512;
const BUDGET = 48e6;
/** Bytes that a tile takes besides its columns. */
const OVERHEAD = 150;

/** Add 8-bit columns of `size` ns from time `start` on, as far as they lie in [low, high) pixels, to shares by pixel. */
export function splat(plane, start, size, { from, px }, low, high, out, at) {
  const step = size / px, x = (start - from) / px;
  for (let c = Math.max(0, Math.floor((low - x) / step)), to = Math.min(plane.length, Math.ceil((high - x) / step)); c < to; c++) {
    const value = plane[c] / 255;
    if (!value) continue;
    const a = Math.max(low, x + c * step), b = Math.min(high, x + (c + 1) * step), i = Math.floor(a), j = Math.floor(b);
    if (i === j) out[at + i] += value * (b - a);
    else {
      out[at + i] += value * (i + 1 - a);
      for (let m = i + 1; m < j; m++) out[at + m] += value;
      if (j < high) out[at + j] += value * (b - j);
    }
  }
}

/** Return the level whose columns are at most a pixel of a view wide. */
export function levelOf(from, to, width) {
  return Math.max(0, Math.floor(Math.log2((to - from) / width)));
}

export class TileCache {
  #tiles = new Map();
  #bytes = 0;

  /** Tiles from `top` on stay: they are drawn where nothing finer is there. */
  constructor(end, top, budget = BUDGET) {
    Object.assign(this, { end, top, budget });
  }

  /** Whether any tile is there. */
  get some() {
    return this.#tiles.size > 0;
  }

  /** Return the first and last tile of a level that a range touches. */
  span(level, from, to) {
    const size = TILE * 2 ** level;
    return [Math.max(0, Math.floor(from / size)), Math.min(Math.floor(this.end / size), Math.floor(to / size))];
  }

  /** Return the tiles of lanes that are not there, as runs [lane, first, last]. */
  missing(level, lanes, from, to) {
    const runs = [], [first, last] = this.span(level, from, to);
    for (const lane of lanes)
      for (let i = first; i <= last; i++) {
        if (this.#tiles.has(`${lane}/${level}/${i}`)) continue;
        const before = runs.at(-1);
        if (before && before[0] === lane && before[2] === i - 1) before[2] = i;
        else runs.push([lane, i, i]);
      }
    return runs;
  }

  /** Keep the tiles of an answer to runs of a level. */
  add(level, runs, data) {
    let at = 0;
    for (const [lane, first, last] of runs)
      for (let i = first; i <= last; i++) {
        const categories = data.subarray(at + 1, (at += 1 + data[at])), planes = [];
        for (const category of categories) planes.push([category, data.slice(at, (at += TILE))]);
        this.#keep(`${lane}/${level}/${i}`, planes);
      }
  }

  #keep(key, planes) {
    this.#tiles.set(key, planes);
    this.#bytes += this.#size(planes);
    for (const [old, tile] of this.#tiles) {
      if (this.#bytes <= this.budget) break;
      this.#tiles.delete(old);
      if (Number(old.split("/")[1]) >= this.top) this.#tiles.set(old, tile);
      else this.#bytes -= this.#size(tile);
    }
  }

  #size(planes) {
    return OVERHEAD + planes.length * (TILE + OVERHEAD);
  }

  /** Add a lane's shares of a view { from, to, px, width } to `out`, categories at multiples of the width. */
  fill(lane, view, out, at) {
    const { from, to, width } = view, level = Math.min(this.top, levelOf(from, to, width)), [first, last] = this.span(level, from, to);
    for (let i = first; i <= last; i++) this.#best(lane, level, i, view, out, at);
  }

  /** Add the part of a view that a tile covers, from it or from the finest coarser one that is there. */
  #best(lane, level, index, view, out, at) {
    const size = TILE * 2 ** level, { from, px, width } = view;
    const low = Math.max(0, (index * size - from) / px), high = Math.min(width, ((index + 1) * size - from) / px);
    if (high <= low) return;
    for (let up = level; up <= this.top; up++) {
      const i = Math.floor(index / 2 ** (up - level)), key = `${lane}/${up}/${i}`, planes = this.#tiles.get(key);
      if (!planes) continue;
      // The tile used last is the last one to be dropped.
      this.#tiles.delete(key);
      this.#tiles.set(key, planes);
      for (const [category, plane] of planes) splat(plane, i * TILE * 2 ** up, 2 ** up, view, low, high, out, at + category * width);
      return;
    }
  }
}
