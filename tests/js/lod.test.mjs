import assert from "node:assert/strict";
import { test } from "node:test";
import { covered, indices, lodOf, randomLod, random } from "./lod_builders.mjs";
import { readFileSync } from "node:fs";

const CATEGORIES = 3;

/** Windows of all sizes, some beyond both ends of the data. */
function* windows(lod, draw) {
  const end = lod.start.reduce((most, start, i) => Math.max(most, start + lod.duration[i]), 1);
  for (let i = 0; i < 8; i++) {
    const width = end * 10 ** (-4 * draw()) + 1, from = (draw() * 1.4 - 0.2) * end;
    yield [from, from + width];
  }
}

function each(check) {
  for (let seed = 1; seed <= 25; seed++) {
    const draw = random(seed + 1000), lanes = 1 + Math.floor(draw() * 4);
    const lod = randomLod({ seed, lanes, count: 250, categories: CATEGORIES });
    for (const [from, to] of windows(lod, draw)) check(lod, from, to, draw);
  }
}

test("the busy share of every column equals brute force", () => {
  let worst = 0;
  each((lod, from, to, draw) => {
    const width = 1 + Math.floor(draw() * 60), pixel = (to - from) / width;
    const lanes = Array.from({ length: lod.lanes }, (_, lane) => lod.lanes - 1 - lane);
    const shares = lod.density(from, to, width, lanes, new Float64Array(lanes.length * CATEGORIES * width).fill(7));
    lanes.forEach((lane, position) => {
      for (let category = 0; category < CATEGORIES; category++)
        for (let column = 0; column < width; column++) {
          const truth = covered(lod, lane, category, from + column * pixel, from + (column + 1) * pixel) / pixel;
          worst = Math.max(worst, Math.abs(truth - shares[(position * CATEGORIES + category) * width + column]));
        }
    });
  });
  assert.ok(worst < 1e-6, `the worst share is ${worst} off`);
});

test("the time busy in a window is exact, with overlaps counted once", () => {
  each((lod, from, to) => {
    const [low, high] = [Math.floor(from), Math.ceil(to)];
    for (let lane = 0; lane < lod.lanes; lane++)
      for (let category = 0; category < CATEGORIES; category++) assert.equal(lod.busy(lane, category, low, high), covered(lod, lane, category, low, high));
  });
});

test("every long interval that touches the window is visited once, longest power of two first", () => {
  each((lod, from, to, draw) => {
    const shortest = draw() < 0.2 ? 0 : ((to - from) / 100) * draw() * 5;
    for (let lane = 0; lane < lod.lanes; lane++) {
      const visited = [];
      lod.eachLong(lane, from, to, shortest, (index) => visited.push(index));
      const truth = indices(lod, lane, (start, end) => end - start >= shortest && start < to && end > from);
      assert.deepEqual([...visited].sort((a, b) => a - b), truth);
      const powers = visited.map((index) => Math.floor(Math.log2(Math.max(1, lod.duration[index]))));
      assert.deepEqual(powers, [...powers].sort((a, b) => b - a));
    }
  });
});

test("the interval under the pointer is one that runs there, of the shortest power of two", () => {
  each((lod, from, to, draw) => {
    for (let lane = 0; lane < lod.lanes; lane++) {
      const time = from + draw() * (to - from), found = lod.at(lane, time);
      const running = indices(lod, lane, (start, end) => start <= time && end > time);
      if (!running.length) assert.equal(found, -1);
      else {
        assert.ok(running.includes(found));
        const power = (index) => Math.floor(Math.log2(lod.duration[index]));
        assert.equal(power(found), Math.min(...running.map(power)));
      }
    }
  });
});

test("the number of intervals that touch a window equals brute force", () => {
  each((lod, from, to) => {
    for (let lane = 0; lane < lod.lanes; lane++)
      assert.equal(lod.count(lane, from, to), indices(lod, lane, (start, end) => start <= to && end >= from).length);
  });
});

test("whether an interval begins in a window equals brute force", () => {
  each((lod, from, to) => {
    for (let lane = 0; lane < lod.lanes; lane++)
      assert.equal(lod.begins(lane, from, to), indices(lod, lane, (start) => start > from && start < to).length > 0);
  });
});

test("near a narrow interval, the nearest one within the slack is found", () => {
  const lod = lodOf([{ lane: 0, start: 100, duration: 10, category: 0 }, { lane: 0, start: 200, duration: 10, category: 0 }], 1, 1);
  assert.equal(lod.near(0, 105, 0), 0);
  assert.equal(lod.near(0, 113, 5), 0);
  assert.equal(lod.near(0, 196, 5), 1);
  assert.equal(lod.near(0, 150, 5), -1);
  assert.equal(lod.near(0, 50, 49), -1);
});

test("times of hours and durations beyond 32 bits stay exact", () => {
  const hour = 3.6e12, long = 7 * 2 ** 32 + 1;
  const lod = lodOf([{ lane: 0, start: hour, duration: long, category: 0 }, { lane: 0, start: hour + long, duration: 1, category: 0 }], 1, 1);
  assert.equal(lod.busy(0, 0, 0, 2 * hour), long + 1);
  assert.equal(lod.at(0, hour + long), 1);
  assert.equal(lod.at(0, hour + long - 1), 0);
});

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
