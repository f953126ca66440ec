import assert from "node:assert/strict";
import { test } from "node:test";
import { miniRows } from "../../viewers/gantt/static/data/rows.js";
import { Stage } from "../../viewers/gantt/static/stage/stage.js";
import { roundTicks } from "../../viewers/gantt/static/drawing/axis.js";

const ROLES = { phases: 24, compute: 30 };

/** Return a scene of GPUs with two rows each, `perStrip` GPUs per strip. */
function sceneOf(gpus, perStrip = gpus, collapsed = false) {
  const rows = [], strips = [];
  for (let track = 0; track < gpus; track++) for (const [role, h] of Object.entries(ROLES)) rows.push({ h, track, role, label: role });
  for (let first = 0; first < gpus; first += perStrip)
    strips.push({ tracks: Array.from({ length: Math.min(perStrip, gpus - first) }, (_, i) => first + i), names: ["ProfilerStep#1"] });
  return {
    tracks: Array.from({ length: gpus }, () => ({ bounds: [0, 100], steps: ["ProfilerStep#1"] })),
    strips,
    lanes: [],
    layout: { rows, strips: strips.map(({ tracks }, strip) => ({ h: 20, strips: [strip], tracks, label: "steps" })), height: 400, collapsed, gaps: { rows: 2, tracks: 9, strip: 8, collapsed: 3 }, low: 16 },
  };
}

function assertNoOverlap(rows) {
  const sorted = [...rows].sort((a, b) => a.y - b.y);
  for (let i = 1; i < sorted.length; i++) assert.ok(sorted[i].y >= sorted[i - 1].y + sorted[i - 1].h, "rows overlap");
}

test("rows do not overlap, and rows outside the frame are not visible", () => {
  const stage = new Stage(sceneOf(50));
  assert.equal(stage.rows.length, 100);
  assertNoOverlap(stage.rows);
  assert.ok(stage.visible.length < 20);
  assert.ok(stage.visible.every(({ y, h }) => y < 400 && y + h > 0));
  assert.ok(stage.height > 50 * (24 + 30));
});

test("scrolling is limited to the rows and calls changed", () => {
  let moved = 0;
  const stage = new Stage(sceneOf(50), () => moved++);
  stage.scrollTo(-5);
  assert.deepEqual([stage.scroll, moved], [0, 0]);
  stage.scrollBy(1e9);
  assert.deepEqual([stage.scroll, moved], [stage.height - 400, 1]);
  const last = stage.visible.at(-1);
  assert.equal(last.track, 49);
  assert.ok(last.y + last.h <= 400);
});

test("a strip stays at the top while its GPUs pass, and leaves with them", () => {
  const stage = new Stage(sceneOf(20, 10));
  stage.scrollTo(100);
  assert.equal(stage.strips[0].y, 2);
  assert.deepEqual(stage.stripAt(10).strips, [0]);
  assert.equal(stage.rowAt(10), undefined);
  const second = stage.allStrips[1].top;
  stage.scrollTo(second - 10);
  assert.ok(stage.allStrips[0].y < 2);
  assert.equal(stage.allStrips[1].y, 10);
});

test("a collapsed GPU is one row, and expanding it moves only what is below", () => {
  const stage = new Stage(sceneOf(5, 5, true));
  assert.deepEqual(stage.visible.map(({ role }) => role), Array(5).fill("phases"));
  assert.equal(stage.boxOf(1, "compute"), null);
  const before = stage.rows.map(({ y }) => y);
  stage.collapse(2, false);
  assert.deepEqual(stage.rows.slice(0, 5).map(({ y }) => y), before.slice(0, 5));
  assert.deepEqual(stage.boxOf(2, "compute").h, 30);
  assert.ok(stage.boxOf(3, "phases").y > before[6]);
  stage.collapseAll(true);
  assert.deepEqual(stage.rows.map(({ y }) => y), before);
});

