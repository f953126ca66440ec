/** The rows of a scene, each with the lanes that fill it, that the pointer finds in it, and that label it. */

const FOUND = { exposure: "collectives" };
const LABELLED = { phases: "stretches", exposure: "collectives" };
const PARTED_BY = { compute: "compute", exposure: "collectives" };

/** Lane of a role on a track, or -1. */
export function laneOf(scene, track, role) {
  return scene.lanes.findIndex((lane) => lane.track === track && lane.role === role);
}

export function rowsOf(scene) {
  return scene.layout.rows.map((row) => {
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
    };
  });
}

/** Index of the step of a track at a time, or -1. */
export function stepAt({ bounds }, time) {
  if (!(time >= bounds[0] && time < bounds.at(-1))) return -1;
  let low = 0, high = bounds.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >>> 1;
    if (bounds[middle] <= time) low = middle;
    else high = middle;
  }
  return low;
}

/** From the earliest start to the latest end of a strip's step on its tracks. */
export function stepSpan(scene, strip, step) {
  const bounds = strip.tracks.map((track) => scene.tracks[track].bounds);
  return { from: Math.min(...bounds.map((b) => b[step])), to: Math.max(...bounds.map((b) => b[step + 1])) };
}
