import assert from "node:assert/strict";
import { test } from "node:test";
import { integer, bytes, collectiveWord, duration, kernelTexts, learnShortNames, moment, percent, percentOf, rate, shortName, tickText, tickLabels, truncateMiddle, visible, collectiveName, collectiveTexts, waitTexts } from "../../viewers/gantt/static/data/text.js";

test("durations have three digits and the unit that fits", () => {
  const cases = [[0, "0 ns"], [999, "999 ns"], [1000, "1.00 µs"], [12_645_000, "12.6 ms"], [99_960_000, "100 ms"], [999_900_000, "1.00 s"], [2.5e9, "2.50 s"], [86_400e9, "86,400 s"]];
  for (const [ns, text] of cases) assert.equal(duration(ns), text);
});

test("what is not known is unknown, never 0", () => {
  for (const format of [integer, duration, percent, bytes, rate]) for (const nothing of [null, undefined]) assert.equal(format(nothing), "unknown", format.name);
  for (const parts of [[null, 5], [5, null]]) assert.equal(percentOf(...parts), "unknown");
});

test("moments have the resolution of the view", () => {
  assert.equal(moment(64_600_123, 4_500_000), "64.600 ms");
  assert.equal(moment(64_600_123, 400), "64.6001230 ms");
  assert.equal(moment(0, 156e6), "0.0 ms");
});

test("tick labels share a unit and differ from each other", () => {
  assert.deepEqual(tickLabels([0, 20e6, 40e6]), ["0 ms", "20 ms", "40 ms"]);
  assert.deepEqual(tickLabels([64_600_000, 64_601_000]), ["64.600 ms", "64.601 ms"]);
  assert.deepEqual(tickLabels([0, 0.5e9, 1e9]), ["0.0 s", "0.5 s", "1.0 s"]);
  assert.equal(new Set(tickLabels([3.6e12, 3.6e12 + 2000, 3.6e12 + 4000])).size, 3);
});

test("at full zoom, ticks and tooltips count ns from the start of the step", () => {
  const inStep = (time) => time - (time < 64_600_500 ? 64_000_000 : 64_600_500);
  assert.deepEqual(tickLabels([64_600_200, 64_600_400, 64_600_600], 500, inStep), ["600,200 ns", "600,400 ns", "100 ns"]);
  assert.equal(tickText(64_600_200, 5000, inStep), "600,200 ns into the step");
  assert.equal(tickText(64_600_200, 1e6, inStep), "64.600 ms");
  assert.deepEqual(tickLabels([3.6e12, 3.6e12 + 5e6, 3.6e12 + 10e6]), ["3,600.000 s", "3,600.005 s", "3,600.010 s"]);
  assert.deepEqual(tickLabels([3.6e12, 3.601e12]), ["3,600 s", "3,601 s"]);
});

test("only a share of zero is 0 %", () => {
  assert.equal(percent(0), "0 %");
  assert.equal(percent(0.0001), "< 0.1 %");
  assert.equal(percent(0.07), "7.0 %");
  assert.equal(percent(0.256), "26 %");
  assert.equal(percent(1), "100 %");
  assert.equal(percentOf(1, 4), "25 %");
  assert.equal(percentOf(1, 0), "–");
});

test("bytes are decimal", () => {
  assert.equal(bytes(26_214_400), "26.2 MB");
  assert.equal(bytes(999), "999 B");
  assert.equal(bytes(4096), "4.1 kB");
});

test("a kernel has the short name that Python gives it, and where there is little room what is special in it", () => {
  const fill = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, A>(int)";
  assert.deepEqual(kernelTexts(fill), [fill]);
  learnShortNames(["gemm", fill], { 1: "vectorized_elementwise_kernel(FillFunctor<float>)" });
  assert.equal(shortName(fill), "vectorized_elementwise_kernel(FillFunctor<float>)");
  assert.deepEqual(kernelTexts(fill), ["vectorized_elementwise_kernel(FillFunctor<float>)", "FillFunctor<float>"]);
  for (const name of ["gemm", "Memcpy DtoD (Device -> Device)", ""]) assert.deepEqual(kernelTexts(name), [name]);
});

test("long names are truncated in the middle", () => {
  assert.equal(truncateMiddle("short", 10), "short");
  assert.equal(truncateMiddle("ampere_bf16_gemm_128x256_nt", 15), "ampere_b…256_nt");
  assert.equal(truncateMiddle("ampere_bf16_gemm", 7), "");
});

test("control and direction characters are shown as escapes", () => {
  assert.equal(visible("a\u202eb\u0000c\u2028"), "a\\u{202e}b\\u{0}c\\u{2028}");
  assert.equal(visible("plain µ × name"), "plain µ × name");
});

test("collectives and rates are formatted", () => {
  assert.equal(collectiveWord({ kind: "reduce_scatter" }), "reduce_scatter");
  assert.equal(collectiveWord({ kind: "other" }), "");
  assert.equal(rate(12_345_678_901), "12.3 GB/s");
});

/** Names of collectives and texts of waits. */


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
