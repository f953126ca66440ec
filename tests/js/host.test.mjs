import assert from "node:assert/strict";
import test from "node:test";

import { endOf, gapAt, callFacts, launchFacts } from "../../viewers/gantt/static/host/host_panel.js";
import { HostActivity, HostLaunches } from "../../viewers/gantt/static/host/host_source.js";
import { CALLS, HostCalls, KIND, LABELS, PYTHON, HostRows } from "../../viewers/gantt/static/host/host_rows.js";
import { Lod } from "../../viewers/gantt/static/data/lod.js";

/** Calls { thread, flame, depth, start, end, kind, name, detail } as the page unpacks them. */
function callsOf(events, details = [["", "", "", "", -1, ""]]) {
  const key = ({ thread, flame, depth }) => (thread * 3 + flame) * 100 + depth;
  const ordered = [...events].sort((a, b) => key(a) - key(b) || a.start - b.start), levels = [], offsets = [0];
  for (const event of ordered) {
    if (!levels.length || key(levels.at(-1)) !== key(event)) {
      levels.push({ thread: event.thread, flame: event.flame, depth: event.depth });
      offsets.push(offsets.at(-1));
    }
    offsets[offsets.length - 1]++;
  }
  const names = [...new Set(ordered.map(({ name }) => name))], take = (Type, pick) => Type.from(ordered, pick);
  const kind = take(Uint8Array, (event) => event.kind), start = take(Float64Array, (event) => event.start);
  const lod = new Lod({ start, duration: take(Float64Array, (event) => event.end - event.start), category: kind, offsets: Int32Array.from(offsets), categories: 7 });
  const fields = { names, details, levels, kind, name: take(Int32Array, (event) => names.indexOf(event.name)), detail: take(Int32Array, (event) => event.detail ?? 0) };
  return new HostCalls({ lod, ...fields, window: [0, 1e6], total: ordered.length, leftOut: 0, shortest: 0 });
}

const op = (name, depth, start, end, more = {}) => ({ thread: 0, flame: CALLS, depth, start, end, kind: KIND.operator, name, ...more });
const EVENTS = [
  op("aten::linear", 0, 100, 500),
  op("aten::addmm", 1, 120, 480, { detail: 1 }),
  op("cudaLaunchKernel", 2, 200, 210, { kind: KIND.runtime }),
  op("cudaLaunchKernel", 2, 300, 330, { kind: KIND.runtime }),
  op("aten::item", 0, 600, 900, { kind: KIND.synchronizing }),
  op("cudaStreamSynchronize", 1, 650, 890, { kind: KIND.synchronizing }),
  { ...op("ProfilerStep#3", 0, 0, 1000), flame: LABELS, kind: KIND.annotation },
  { ...op("## forward ##", 1, 90, 550), flame: LABELS, kind: KIND.annotation },
  { ...op("train.py(9): step", 0, 50, 950), flame: PYTHON, kind: KIND.python },
  { ...op("model.py(3): forward", 1, 95, 540), flame: PYTHON, kind: KIND.python },
  { ...op("other", 0, 0, 1000), thread: 1 },
];
const DETAILS = [["", "", "", "", -1, ""], ["[8, 4] × [4, 2]", "float, float", "", "", -1, ""]];

const nameOf = (calls, index) => (index < 0 ? null : calls.nameOf(index));

test("the innermost call of a thread's flame is found at any time", () => {
  const calls = callsOf(EVENTS);
  for (let time = 0; time < 1000; time += 7)
    for (const flame of [CALLS, LABELS, PYTHON]) {
      const running = EVENTS.filter((one) => one.thread === 0 && one.flame === flame && one.start <= time && time < one.end);
      const expected = running.sort((a, b) => b.depth - a.depth)[0]?.name ?? null;
      assert.equal(nameOf(calls, calls.at(0, flame, time)), expected, `${flame} ${time}`);
    }
});

test("where no outermost call runs, a folded row shows the innermost annotation", () => {
  const label = (name, depth, start, end) => ({ ...op(name, depth, start, end), flame: LABELS, kind: KIND.annotation });
  const events = [...EVENTS, label("# sparse", 2, 480, 540), label("# idle", 2, 545, 550), label("## backward ##", 1, 580, 1000), label("## step ##", 2, 920, 990)];
  const calls = callsOf(events), { lod, source } = calls.labelsBetween(0, calls.lanesOf(0, CALLS)[0]);
  for (let time = 0; time < 1000; time++) {
    const running = events.filter(({ thread, start, end }) => thread === 0 && start <= time && time < end), busy = running.some(({ flame }) => flame === CALLS);
    const labels = running.filter(({ flame, name }) => flame === LABELS && !name.startsWith("ProfilerStep")).sort((a, b) => b.depth - a.depth);
    const found = lod.at(0, time);
    assert.equal(found < 0 ? null : calls.nameOf(source[found]), busy ? null : (labels[0]?.name ?? null), String(time));
  }
});

