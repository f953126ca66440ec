/** The rows of a scene with their lanes: the lane that fills a row, the one the pointer searches, the one that labels it. */

import { above } from "./lod.js";
import { moment, visible } from "./text.js";

/** The roles of the lanes of recorded intervals, in the order of columns that have an entry for each of them. */
export const RECORDED = ["compute", "collectives", "memory"];
const FOUND_LANE = { exposure: "collectives" };
const LABEL_LANE = { phases: "stretches", exposure: "collectives" };
const SEPARATED_LANE = { compute: "compute", exposure: "collectives" };

/** Return a function of a scene whose results are kept: thousands of GPUs look up theirs in every frame. */
export function kept(make) {
  const known = new WeakMap();
  return (scene) => known.get(scene) ?? known.set(scene, make(scene)).get(scene);
}

/** The lanes of a scene by track and role, and the number of the strip of each track. */
const lanesOf = kept(({ lanes }) => new Map(lanes.map(({ track, role }, lane) => [`${track} ${role}`, lane]).reverse()));
const stripsOf = kept(({ strips }) => new Map(strips.flatMap(({ tracks }, number) => tracks.map((track) => [track, number]))));

/** Whether a category is exposed communication: waiting for other ranks, or the rest of it. */
export function isExposed({ special: { exposed, waiting } }, category) {
  return category === exposed || category === waiting;
}

/** Return the categories that can fill a row of phases, without idle. */
export function busyCategories({ categories, special: { idle, overlapped, waiting } }) {
  return categories.map((_, k) => k).filter((k) => (k < overlapped && k !== idle) || k === waiting);
}

/** Return the lane of a role on a track, or -1. */
export function laneOf(scene, track, role) {
  return lanesOf(scene).get(`${track} ${role}`) ?? -1;
}

/** Return the role of the row that shows the intervals of a lane. */
export function rowRole(role) {
  return role === "collectives" ? "exposure" : role;
}

/** Return the place of an interval { lane, position } in columns of recorded intervals, or -1 for another one. */
export function recordedPlace({ lanes }, { lane, position }) {
  if (!RECORDED.includes(lanes[lane].role)) return -1;
  return lanes.slice(0, lane).reduce((sum, { role, count }) => sum + (RECORDED.includes(role) ? count : 0), position);
}

/** Return each GPU's rank, with its place among the GPUs of that rank if it is not the first: "3", "3.1". */
export const rankNames = kept(({ tracks }) => {
  const seen = new Map();
  return tracks.map(({ label }) => {
    const rank = /rank (\d+)/.exec(label)?.[1], before = seen.get(rank) ?? 0;
    seen.set(rank, before + 1);
    return before ? `${rank}.${before}` : rank;
  });
});

/** Write GPUs by their ranks, "0-3,7,9.1", or "none". */
export function ranksText(scene, tracks) {
  const runs = [];
  for (const name of tracks.map((track) => rankNames(scene)[track]))
    if (/^\d+$/.test(name) && Number(runs.at(-1)?.[1]) === name - 1) runs.at(-1)[1] = name;
    else runs.push([name, name]);
  return runs.map(([first, last]) => (first === last ? first : `${first}-${last}`)).join() || "none";
}

/** Return the GPUs that ranksText() wrote; those that the scene lacks are left out. */
export function ranksOf(scene, text) {
  const parts = text.split(",").map((part) => ({ name: part, range: /^(\d+)-(\d+)$/.exec(part) }));
  const named = (rank) => parts.some(({ name, range }) => (range ? /^\d+$/.test(rank) && Number(rank) >= range[1] && Number(rank) <= range[2] : name === rank));
  return [...scene.tracks.keys()].filter((track) => named(rankNames(scene)[track]));
}

/** Find a step by its name or by the number at its end: { strip, step }, or null. */
export function stepNamed(strips, text) {
  for (let strip = 0; strip < strips.length; strip++) {
    const { names } = strips[strip];
    const exact = names.indexOf(text), step = exact >= 0 ? exact : names.findIndex((name) => /\d+$/.exec(name)?.[0] === text);
    if (step >= 0) return { strip, step };
  }
  return null;
}

export function rowsOf(scene) {
  return scene.layout.rows.map((row) => rowOf(scene, row));
}

