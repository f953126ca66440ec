/** Names of collectives and texts of waits. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { collectiveName, collectiveTexts, waitTexts } from "../../viewers/gantt/static/data/collective_labels.js";

test("a collective is called by its bucket or layer, else by its kind, else by its kernel", () => {
  const kernel = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)";
  assert.equal(collectiveName({ name: kernel, kind: "all_reduce", title: "AR bucket 0" }), "AR bucket 0");
  assert.equal(collectiveName({ name: kernel, kind: "all_reduce" }), "all_reduce");
  assert.equal(collectiveName({ name: kernel, kind: "other" }), kernel);
  assert.equal(collectiveName({ name: kernel, kind: "other", short: "ncclDevKernel_AllReduce_Sum_f32_RING_LL" }), "ncclDevKernel_AllReduce_Sum_f32_RING_LL");
});

test("a label has the size where there is room, and nothing hidden in it", () => {
  assert.deepEqual(collectiveTexts({ name: "k", kind: "all_gather", title: "AG layers.3\u202e", bytes: 2_000_000 }), ["AG layers.3\\u{202e} · 2.0 MB", "AG layers.3\\u{202e}"]);
  assert.deepEqual(collectiveTexts({ name: "k", kind: "other" }), []);
});

test("a wait names the rank, and its time only where nothing interrupts it", () => {
  assert.equal(waitTexts(2, 1e9)[0], "waiting for rank 2 · 1.00 s");
  assert.equal(waitTexts(-1, 1e9)[0], "waiting for other ranks · 1.00 s");
  assert.deepEqual(waitTexts(0, null), ["waiting for rank 0", "waiting"]);
});
