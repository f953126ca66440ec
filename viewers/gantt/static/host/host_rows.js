/** The rows of host threads below each GPU's own rows: folded to their outermost calls, unfolded to all levels. */

import { BLOCKING, CALLS, LABELS } from "./host_calls.js";
import { rowOf } from "../data/rows.js";

/** Height of a level in pixels. */
const LEVEL = 13;
/** Numbers of GPUs up to which the rows are shown at first: folded, and as one line per thread. */
const TWO = 2, FEW = 4;
/** States of a GPU's rows. */
const OFF = 0, FOLD = 1, OPEN = 2, LINE = 3;
/** Levels shown at most, by state and flame. */
const LEVELS = { [LINE]: { [CALLS]: 1, [LABELS]: 0 }, [FOLD]: { [CALLS]: 3, [LABELS]: 2 }, [OPEN]: { [CALLS]: 24, [LABELS]: 24 } };

export class HostRows {
  #state = new Map();

  /** `redraw` draws the chart again; `failed(error)` is called when data could not be fetched. */
  constructor({ stage, scene, source, redraw, failed }) {
    Object.assign(this, { stage, scene, source, redraw, failed });
  }

  /** Show the rows that a page shows at first. */
  async begin() {
    const { length } = this.scene.tracks;
    if (!this.scene.layout.collapsed && length <= FEW) await this.showAll(length <= TWO ? FOLD : LINE);
  }

  state(track) {
    return this.#state.get(track) ?? OFF;
  }

  get shown() {
    return [...this.#state.values()].some((state) => state !== OFF);
  }

  /** Show the rows of all GPUs that have none, or hide all. */
  async showAll(state = this.shown ? OFF : FOLD) {
    const tracks = [...this.scene.tracks.keys()].filter((track) => this.source.hasCalls(track) && (this.state(track) === OFF) !== (state === OFF));
    for (const track of tracks) await this.show(track, state);
  }

  /** Show a GPU's rows folded or unfolded, or hide them; resolves to the GPU's data, or null without any. */
  async show(track, state = this.state(track) === OPEN ? FOLD : OPEN) {
    if (!this.source.has(track)) return null;
    if (!this.source.hasCalls(track)) return this.source.of(track);
    this.#state.set(track, state);
    try {
      const data = await this.source.of(track);
      if (this.state(track) === state) this.#lay(track, data, state);
      return data;
    } catch (error) {
      this.#state.delete(track);
      this.failed(error);
      return null;
    }
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
    return [{ ...rowOf(this.scene, { track, role: "host", label, h }), host, extra: true, toggle: () => this.show(track), open: state === OPEN }];
  }

  /** Ask a server for what a narrower view shows; redraws when it has answered. */
  async moved(from, to) {
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

  /** Return the call of a row at { y, time } in the frame, else the nearest one of its level within `slack` ns, or -1. */
  static callAt({ y, h, host: { lanes, deeper, calls } }, point, slack) {
    const level = Math.max(0, Math.min(lanes.length - 1, Math.floor(((point.y - y) / h) * lanes.length)));
    if (level === lanes.length - 1)
      for (const lane of deeper.toReversed()) {
        const found = calls.lod.near(lane, point.time, slack);
        if (found >= 0 && BLOCKING.includes(calls.kind[found])) return found;
      }
    return calls.lod.near(lanes[level], point.time, slack);
  }

  /** Return the box { row, y, h } of a call in the frame, or that of the nearest level shown, or null. */
  boxOf(track, calls, index) {
    const { thread, flame, depth } = calls.levelOf(index);
    return this.levelBox(track, thread, flame, depth);
  }

  levelBox(track, thread, flame, depth) {
    const row = this.stage.visible.find(({ host }) => host?.track === track && host.thread === thread && host.flame === flame);
    if (!row) return null;
    const level = row.h / row.host.lanes.length, place = Math.min(depth, row.host.lanes.length - 1);
    return { row, y: row.y + place * level, h: level };
  }
}