/** Complete a row { track, role, label, h } with its lanes, its steps and how it is drawn. */
export function rowOf(scene, row) {
  const lane = (role) => laneOf(scene, row.track, role);
  const { bounds } = scene.tracks[row.track];
  return {
    ...row,
    lane: lane(row.role),
    found: lane(FOUND_LANE[row.role] ?? row.role),
    labels: lane(LABEL_LANE[row.role] ?? row.role),
    separated: row.role in SEPARATED_LANE ? lane(SEPARATED_LANE[row.role]) : -1,
    idle: row.role === "phases",
    // Copies are short and rare; a minimum height keeps them visible.
    floor: row.role === "memory" ? 4 : 1,
    from: bounds[0],
    to: bounds.at(-1),
    spans: spansOf(scene.tracks[row.track]),
  };
}

/** Return the name of a track with its place in the job's mesh, where that is known. */
export function trackName({ label, place }) {
  return place ? `${label} · ${place}` : label;
}

/** Return what the page calls its tracks where it counts them: a run without a GPU has ranks. */
export function trackWord({ cpu }, count = 2) {
  return `${cpu ? "rank" : "GPU"}${count === 1 ? "" : "s"}`;
}

/** Return what a track's rows on demand are called: CPUs have threads, GPUs streams. */
export function streamWord({ label }) {
  return label.endsWith("CPU") ? "thread" : "stream";
}

/** Return the end of a step: the start of the next one, unless the track has time between its steps. */
export function stepEnd({ bounds, ends }, step) {
  return ends ? ends[step] : bounds[step + 1];
}

/** Return how long it is from one place of a chart to another: time between two windows is drawn shorter than it was. */
export function elapsed({ breaks }, from, to) {
  return breaks.reduce((sum, [begin, end, ns]) => sum + (ns / (end - begin) - 1) * Math.max(0, Math.min(to, end) - Math.max(from, begin)), to - from);
}

/** Return the time ranges that a track's steps fill. */
function spansOf(track) {
  if (!track.ends) return [[track.bounds[0], track.bounds.at(-1)]];
  return track.ends.map((end, step) => [track.bounds[step], end]);
}

/** Return the ns of [from, to] inside a track's steps. */
export function insideSteps(track, from, to) {
  return spansOf(track).reduce((sum, [begin, end]) => sum + Math.max(0, Math.min(to, end) - Math.max(from, begin)), 0);
}

/**
 * Return why categories of a track are unknown in the whole of [from, to] inside its steps, by category. Its `unknown` are
 * spans [category, from, to, reason], one after the other.
 */
export function unknownIn(track, from, to) {
  const left = {}, why = {}, wall = insideSteps(track, from, to);
  for (const [category, begin, end, reason] of track.unknown ?? []) {
    left[category] = (left[category] ?? wall) - insideSteps(track, Math.max(from, begin), Math.min(to, end));
    if (wall > 0 && left[category] <= 0) why[category] = reason;
  }
  return why;
}

/**
 * Return why some waits of some tracks in [from, to] are unknown, so that waiting is at least, and transfer at most, what
 * is known; "" where all are. A track's `bounded` are spans [from, to].
 */
export function unknownWaits({ tracks, groups = [], unknownWaits: why }, from, to, chosen = [...tracks.keys()]) {
  const found = chosen.find((track) => tracks[track].bounded?.some(([begin, end]) => end > from && begin < to));
  return found === undefined ? "" : (groups.find((group) => group.tracks.includes(found))?.unknownWaits ?? why);
}

/** Return the steps that a strip shows: its own, or those of a track, by default its lead or its first. */
export function stripSteps(scene, strip, track = strip.lead ?? strip.tracks[0]) {
  return strip.bounds ? strip : scene.tracks[track];
}

/** Share of a view that the steps of the topmost GPU fill at least, compared with others, to come first in a strip. */
const ENOUGH = 0.5;

/**
 * Return the steps in a row of step names: [{ number (of the strip), steps, track }], first those of the topmost GPU in
 * the frame, or of another one there that fills more of the view, then those that lie beside them. `shown` are the GPUs
 * in the frame.
 */
