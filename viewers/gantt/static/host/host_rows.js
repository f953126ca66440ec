/** The rows of host threads below each GPU's own rows: folded to their outermost calls, unfolded to all levels. */

import { FONT_FAMILY } from "../../../base/static/theme.js";
import { sums, texts, unpackAll } from "../data/columns.js";
import { above, Lod } from "../data/lod.js";
import { ranksOf, ranksText, rowOf } from "../data/rows.js";
import { visible } from "../data/text.js";
import { fitted, widthsIn } from "../drawing/canvas.js";
import { Raster } from "../drawing/raster.js";

// The calls of one GPU's host threads: unpacked from the page, or asked of its server, and searched by place and time.

/** The flames of a thread: operators and calls, annotations and modules, Python functions; see timeline/host_calls.py. */
export const CALLS = 0;
export const LABELS = 1;
export const PYTHON = 2;
/** Kinds of host calls. */
export const KIND = { operator: 0, runtime: 1, allocator: 2, synchronizing: 3, annotation: 4, module: 5, python: 6 };
/** Kinds of calls that can block: allocator calls and synchronization. */
const BLOCKING = [KIND.allocator, KIND.synchronizing];
const KINDS = 7;

/** Fields of `details`, in the order of timeline's EventDetails. */
const DETAILS = ["shapes", "dtypes", "grid", "block", "bytes", "stack"];

/** Return an entry of a table of details by name. */
export function detailsAt(table, index) {
  return Object.fromEntries(DETAILS.map((key, i) => [key, table?.[index]?.[i] ?? (key === "bytes" ? -1 : "")]));
}

export class HostCalls {
  /** `packed` is the result of window_data() in viewers/gantt/host.py. */
  static async of({ levels, columns, names, details, window, total, leftOut, shortest }) {
    const { delta, duration, kind, name, detail } = await unpackAll(columns);
    const offsets = new Int32Array(levels.length + 1), start = new Float64Array(delta.length);
    levels.forEach(([, , , count, first], i) => {
      offsets[i + 1] = offsets[i] + count;
      let time = first;
      for (let j = offsets[i]; j < offsets[i + 1]; j++) start[j] = time += delta[j];
    });
    const lod = new Lod({ start, duration, category: kind, offsets, categories: KINDS });
    const found = { lod, kind, name, detail, window, total, leftOut, shortest };
    return new HostCalls({ ...found, names: await texts(names), details: await texts(details), levels: levels.map(([thread, flame, depth]) => ({ thread, flame, depth })) });
  }

  constructor(fields) {
    Object.assign(this, fields);
    this.#place = new Map(this.levels.map(({ thread, flame, depth }, lane) => [`${thread} ${flame} ${depth}`, lane]));
  }

  #place;

  /** Return the lanes of a thread's flame, outermost first. */
  lanesOf(thread, flame) {
    return this.levels.flatMap((level, lane) => (level.thread === thread && level.flame === flame ? [lane] : []));
  }

  /** Whether a lane holds the profiler's marks of steps. */
  marksSteps(lane) {
    return this.nameOf(this.lod.offsets[lane]).startsWith("ProfilerStep#");
  }

  levelOf(index) {
    return this.levels[this.lod.laneAt(index)];
  }

  nameOf(index) {
    return this.names[this.name[index]];
  }

  /** Return the innermost call of a thread's flame that runs at a time, at most `deepest` deep, or -1. */
  at(thread, flame, time, deepest = Infinity) {
    for (const lane of this.lanesOf(thread, flame).toReversed()) {
      if (this.levels[lane].depth > deepest) continue;
      const found = this.lod.at(lane, time);
      if (found >= 0) return found;
    }
    return -1;
  }

  /**
   * Return the innermost annotations of a thread where none of a lane's calls runs, as a lane of their own: { lod, source
   * (of each piece, its annotation) }.
   */
  labelsBetween(thread, lane) {
    const { lod: { start, duration, offsets }, kind } = this, found = [], open = [], end = (index) => start[index] + duration[index];
    const all = this.lanesOf(thread, LABELS).filter((one) => !this.marksSteps(one)).flatMap((one) => Array.from({ length: offsets[one + 1] - offsets[one] }, (_, i) => offsets[one] + i));
    let time = 0, call = offsets[lane];
    /** Add what the innermost annotation has until a time. */
    const until = (to) => {
      for (; open.length && time < to; call++) {
        while (call < offsets[lane + 1] && end(call) <= time) call++;
        const next = call < offsets[lane + 1] ? Math.min(to, start[call]) : to;
        if (next > time) found.push({ source: open.at(-1), start: time, duration: next - time });
        if (next === to) break;
        time = end(call);
      }
      time = Math.max(time, to);
    };
    for (const index of all.sort((a, b) => start[a] - start[b] || duration[b] - duration[a] || a - b)) {
      for (; open.length && end(open.at(-1)) <= start[index]; open.pop()) until(end(open.at(-1)));
      until(start[index]);
      open.push(index);
    }
    for (; open.length; open.pop()) until(end(open.at(-1)));
    const source = Int32Array.from(found, (piece) => piece.source), take = (key) => Float64Array.from(found, (piece) => piece[key]);
    return { source, lod: new Lod({ start: take("start"), duration: take("duration"), category: Uint8Array.from(source, (index) => kind[index]), offsets: Int32Array.of(0, found.length), categories: KINDS }) };
  }