test("the calls around one are those that enclose it on its thread and in its flame", () => {
  const calls = callsOf(EVENTS), launch = calls.launchAt(0, 300);
  assert.deepEqual(calls.around(launch).map((index) => calls.nameOf(index)), ["aten::addmm", "aten::linear"]);
  assert.deepEqual(calls.around(calls.at(1, CALLS, 300)), []);
});

test("a launch is the call that begins at its time, not an operator that begins there, too", () => {
  const calls = callsOf([...EVENTS, op("aten::copy_", 0, 950, 990), op("cudaMemcpyAsync", 1, 950, 960, { kind: KIND.runtime })]);
  assert.equal(nameOf(calls, calls.launchAt(0, 950)), "cudaMemcpyAsync");
  assert.equal(nameOf(calls, calls.launchAt(0, 100)), "aten::linear");
  assert.equal(calls.launchAt(0, 101), -1);
  assert.equal(calls.launchAt(1, 300), -1);
});

const SCENE = { lanes: [{ track: 0, role: "compute", count: 3 }, { track: 0, role: "memory", count: 1 }, { track: 0, role: "idle", count: 3 }, { track: 1, role: "compute", count: 1 }] };
const COLUMNS = { start: [200, 300, 0, 50], length: [11, 31, 0, 6], thread: [1, 1, 0, 2], correlation: [8, 12, 0, 5], detail: [1, 2, 0, 0] };

test("launches are found by interval, and intervals by launch", () => {
  const launches = new HostLaunches(COLUMNS, SCENE, 0);
  assert.deepEqual(launches.of({ lane: 0, position: 1 }), { start: 300, end: 330, thread: 0, correlation: 11, detail: 1 });
  assert.deepEqual(launches.of({ lane: 0, position: 2 }), { start: null, end: null, thread: null, correlation: null, detail: null });
  assert.deepEqual(launches.of({ lane: 1, position: 0 }), { start: 50, end: 55, thread: 1, correlation: 4, detail: null });
  assert.equal(launches.of({ lane: 3, position: 0 }), null);
  assert.deepEqual(launches.launchedIn(0, 0, 1000, 9), [{ lane: 0, position: 0 }, { lane: 0, position: 1 }]);
  assert.deepEqual(launches.launchedIn(0, 201, 300, 9), []);
  assert.deepEqual(launches.launchedIn(0, 200, 301, 1), [{ lane: 0, position: 0 }]);
  assert.deepEqual(launches.launchedIn(1, 0, 1000, 9), [{ lane: 1, position: 0 }]);
});

test("a kernel's facts are those of its launch and its operator, and say what was not recorded", () => {
  const calls = callsOf(EVENTS, DETAILS), launches = new HostLaunches(COLUMNS, SCENE, 0);
  const launchDetails = [["", "", "", "", -1, ""], ["", "", "[32, 1, 1]", "[128, 1, 1]", -1, ""]];
  const facts = (position, start) => Object.fromEntries(launchFacts({ calls, launches, launchDetails }, launches.of({ lane: 0, position }), start));
  const known = facts(1, 400);
  assert.equal(known.operator, "aten::addmm");
  assert.deepEqual([known.shapes, known.dtype, known["called in"], known["launched by"]], ["[8, 4] × [4, 2]", "float, float", "## forward ##", "cudaLaunchKernel"]);
  assert.deepEqual([known.grid, known.block, known.correlation], ["[32, 1, 1]", "[128, 1, 1]", "11"]);
  assert.ok(known["queue delay"].startsWith("70 ns "));
  assert.ok(facts(1, 320)["queue delay"].endsWith("started 10 ns before the launch returned"), "a kernel can start before its launch returns");
  assert.equal(known.stack, "model.py(3): forward\ntrain.py(9): step");
  const unknown = facts(2, 400);
  for (const key of ["operator", "shapes", "dtype", "queue delay", "correlation", "grid", "block", "stack"]) assert.equal(unknown[key], "not recorded", key);
});