export function stripParts(scene, { strips, lead }, shown, { from, to }) {
  const parts = strips.map((number) => {
    const { tracks, lead: own = tracks[0] } = scene.strips[number];
    // The only strip goes with the GPU at the top; one of several goes with the GPUs whose steps are like its own.
    const track = strips.length > 1 ? own : shown.includes(lead) ? lead : (shown[0] ?? own);
    return { number, track, steps: stripSteps(scene, scene.strips[number], track) };
  });
  if (parts.length === 1) return parts;
  const seen = ({ steps: { bounds } }) => Math.max(0, Math.min(to, bounds.at(-1)) - Math.max(from, bounds[0]));
  const byNumber = new Map(parts.map((part) => [part.number, part])), partOf = (track) => byNumber.get(stripsOf(scene).get(track));
  const [first, ...others] = [...(shown.includes(lead) ? [lead] : []), ...shown].map(partOf).filter(Boolean);
  const leading = [first ?? parts[0], ...others].reduce((best, part) => (seen(best) < ENOUGH * seen(part) ? part : best));
  const kept = [];
  for (const part of [leading, ...parts]) {
    const { bounds } = part.steps;
    if (kept.every(({ steps: { bounds: other } }) => bounds[0] >= other.at(-1) || bounds.at(-1) <= other[0])) kept.push(part);
  }
  return kept;
}

/** Return the index of a track's step at a time, or -1. */
export function stepAt({ bounds, ends }, time) {
  if (!(time >= bounds[0] && time < bounds.at(-1))) return -1;
  const step = above(bounds, 0, bounds.length, time) - 1;
  return ends && time >= ends[step] ? -1 : step;
}

/** Return the time from the earliest start to the latest end of a strip's step over its tracks, or over both runs. */
export function stepSpan(scene, strip, step) {
  if (scene.slots) return { from: scene.slots[step], to: scene.slots[step + 1] };
  const bounds = strip.tracks.map((track) => scene.tracks[track].bounds);
  return { from: Math.min(...bounds.map((b) => b[step])), to: Math.max(...strip.tracks.map((track) => stepEnd(scene.tracks[track], step))) };
}

/** Return the facts on when something starts on a track: in the track's own step, to the ns, and on the axis. */
export function startFacts({ tracks }, track, time) {
  const { bounds, steps } = tracks[track], step = stepAt(tracks[track], time), axis = ["on the axis", moment(time, 1e6)];
  if (step < 0) return [["step", "outside the steps, not counted"], axis];
  return [["step", visible(steps[step])], ["start", `${moment(time - bounds[step], 1e3)} into this rank's step`], axis];
}

/** The steps of a scene in order of their starts, each that of the first of its GPUs: { from, name }. */
const stepStarts = kept((scene) => scene.strips.flatMap((strip) => strip.names.map((name, step) => ({ from: stepSpan(scene, strip, step).from, name }))).sort((a, b) => a.from - b.from));

/** Return the last step that has begun at a time, or the first. */
export function lastStep(scene, time) {
  return stepStarts(scene).findLast(({ from }) => from <= time) ?? stepStarts(scene)[0];
}

/**
 * Return a function of a time: the ns since its step began, which is a track's own at that time, or the last one that has
 * begun. A step begins on its first GPU, so that times of several can be compared.
 */
export function stepClock(scene, track) {
  const strip = scene.strips[stripsOf(scene).get(track)];
  return (time) => {
    const step = strip ? stepAt(scene.tracks[track], time) : -1;
    return time - (step < 0 ? lastStep(scene, time) : stepSpan(scene, strip, step)).from;
  };
}

// The rows of the minimap: the phases of each GPU, or of evenly chosen GPUs if there is not enough room.

const MARGIN = 1;
/** In pixels: minimum height of a row, and the height from which rows have a gap. */
const MIN_HEIGHT = 2, GAP_FROM = 4;

export function miniRows(scene, rows, height) {
  const phases = rows.filter((row) => row.role === "phases");
  const count = Math.min(phases.length, Math.floor((height - 2 * MARGIN) / MIN_HEIGHT)), each = (height - 2 * MARGIN) / count;
  return Array.from({ length: count }, (_, i) => {
    const row = phases[Math.floor((i * phases.length) / count)];
    return { ...row, y: MARGIN + i * each, h: each - (each > GAP_FROM ? 1 : 0), separated: -1 };
  });
}
