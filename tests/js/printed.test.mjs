import assert from "node:assert/strict";
import test from "node:test";

import { roundTicks } from "../../viewers/gantt/static/saving/sheet_frame.js";

test("ticks are round, inside, and about as many as asked for", () => {
  assert.deepEqual(roundTicks(-4e6, 104e6, 10), [0, 20e6, 40e6, 60e6, 80e6, 100e6]);
  assert.deepEqual(roundTicks(1_000_100, 1_000_300, 10), Array.from({ length: 11 }, (_, i) => 1_000_100 + 20 * i));
});
