import assert from "node:assert/strict";
import test from "node:test";

import { streamsOf } from "../../viewers/gantt/static/stage/extra_rows.js";
import { readView, writeView } from "../../viewers/gantt/static/interaction/view.js";
import { ranksOf, ranksText, stepNamed } from "../../viewers/gantt/static/data/rows.js";
import { CollectiveMembers } from "../../viewers/gantt/static/data/collectives.js";
import { callsIn } from "../../viewers/gantt/static/data/calls.js";
import { inRange } from "../../viewers/gantt/static/data/range.js";
import { memberRows } from "../../viewers/gantt/static/interaction/select.js";
import { Theme, looks, patternsOf } from "../../viewers/base/static/theme.js";
import { covered, lodOf, random, packed as packedColumn } from "./lod_builders.mjs";

const packed = (...values) => packedColumn("Uint16", Uint16Array.of(...values));

test("a view is read as it was written", () => {
  const asked = { t: "-5,1000000", step: "ProfilerStep#4", rank: "3", find: "a&b=#é, c%2C", theme: "dark", open: "0-3,7.1", host: "fold:0-3;off:5", panel: "compute,3.1,17,123456.5", top: "4,-12" };
  assert.deepEqual(readView(writeView(asked)), asked);
  assert.equal(writeView({ t: null, step: undefined, find: "", idle: false, panel: 0 }), "");
  assert.deepEqual(readView("#t=1.5,2.5&find="), { t: "1.5,2.5" });
});

test("invalid settings of a view are neither read nor written", () => {
  const hostile = ["", "#", "#t=NaN,Infinity", "#t=1e9,2e99", "#t=1,2,3", "#t=", "#rank=-1", "#rank=1e3", "#rank=__proto__", "#theme=<script>", `#find=${"x".repeat(300)}`, `#t=1,2&${"y".repeat(50_000)}`, "#%", "#t=%E0%A4%A", "#panel=constructor,1", "#panel=compute,<b>,1", "#host=fold:<b>", "#top=1", "#open=all", null, 7];
  for (const text of hostile) assert.deepEqual(readView(text), {}, String(text));
  assert.deepEqual(readView("#__proto__=1&constructor=2&toString=3"), {});
  assert.equal(writeView({ theme: "<b>", idle: "yes", find: "x".repeat(300), unknown: "1" }), "");
});

test("GPUs are listed by their ranks", () => {
  const scene = { tracks: ["0", "1", "1", "2", "3", "12"].map((rank, i) => ({ label: `A · rank ${rank} · GPU ${i}` })) };
  assert.equal(ranksText(scene, [0, 1, 2, 3, 4, 5]), "0-1,1.1,2-3,12");
  assert.deepEqual(ranksOf(scene, "0-1,1.1,2-3,12"), [0, 1, 2, 3, 4, 5]);
  assert.equal(ranksText(scene, []), "none");
  for (const nothing of ["none", "", "7", "0.1", "3-2", "1-", "-", ",,"]) assert.deepEqual(ranksOf(scene, nothing), [], nothing);
  assert.deepEqual(ranksOf(scene, "2-999999999"), [3, 4, 5]);
});

test("a step is found by its name or by the number at its end", () => {
  const strips = [{ names: ["ProfilerStep#4", "ProfilerStep#14"] }, { names: ["ProfilerStep#5", "warm"] }];
  assert.deepEqual(stepNamed(strips, "ProfilerStep#14"), { strip: 0, step: 1 });
  assert.deepEqual(stepNamed(strips, "4"), { strip: 0, step: 0 });
  assert.deepEqual(stepNamed(strips, "5"), { strip: 1, step: 0 });
  assert.deepEqual(stepNamed(strips, "warm"), { strip: 1, step: 1 });
  assert.equal(stepNamed(strips, "6"), null);
});

function themed(matches) {
  const root = { dataset: {}, style: { setProperty: (key, value) => (root[key] = value) } }, dark = { matches, addEventListener: (_, act) => (dark.change = act) };
  const scene = { categories: [{ color: "#111111", ink: "#EEEEEE", dark: { color: "#222222", ink: "#DDDDDD" } }, { color: "#333333", ink: "#CCCCCC" }], chrome: { light: { paper: "w" }, dark: { paper: "b" } } };
  return { root, dark, scene, theme: new Theme(scene, root, dark) };
}

test("the system's theme holds until one is chosen", () => {
  const { root, dark, theme } = themed(true), seen = [];
  theme.follow(({ name }) => seen.push(name));
  assert.deepEqual([root.dataset.theme, root["--c0"], root["--i1"]], ["dark", "#222222", "#CCCCCC"]);
  theme.toggle();
  dark.change();
  theme.mode = "nonsense";
  assert.deepEqual([theme.mode, root["--c0"]], ["light", "#111111"]);
  theme.mode = "auto";
  assert.deepEqual(seen, ["dark", "light", "dark"]);
});