  /** Return the calls around one, the innermost first. */
  around(index) {
    const { thread, flame, depth } = this.levelOf(index), found = [];
    for (let level = depth - 1; level >= 0; level--) {
      const lane = this.#place.get(`${thread} ${flame} ${level}`), call = lane === undefined ? -1 : this.lod.at(lane, this.lod.start[index]);
      if (call >= 0) found.push(call);
    }
    return found;
  }

  /** Return the call of a thread that begins at a time and is no operator, or else is one, or -1: what launched work. */
  launchAt(thread, time) {
    const { start, offsets } = this.lod;
    let operator = -1;
    for (const lane of this.lanesOf(thread, CALLS)) {
      const index = above(start, offsets[lane], offsets[lane + 1], time) - 1;
      if (index < offsets[lane] || start[index] !== time) continue;
      if (this.kind[index] !== KIND.operator) return index;
      if (operator < 0) operator = index;
    }
    return operator;
  }
}

/** Height of a level in pixels. */
const LEVEL = 13;
/** Numbers of GPUs up to which the rows are shown at first: folded, and as one line per thread. */
const TWO = 2, FEW = 4;
/** States of a GPU's rows, and what a view calls them. */
const OFF = 0, FOLD = 1, OPEN = 2, LINE = 3, STATES = ["off", "fold", "open", "line"];
/** Levels shown at most, by state and flame. */
const LEVELS = { [LINE]: { [CALLS]: 1, [LABELS]: 0 }, [FOLD]: { [CALLS]: 3, [LABELS]: 2 }, [OPEN]: { [CALLS]: 24, [LABELS]: 24 } };

export class HostRows {
  #state = new Map();

  /** `changed` is called when rows are shown or hidden, `failed(error)` when data could not be fetched. */
  constructor({ stage, scene, source, changed, failed }) {
    const { length } = scene.tracks;
    Object.assign(this, { stage, scene, source, changed, failed, first: scene.layout.collapsed || length > FEW ? OFF : length <= TWO ? FOLD : LINE });
    this.tracks = [...scene.tracks.keys()].filter((track) => source.hasCalls(track));
  }

  /** Show the rows that a page shows at first. */
  async begin() {
    if (this.first !== OFF) await this.showAll(this.first);
  }

  /** The states that differ from those at first, "fold:0-3;off:5". */
  get states() {
    const others = STATES.map((_, state) => this.tracks.filter((track) => state !== this.first && this.state(track) === state));
    return others.flatMap((tracks, state) => (tracks.length ? [`${STATES[state]}:${ranksText(this.scene, tracks)}`] : [])).join(";");
  }

  /** Show the rows in the states of a view. */
  async restore(states = "") {
    const parts = states.split(";").map((part) => part.split(":")), wanted = new Map();
    for (const [word, ranks = ""] of parts) for (const track of ranksOf(this.scene, ranks)) wanted.set(track, STATES.indexOf(word));
    for (const track of this.tracks) if (this.state(track) !== (wanted.get(track) ?? this.first)) await this.show(track, wanted.get(track) ?? this.first);
  }

  state(track) {
    return this.#state.get(track) ?? OFF;
  }

  get shown() {
    return [...this.#state.values()].some((state) => state !== OFF);
  }

  /** Show the rows of all GPUs that have none, or hide all. */
  async showAll(state = this.shown ? OFF : FOLD) {
    const tracks = this.tracks.filter((track) => (this.state(track) === OFF) !== (state === OFF));
    for (const track of tracks) await this.show(track, state);
  }

  /** Show a GPU's rows folded or unfolded, or hide them; resolves to the GPU's data, or null without any. */
  async show(track, state = this.state(track) === OPEN ? FOLD : OPEN) {
    if (!this.source.has(track)) return null;
    if (!this.source.hasCalls(track)) return this.source.of(track);
    this.#set(track, state);
    try {
      const data = await this.source.of(track);
      if (this.state(track) === state) this.#lay(track, data, state);
      return data;
    } catch (error) {
      this.#set(track, OFF);
      this.failed(error);
      return null;
    }
  }

  #set(track, state) {
    this.#state.set(track, state);
    this.changed();
  }

