/** Rows on demand below a GPU's own rows: idle time by cause, and its streams (threads on a CPU) as recorded. */

import { Lod } from "../data/lod.js";
import { laneOf, RECORDED, rowOf, streamWord } from "../data/rows.js";

const HEIGHT = { idle: 18, stream: 16 };

/**
 * Return the recorded intervals of a track by stream: { lod (a lane for each stream), streams (their ids), source
 * (of each interval, its index in the scene's columns) }.
 */
export function streamsOf(lod, scene, columns, track) {
  const picked = [];
  for (const role of RECORDED) {
    const lane = laneOf(scene, track, role);
    for (let i = lane < 0 ? 0 : lod.offsets[lane]; i < (lane < 0 ? 0 : lod.offsets[lane + 1]); i++) picked.push(i);
  }
  const source = Int32Array.from(picked), stream = columns.stream;
  source.sort((a, b) => stream[a] - stream[b] || lod.start[a] - lod.start[b] || a - b);
  const ids = [], offsets = [];
  source.forEach((i, place) => {
    if (place && stream[i] === ids.at(-1)) return;
    ids.push(stream[i]);
    offsets.push(place);
  });
  offsets.push(source.length);
  const take = (values) => Float64Array.from(source, (i) => values[i]);
  const category = Uint8Array.from(source, (i) => lod.category[i]);
  const streamLod = new Lod({ start: take(lod.start), duration: take(lod.duration), category, offsets: Int32Array.from(offsets), categories: lod.categories });
  return { lod: streamLod, streams: ids.map((id) => scene.columns.streams[id]), source };
}

export class ExtraRows {
  constructor(stage, lod, scene, columns) {
    Object.assign(this, { stage, lod, scene, columns, idle: false, open: new Set() });
  }

  /** Show or hide every GPU's row of idle time by cause. */
  showIdle(yes = !this.idle) {
    this.idle = yes;
    const { changed } = this.stage;
    this.stage.changed = () => {};
    this.scene.tracks.forEach((_, track) => {
      const row = { ...rowOf(this.scene, { track, role: "idle", label: "idle", h: HEIGHT.idle }), extra: true };
      this.stage.extend(track, "idle", yes ? [row] : []);
    });
    this.stage.changed = changed;
    changed();
  }

  /** Show or hide a GPU's streams. */
  async showStreams(track, yes = !this.open.has(track)) {
    this.open[yes ? "add" : "delete"](track);
    if (yes && this.scene.served) return this.#fetchStreams(track);
    this.stage.extend(track, "stream", yes ? this.#streams(track) : []);
    if (yes) this.stage.reveal(track);
  }

  #streams(track) {
    const { lod, streams, source } = streamsOf(this.lod, this.scene, this.columns, track);
    return streams.map((id, lane) => ({ ...this.#row(track, lane, id), lod, source }));
  }

  /** Show the streams of a served page as soon as they have arrived. */
  async #fetchStreams(track) {
    const lanes = await this.lod.streams(track), { streams } = this.scene.columns;
    if (!this.open.has(track)) return;
    this.stage.extend(track, "stream", lanes.map(({ lane, stream }) => this.#row(track, lane, streams[stream])));
    this.stage.reveal(track);
  }

  #row(track, lane, id) {
    const { scene } = this, label = `${streamWord(scene.tracks[track])} ${id}`;
    return { ...rowOf(scene, { track, role: "stream", label, h: HEIGHT.stream }), lane, found: lane, labels: lane, separated: lane, floor: 3, extra: true };
  }
}
