/**
 * Fetches what the view needs: one request for tiles and one for the view's exact columns and intervals at a time, the
 * newest view first. An answer that the view has left far behind is not waited for.
 */

import { joinPlanes } from "../data/columns.js";
import { laneOf } from "../data/rows.js";
import { levelOf } from "./tile_cache.js";

// Requests to the server of a page, and the messages that it sends; viewers/gantt/tiles/requests.py writes them.

const TYPES = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f8: Float64Array };

/** A head in JSON and arrays after it. */
class Message {
  #at;

  constructor(buffer) {
    const length = new DataView(buffer).getUint32(0, true);
    this.buffer = buffer;
    this.head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
    this.#at = 4 + length;
  }

  /** Return the next `count` numbers of a type. */
  take(type, count) {
    const Type = TYPES[type], bytes = count * Type.BYTES_PER_ELEMENT, from = this.#at;
    this.#at += bytes;
    const planes = this.buffer.slice(from, this.#at);
    return new Type(Type.BYTES_PER_ELEMENT === 1 ? planes : joinPlanes(planes, Type.BYTES_PER_ELEMENT));
  }
}

/** Return the running sums of differences from a first value. */
function sums(differences, first) {
  const values = new Float64Array(differences.length);
  let value = first;
  for (let i = 0; i < differences.length; i++) values[i] = i ? (value += differences[i]) : value;
  return values;
}

/** Return the intervals of a lane in a message. */
export function takeRows(message, { lane, count, base, first, every, wide, extra, touching }) {
  const time = wide ? "f8" : "u4";
  const start = sums(message.take(time, count), base), duration = message.take(time, count);
  const [category, name, stream] = [message.take("u1", count), message.take("u4", count), message.take("u2", count)];
  const position = sums(message.take("u4", count), first), more = Array.from({ length: extra }, () => message.take("f8", count));
  return { lane, count, every, touching, start, duration, category, name, stream, position, more };
}

/** Return the columns of lanes in a message: pairs of a category and its shares by lane. */
export function takeColumns(message, width) {
  return new Map(message.head.columns.map(({ lane, categories }) => [lane, categories.map((k) => [k, message.take("u1", width)])]));
}

/** Sends requests; counts them, those `pending`, and the `bytes` of the answers. */
export class Connection {
  constructor(send = (...request) => fetch(...request)) {
    Object.assign(this, { send, bytes: 0, requests: 0, pending: 0 });
  }

  async #post(name, body, signal, read) {
    this.requests++;
    this.pending++;
    try {
      const answer = await this.send(name, { method: "POST", body: JSON.stringify(body), signal });
      if (!answer.ok) throw new Error(`the server answered ${name} with HTTP status ${answer.status}`);
      this.bytes += Number(answer.headers.get("content-length"));
      return await read(answer);
    } finally {
      this.pending--;
    }
  }

  json(name, body, signal) {
    return this.#post(name, body, signal, (answer) => answer.json());
  }

  buffer(name, body, signal) {
    return this.#post(name, body, signal, (answer) => answer.arrayBuffer());
  }

  async message(name, body, signal) {
    return new Message(await this.buffer(name, body, signal));
  }
}

/** Intervals shorter than this many pixels are sent only where there are few. */
const SHORTEST = 1.5;
/** Time after which a request for an earlier view is given up, in ms. */
const STALE_MS = 400;
/** Runs of tiles in a request for what is not in view. */
const FEW = 6;
/** Lanes of the first request, which is sent before it is known how many the window shows. */
const MOST_AT_FIRST = 64;

/** Whether an answer to one view is one to another. */
function same(one, other) {
  return one.from === other.from && one.to === other.to && one.width === other.width && other.columns.every((lane) => one.columns.includes(lane));
}

export class Loader {
  #view = null;
  #tiles = null;
  #exact = null;
  /** Direction of the last zoom: below 0 is in. */
  #trend = 0;

  constructor(lod) {
    this.lod = lod;
  }

  look(view) {
    const old = this.#view;
    if (old && old.to - old.from !== view.to - view.from) this.#trend = Math.sign(view.to - view.from - (old.to - old.from));
    this.#view = { ...view, columns: [...new Set(view.rows.map(({ lane }) => lane))].filter((lane) => lane >= 0) };
    this.#pump();
  }

  /** Fetch the overview of the first rows. */
  begin(rows) {
    const { tiles, scene } = this.lod, lanes = [...new Set(rows.map(({ lane }) => lane))].filter((lane) => lane >= 0);
    const runs = tiles.missing(tiles.top, lanes.slice(0, MOST_AT_FIRST), 0, scene.end);
    if (runs.length) this.#request({ level: tiles.top, runs });
  }

