/** Some steps of a run side by side on one axis, like the page of two runs that viewers/gantt/page/pair.py makes. */

import { kept, RECORDED, stepEnd } from "./rows.js";
import { visible } from "./text.js";

/** Share of a step by which its starts may differ; beyond it, clocks are assumed to differ, and each GPU begins at 0. */
const MAX_SPREAD = 0.5;
const LETTER = 7.5;

/** Return the steps of a run that can be compared, in order: { key (their number, which a link has), name, label }. */
export const stepsOf = kept((scene) => {
  if (scene.compared) return scene.compared.steps;
  const names = [...new Set(scene.strips.flatMap((strip) => strip.names))], numbers = names.map((name) => /\d+$/.exec(name)?.[0]);
  const numbered = numbers.every(Boolean) && new Set(numbers).size === names.length;
  // The server of a page knows steps by their numbers.
  if (scene.served && !numbered) return [];
  return names.map((name, i) => ({ key: numbered ? numbers[i] : String(i + 1), name, label: numbered ? `step ${numbers[i]}` : visible(name) }));
});

/** Return how long a step takes: the mean of its GPUs, as everywhere; it is drawn from the first one's start to the last one's end. */
export function stepLength(scene, step) {
  const places = step.ns ? [] : placesOf(scene, step);
  return step.ns ?? places.reduce((sum, { begin, end }) => sum + end - begin, 0) / places.length;
}

/** Return the keys of the steps that a text names, "1,3", as far as this page can compare them: two or more, or none. */
export function chosenSteps(scene, text = "") {
  if (!text) return [];
  const wanted = text.split(","), keys = stepsOf(scene).map(({ key }) => key).filter((key) => wanted.includes(key));
  return keys.length < 2 || scene.served || (scene.groups && !scene.compared) ? [] : keys;
}

/** Return where a step is on each GPU that has it: [{ track, step, begin, end, origin }]. */
function placesOf({ tracks }, { name }) {
  const found = tracks.map((track, number) => ({ track: number, step: track.steps.indexOf(name) })).filter(({ step }) => step >= 0);
  const places = found.map((place) => ({ ...place, begin: tracks[place.track].bounds[place.step], end: stepEnd(tracks[place.track], place.step) }));
  const first = Math.min(...places.map(({ begin }) => begin)), spread = Math.max(...places.map(({ begin }) => begin)) - first;
  const apart = spread > MAX_SPREAD * Math.max(...places.map(({ begin, end }) => end - begin));
  return places.map((place) => ({ ...place, origin: apart ? place.begin : first }));
}

/** Return the intervals of a step in a lane: recorded ones of an earlier step that reach into it belong to that one. */
function indicesIn({ start, duration }, first, last, whole, { begin, end, step }) {
  const found = [];
  for (let i = first; i < last && start[i] < end; i++) if (start[i] + duration[i] > begin && (!whole || !step || start[i] >= begin)) found.push(i);
  return found;
}

/** Return scene and columns of a page on which each of the steps that a text names is a run of its own; or as they are. */
export function compareSteps(scene, columns, text) {
  const keys = chosenSteps(scene, text);
  if (!keys.length) return { scene, columns };
  const steps = stepsOf(scene).map((step) => ({ ...step, ns: stepLength(scene, step) })), chosen = steps.filter(({ key }) => keys.includes(key));
  const runs = chosen.map((step) => placesOf(scene, step)), places = runs.flat(), lanes = [], parts = [];
  places.forEach((place, track) =>
    scene.lanes.forEach((lane, number) => {
      if (lane.track !== place.track) return;
      const items = indicesIn(columns, columns.offsets[number], columns.offsets[number + 1], RECORDED.includes(lane.role), place);
      lanes.push({ ...lane, track, count: items.length });
      parts.push({ items, place, role: lane.role, from: columns.exposedFrom[lane.track] });
    }),
  );
  let first = 0;
  const numbers = runs.map((run) => run.map(() => first++)), lengths = runs.map((run) => Math.max(...run.map(({ end, origin }) => end - origin)));
  const end = Math.max(...lengths), pad = end / 250, { layout } = scene;
  const tracks = places.map((place, track) => trackOf(scene, place, chosen[numbers.findIndex((own) => own.includes(track))]));
  const shown = {
    ...scene, end, tracks, lanes, slots: [0, end], breaks: [], compared: { steps, keys },
    ...{ details: null, host: undefined, memory: undefined, path: undefined, findings: [], orders: [], few: fewOf(scene, places), why: {}, gaps: gapsOf(scene, places) },
    strips: chosen.map(({ label, ns }, i) => ({ tracks: numbers[i], names: [label], title: label, ns: [ns], bounds: [0, lengths[i]], ends: [lengths[i]] })),
    groups: chosen.map(({ label }, i) => ({ label, tracks: numbers[i], unknownWaits: scene.unknownWaits })),
    freed: lengths.slice(1).flatMap((length, i) => freedBy(lengths[0], length, i + 1, chosen[0].ns, chosen[i + 1])).filter(({ strip }) => strip || chosen.length === 2),
    layout: {
      ...layout,
      left: layout.left + Math.round(LETTER * Math.max(...chosen.map(({ label }) => label.length + 3))),
      strips: chosen.map(({ label }, i) => ({ h: layout.strips[0].h, strips: [i], tracks: numbers[i], label })),
      rows: places.flatMap((place, track) => layout.rows.filter((row) => row.track === place.track).map((row) => ({ ...row, track }))),
    },
    first: { ...scene.first, from: -pad, to: end + pad },
  };
  return { scene: shown, columns: cut(columns, parts) };
}