  /** Show at least the folded rows of a GPU. */
  async reveal(track) {
    return [OFF, LINE].includes(this.state(track)) ? this.show(track, FOLD) : this.source.of(track);
  }

  #lay(track, data, state) {
    const rows = state === OFF || !data.calls ? [] : data.threads.flatMap((name, thread) => [LABELS, CALLS].flatMap((flame) => this.#row(track, data, thread, flame, name, state)));
    this.stage.extend(track, "host", rows);
  }

  #row(track, data, thread, flame, name, state) {
    const levels = data.calls.lanesOf(thread, flame);
    // The strip above the rows shows the steps already.
    const all = state === OPEN ? levels : levels.filter((lane) => !data.calls.marksSteps(lane)), most = LEVELS[state][flame], lanes = all.slice(0, most);
    if (!lanes.length) return [];
    const label = flame === CALLS ? `host · ${name}` : "annotations", h = LEVEL * lanes.length;
    // Calls that block show on the last level, however deep they are.
    const host = { track, thread, flame, data, lanes, deeper: all.slice(most), calls: data.calls };
    if (flame === CALLS && state !== OPEN) host.between = data.calls.labelsBetween(thread, lanes[0]);
    return [{ ...rowOf(this.scene, { track, role: "host", label, h }), host, extra: true, toggle: () => this.show(track), open: state === OPEN }];
  }

  /** Ask a server for what a narrower view shows; redraws when it has answered. */
  async moved({ from, to }) {
    if (!this.scene.host?.served) return;
    for (const [track, state] of this.#state) {
      if (state === OFF || !this.stage.visible.some((row) => row.host?.track === track)) continue;
      try {
        if (await this.source.refine(track, from, to)) this.#lay(track, await this.source.of(track), this.state(track));
      } catch (error) {
        this.failed(error);
      }
    }
  }

  /**
   * Return the call of a row at { y, time } in the frame, else the nearest one of its level within `slack` ns, else the
   * annotation that the row shows there, or -1.
   */
  static callAt({ y, h, host: { lanes, deeper, calls, between } }, point, slack) {
    const level = Math.max(0, Math.min(lanes.length - 1, Math.floor(((point.y - y) / h) * lanes.length)));
    if (level === lanes.length - 1)
      for (const lane of deeper.toReversed()) {
        const found = calls.lod.near(lane, point.time, slack);
        if (found >= 0 && BLOCKING.includes(calls.kind[found])) return found;
      }
    const found = calls.lod.near(lanes[level], point.time, slack), label = found < 0 && level === 0 && between ? between.lod.at(0, point.time) : -1;
    return label < 0 ? found : between.source[label];
  }

  /** Return the place { y, h } of a level of calls in the frame, or that of the nearest one shown, or null. */
  boxOf(track, { thread, flame, depth }) {
    const own = this.stage.visible.filter(({ host }) => host?.track === track && host.thread === thread);
    // Annotations without a row show in the first level of the calls.
    const exact = own.find(({ host }) => host.flame === flame), row = exact ?? own[0];
    if (!row) return null;
    const level = row.h / row.host.lanes.length, place = exact ? Math.min(depth, row.host.lanes.length - 1) : 0;
    return { y: row.y + place * level, h: level };
  }
}

// Draws the host's calls in their rows: each level as a row of its own, by the exact time shares of its kinds.

/** Minimum width of a labelled call, margin of its text, and minimum height of a labelled level, in pixels. */
const MIN_WIDTH = 30, PADDING = 3, MIN_LEVEL = 10;
const MAX_LABELS = 600;
/** Kinds that are drawn over all others: synchronization and allocator calls, which are rare, short and telling. */
const ORDER = [3, 2, 1, 4, 5, 0, 6];

/** Return a name without what every operator shares. */
function shortCall(name) {
  return visible(name.replace(/^nn\.Module: /, "").replace(/^autograd::engine::evaluate_function: /, "evaluate: "));
}

export class Flame {
  #raster = null;
  #canvas = null;

  constructor(kinds) {
    const hidden = Uint8Array.from(kinds, (_, kind) => (BLOCKING.includes(kind) ? 0 : 1));
    Object.assign(this, { kinds, none: new Uint8Array(kinds.length), allButBlocking: hidden });
    this.dress({ name: "light", chrome: {} });
  }

  dress({ name, chrome }) {
    const themed = (kind) => (name === "dark" ? kind.dark : kind);
    this.inks = this.kinds.map((kind) => themed(kind).ink);
    this.colors = this.kinds.map((kind) => themed(kind).color);
    this.chrome = chrome;
    this.#raster?.paint(this.colors, chrome.baseline, chrome.paper);
  }