test("a scene without dark colors keeps its colors", () => {
  assert.deepEqual(looks({ categories: [{ color: "a", ink: "b" }] }, "dark"), { name: "dark", categories: [{ color: "a", ink: "b" }], chrome: {} });
  assert.deepEqual(patternsOf({ categories: [{}, { pattern: "hatch" }, { pattern: "back" }, {}] }), { 1: "hatch", 2: "back" });
});

const LANES = ["compute", "exposure", "collectives"];
const SCENE = {
  tracks: [{ label: "rank 0 · GPU 0", bounds: [0, 100] }, { label: "rank 1 · GPU 1", bounds: [50, 200] }],
  lanes: [0, 1].flatMap((track) => LANES.map((role) => ({ track, role }))),
  collectives: [{ kind: "all_reduce" }, { kind: "all_gather" }, { kind: "" }],
  special: { exposed: 0, waiting: 2 },
  columns: { streams: [7, 20] },
};

test("each kind's time in a window equals brute force, with overlaps counted once", () => {
  const draw = random(5), entries = [];
  for (const lane of [1, 4]) {
    let time = 0;
    for (let i = 0; i < 40; i++) entries.push({ lane, start: (time += Math.floor(draw() * 8)), duration: Math.floor(draw() * 12), category: Math.floor(draw() * 3), name: Math.floor(draw() * 3) });
  }
  const lod = lodOf(entries, 6, 3), columns = { name: entries.map(({ name }) => name) };
  for (const [from, to] of [[-10, 500], [30, 90], [60, 61], [300, 400]]) {
    const truth = ["all_reduce", "all_gather", "other"].map((kind, name) => {
      const of = (...categories) => [0, 1].reduce((sum, track) => {
        const lane = 3 * track + 1, only = entries.filter((e) => e.lane === lane && e.name === name && categories.includes(e.category)).map((e) => ({ ...e, lane: 0, category: 0 }));
        const { bounds } = SCENE.tracks[track];
        return sum + covered(lodOf(only, 1, 1), 0, 0, Math.max(from, bounds[0]), Math.min(to, bounds[1]));
      }, 0);
      return [kind, of(0, 2), of(2), of(1)];
    });
    const { kinds } = inRange(lod, SCENE, columns, "collectives", from, to), used = (sums) => sums.filter(([, exposed, , overlapped]) => exposed + overlapped).sort();
    assert.deepEqual(used(kinds), used(truth));
  }
});

test("names beyond the most that are listed are counted in the total", () => {
  const entries = Array.from({ length: 250 }, (_, i) => ({ lane: 0, start: i, duration: 250 - i, category: 0 })), lod = lodOf(entries, 6, 1);
  const { rows, others, total } = inRange(lod, { ...SCENE, tracks: [{ bounds: [0, 500] }, { bounds: [0, 500] }] }, { name: entries.map((_, i) => i) }, "kernels", 0, 500);
  assert.deepEqual([rows.length, rows[0], rows[199], others, total], [200, [0, 1, 250, 250], [199, 1, 51, 51], 50, [250, (250 * 251) / 2]]);
});

test("runs that are compared have figures of their own", () => {
  const entries = Array.from({ length: 6 }, (_, i) => ({ lane: i < 3 ? 0 : 3, start: i, duration: 10 + i, category: 0 })), lod = lodOf(entries, 6, 1), columns = { name: Array(6).fill(0) };
  const scene = { ...SCENE, tracks: [{ bounds: [0, 500] }, { bounds: [0, 500] }] }, of = (chosen) => inRange(lod, scene, columns, "kernels", 0, 500, chosen).total;
  assert.deepEqual([of([0]), of([1]), of(null)], [[3, 33], [3, 42], [6, 75]]);
  const { total, extremes } = callsIn(lod, scene, columns, null, { from: 0, to: 500, kernel: 0, by: "start", down: false, chosen: [1] });
  assert.deepEqual([total, extremes], [3, [13, 15]]);
});

test("a list has the first intervals in an order, all that are wanted in its total, and each in a class of durations", () => {
  const entries = Array.from({ length: 600 }, (_, i) => ({ lane: 3 * (i % 2), start: i, duration: 1 + ((i * 7919) % 600), category: 0 })), lod = lodOf(entries, 6, 1), name = Array.from(lod.start, (start) => start % 3);
  const scene = { ...SCENE, tracks: [{ bounds: [0, 900] }, { bounds: [0, 900] }], names: ["b", "a", "c"] }, all = [...lod.start.keys()];
  const listed = (asked) => callsIn(lod, scene, { name }, (text) => ({ names: ["b", "a", "c"].map((one) => one === text), collectives: [false] }), { from: 0, to: 900, ...asked });
  const { total, classes, places } = listed({ by: "duration", down: true });
  assert.deepEqual([total, classes.reduce((sum, [, count]) => sum + count, 0), places.length], [600, 600, 200]);
  assert.deepEqual(places.map(({ lane, position }) => lod.duration[lod.indexOf(lane, position)]), [...lod.duration].sort((a, b) => b - a).slice(0, 200));
  const starts = (found) => found.places.map(({ lane, position }) => lod.start[lod.indexOf(lane, position)]);
  assert.deepEqual(starts(listed({ by: "start", down: false, text: "a" })), all.map((i) => lod.start[i]).filter((start) => start % 3 === 1).sort((a, b) => a - b));
  assert.deepEqual(starts(listed({ by: "start", down: true, kernel: 2, from: 700, to: 701 })).every((start) => start % 3 === 2), true);
});

