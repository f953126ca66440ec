/** The recorded intervals of a range as a list, and how long they are; a served page asks its server for the same. */

import { eachIn } from "./range.js";
import { RECORDED } from "./rows.js";
import { collectiveTitle, shortName } from "./text.js";

/** Intervals that are listed, and classes of a duration for each of its doublings; viewers/gantt/tiles/calls.py has the same. */
const MOST = 200, CLASSES = 16;

/** Return the lower end of a class of durations, in ns. */
export function classStart(number) {
  return 2 ** (number / CLASSES);
}

/** Return the numbers of intervals in their order by `keys`, only the first of them. */
function firstOf(keys) {
  const limit = keys.length > MOST ? keys.slice().sort()[MOST - 1] : Infinity, below = [], equal = [];
  keys.forEach((key, i) => (key < limit ? below : key === limit ? equal : []).push(i));
  return [...below, ...equal].sort((a, b) => keys[a] - keys[b] || a - b).slice(0, MOST);
}

/** Return the place of each text in the order of all. */
function orderOf(texts) {
  const places = new Float64Array(texts.length);
  [...texts.keys()].sort((a, b) => (texts[a] < texts[b] ? -1 : texts[a] > texts[b] ? 1 : 0)).forEach((text, place) => (places[text] = place));
  return (number) => places[number];
}

function keysBy(by, scene, lod, columns) {
  if (by === "start") return ({ i }) => lod.start[i];
  if (by === "duration") return ({ i }) => lod.duration[i];
  if (by === "rank") return ({ track }) => track;
  const names = scene.names.map((name) => shortName(name).toLowerCase());
  const place = orderOf([...names, ...scene.collectives.map((known) => collectiveTitle(known).toLowerCase())]);
  return ({ i, role }) => place(columns.name[i] + (role === "collectives" ? names.length : 0));
}

/**
 * Return the intervals in [from, to] and the steps, of a `kernel` (by the number of its name), or with a `text` in their names,
 * on all tracks or `chosen` ones: { total, classes: [[class of durations, number]], extremes: [least, longest duration],
 * places: [{ lane, position }] of the first by name, rank, start or duration }. `masksOf(text)` says which names have the text.
 */
export function callsIn(lod, scene, columns, masksOf, { from, to, kernel = -1, text = "", by, down, chosen = null }) {
  const masks = text ? masksOf(text) : null, found = [], classes = new Map(), extremes = [Infinity, 0];
  eachIn(lod, scene, kernel < 0 ? RECORDED : ["compute", "memory"], from, to, (i, start, end, track, role) => {
    const number = columns.name[i];
    if (kernel >= 0 ? number !== kernel : masks && !masks[role === "collectives" ? "collectives" : "names"][number]) return;
    const size = Math.floor(CLASSES * Math.log2(Math.max(1, lod.duration[i])));
    classes.set(size, (classes.get(size) ?? 0) + 1);
    extremes[0] = Math.min(extremes[0], lod.duration[i]);
    extremes[1] = Math.max(extremes[1], lod.duration[i]);
    found.push({ i, track, role });
  }, chosen);
  const key = keysBy(by, scene, lod, columns), sign = down ? -1 : 1, first = firstOf(Float64Array.from(found, (one) => sign * key(one)));
  return { total: found.length, classes: [...classes].sort(([a], [b]) => a - b), extremes, places: first.map((place) => lod.placeOf(found[place].i)) };
}
