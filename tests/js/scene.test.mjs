import assert from "node:assert/strict";
import test from "node:test";

import { columnsOf, unpack } from "../../viewers/gantt/static/data/columns.js";
import { rowsOf, stepAt, stepClock, stepSpan, stripParts } from "../../viewers/gantt/static/data/rows.js";
import { figures } from "../../viewers/gantt/static/page/summary.js";
import { lodOf, packed } from "./lod_builders.mjs";

const SCENE = {
  end: 220,
  tracks: [{ bounds: [0, 100, 200] }, { bounds: [20, 120, 220] }],
  strips: [{ tracks: [0, 1], names: ["ProfilerStep#4", "ProfilerStep#5"] }],
  lanes: [0, 1].flatMap((track) => ["phases", "exposure"].map((role) => ({ track, role }))),
  categories: Array.from({ length: 8 }, () => ({})),
  special: { exposed: 4, overlapped: 7, memory: 5, idle: 6 },
};

test("columns are unpacked, with values beyond 32 bits", async () => {
  assert.deepEqual([...(await unpack(packed("Uint16", Uint16Array.of(1, 500, 65535))))], [1, 500, 65535]);
  const wide = await unpack(packed("Uint32", Uint32Array.of(7, 0xffffffff), [[1, 2 ** 40 + 1]]));
  assert.deepEqual([...wide], [7, 2 ** 40 + 1]);
});

test("starts are the running sums of the deltas, lane by lane", async () => {
  const bytes = (...values) => packed("Uint8", Uint8Array.of(...values));
  const scene = {
    categories: [{}],
    lanes: [{ track: 0, role: "phases", first: -5, count: 2 }, { track: 0, role: "collectives", first: 7, count: 1 }],
    columns: { delta: bytes(0, 3, 0), duration: bytes(1, 2, 3), category: bytes(0, 0, 0), name: bytes(0, 0, 0), stream: bytes(0, 0, 0), exposed: bytes(9), wait: bytes(5), waitsFor: bytes(3) },
  };
  const { start, offsets, exposedFrom, exposed, wait, waitsFor } = await columnsOf(scene);
  assert.deepEqual([...start], [-5, -2, 7]);
  assert.deepEqual([...offsets], [0, 2, 3]);
  assert.deepEqual([exposed, wait, waitsFor].map((column) => column[2 - exposedFrom[0]]), [9, 5, 3]);
});

test("times in a step count from its first GPU, on the axis and in a GPU's own step", () => {
  assert.deepEqual([-5, 0, 99, 100, 219].map(stepClock(SCENE)), [-5, 0, 99, 0, 119]);
  // At 110 the second GPU is still in its first step.
  assert.deepEqual([[0, 110], [1, 110], [1, 125], [1, 500]].map(([track, time]) => stepClock(SCENE, track)(time)), [10, 110, 25, 400]);
});

test("figures count the visible time inside the steps, and idle is the rest", () => {
  const entries = [
    { lane: 0, start: 0, duration: 30, category: 1 },
    { lane: 0, start: 60, duration: 20, category: 4 },
    { lane: 1, start: -50, duration: 60, category: 7 },
    { lane: 2, start: 20, duration: 200, category: 0 },
    { lane: 3, start: 210, duration: 50, category: 7 },
  ];
  const all = figures(lodOf(entries, 4, 8), SCENE, -1000, 1000);
  assert.equal(all.wall, 400);
  assert.deepEqual(all.parts, [200, 30, 0, 0, 20, 0, 150, 0]);
  assert.equal(all.overlapped, 10 + 10);
  assert.deepEqual([all.steps, all.step], [2, 100]);
  const window = figures(lodOf(entries, 4, 8), SCENE, 10, 70);
  assert.equal(window.wall, 60 + 50);
  assert.deepEqual(window.parts, [50, 20, 0, 0, 10, 0, 30, 0]);
  assert.deepEqual([window.steps, window.step], [1, 100]);
  assert.equal(figures(lodOf(entries, 4, 8), SCENE, 500, 600).wall, 0);
});

test("a figure that is unknown on one GPU is unknown in the sum, with the reason; idle stays the rest", () => {
  const special = { ...SCENE.special, waiting: 3 }, span = [3, 0, 100, "rank 1 is missing"], lod = lodOf([{ lane: 0, start: 60, duration: 20, category: 4 }], 4, 8);
  const [first, second] = SCENE.tracks, scene = { ...SCENE, special, tracks: [{ ...first, unknown: [span] }, second] };
  const known = figures(lod, { ...SCENE, special }, 0, 100), found = figures(lod, scene, 0, 100);
  assert.deepEqual([found.parts[3], found.why], [null, { 3: "rank 1 is missing" }]);
  assert.deepEqual(found.parts.with(3, 0), known.parts);
  // Another step has it, so that the whole range has, too; and so has a range without time in the steps.
  assert.deepEqual([figures(lod, scene, 0, 150).why, figures(lod, scene, 500, 600).why], [{}, {}]);
  const whole = { ...scene, tracks: [{ ...first, unknown: [[3, 0, 100, "a"], [3, 100, 200, "b"], [6, -5, 300, "c"]] }, second] };
  assert.deepEqual(Object.keys(figures(lod, whole, 0, 200).why), ["3", "6"]);
  assert.equal(figures(lod, whole, 0, 200).parts[6], null);
});

test("steps are found by time and span their ranks", () => {
  const track = { bounds: [0, 100, 200, 300] };
  assert.deepEqual([-1, 0, 99, 100, 299, 300].map((time) => stepAt(track, time)), [-1, 0, 0, 1, 2, -1]);
  assert.deepEqual(stepSpan(SCENE, SCENE.strips[0], 1), { from: 100, to: 220 });
});

test("rows have the lanes that fill them and the time of their steps", () => {
  const scene = { ...SCENE, layout: { rows: [{ track: 1, role: "phases", y: 0, h: 9 }, { track: 1, role: "exposure", y: 9, h: 9 }] } };
  const [phases, exposure] = rowsOf(scene);
  assert.equal(phases.lane, 2);
  assert.equal(exposure.lane, 3);
  assert.deepEqual([phases.from, phases.to], [20, 220]);
});

test("one row names the steps of the topmost GPU, and beside them those at other times", () => {
  const tracks = [[0, 100], [30, 130], [1000, 1900], [40, 800]].map((bounds) => ({ bounds })), strips = tracks.map((_, track) => ({ tracks: [track], names: ["0"] }));
  const numbers = (shown, from, to, lead) => stripParts({ tracks, strips }, { strips: [0, 1, 2, 3], lead }, shown, { from, to }).map(({ number }) => number);
  assert.deepEqual(numbers([0, 1], 0, 1900), [0, 2]);
  assert.deepEqual(numbers([1, 0], 0, 1900), [1, 2]);
  assert.deepEqual(numbers([0, 1, 2], 1000, 1100), [2, 0]);
  assert.deepEqual(numbers([0, 1], 0, 100, 1), [1, 2]);
  assert.deepEqual(numbers([0, 3], 0, 1000), [3, 2]);
  const alike = [{ tracks: [0, 1, 3], names: ["0"] }], lead = (shown, own) => stripParts({ tracks, strips: alike }, { strips: [0], lead: own }, shown, { from: 0, to: 100 })[0].track;
  assert.deepEqual([3, 0, 1, 0], [lead([3, 1]), lead([0, 1]), lead([0, 1], 1), lead([])]);
});
