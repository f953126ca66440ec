import assert from "node:assert/strict";
import test from "node:test";

import { Raster, pixel } from "../../viewers/gantt/static/drawing/raster.js";
import { lodOf } from "./lod_builders.mjs";

const PALETTE = { colors: ["#102030", "#405060", "#708090", "#C0C0C0"], order: [0, 1, 2], exposed: 2, idle: 3 };
const [FIRST, SECOND, EXPOSED, IDLE] = PALETTE.colors.map((color) => pixel(color));
const BASE = { y: 0, h: 20, lane: 0, idle: true, floor: 1, separated: -1, from: 0, to: 1000 };

function draw(entries, row = {}, view = {}) {
  const lod = lodOf(entries.map((entry) => ({ lane: 0, category: 0, ...entry })), 1, 4);
  const options = { from: 0, to: 1000, width: 100, height: 20, scale: 1, hidden: new Uint8Array(4), ...view };
  const image = new Raster(lod, [{ ...BASE, ...row }], PALETTE).draw(options);
  const column = (x) => Array.from({ length: options.height }, (_, y) => image[y * options.width + x]);
  return { column, at: (x, y) => image[y * options.width + x], count: (x, color) => column(x).filter((c) => c === color).length };
}

test("an interval of three pixels and more is drawn whole, from edge to edge and over the full height", () => {
  const { count } = draw([{ start: 200, duration: 400 }]);
  assert.equal(count(19, FIRST), 0);
  assert.equal(count(20, FIRST), 20);
  assert.equal(count(59, FIRST), 20);
  assert.equal(count(60, FIRST), 0);
  assert.equal(count(60, IDLE), 20);
});

test("narrower intervals are drawn as shares of the column, stacked in order", () => {
  const { column } = draw([{ start: 100, duration: 5 }, { start: 105, duration: 2, category: 1 }]);
  assert.deepEqual(column(10), [...Array(6).fill(IDLE), ...Array(4).fill(SECOND), ...Array(10).fill(FIRST)]);
});

test("streams that overlap share the height and never leave the row", () => {
  const { count } = draw([{ start: 100, duration: 10 }, { start: 100, duration: 10, category: 1 }]);
  assert.equal(count(10, FIRST), 10);
  assert.equal(count(10, SECOND), 10);
});

test("a hidden category leaves its place blank, not idle", () => {
  const hidden = Uint8Array.of(1, 0, 0, 0);
  const long = draw([{ start: 200, duration: 400 }], {}, { hidden });
  assert.deepEqual([long.count(30, 0), long.count(70, IDLE)], [20, 20]);
  const short = draw([{ start: 100, duration: 5 }], {}, { hidden });
  assert.deepEqual([short.count(10, 0), short.count(10, IDLE)], [10, 10]);
});

test("exposed communication is hatched, and the hatch moves with time", () => {
  const entries = [{ start: 0, duration: 1000, category: 2 }];
  const still = draw(entries), moved = draw(entries, {}, { from: 10, to: 1010 });
  const dark = pixel(PALETTE.colors[2], 0.72);
  assert.ok(still.count(30, dark) >= 2 && still.count(30, EXPOSED) > 12);
  assert.deepEqual(moved.column(30), still.column(31));
});

test("time outside the steps is pale", () => {
  const { at } = draw([{ start: 0, duration: 1000 }], { from: 300, to: 700 });
  assert.equal(at(29, 5), ((FIRST & 0xffffff) | 0x48000000) >>> 0);
  assert.equal(at(30, 5), FIRST);
  assert.equal(at(70, 5) >>> 24, 0x48);
});

test("intervals that touch are separated by a white line if they are wide enough", () => {
  const pair = [{ start: 100, duration: 200 }, { start: 300, duration: 200 }, { start: 500, duration: 30 }];
  const { count } = draw(pair, { separated: 0 });
  assert.equal(count(30, 0xffffffff), 20);
  assert.equal(count(50, 0xffffffff), 0);
  assert.equal(count(10, 0xffffffff), 0);
});

test("a row with a floor shows intervals of less than a pixel's height", () => {
  const view = { to: 1_000_000 }, entries = [{ start: 105_000, duration: 1 }];
  assert.equal(draw(entries, { floor: 4, to: 1_000_000 }, view).count(10, FIRST), 4);
  assert.equal(draw(entries, { floor: 4, to: 1_000_000 }, view).count(11, FIRST), 0);
  assert.equal(draw(entries, { floor: 1, to: 1_000_000 }, view).count(10, FIRST), 0);
});

test("two device pixels per CSS pixel double the resolution", () => {
  const { count } = draw([{ start: 200, duration: 405 }], {}, { width: 200, height: 40, scale: 2 });
  assert.equal(count(120, FIRST), 40);
  assert.equal(count(121, FIRST), 0);
});
