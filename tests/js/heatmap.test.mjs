import assert from "node:assert/strict";
import test from "node:test";

import { bins, byNode, heatOf, nameOfStep, nodesOf, shade } from "../../viewers/gantt/static/page/heatmap.js";
import { lodOf } from "./lod_builders.mjs";

const SCENE = {
  tracks: [
    { bounds: [0, 100, 300], steps: ["a", "b"] },
    { bounds: [0, 50], steps: ["a"] },
  ],
  lanes: [{ track: 0, role: "phases" }, { track: 1, role: "phases" }],
  special: { exposed: 1 },
};
const LOD = lodOf([{ lane: 0, start: 90, duration: 110, category: 1 }, { lane: 1, start: 0, duration: 50, category: 0 }], 2, 2);

test("cells are step times and exposed shares, NaN for steps that a GPU does not have", () => {
  const time = heatOf(LOD, SCENE, "time"), exposed = heatOf(LOD, SCENE, "exposed");
  assert.deepEqual([time.at(0, 0), time.at(0, 1), time.at(1, 0), time.at(1, 1)], [100, 200, 50, NaN]);
  assert.deepEqual([time.least, time.most], [50, 200]);
  assert.deepEqual([exposed.at(0, 0), exposed.at(0, 1), exposed.at(1, 0)], [0.1, 0.5, 0]);
});

test("a step has its name, and one of several runs, whose names differ, its place", () => {
  assert.deepEqual([0, 1].map((place) => nameOfStep(SCENE, place)), ["a", "b"]);
  assert.equal(nameOfStep({ tracks: [{ steps: ["a", "b"] }, { steps: ["a", "c"] }] }, 1), "2 of each");
});

test("a bin shows its largest value, whichever side is longer", () => {
  const values = Array.from({ length: 1000 }, (_, i) => (i === 737 ? 9 : 1));
  const wide = { tracks: 1000, steps: 1, at: (track) => values[track] }, long = { tracks: 1, steps: 1000, at: (_, step) => values[step] };
  for (const heat of [wide, long]) {
    const binned = bins(heat, 100, 50);
    assert.deepEqual([binned.across, binned.down, binned.transposed], [100, 1, heat === long]);
    assert.deepEqual([...binned.values].flatMap((value, i) => (value === 9 ? [i] : [])), [73]);
  }
});

test("a bin shows what is farthest from the middle, also the least", () => {
  const values = Array.from({ length: 2048 }, (_, i) => (i === 1025 ? 1 : 5 + (i % 2)));
  const binned = bins({ tracks: 2048, steps: 1, middle: 5, at: (track) => values[track] }, 480, 50);
  assert.deepEqual([...binned.values].flatMap((value, i) => (value === 1 ? [i] : [])), [Math.floor((1025 * 480) / 2048)]);
});

test("of many GPUs a cell is a node, and shows its GPU that is farthest from the middle", () => {
  const tracks = Array.from({ length: 72 }, () => ({})), all = tracks.map((_, i) => i);
  const orders = [{ label: "by node", tracks: all, groups: all.map((i) => `node-${i >> 3}`) }], nodes = nodesOf({ tracks, orders });
  const heat = byNode({ tracks: 72, steps: 1, middle: 5, at: (track) => (track === 0 ? NaN : track === 43 ? 1 : 5 + (track === 41)) }, nodes);
  assert.deepEqual([nodes.length, nodes[5].name, heat.at(5, 0), heat.track(5, 0), heat.at(0, 0)], [9, "node-5", 1, 43, 5]);
  assert.equal(nodesOf({ tracks, orders: [] }), null);
  assert.equal(nodesOf({ tracks: tracks.slice(0, 64), orders }), null);
});

test("a bin without a step stays empty", () => {
  const binned = bins(heatOf(LOD, SCENE, "time"), 100, 100);
  assert.equal(binned.values.filter((value) => Number.isNaN(value)).length, 1);
});

test("colors go from the least to the most", () => {
  const colors = ["#000000", "#808080", "#FFFFFF"];
  assert.equal(shade(colors, 0), "rgb(0,0,0)");
  assert.equal(shade(colors, 0.5), "rgb(128,128,128)");
  assert.equal(shade(colors, 1), "rgb(255,255,255)");
  assert.equal(shade(colors, -3), "rgb(0,0,0)");
});
