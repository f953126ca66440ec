import assert from "node:assert/strict";
import test from "node:test";

import { SearchIndex } from "../../viewers/gantt/static/data/search.js";
import { lodOf, random } from "./lod_builders.mjs";

const SCENE = {
  lanes: [{ track: 0, role: "compute" }, { track: 0, role: "phases" }, { track: 0, role: "collectives" }, { track: 1, role: "compute" }],
  names: ["void at::native::GEMM<float>(int)", "softmax", "GemV"],
  collectives: [{ name: "ncclKernel", kind: "all_reduce", group: "dp", label: "FSDP::unit (layers.3)" }, { name: "x", kind: "", group: "" }],
};

function searchSetup(seed = 3) {
  const draw = random(seed), entries = [], names = [];
  SCENE.lanes.forEach((_, lane) => {
    let time = 0;
    for (let i = 0; i < 60; i++) {
      entries.push({ lane, start: (time += Math.floor(draw() * 20)), duration: Math.floor(draw() * 40), category: 0 });
      names.push(Math.floor(draw() * (lane === 2 ? 2 : 3)));
    }
  });
  const lod = lodOf(entries, 4, 1);
  return { lod, entries, names, searchIndex: new SearchIndex(lod, SCENE, { name: names }) };
}

test("the search ignores case and covers kernels and collectives only", () => {
  const { searchIndex, entries, names } = searchSetup(), indices = (hits) => hits.lanes.flatMap(({ items }) => [...items]);
  const truth = (wanted) => entries.map((_, i) => i).filter((i) => wanted(entries[i].lane, names[i]));
  assert.deepEqual(indices(searchIndex.find("gEm")), truth((lane, name) => [0, 3].includes(lane) && name !== 1));
  assert.deepEqual(indices(searchIndex.find("all-reduce")), truth((lane, name) => lane === 2 && name === 0));
  assert.deepEqual(indices(searchIndex.find("layers.3")), indices(searchIndex.find("ALL_REDUCE")));
  assert.equal(searchIndex.find("no such kernel").count, 0);
  assert.equal(searchIndex.find("  "), null);
});

test("number and time of the hits in a window equal brute force", () => {
  const { searchIndex, entries } = searchSetup(), hits = searchIndex.find("gem");
  for (const [from, to] of [[-10, 5000], [100, 300], [250, 251], [9000, 9001]]) {
    const truth = [0, 1].map((track) => {
      const own = hits.lanes.filter((lane) => lane.track === track).flatMap(({ items }) => [...items]).map((i) => entries[i]);
      const inside = own.filter((e) => e.start <= to && e.start + e.duration > from);
      const time = own.reduce((sum, e) => sum + Math.max(0, Math.min(to, e.start + e.duration) - Math.max(from, e.start)), 0);
      return { track, count: inside.length, time };
    });
    assert.deepEqual(hits.perTrack(from, to), truth);
  }
});

test("hits are visited in order of time over all GPUs, and wrap around", () => {
  const { searchIndex, entries } = searchSetup(), hits = searchIndex.find("gem");
  const order = hits.lanes.flatMap(({ items }) => [...items]).sort((a, b) => entries[a].start - entries[b].start || a - b);
  let at = { start: -1, index: -1 };
  for (let i = 0; i < order.length; i++) {
    at = hits.next(at, 1);
    assert.equal(at.index, order[i]);
    assert.equal(hits.ordinal(at), i + 1);
  }
  assert.equal(hits.next(at, 1).index, order[0]);
  for (let i = order.length - 2; i >= 0; i--) assert.equal((at = hits.next(at, -1)).index, order[i]);
  assert.equal(hits.next(at, -1).index, order.at(-1));
});

test("the columns that hits touch equal brute force", () => {
  for (let seed = 1; seed < 30; seed++) {
    const { searchIndex, entries } = searchSetup(seed), [lane] = searchIndex.find("gem").lanes, own = [...lane.items].map((i) => entries[i]);
    for (const [from, px, width] of [[-20, 7, 100], [100, 1.5, 80], [0, 40, 30], [5000, 3, 10]]) {
      const seen = new Uint8Array(width);
      for (const [left, right] of lane.touched({ from, px, width })) seen.fill(1, left, right);
      for (let column = 0; column < width; column++) {
        const begin = from + column * px, end = begin + px;
        const touches = own.some((e) => e.start + e.duration > begin && e.start < end);
        if (touches) assert.equal(seen[column], 1, `${seed}: ${column}`);
        else if (seen[column]) assert.ok(own.some((e) => e.duration === 0 && e.start >= begin - 1e-9 && e.start < end + 1e-9), `${seed}: ${column} is not touched`);
      }
    }
  }
});