test("streams hold every recorded interval once, in order of time", () => {
  const entries = [
    { lane: 0, start: 0, duration: 9, category: 0 },
    { lane: 0, start: 5, duration: 9, category: 1 },
    { lane: 1, start: 5, duration: 2, category: 0 },
    { lane: 2, start: 2, duration: 4, category: 0 },
    { lane: 3, start: 1, duration: 1, category: 0 },
  ];
  const { lod, streams, source } = streamsOf(lodOf(entries, 6, 2), SCENE, { stream: [1, 0, 0, 1, 0] }, 0);
  assert.deepEqual(streams, [7, 20]);
  assert.deepEqual([...source], [1, 0, 3]);
  assert.deepEqual([...lod.offsets], [0, 1, 3]);
  assert.deepEqual([...lod.start], [5, 0, 2]);
  assert.deepEqual([0, 1, 2, 3, 4].map((i) => lodOf(entries, 6, 2).laneAt(i)), [0, 0, 1, 2, 3]);
});

const sceneOf = (lod, details) => ({ ...SCENE, details, lanes: SCENE.lanes.map((lane, i) => ({ ...lane, count: lod.offsets[i + 1] - lod.offsets[i] })) });

test("a collective's members are collected over the ranks", async () => {
  const entries = [{ lane: 0, start: 1, duration: 1 }, { lane: 2, start: 10, duration: 30 }, { lane: 2, start: 50, duration: 5 }, { lane: 5, start: 20, duration: 20 }].map((e) => ({ category: 0, ...e }));
  const lod = lodOf(entries, 6, 1), columns = { exposed: [12, 5, 20], exposedFrom: [1, 1] };
  const details = {
    launch: packed(6, 0, 1, 3),
    instance: packed(1, 0, 1),
    wait: packed(11, 0, 1),
    late: packed(1, 0, 0),
    within: packed(0, 0, 13),
    groups: [{ name: "0", description: "mesh_dp", size: 4 }],
    instances: { transfer: packed(21), algbw: packed(5), busbw: packed(8), last: packed(2), bytes: packed(4096), seq: packed(18), group: packed(0), name: packed(0), names: ["bucket 0"] },
  };
  const members = new CollectiveMembers(lod, sceneOf(lod, details), columns);
  await members.ready(3);
  const known = members.of(3);
  assert.deepEqual([known.name, known.seq, known.last, known.transfer, known.bytes, known.busbw, known.group.description], ["bucket 0", 17, 1, 20, 4096, 8000, "mesh_dp"]);
  assert.deepEqual(known.members, [{ track: 0, index: 1, wait: 10, late: 0, within: null, exposed: 12 }, { track: 1, index: 3, wait: 0, late: null, within: 12, exposed: 20 }]);
  assert.equal(members.of(2), null);
  assert.deepEqual([0, 1, 2, 3].map((i) => members.launchDelay(i)), [5, null, 0, 2]);
  assert.deepEqual(memberRows(known, SCENE, lod).map(({ cells }) => cells), [
    ["rank 0 · GPU 0", "first", "10 ns", "20 ns", "12 ns", "18 ns"],
    ["rank 1 · GPU 1 · last", "within ±12 ns", "0 ns", "20 ns", "20 ns", "0 ns"],
  ]);
});

test("what a missing rank leaves unknown is not drawn as zero", async () => {
  const lod = lodOf([{ lane: 2, start: 10, duration: 30, category: 0 }], 6, 1), zero = packed(0);
  const instances = { transfer: zero, algbw: zero, busbw: zero, last: zero, bytes: zero, seq: zero, group: zero, name: zero, names: [""] };
  const details = { instance: packed(1), wait: zero, late: zero, within: zero, groups: [{ name: "0", description: "", size: 2 }], instances };
  const members = new CollectiveMembers(lod, sceneOf(lod, details), { exposed: [12], exposedFrom: [0, 1] });
  await members.ready(0);
  const known = members.of(0);
  assert.deepEqual([known.transfer, known.last, known.members[0].wait, known.members[0].late], [null, -1, null, null]);
  assert.deepEqual(memberRows(known, SCENE, lod).map(({ cells }) => cells), [["rank 0 · GPU 0", "unknown", "unknown", "unknown", "12 ns", "18 ns"]]);
});

test("without details, members and launch delays are unknown", async () => {
  const members = new CollectiveMembers(lodOf([{ lane: 2, start: 0, duration: 1, category: 0 }], 6, 1), SCENE, { exposed: [0], exposedFrom: [0, 1] });
  await members.ready(0);
  assert.deepEqual([members.of(0), members.launchDelay(0)], [null, null]);
});
