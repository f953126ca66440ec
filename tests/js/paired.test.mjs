/** Two runs on one axis: time between steps belongs to no step, and saved time is labelled as widely as it fits. */

import assert from "node:assert";
import test from "node:test";
import { timeSavedTexts } from "../../viewers/gantt/static/drawing/time_saved.js";
import { elapsed, insideSteps, stepAt, stepEnd, stepSpan, stripSteps } from "../../viewers/gantt/static/data/rows.js";

const paired = { bounds: [0, 100, 200], ends: [100, 150] };
const plain = { bounds: [0, 100, 150] };

test("what is measured across a break has the time that is not drawn", () => {
  const scene = { breaks: [[100, 110, 2000], [300, 310, 5000]] };
  assert.deepEqual([40, 1050, 7250, 2000], [[50, 90], [50, 105], [50, 320], [100, 110]].map(([from, to]) => elapsed(scene, from, to)));
});

test("a time between the end of a step and the next one is in no step", () => {
  const gap = { bounds: [0, 100, 180], ends: [60, 180] };
  assert.deepEqual([0, 59, 60, 99, 100, 179, 180].map((time) => stepAt(gap, time)), [0, 0, -1, -1, 1, 1, -1]);
  assert.deepEqual([0, 99, 100, 149, 150].map((time) => stepAt(plain, time)), [0, 0, 1, 1, -1]);
});

test("only time inside the steps counts in a window", () => {
  const gap = { bounds: [0, 100, 180], ends: [60, 180] };
  for (const [from, to] of [[0, 180], [-50, 500], [30, 70], [60, 100], [70, 130]]) {
    let brute = 0;
    for (let time = from; time < to; time++) if (stepAt(gap, time) >= 0) brute++;
    assert.equal(insideSteps(gap, from, to), brute, `${from} to ${to}`);
    const whole = Math.max(0, Math.min(to, 150) - Math.max(from, 0));
    assert.equal(insideSteps(plain, from, to), whole);
  }
});

test("a step ends at the track's end time, else where the next one begins", () => {
  assert.deepEqual([stepEnd(paired, 0), stepEnd(paired, 1)], [100, 150]);
  assert.deepEqual([stepEnd(plain, 0), stepEnd(plain, 1)], [100, 150]);
});

test("paired steps are shown whole, with both runs", () => {
  const scene = { slots: [0, 100, 200], tracks: [paired], strips: [{ tracks: [0] }] };
  assert.deepEqual(stepSpan(scene, scene.strips[0], 1), { from: 100, to: 200 });
  assert.deepEqual(stepSpan({ ...scene, slots: undefined }, scene.strips[0], 1), { from: 100, to: 150 });
  assert.equal(stripSteps(scene, scene.strips[0]), paired);
  const own = { tracks: [0], bounds: [0, 90, 200], ends: [90, 150] };
  assert.equal(stripSteps(scene, own), own);
});

test("saved time is labelled with its share, widest label first", () => {
  assert.deepEqual(timeSavedTexts({ ns: 31.5e6, share: 0.202, certain: true })[0], ["31.5 ms saved (20 %)"]);
  assert.deepEqual(timeSavedTexts({ ns: -12e6, share: -0.08, certain: true }).at(-1), ["12.0 ms", "lost", "(8.0 %)"]);
  const widths = timeSavedTexts({ ns: 5, share: 0.5 }).map((lines) => Math.max(...lines.map((text) => text.length)));
  assert.deepEqual(widths, [...widths].sort((a, b) => b - a));
});

test("what may be noise is neither saved nor lost", () => {
  assert.deepEqual(timeSavedTexts({ ns: 31.5e6, share: 0.202, certain: false })[0], ["31.5 ms shorter (20 %)"]);
  assert.deepEqual(timeSavedTexts({ ns: -12e6, share: -0.08, certain: false })[0], ["12.0 ms longer (8.0 %)"]);
});
