import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import { lodOf } from "./lod_builders.mjs";

const golden = JSON.parse(readFileSync(new URL("../golden/lod.json", import.meta.url)));
const entries = golden.lanes.flatMap(({ start, duration, category }, lane) => start.map((_, i) => ({ lane, start: start[i], duration: duration[i], category: category[i] })));
const lod = lodOf(entries, golden.lanes.length, golden.categories);

for (const { from, to, width, shortest, density, busy, long } of golden.windows)
  test(`golden vectors of ${from} to ${to}, shared with the Python implementation`, () => {
    const lanes = golden.lanes.map((_, lane) => lane);
    const shares = lod.density(from, to, width, lanes, new Float32Array(lanes.length * golden.categories * width));
    density.flat(2).forEach((share, i) => assert.ok(Math.abs(share - shares[i]) < 1e-6, `share ${i}: ${shares[i]}, not ${share}`));
    for (const lane of lanes) {
      busy[lane].forEach((time, category) => assert.equal(lod.busy(lane, category, from, to), time));
      const found = [];
      lod.eachLong(lane, from, to, shortest, (index) => found.push(index - lod.offsets[lane]));
      assert.deepEqual(found.sort((a, b) => a - b), long[lane]);
    }
  });
