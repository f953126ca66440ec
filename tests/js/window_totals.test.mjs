import assert from "node:assert/strict";
import test from "node:test";

import { windowTotalsOf } from "../../viewers/gantt/static/data/window_totals.js";
import { random } from "./lod_builders.mjs";

function check(values) {
  const sums = windowTotalsOf(values.length, (into) => {
    values.forEach((value, i) => (into[i] = value));
    return Math.max(0, ...values);
  });
  let truth = 0;
  for (let i = 0; i <= values.length; i++) {
    assert.equal(sums.before(i), truth);
    truth += values[i] ?? 0;
  }
  return sums;
}

test("sums are exact at every position, in four bytes each", () => {
  const draw = random(7);
  const sums = check(Array.from({ length: 1000 }, () => Math.floor(draw() * 6e7)));
  assert.ok(sums.since instanceof Uint32Array);
  check([]);
  check([5]);
});

test("values or sums beyond 32 bits take eight bytes and stay exact", () => {
  assert.ok(check([1, 2 ** 40, 3]).since instanceof Float64Array);
  assert.ok(check(Array(64).fill(2 ** 31)).since instanceof Float64Array);
});