  get settled() {
    return this.#view !== null && this.#shown(this.#view);
  }

  /** Whether the exact columns of a view are there. */
  #shown({ from, to, width, columns }) {
    const { exact } = this.lod;
    return exact !== null && exact.from === from && exact.to === to && exact.width === width && columns.every((lane) => exact.columns.has(lane));
  }

  #pump() {
    if (!this.settled) this.#refine();
    this.#fetchTiles();
  }

  async #refine() {
    const now = this.#view, asked = this.#exact;
    if (asked) {
      if (performance.now() - asked.since < STALE_MS || same(asked.view, now)) return;
      asked.stop.abort();
    }
    const { from, to, width, columns, rows } = now, request = { view: now, since: performance.now(), stop: new AbortController() };
    const raw = [...new Set(rows.flatMap(({ lane, found, labels, separated }) => [lane, found, labels, separated]))].filter((lane) => lane >= 0);
    this.#exact = request;
    await this.#safely(request, async () => {
      const shortest = Math.floor((SHORTEST * (to - from)) / width);
      const message = await this.lod.connection.message("view", { start: from, end: to, width, columns, raw, shortest }, request.stop.signal);
      if (this.#exact === request) this.#keep(now, message);
    });
    if (this.#exact === request) this.#exact = null;
    if (!request.failed) this.#pump();
  }

  #keep({ from, to, width }, message) {
    const { lod } = this, { head } = message, columns = takeColumns(message, width), rows = head.rows.map((one) => takeRows(message, one));
    lod.learn(head);
    lod.exact = { from, to, width, columns };
    lod.known.replace(lod.lanes, rows);
    for (const one of rows) this.#keepBusy(one);
    lod.changed();
  }

  /** Keep the times that labels show: those that the phases of labels cover, and that collectives are drawn as waiting. */
  #keepBusy({ lane, count, start, duration, category, more }) {
    const { lod } = this, { track, role } = lod.scene.lanes[lane], { waiting } = lod.scene.special;
    const phases = laneOf(lod.scene, track, "phases"), pieces = laneOf(lod.scene, track, "exposure");
    if (role === "stretches") for (let i = 0; i < count; i++) lod.busyBy.set({ [category[i]]: more[0][i] }, phases, start[i], start[i] + duration[i]);
    if (role !== "collectives") return;
    for (let i = 0; i < count; i++) if (more[1][i] > 1) lod.busyBy.set({ [waiting]: more[3][i] }, pieces, start[i], start[i] + more[1][i] - 1);
  }

  /** Return the next tiles to fetch: those of the view, then around it in the direction of the zoom, and the overview. */
  #wanted() {
    const { tiles } = this.lod, { from, to, width, columns } = this.#view, span = to - from, settled = this.settled;
    const level = Math.min(tiles.top, levelOf(from, to, width)), near = this.#trend < 0 ? [level - 1, -0.15] : [level + 1, 0.5];
    const around = [[level, 0.6], [level + 1, 0.6], [level - 1, 0], [tiles.top, 1e9]];
    for (const [one, margin] of [[level, 0], ...(this.#trend ? [near] : []), ...(settled ? around : [])]) {
      if (one < 0 || one > tiles.top) continue;
      const runs = tiles.missing(one, columns, from - margin * span, to + margin * span);
      // A few at a time of what is not in view, so that the next view does not wait for them.
      if (runs.length) return { level: one, runs: margin ? runs.slice(0, FEW) : runs };
    }
    return null;
  }

  async #fetchTiles() {
    const { tiles } = this.lod;
    if (this.#tiles) {
      const { from, to, width } = this.#view, { level, runs } = this.#tiles, [first, last] = tiles.span(level, from, to);
      if (Math.abs(level - levelOf(from, to, width)) <= 2 && runs[0][2] >= first - 4 && runs[0][1] <= last + 4) return;
      this.#tiles.stop.abort();
    }
    const next = this.#wanted();
    if (next) await this.#request(next);
  }

  async #request(next) {
    const { tiles, connection } = this.lod, request = { ...next, stop: new AbortController() };
    this.#tiles = request;
    await this.#safely(request, async () => {
      tiles.add(next.level, next.runs, new Uint8Array(await connection.buffer("tiles", next, request.stop.signal)));
      if (!this.settled) this.lod.changed();
    });
    if (this.#tiles !== request) return;
    this.#tiles = null;
    if (!request.failed && this.#view) this.#pump();
  }

  /** Run a request; one that was given up is no error. After an error, the next view asks again. */
  async #safely(request, act) {
    try {
      await act();
    } catch (error) {
      if (request.stop.signal.aborted) return;
      request.failed = true;
      this.lod.failed(error);
    }
  }
}