test("a row is found at its place, also when scrolled", () => {
  const stage = new Stage(sceneOf(50));
  stage.scrollTo(333);
  for (const row of stage.visible) {
    const middle = row.y + row.h / 2;
    if (middle > 30 && middle < 400) assert.equal(stage.rowAt(middle), row);
  }
  assert.equal(stage.rowAt(1e6), undefined);
});

test("revealing scrolls a GPU below the strip, and expands it for a hidden row", () => {
  const stage = new Stage(sceneOf(60, 60, true));
  for (const track of [59, 0, 31]) {
    stage.reveal(track);
    const { y, h } = stage.boxOf(track, "phases");
    assert.ok(y >= 22 && y + h <= 400, `${track} is at ${y}`);
  }
  stage.reveal(40, "compute");
  const { y, h } = stage.boxOf(40, "compute");
  assert.ok(y >= 22 && y + h <= 400);
  stage.reveal(99);
});

test("a taller frame shows more rows, and scrolls back at the end", () => {
  const stage = new Stage(sceneOf(10));
  stage.scrollTo(1e6);
  stage.resize(stage.height);
  assert.equal(stage.scroll, 0);
  assert.equal(stage.visible.length, 20);
});

test("the minimap has a row per GPU, or evenly chosen GPUs if there is no room", () => {
  const few = new Stage(sceneOf(4)), many = new Stage(sceneOf(2000));
  assert.deepEqual(miniRows(few.scene, few.rows, 24).map(({ track }) => track), [0, 1, 2, 3]);
  const chosen = miniRows(many.scene, many.rows, 64);
  assert.equal(chosen.length, 31);
  assertNoOverlap(chosen);
  assert.equal(chosen[0].track, 0);
  assert.ok(chosen.at(-1).track > 1900);
});

test("a centered GPU is in the middle, expanded, with its own steps in the strip", () => {
  const scene = sceneOf(60, 60, true), stage = new Stage(scene);
  stage.resize(400);
  stage.center(30);
  const block = stage.blockOf.get(30);
  assert.ok(Math.abs(block.y + block.h / 2 - 213) <= 1);
  assert.deepEqual([stage.collapsed[30], scene.strips[0].lead], [0, 30]);
});

test("rows grow to fill the room, at most threefold, and shrink back", () => {
  const stage = new Stage(sceneOf(2)), before = stage.height;
  stage.grow(before + 140);
  assert.ok(stage.height > before + 60 && stage.height <= before + 140);
  stage.grow(10_000);
  assert.equal(stage.boxOf(0, "compute").h, 90);
  stage.grow(100);
  assert.equal(stage.height, before);
});

test("on a large screen rows on demand are as much higher as its letters, and all rows can grow more", () => {
  const stage = new Stage(sceneOf(2));
  stage.zoom = 20 / 12;
  stage.extend(0, "host", [{ track: 0, role: "host", label: "host", h: 26 }]);
  assert.equal(stage.boxOf(0, "host").h, 43);
  stage.grow(10_000);
  assert.equal(stage.boxOf(0, "compute").h, 150);
});

test("a pinned GPU stays at the top while the others scroll below it", () => {
  const stage = new Stage(sceneOf(50));
  stage.pin(7);
  stage.scrollTo(700);
  const pinned = stage.boxOf(7, "phases"), { covered } = stage;
  assert.deepEqual([stage.order[0], pinned.y], [7, 30]);
  assert.ok(covered > 80 && stage.visible.every(({ track, y, h }) => track === 7 || y + h > covered));
  assert.equal(stage.rowAt(pinned.y + 5).track, 7);
  assert.notEqual(stage.rowAt(covered + 40).track, 7);
  assert.deepEqual([stage.seenBox(7, "phases"), stage.seenBox(0, "phases").h], [pinned, 0]);
  stage.reveal(0);
  assert.ok(stage.boxOf(0, "phases").y >= covered);
  stage.pin(7);
  assert.deepEqual([stage.order[0], stage.covered], [0, 0]);
});

