/** The animation of an explanation: where it stands, and where its pictures put things. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { along, boardLayout, curve, fitting, timeAt } from "../../viewers/explain/static/geometry.js";
import { Player } from "../../viewers/explain/static/player.js";

test("a player moves through all steps and stops", () => {
  const player = new Player(3), seen = new Set();
  player.toggle();
  for (let turn = 0; turn < 2000 && player.playing; turn++) {
    player.pass(0.016);
    seen.add(player.done);
  }
  assert.deepEqual([0, 1, 2, 3], [...seen]);
  assert.equal(3, player.position);
  player.toggle();
  assert.equal(0, player.position);
});

test("a player that keeps still never stands between two steps", () => {
  const player = new Player(3, true);
  player.toggle();
  for (let turn = 0; turn < 1000 && player.playing; turn++) {
    player.pass(0.05);
    assert.equal(0, player.part);
  }
  assert.equal(3, player.position);
});

test("steps on and back end at the ends", () => {
  const player = new Player(2);
  player.previous();
  assert.equal(0, player.position);
  player.go(1.4);
  player.previous();
  assert.equal(1, player.position);
  for (let turn = 0; turn < 3; turn++) player.next();
  assert.equal(2, player.position);
});

test("a message leaves its cell and arrives at another", () => {
  const layout = boardLayout(4, 4, 900);
  const way = curve(layout, { source: 3, target: 0, column: 1, into: 2, columns: 1 });
  assert.deepEqual(way.from, along(way, 0));
  assert.deepEqual(way.to, along(way, 1));
  assert.equal(layout.y(3), way.from.y);
  assert.equal(layout.y(0) + layout.height, way.to.y);
  assert.equal(layout.x(2) + layout.cell / 2, way.to.x);
});

test("the time of a position lies between the beginnings of two steps", () => {
  const steps = [0, 2, 3].map((start) => ({ start, work: [{ end: start + 2 }] }));
  assert.deepEqual([0, 1, 2, 3, 5], [0, 0.5, 1, 2, 3].map((position) => timeAt(steps, position)));
});

test("a label that does not fit becomes a count", () => {
  const cell = { label: "A0+B0+C0", parts: 3 };
  assert.deepEqual(["A0+B0+C0", "3 of 4", "3"], [120, 60, 20].map((width) => fitting(cell, 4, width)));
});
