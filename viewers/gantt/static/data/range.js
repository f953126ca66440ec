/** What a range of time holds: the split of each GPU, kernels, collectives; a served page asks its server for the same. */

import { above } from "./lod.js";
import { busyCategories, insideSteps, isExposed, laneOf, unknownIn } from "./rows.js";
import { isKnown } from "./text.js";

/** Kernels that are listed by name; viewers/gantt/tiles/ranges.py lists as many. */
const MAX_KERNELS = 200;

/** Return the ns that categories cover on a track's lane within a range and the steps, by category. */
function covers(lod, scene, track, role, categories, from, to) {
  const { bounds } = scene.tracks[track], lane = laneOf(scene, track, role), begin = Math.max(from, bounds[0]), end = Math.min(to, bounds.at(-1));
  return Object.fromEntries(lane < 0 ? [] : categories.map((category) => [category, lod.busy(lane, category, begin, end)]));
}

/** Return the split of a track within a range and the steps: { parts (ns by category, without idle), overlapped }. */
export function trackSplit(lod, scene, track, from, to) {
  const { overlapped } = scene.special, of = (role, categories) => covers(lod, scene, track, role, categories, from, to);
  return { parts: of("phases", busyCategories(scene)), overlapped: of("exposure", [overlapped])[overlapped] ?? 0 };
}

/** Call `visit(index, start, end, track, role)` for the intervals of some roles in a range and the steps, cut to these; of all tracks or `chosen` ones. */
export function eachIn(lod, scene, roles, from, to, visit, chosen = null) {
  scene.lanes.forEach(({ track, role }, lane) => {
    const { bounds } = scene.tracks[track] ?? { bounds: [0] }, begin = Math.max(from, bounds[0]), end = Math.min(to, bounds.at(-1));
    if (!roles.includes(role) || !(begin < end) || (chosen && !chosen.includes(track))) return;
    for (let i = lod.offsets[lane], last = above(lod.start, i, lod.offsets[lane + 1], end); i < last; i++) {
      const start = lod.start[i], stop = start + lod.duration[i];
      if (start < end && (stop > begin || start >= begin)) visit(i, Math.max(start, begin), Math.min(stop, end), track, role);
    }
  });
}

/** By the names of the server's answers, what each is in a page that has all intervals. */
const OWN = {
  /** For each track { parts, overlapped, causes (ns by idle cause) }. */
  split: (lod, scene, columns, from, to) =>
    scene.tracks.map((_, track) => ({ ...trackSplit(lod, scene, track, from, to), causes: covers(lod, scene, track, "idle", scene.special.causes, from, to) })),

  /** { rows: [[name, number, ns, ns of the longest, also outside]] by time, others (how many more names there are), total: [number, ns] }. */
  kernels(lod, scene, columns, from, to, chosen) {
    const sums = new Map(), total = [0, 0];
    eachIn(lod, scene, ["compute", "memory"], from, to, (i, start, end) => {
      const sum = sums.get(columns.name[i]) ?? [columns.name[i], 0, 0, 0];
      sum[1] += 1;
      sum[2] += end - start;
      sum[3] = Math.max(sum[3], lod.duration[i]);
      sums.set(sum[0], sum);
    }, chosen);
    for (const [, count, ns] of sums.values()) [total[0], total[1]] = [total[0] + count, total[1] + ns];
    const rows = [...sums.values()].sort((a, b) => b[2] - a[2] || a[0] - b[0]);
    return { rows: rows.slice(0, MAX_KERNELS), others: Math.max(0, rows.length - MAX_KERNELS), total };
  },

  /**
   * { rows: [[collective, calls, exposed, waiting, overlapped]], in which calls that run at once count each, kinds:
   * [[kind, exposed, waiting, overlapped]], in which they count once }; waiting is part of exposed.
   */
  collectives(lod, scene, columns, from, to, chosen) {
    const rows = new Map(), kinds = new Map(), reach = new Map();
    const add = (sums, key, place, ns) => {
      if (!sums.has(key)) sums.set(key, [key, 0, 0, 0, 0]);
      sums.get(key)[place] += ns;
    };
    eachIn(lod, scene, ["collectives"], from, to, (i) => add(rows, columns.name[i], 1, 1), chosen);
    eachIn(lod, scene, ["exposure"], from, to, (i, start, end, track) => {
      const category = lod.category[i], { kind } = scene.collectives[columns.name[i]];
      for (const place of !isExposed(scene, category) ? [4] : category === scene.special.waiting ? [2, 3] : [2]) {
        const key = `${track} ${place} ${kind}`, before = reach.get(key) ?? -Infinity;
        add(rows, columns.name[i], place, end - start);
        add(kinds, kind || "other", place, Math.max(0, end - Math.max(start, before)));
        reach.set(key, Math.max(before, end));
      }
    }, chosen);
    return { rows: [...rows.values()], kinds: [...kinds.values()].map(([kind, , ...times]) => [kind, ...times]) };
  },
};

/**
 * Return what a range holds, by the name of an answer, on all tracks or some `chosen` ones; of a served page, which has
 * one run and is asked for all, undefined until that has arrived.
 */
export function inRange(lod, scene, columns, what, from, to, chosen = null) {
  return lod.inRange ? lod.inRange(what, from, to) : OWN[what](lod, scene, columns, from, to, chosen);
}

/** Return the sum of two figures; null, which is unknown, if one of them is. */
export function plus(one, other) {
  return isKnown(one) && isKnown(other) ? one + other : null;
}

/**
 * Return the sum of the splits of some tracks: { wall, parts (by category; idle is the rest), overlapped, why }, in ns. A
 * part that is unknown on one of them is null; `why` says why by category.
 */
export function splitSum(scene, tracks, splits, from, to) {
  const { idle, overlapped: hidden, waiting } = scene.special, why = {};
  const wall = tracks.reduce((ns, track) => ns + insideSteps(scene.tracks[track], from, to), 0);
  const sum = { wall, parts: scene.categories.map(() => 0), overlapped: 0, why };
  for (const { parts, overlapped, causes } of splits) {
    sum.overlapped = plus(sum.overlapped, overlapped);
    for (const [category, ns] of Object.entries({ ...parts, ...causes })) sum.parts[category] = plus(sum.parts[category], ns);
  }
  // Waiting that is unknown is in the rest of exposed communication.
  const busy = busyCategories(scene).map((category) => (category === waiting ? (sum.parts[category] ?? 0) : sum.parts[category]));
  const all = busy.reduce(plus, 0);
  sum.parts[idle] = all === null ? null : wall - all;
  for (const track of tracks) Object.assign(why, unknownIn(scene.tracks[track], from, to));
  for (const category of Object.keys(why)) sum.parts[category] = null;
  if (why[hidden]) sum.overlapped = null;
  return sum;
}
