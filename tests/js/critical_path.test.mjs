import assert from "node:assert/strict";
import test from "node:test";

import { between, joined, PathData } from "../../viewers/gantt/static/critical_path/critical_path.js";

const SCENE = {
  tracks: [{}, {}],
  lanes: [{ track: 0, role: "phases", count: 9 }, { track: 0, role: "compute", count: 3 }, { track: 0, role: "collectives", count: 1 }, { track: 1, role: "compute", count: 2 }],
};

/** A path: a kernel of GPU 0 from 10 to 30, a pause of its host to 34, and a kernel of GPU 1 to 50. */
const path = () => new PathData(SCENE, {
  ...{ step: "ProfilerStep#1", first: -5, start: [15, 35, 39], duration: [20, 4, 16], kind: [0, 3, 0] },
  ...{ track: [1, 1, 2], role: [1, 0, 1], position: [2, 0, 1], item: [1, 0, 0], gains: [7], packedSlack: [1, 2, 0, 9, 4, 0] },
});

test("times count from the chart's origin, and pieces are found by GPU and time", () => {
  const data = path();
  assert.deepEqual([...data.start], [10, 30, 34]);
  assert.deepEqual([...data.end], [30, 34, 50]);
  assert.deepEqual([[0, 12], [0, 33], [0, 40], [1, 40], [1, 12]].map(([track, time]) => data.at(track, time, 0)), [0, 1, -1, 2, -1]);
  assert.equal(data.at(1, 53, 3), 2);
});

test("an interval leads to its piece, and to its slack where it has none", () => {
  const data = path();
  assert.equal(data.ofInterval({ lane: 1, position: 1 }), 0);
  assert.equal(data.ofInterval({ lane: 3, position: 0 }), 2);
  assert.equal(data.ofInterval({ lane: 1, position: 2 }), -1);
  const slack = [[1, 0], [1, 1], [1, 2], [2, 0], [3, 0], [3, 1], [0, 4]].map(([lane, position]) => data.slackOf({ lane, position }));
  assert.deepEqual(slack, [Infinity, 0, null, 7, 2, null, null]);
});

test("runs of one kind follow each other without another piece between", () => {
  assert.deepEqual(path().runs[0].map(({ first, last, longest }) => [first, last, longest]), [[0, 0, 20], [1, 1, 4]]);
});

test("a gain is that of the item of a piece", () => {
  const data = path();
  assert.deepEqual([0, 1].map((i) => data.gainOf(i)), [7, null]);
});

test("spans that nearly touch are one, and what they leave is the rest of the width", () => {
  const spans = joined([[-4, 2], [3, 5], [9, 12]], 1.5);
  assert.deepEqual(spans, [[-4, 5], [9, 12]]);
  assert.deepEqual(between(spans, 20), [[5, 9], [12, 20]]);
  assert.deepEqual(between([], 7), [[0, 7]]);
});