test("below a pinned GPU a row is whole or not there, wherever one scrolls, and all can be reached", () => {
  for (const collapsed of [false, true]) {
    const stage = new Stage(sceneOf(60, 60, collapsed)), seen = new Set();
    stage.pin(7);
    for (let scroll = 0, last = -1; scroll <= stage.height - 400; scroll += 3) {
      stage.scrollTo(scroll);
      const [first, ...others] = stage.visible.filter(({ held }) => !held);
      assert.ok(first.y >= stage.covered && first.y < stage.covered + 40 && first.top >= last, `${first.y} at ${scroll}`);
      last = first.top;
      for (const { track, role, y, h } of [first, ...others]) if (y + h <= 400) seen.add(`${track} ${role}`);
    }
    stage.scrollTo(1e9);
    const { y, h } = stage.visible.at(-1);
    assert.ok(y + h <= 400);
    assert.equal(seen.size, 59 * (collapsed ? 1 : 2));
  }
});

test("pinned GPUs that leave no room for others scroll with them", () => {
  const stage = new Stage(sceneOf(50));
  for (let track = 0; track < 30; track++) stage.pin(track);
  stage.scrollTo(1e9);
  assert.ok(stage.covered <= 0.7 * 400 + 10);
  assert.equal(stage.visible.at(-1).track, 49);
});

test("what scrolls and what stays is drawn apart, each row once", () => {
  const stage = new Stage(sceneOf(50)), parts = [];
  stage.pin(3);
  stage.scrollTo(500);
  const all = stage.visible.length;
  stage.inParts(({ top, bottom }) => parts.push({ top, bottom, tracks: new Set(stage.visible.map(({ track }) => track)), rows: stage.visible.length, strips: stage.strips.length }));
  assert.deepEqual(parts.map(({ top, bottom, strips }) => [top, bottom, strips]), [[stage.covered, 400, 0], [0, stage.covered, 1]]);
  assert.deepEqual([parts[0].tracks.has(3), [...parts[1].tracks]], [false, [3]]);
  assert.deepEqual([parts[0].rows + parts[1].rows, stage.visible.length], [all, all]);
});

test("groups have headings in the order of their GPUs", () => {
  const stage = new Stage(sceneOf(6)), groupOf = new Map([0, 1, 0, 1, 0, 1].map((dp, track) => [track, `dp ${dp}`]));
  stage.sort((a, b) => (a % 2) - (b % 2) || a - b, groupOf);
  assert.deepEqual(stage.allHeadings.map(({ label, tracks }) => [label, tracks]), [["dp 0", [0, 2, 4]], ["dp 1", [1, 3, 5]]]);
  assert.deepEqual(stage.order, [0, 2, 4, 1, 3, 5]);
  const [, second] = stage.allHeadings;
  assert.ok(second.top > stage.blockOf.get(4).top + stage.blockOf.get(4).h && second.top + second.h < stage.blockOf.get(1).top);
  stage.sort((a, b) => a - b);
  assert.deepEqual(stage.allHeadings, []);
});

test("only some GPUs can be shown, and one that is revealed is shown with them", () => {
  const stage = new Stage(sceneOf(20, 20, true));
  stage.showOnly([3, 9]);
  assert.deepEqual([stage.order, stage.boxOf(3, "compute").h, stage.boxOf(4, "phases")], [[3, 9], 30, null]);
  stage.reveal(4);
  assert.deepEqual(stage.order, [3, 4, 9]);
  stage.showOnly(null);
  assert.equal(stage.order.length, 20);
});

test("ticks are round, inside, and about as many as asked for", () => {
  assert.deepEqual(roundTicks(-4e6, 104e6, 10), [0, 20e6, 40e6, 60e6, 80e6, 100e6]);
  assert.deepEqual(roundTicks(1_000_100, 1_000_300, 10), Array.from({ length: 11 }, (_, i) => 1_000_100 + 20 * i));
});
