import assert from "node:assert/strict";
import test from "node:test";

import { foldedSums } from "../../viewers/gantt/static/data/columns.js";
import { MemoryCurve } from "../../viewers/gantt/static/memory/memory_rows.js";

const curveOf = (points) => new MemoryCurve({ time: Float64Array.from(points, ([at]) => at), bytes: Float64Array.from(points, ([, size]) => size), reserved: new Float64Array(points.length) });

test("folded differences are undone, increases and decreases", () => {
  assert.deepEqual([...foldedSums([20, 7, 0, 1])], [10, 6, 6, 5]);
});

test("a level is found at any time from the first point on", () => {
  const curve = curveOf([[10, 1], [20, 2]]);
  assert.deepEqual([5, 10, 19, 20, 99].map((time) => curve.at(time)), [-1, 0, 0, 1, 1]);
});

test("each pixel shows the highest level in it, and the next one what it ended with", () => {
  const curve = curveOf([[0, 5], [11, 90], [12, 3], [35, 4]]);
  assert.deepEqual(curve.steps(0, 100, 10).map(({ x, bytes }) => [x, bytes]), [[0, 5], [1, 90], [2, 3], [3, 4]]);
});

test("no level is lost at any zoom: steps agree with a search of every pixel", () => {
  const points = [], random = (n) => ((random.seed = (random.seed * 16807) % 2147483647) % n);
  random.seed = 7;
  for (let i = 0, at = 0; i < 400; i++) points.push([(at += random(5)), 1 + random(1000)]);
  const curve = curveOf(points), end = points.at(-1)[0];
  for (const [from, to, width] of [[0, end, 50], [0, end, 3000], [end / 3, end / 2, 40]]) {
    const steps = curve.steps(from, to, width), px = (to - from) / width;
    for (let x = 0; x < width; x++) {
      const begin = from + x * px, within = points.filter(([at], i) => at <= begin + px && (points[i + 1]?.[0] ?? Infinity) > begin);
      const shown = Math.max(...steps.filter((step, i) => step.x <= x && (steps[i + 1]?.x ?? Infinity) > x).map(({ bytes }) => bytes));
      const highest = Math.max(...within.map(([, size]) => size));
      if (within.length) assert.ok(shown <= highest, `${x}: ${shown} > ${highest}`);
    }
    assert.equal(Math.max(...steps.map(({ bytes }) => bytes)), Math.max(...points.filter(([at], i) => at <= to && (points[i + 1]?.[0] ?? Infinity) > from).map(([, size]) => size)));
  }
});
