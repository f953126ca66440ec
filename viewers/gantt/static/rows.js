/** The rows of a scene, each with the lanes that fill it, that the pointer finds in it, and that label it. */

const FOUND = { exposure: "collectives" };
const LABELLED = { phases: "stretches", exposure: "collectives" };
const PARTED_BY = { compute: "compute", exposure: "collectives" };

/** By scene: a table of its lanes, since thousands of GPUs ask for theirs again and again. */
const LANES = new WeakMap();

function tableOf(scene) {
  const table = scene.lanes.map(({ track, role }, lane) => [`${track} ${role}`, lane]);
  LANES.set(scene, new Map(table.reverse()));
  return LANES.get(scene);
}

/** Lane of a role on a track, or -1. */
export function laneOf(scene, track, role) {
  return (LANES.get(scene) ?? tableOf(scene)).get(`${track} ${role}`) ?? -1;
}

export function rowsOf(scene) {
  return scene.layout.rows.map((row) => rowOf(scene, row));
}

/** A row { track, role, label, h }, with the lanes that fill it, that the pointer finds in it, and that label it. */
export function rowOf(scene, row) {
  const lane = (role) => laneOf(scene, row.track, role);
  const { bounds } = scene.tracks[row.track];
  return {
    ...row,
    lane: lane(row.role),
    found: lane(FOUND[row.role] ?? row.role),
    labels: lane(LABELLED[row.role] ?? row.role),
    separated: row.role in PARTED_BY ? lane(PARTED_BY[row.role]) : -1,
    idle: row.role === "phases",
    // Copies are short and rare: what is there at all shall be seen.
    floor: row.role === "memory" ? 4 : 1,
    from: bounds[0],
    to: bounds.at(-1),
    spans: spansOf(scene.tracks[row.track]),
  };
}

/** When a step ends: where the next begins, unless the track says otherwise, having time between its steps. */
export function stepEnd({ bounds, ends }, step) {
  return ends ? ends[step] : bounds[step + 1];
}

/** The stretches of a track that its steps fill. */
function spansOf(track) {
  if (!track.ends) return [[track.bounds[0], track.bounds.at(-1)]];
  return track.ends.map((end, step) => [track.bounds[step], end]);
}

/** How much of [from, to] lies in a track's steps. */
export function insideSteps(track, from, to) {
  return spansOf(track).reduce((sum, [begin, end]) => sum + Math.max(0, Math.min(to, end) - Math.max(from, begin)), 0);
}

/** The steps that a strip shows: its own, or those of the track that leads it, at first its first one. */
export function stripSteps(scene, strip) {
  return strip.bounds ? strip : scene.tracks[strip.lead ?? strip.tracks[0]];
}

/** Index of the step of a track at a time, or -1. */
export function stepAt({ bounds, ends }, time) {
  if (!(time >= bounds[0] && time < bounds.at(-1))) return -1;
  let low = 0, high = bounds.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >>> 1;
    if (bounds[middle] <= time) low = middle;
    else high = middle;
  }
  return ends && time >= ends[low] ? -1 : low;
}

/** From the earliest start to the latest end of a strip's step on its tracks, or of both runs' where they are paired. */
export function stepSpan(scene, strip, step) {
  if (scene.slots) return { from: scene.slots[step], to: scene.slots[step + 1] };
  const bounds = strip.tracks.map((track) => scene.tracks[track].bounds);
  return { from: Math.min(...bounds.map((b) => b[step])), to: Math.max(...strip.tracks.map((track) => stepEnd(scene.tracks[track], step))) };
}