test("what the page leaves out is not said to be missing in the trace", () => {
  const calls = callsOf([op("aten::other", 0, 0, 10)]), facts = (launch) => Object.fromEntries(launchFacts({ calls, launches: {}, launchDetails: [] }, launch, 400));
  const launch = { start: 300, end: 330, thread: 0, correlation: 4, detail: null };
  for (const key of ["operator", "shapes", "dtype", "called in", "launched by", "stack"]) assert.match(facts(launch)[key], /left out.*--serve/, key);
  assert.match(facts({ ...launch, thread: null }).operator, /left out.*dptrace kernels/);
  assert.equal(facts({ ...launch, start: null, end: null }).operator, "not recorded");
});

test("names from traces are escaped in facts", () => {
  const calls = callsOf([op("evil\u202e\u0007", 0, 0, 10)], [["\u202e[1]", "", "", "", -1, "a\u202e\nb"]]);
  const facts = Object.fromEntries(callFacts({ calls, threads: ["main"] }, 0, { start: [], kinds: [{ label: "Operator" }] }));
  assert.ok(!/[\u202e\u0007]/.test(Object.values(facts).join("")));
  assert.deepEqual(facts.stack.split("\n").length, 2);
});

test("a call's own time is what the calls directly in it leave", () => {
  const calls = callsOf(EVENTS), index = calls.around(calls.launchAt(0, 300))[0], kinds = Array.from({ length: 7 }, () => ({ label: "x" }));
  const facts = Object.fromEntries(callFacts({ calls, threads: ["main", "autograd"] }, index, { start: [], kinds }));
  assert.ok(facts.itself.startsWith("320 ns "));
  assert.equal(facts.path, "aten::linear › aten::addmm");
});

test("what the host did adds up to the gap, whatever its ends", () => {
  const labels = [[4, "aten::a", ""], [2, "cudaMalloc", "here"], [0, "", ""]];
  const words = ["nothing recorded", "data loading", "allocator call", "synchronization", "operator"];
  const activity = new HostActivity({ words, labels, start: Float64Array.of(10, 20, 50, 60), label: Uint8Array.of(0, 1, 0, 2), end: 80 });
  for (let from = 0; from < 90; from += 3)
    for (let to = from + 1; to < 100; to += 5) {
      const spent = activity.spent(from, to), cover = (low, high) => Math.max(0, Math.min(to, high) - Math.max(from, low));
      const sum = (what) => spent.filter((one) => one.what === what).reduce((total, { ns }) => total + ns, 0);
      assert.equal(spent.reduce((total, { ns }) => total + ns, 0), to - from);
      assert.equal(sum("aten::a"), cover(10, 20) + cover(50, 60));
      assert.equal(sum("cudaMalloc"), cover(20, 50));
      assert.deepEqual(spent.map(({ ns }) => ns), spent.map(({ ns }) => ns).sort((a, b) => b - a));
    }
});

function gapScene() {
  // Kernels 0–10, 40–50, 60–70; idle 10–25 (5), 25–40 (6), 50–60 (5).
  const start = Float64Array.of(0, 40, 60, 70, 10, 25, 50, 0), duration = Float64Array.of(10, 10, 10, 1, 15, 15, 10, 5);
  const category = Uint8Array.of(0, 0, 0, 1, 5, 6, 5, 0), offsets = Int32Array.of(0, 3, 4, 7, 8);
  return new Lod({ start, duration, category, offsets, categories: 7 });
}

test("a gap is joined across causes, and ends with the interval that begins there", async () => {
  const lod = gapScene();
  for (const time of [10, 24, 25, 39])
    assert.deepEqual(await gapAt(lod, SCENE, 0, time), { track: 0, from: 10, to: 40, causes: [{ category: 5, ns: 15 }, { category: 6, ns: 15 }] });
  const last = await gapAt(lod, SCENE, 0, 55);
  assert.deepEqual([last.from, last.to], [50, 60]);
  assert.equal(await endOf(lod, SCENE, last), 2);
  assert.equal(await gapAt(lod, SCENE, 0, 45), null);
  assert.equal(await gapAt(lod, SCENE, 1, 15), null);
});

test("a folded row finds blocking calls of deeper levels on its last one", () => {
  const calls = callsOf(EVENTS), lanes = calls.lanesOf(0, CALLS);
  const row = { y: 0, h: 10, host: { calls, lanes: lanes.slice(0, 1), deeper: lanes.slice(1) } };
  assert.equal(nameOf(calls, HostRows.callAt(row, { y: 5, time: 700 }, 0)), "cudaStreamSynchronize");
  assert.equal(nameOf(calls, HostRows.callAt(row, { y: 5, time: 620 }, 0)), "aten::item");
  assert.equal(nameOf(calls, HostRows.callAt(row, { y: 5, time: 205 }, 0)), "aten::linear");
});