  /** Draw the rows of hosts among `rows`; the context is in CSS pixels. */
  draw(context, { from, to, width }, rows, letters) {
    const hosts = rows.filter(({ host }) => host), levels = [...hosts.flatMap(betweenOf), ...hosts.flatMap(levelsOf)];
    if (!levels.length) return;
    const top = Math.floor(Math.min(...levels.map(({ y }) => y))), bottom = Math.ceil(Math.max(...levels.map(({ y, h }) => y + h)));
    const deeper = hosts.flatMap(deeperOf), view = { from, to, width, top, height: bottom - top, px: (to - from) / width, letters };
    this.#pixels(context, levels, view, this.none);
    if (deeper.length) this.#pixels(context, deeper, view, this.allButBlocking);
    let left = MAX_LABELS;
    context.textBaseline = "middle";
    for (const level of [...levels, ...deeper]) left -= this.#labels(context, level, view, left);
  }

  #pixels(context, placed, { from, to, width, top, height }, hidden) {
    const rows = placed.map((level) => ({ ...level, y: level.y - top }));
    if (!this.#raster) {
      this.#raster = new Raster(rows[0].lod, rows, { colors: this.colors, order: ORDER, exposed: -1, idle: -1, patterns: {} });
      this.#raster.paint(this.colors, this.chrome.baseline, this.chrome.paper);
    }
    Object.assign(this.#raster, { rows, lod: rows[0].lod });
    const scale = context.getTransform().a, size = { width: Math.round(width * scale), height: Math.round(height * scale) };
    const image = this.#raster.draw({ from, to, ...size, scale, hidden });
    this.#canvas ??= document.createElement("canvas");
    Object.assign(this.#canvas, size);
    this.#canvas.getContext("2d").putImageData(new ImageData(new Uint8ClampedArray(image.buffer), size.width, size.height), 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.#canvas, 0, top, size.width / scale, size.height / scale);
  }

  /** Label the calls of a level, at most `most`; returns how many. */
  #labels(context, { y, h, lane, lod, calls, deeper, blockingOnly, source }, { from, to, width, px, letters }, most) {
    let drawn = 0;
    if (h < MIN_LEVEL) return drawn;
    context.font = `${Math.min(letters, Math.floor(h - 2.5))}px ${FONT_FAMILY}`;
    const widthOf = widthsIn(context.font);
    lod.eachLong(lane, from, to, MIN_WIDTH * px, (place) => {
      const index = source ? source[place] : place;
      if (drawn >= most || (blockingOnly && !BLOCKING.includes(calls.kind[index]))) return;
      const begin = Math.max(0, (lod.start[place] - from) / px) + PADDING;
      const room = Math.min(width, (lod.start[place] + lod.duration[place] - from) / px) - PADDING - begin;
      const text = fitted(shortCall(calls.nameOf(index)), room, widthOf, beginning);
      if (!text || covered(calls.lod, deeper, from + begin * px, from + (begin + widthOf(text)) * px)) return;
      context.fillStyle = this.inks[calls.kind[index]];
      context.fillText(text, begin, y + h / 2);
      drawn++;
    });
    return drawn;
  }

}

/** Return the beginning of a name, or "" if too little of it would be left. */
const beginning = (name, letters) => (letters < 4 ? "" : `${name.slice(0, letters - 1)}…`);

/** Whether blocking calls of other levels are drawn over a range. */
function covered(lod, lanes, from, to) {
  return lanes.some((lane) => BLOCKING.some((kind) => lod.busy(lane, kind, from, to) > 0));
}

/** Return the annotations between a row's outermost calls as a row of the raster, if it shows them. */
function betweenOf(row) {
  const { between, lanes, deeper } = row.host;
  return between ? [{ ...levelOf(row, lanes[0], 0), ...between, lane: 0, separated: 0, deeper: lanes.length > 1 ? [] : deeper }] : [];
}

/** Return a row's levels as rows of the raster. */
function levelsOf(row) {
  const { lanes, deeper } = row.host;
  return lanes.map((lane, i) => ({ ...levelOf(row, lane, i), deeper: i === lanes.length - 1 ? deeper : [] }));
}

/** Return the levels that a row is too low for, all in the place of its last one. */
function deeperOf(row) {
  const { lanes, deeper } = row.host, shared = { separated: -1, floor: 4, blockingOnly: true };
  return deeper.map((lane, i) => ({ ...levelOf(row, lane, lanes.length - 1), ...shared, deeper: deeper.slice(i + 1) }));
}

function levelOf({ y, h, host: { lanes, calls } }, lane, place) {
  const level = h / lanes.length;
  return { lod: calls.lod, calls, lane, separated: lane, y: y + place * level, h: level - 1, idle: false, floor: 1, from: -Infinity, to: Infinity };
}
