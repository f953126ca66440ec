/** Random lanes with a fixed seed, and brute-force reference results. */

import { gzipSync } from "node:zlib";

import { Lod } from "../../viewers/gantt/static/data/lod.js";

export function random(seed) {
  let state = seed;
  return () => (state = (state * 1103515245 + 12345) & 0x7fffffff) / 0x7fffffff;
}

/** Return a Lod of `lanes` lanes of up to `count` intervals, some of which overlap, touch, or are empty. */
export function randomLod({ seed, lanes, count, categories }) {
  const draw = random(seed);
  const entries = [];
  for (let lane = 0; lane < lanes; lane++) {
    let time = Math.floor(draw() * 1000) - 500;
    const many = lane === 1 ? 0 : Math.floor(draw() * count);
    for (let i = 0; i < many; i++) {
      time += draw() < 0.3 ? 0 : Math.floor(draw() * 1000);
      entries.push({ lane, start: time, duration: draw() < 0.05 ? 0 : Math.floor(Math.exp(draw() * 12)), category: Math.floor(draw() * categories) });
      if (draw() < 0.6) time += entries.at(-1).duration;
    }
  }
  return lodOf(entries, lanes, categories);
}

/** Return a Lod of entries sorted by lane and start. */
export function lodOf(entries, lanes, categories) {
  const offsets = new Int32Array(lanes + 1);
  for (const { lane } of entries) offsets[lane + 1]++;
  for (let lane = 0; lane < lanes; lane++) offsets[lane + 1] += offsets[lane];
  return new Lod({
    start: Float64Array.from(entries, (e) => e.start),
    duration: Float64Array.from(entries, (e) => e.duration),
    category: Uint8Array.from(entries, (e) => e.category),
    offsets,
    categories,
  });
}

/** Return the ns of [from, to] that a category covers on a lane, summed interval by interval. */
export function covered(lod, lane, category, from, to) {
  let sum = 0, reach = from;
  for (let i = lod.offsets[lane]; i < lod.offsets[lane + 1]; i++) {
    if (lod.category[i] !== category) continue;
    const begin = Math.max(lod.start[i], reach), end = Math.min(lod.start[i] + lod.duration[i], to);
    if (end > begin) sum += end - begin;
    reach = Math.max(reach, end);
  }
  return sum;
}

export function indices(lod, lane, keep) {
  const kept = [];
  for (let i = lod.offsets[lane]; i < lod.offsets[lane + 1]; i++) if (keep(lod.start[i], lod.start[i] + lod.duration[i], i)) kept.push(i);
  return kept;
}

/** Pack a column as viewers/gantt/column_packing.py does. */
export function packed(type, values, escapes = []) {
  const bytes = new Uint8Array(values.buffer), size = values.BYTES_PER_ELEMENT;
  const planes = Array.from({ length: size }, (_, plane) => bytes.filter((_, i) => i % size === plane));
  return { type, data: gzipSync(Buffer.concat(planes)).toString("base64"), escapes };
}