function trackOf({ tracks }, { track, begin, end, origin, step }, { label }) {
  const { unknown = [], bounded = [], ...own } = tracks[track], moved = (time) => Math.max(begin, Math.min(end, time)) - origin;
  const spans = unknown.map(([category, from, to, why]) => [category, moved(from), moved(to), why]).filter(([, from, to]) => to > from);
  const bounds = bounded.map((span) => span.map(moved)).filter(([from, to]) => to > from);
  return { ...own, bounded: bounds, label: `${label} · ${own.label}`, steps: [own.steps[step]], bounds: [begin - origin, end - origin], ends: [end - origin], unknown: spans };
}

function fewOf({ few }, places) {
  return few && { label: `${few.label} of the run`, tracks: [...places.keys()].filter((number) => few.tracks.includes(places[number].track)) };
}

/** Return the named gaps [start, end, text, ns] of steps, at their places. */
function gapsOf({ gaps }, places) {
  const inside = ({ track, begin, end, origin }) => (gaps.tracks[track] ?? []).filter(([from, to]) => from >= begin && to <= end).map(([from, to, ...rest]) => [from - origin, to - origin, ...rest]);
  return gaps && { ...gaps, tracks: Object.fromEntries(places.map((place, number) => [number, inside(place)])) };
}

/** Return what the other run leaves of the longer of two runs; that it is more than noise, nobody has tested. */
function freedBy(first, length, other, before, { ns: after, label }) {
  const [from, to] = [first, length].sort((a, b) => a - b), ns = before - after, place = ns > 0 ? { strip: other } : { strip: 0, who: label };
  return ns * (first - length) > 0 ? [{ ...place, from, to, ns, share: ns / before, certain: false }] : [];
}

/** Copy the intervals of lanes, moved to the start of their step; all but recorded ones are cut at its ends. */
function cut(columns, parts) {
  const offsets = new Int32Array(parts.length + 1), exposedFrom = [];
  parts.forEach(({ items }, i) => (offsets[i + 1] = offsets[i] + items.length));
  const count = offsets.at(-1), calls = parts.reduce((sum, { role, items }) => sum + (role === "collectives" ? items.length : 0), 0);
  const like = (key, length) => new columns[key].constructor(length), own = ["category", "name", "stream"], more = ["exposed", "wait", "waitsFor"];
  const copy = { start: new Float64Array(count), duration: like("duration", count), ...Object.fromEntries([...own.map((key) => [key, like(key, count)]), ...more.map((key) => [key, like(key, calls)])]) };
  let before = 0;
  parts.forEach(({ items, place: { begin, end, origin }, role, from }, part) => {
    const whole = RECORDED.includes(role), collective = role === "collectives";
    if (collective) exposedFrom.push(offsets[part] - before);
    items.forEach((i, n) => {
      const at = offsets[part] + n, start = columns.start[i], stop = start + columns.duration[i], low = whole ? start : Math.max(start, begin);
      copy.start[at] = low - origin;
      copy.duration[at] = (whole ? stop : Math.min(stop, end)) - low;
      for (const key of own) copy[key][at] = columns[key][i];
      if (collective) for (const key of more) copy[key][before + n] = columns[key][i - from];
    });
    if (collective) before += items.length;
  });
  return { ...copy, offsets, exposedFrom, categories: columns.categories };
}
