import assert from "node:assert/strict";
import test from "node:test";

import { Connection } from "../../viewers/gantt/static/served/loader.js";
import { ServedLod } from "../../viewers/gantt/static/served/served_lod.js";

const scene = () => ({
  end: 1000,
  tracks: [{}],
  categories: [{}, {}],
  names: [],
  collectives: [],
  lanes: [{ track: 0, role: "phases", count: 9, categories: [0, 1] }, { track: 0, role: "compute", count: 9, categories: [0] }],
});

/** Encode a message as viewers/gantt/tiles/encoding.py does. */
function message(head, ...arrays) {
  const text = new TextEncoder().encode(JSON.stringify(head)), parts = [new Uint8Array(Uint32Array.of(text.length).buffer), text];
  for (const values of arrays) {
    const bytes = new Uint8Array(values.buffer), size = values.BYTES_PER_ELEMENT;
    parts.push(Uint8Array.from(bytes, (_, i) => bytes[(i % values.length) * size + Math.floor(i / values.length)]));
  }
  return Uint8Array.from(parts.flatMap((part) => [...part]));
}

/** Intervals of a lane: starts 100 and 300, durations 50 and 70, at positions 4 and 6. */
const rows = [Uint32Array.of(0, 200), Uint32Array.of(50, 70), Uint8Array.of(0, 0), Uint32Array.of(3, 8), Uint16Array.of(1, 1), Uint32Array.of(0, 2)];
const head = { lane: 1, count: 2, base: 100, first: 4, every: true, wide: false, extra: 0, touching: 2 };

function servedBy(answers) {
  const asked = [];
  const send = async (name, { body }) => {
    asked.push([name, JSON.parse(body)]);
    const body_ = answers[name];
    if (!body_) return { ok: false, status: 400, headers: new Map() };
    return { ok: true, headers: new Map([["content-length", "9"]]), json: async () => body_, arrayBuffer: async () => body_.buffer };
  };
  const lod = new ServedLod(scene(), new Connection(send));
  return { asked, lod };
}

const rest = () => new Promise((done) => setTimeout(done, 5));

test("a view's columns and intervals are there when they have arrived", async () => {
  const columns = [{ lane: 0, categories: [1] }, { lane: 1, categories: [0] }];
  const view = message({ columns, rows: [head], names: { 3: "gemm" }, collectives: {} }, Uint8Array.of(255, 51), Uint8Array.of(0, 102), ...rows);
  const { lod } = servedBy({ view, tiles: new Uint8Array(4000) });
  let told = 0;
  lod.changed = () => told++;
  const drawn = [{ lane: 0, found: 0, labels: -1, separated: -1 }, { lane: 1, found: 1, labels: 1, separated: 1 }];
  lod.look({ from: 0, to: 1000, width: 2, rows: drawn });
  assert.equal(lod.loaded, false);
  await rest();
  assert.deepEqual([lod.loaded, told > 0, lod.scene.names[3]], [true, true, "gemm"]);
  const out = lod.density(0, 1000, 2, [0, 1], new Float32Array(8));
  assert.deepEqual([...out].map((share) => Number(share.toFixed(2))), [0, 0, 1, 0.2, 0, 0.4, 0, 0]);
  const index = lod.near(1, 320, 5);
  assert.deepEqual([lod.start[index], lod.duration[index], lod.placeOf(index)], [300, 70, { lane: 1, position: 6 }]);
  assert.deepEqual([lod.near(1, 500, 5), lod.count(1, 0, 1000), lod.has(1, 1)], [-1, 2, false]);
  assert.equal(lod.about(0, 1, 250, 750), 250 + 250 * 0.2);
});

test("an interval that is held keeps its index when the view changes", async () => {
  const { lod, asked } = servedBy({ rows: message({ rows: [head], names: {} }, ...rows) });
  const [index, again] = [...(await lod.hold([{ lane: 1, position: 6 }])), ...(await lod.hold([{ lane: 1, position: 6 }]))];
  lod.known.replace(2, []);
  assert.deepEqual([index === again, lod.start[index], lod.laneAt(index), asked.length], [true, 300, 1, 1]);
});

test("sums are asked for once, and an answer that fails is told", async () => {
  const { lod, asked } = servedBy({ busy: { 0: 40 } }), failures = [];
  lod.failed = ({ message: text }) => failures.push(text);
  assert.deepEqual([lod.busy(1, 0, 10, 90), lod.busy(1, 0, 10, 90), lod.busy(1, 1, 10, 90)], [0, 0, 0]);
  await rest();
  assert.deepEqual([lod.busy(1, 0, 10, 90), asked.length], [40, 1]);
  assert.equal(lod.sums(0, 5), undefined);
  await rest();
  assert.match(failures[0], /400/);
});

test("a view that is drawn again while its answer is late is not given up", async () => {
  const { asked, lod } = servedBy({ tiles: new Uint8Array(4000) });
  let answer;
  const view = message({ columns: [{ lane: 0, categories: [] }], rows: [], names: {}, collectives: {} }), send = lod.connection.send;
  lod.connection.send = (name, options) => {
    if (name !== "view") return send(name, options);
    asked.push([name, JSON.parse(options.body)]);
    return new Promise((done) => (answer = () => done({ ok: true, headers: new Map([["content-length", "9"]]), arrayBuffer: async () => view.buffer })));
  };
  const look = (to) => lod.look({ from: 0, to, width: 2, rows: [{ lane: 0, found: -1, labels: -1, separated: -1 }] });
  const views = () => asked.filter(([name]) => name === "view").map(([, { end }]) => end);
  const { now } = performance;
  try {
    look(1000);
    performance.now = () => now.call(performance) + 5000;
    look(1000);
    assert.deepEqual(views(), [1000]);
    answer();
    await rest();
    assert.equal(lod.loaded, true);
    look(900);
    performance.now = () => now.call(performance) + 15000;
    look(800);
    assert.deepEqual(views(), [1000, 900, 800]);
  } finally {
    performance.now = now;
  }
});
