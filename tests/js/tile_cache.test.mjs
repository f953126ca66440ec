import assert from "node:assert/strict";
import test from "node:test";

import { TILE, TileCache, levelOf, splat } from "../../viewers/gantt/static/served/tile_cache.js";

/** The answer of a server: each tile has one category, whose columns all have the same value. */
function answer(category, ...values) {
  return Uint8Array.from(values.flatMap((value) => [1, category, ...Array(TILE).fill(value)]));
}

const viewOf = (from, to, width) => ({ from, to, width, px: (to - from) / width });

test("columns are spread over the pixels that they touch", () => {
  const out = new Float32Array(4);
  splat(Uint8Array.of(255, 0, 51), 5, 10, viewOf(0, 40, 4), 0, 4, out, 0);
  assert.deepEqual([...out].map((share) => Number(share.toFixed(3))), [0.5, 0.5, 0.1, 0.1]);
});

test("the finest tiles are drawn, and coarser ones where these are missing", () => {
  const cache = new TileCache(4 * TILE, 2);
  cache.add(2, [[5, 0, 0]], answer(1, 51));
  cache.add(0, [[5, 1, 1]], answer(1, 255));
  const view = viewOf(0, 4 * TILE, 4 * TILE), shares = new Float32Array(2 * view.width);
  cache.fill(5, view, shares, 0);
  const at = (x) => Number(shares[view.width + x].toFixed(2));
  assert.deepEqual([at(0), at(TILE + 7), at(2 * TILE + 7)], [0.2, 1, 0.2]);
});

test("what is missing is asked for in runs, what is there is not", () => {
  const cache = new TileCache(10 * TILE, 3);
  cache.add(0, [[5, 2, 2]], answer(0, 9));
  assert.deepEqual(cache.missing(0, [5, 6], -99, 4 * TILE), [[5, 0, 1], [5, 3, 4], [6, 0, 4]]);
  assert.deepEqual(cache.missing(0, [5], 20 * TILE, 30 * TILE), []);
});

test("tiles that are not used make room; those of the whole run stay", () => {
  const cache = new TileCache(1000 * TILE, 3, 20_000);
  cache.add(3, [[1, 0, 0]], answer(0, 9));
  for (let i = 0; i < 100; i++) cache.add(0, [[1, i, i]], answer(0, 9));
  assert.deepEqual(cache.missing(3, [1], 0, 1), []);
  assert.equal(cache.missing(0, [1], 0, 1).length, 1);
  assert.deepEqual(cache.missing(0, [1], 99 * TILE, 99 * TILE + 1), []);
});

test("a level's columns are at most a pixel wide", () => {
  assert.deepEqual([levelOf(0, 100, 1000), levelOf(0, 1024, 1024), levelOf(0, 3000, 1000)], [0, 0, 1]);
});
