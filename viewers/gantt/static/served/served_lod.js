/**
 * The level of detail of a served page: what Lod holds of all intervals, from what the server has sent of the screen.
 * While the view moves, tiles are drawn; the exact columns and the intervals of the view replace them as they arrive.
 * What is asked for and is not there is fetched; `changed` is called when it has arrived.
 */

import { bytesOf } from "../data/columns.js";
import { learnShortNames } from "../data/text.js";
import { KnownIntervals } from "./known_intervals.js";
import { Connection, takeRows, Loader } from "./loader.js";
import { TileCache, levelOf, splat } from "./tile_cache.js";

/** Answers of each kind that are kept. */
const MAX_ANSWERS = 20_000;

/** Answers by key; what is not there is asked for, one request after the other, the newest key first. */
export class Answers {
  #known = new Map();
  #wanted = [];
  #asking = 0;

  constructor(fetchOne, { changed, failed }, atOnce = 1) {
    Object.assign(this, { fetchOne, changed, failed, atOnce });
  }

  /** Return the answer to a question, or undefined; then it is asked. */
  get(...question) {
    const key = question.join("/");
    if (!this.#known.has(key) && !this.#wanted.some((other) => other.key === key)) {
      this.#wanted.push({ key, question });
      this.#pump();
    }
    return this.#known.get(key);
  }

  /** Return an answer that is there, without asking. */
  known(...question) {
    return this.#known.get(question.join("/"));
  }

  set(answer, ...question) {
    const key = question.join("/");
    // Set last, since the oldest makes room.
    this.#known.delete(key);
    this.#known.set(key, answer);
    if (this.#known.size > MAX_ANSWERS) this.#known.delete(this.#known.keys().next().value);
  }

  async #pump() {
    if (this.#asking >= this.atOnce || !this.#wanted.length) return;
    const { key, question } = this.#wanted.at(-1);
    this.#asking++;
    try {
      this.set(await this.fetchOne(...question), ...question);
      this.changed();
    } catch (error) {
      this.failed(error);
    } finally {
      this.#asking--;
      this.#wanted = this.#wanted.filter((other) => other.key !== key);
    }
    // Older questions are those of a view that has gone.
    this.#wanted = this.#wanted.slice(-4);
    this.#pump();
  }
}

export class ServedLod {
  constructor(scene, connection = new Connection()) {
    Object.assign(this, { scene, connection, categories: scene.categories.length, changed: () => {}, failed: () => {} });
    this.lanes = scene.lanes.length;
    this.known = new KnownIntervals(scene, this.lanes);
    this.exact = null;
    this.masks = scene.lanes.map(({ categories }) => new Set(categories));
    const listeners = { changed: () => this.changed(), failed: (error) => this.failed(error) }, pad = scene.end / 250;
    const { first = {} } = scene;
    this.tiles = new TileCache(scene.end, first.tiles?.level ?? levelOf(-pad, scene.end + pad, 1024));
    if (first.tiles) this.tiles.add(first.tiles.level, first.tiles.runs, bytesOf(first.tiles.data));
    this.loader = new Loader(this);
    this.sumsBy = new Answers((start, end) => connection.json("sums", { start, end }), listeners);
    this.busyBy = new Answers((lane, start, end) => connection.json("busy", { lane, start, end }), listeners, 2);
    this.rangeBy = new Answers((what, start, end) => this.#fetchRange(what, start, end), listeners);
    if (first.sums) this.sumsBy.set(first.sums, first.from, first.to);
    this.placeBy = new Answers((lane, time, slack) => this.#fetchPlace(lane, time, slack), listeners);
  }

  get start() {
    return this.known.start;
  }

  get duration() {
    return this.known.duration;
  }

  get category() {
    return this.known.category;
  }

  get offsets() {
    return this.known.offsets;
  }

  /** Fetch the overview of some rows, before their view is known. */
  begin(rows) {
    this.loader.begin(rows);
  }

  /** Whether there is anything to draw. */
  get some() {
    return this.exact !== null || this.tiles.some;
  }

  /** Show a view { from, to, width (in pixels), rows }: fetch what it needs. */
  look(view) {
    this.loader.look(view);
  }

  /** Whether the columns and intervals of the view are there. */
  get loaded() {
    return this.loader.settled;
  }

  /** Whether everything that was asked for is there. */
  get settled() {
    return this.loader.settled && !this.connection.pending;
  }

  has(lane, category) {
    return this.masks[lane].has(category);
  }

  /** Write the shares of the columns of lanes as Lod does: exact ones, else those of tiles or of the last view. */
  density(from, to, width, lanes, out) {
    out.fill(0);
    const view = { from, to, width, px: (to - from) / width };
    lanes.forEach((lane, place) => this.#densityOf(lane, view, out, place * this.categories * width));
    return out;
  }

  #densityOf(lane, view, out, at) {
    const { exact } = this, planes = exact?.columns.get(lane), { from, to, width, px } = view;
    if (planes && exact.from === from && exact.to === to && exact.width === width) {
      for (const [k, plane] of planes) for (let x = 0; x < width; x++) out[at + k * width + x] = plane[x] / 255;
      return;
    }
    this.tiles.fill(lane, view, out, at);
    const size = exact ? (exact.to - exact.from) / exact.width : Infinity;
    // The last exact columns are better than tiles of the whole run.
    if (!planes || size > 2.5 * px || !this.tiles.missing(levelOf(from, to, width), [lane], from, to).length) return;
    const low = Math.max(0, Math.ceil((exact.from - from) / px)), high = Math.min(width, Math.floor((exact.to - from) / px));
    if (high <= low) return;
    for (let k = 0; k < this.categories; k++) out.fill(0, at + k * width + low, at + k * width + high);
    for (const [k, plane] of planes) splat(plane, exact.from, size, view, low, high, out, at + k * width);
  }

  eachLong(lane, from, to, shortest, visit) {
    this.known.lod.eachLong(lane, from, to, shortest, visit);
  }

  begins(lane, from, to) {
    return this.known.lod.begins(lane, from, to);
  }

  /** Return the lane of an interval; one of a stream belongs to the lane that it was recorded in. */
  laneAt(index) {
    return this.known.lane[index];
  }

  placeOf(index) {
    return { lane: this.known.lane[index], position: this.known.position[index] };
  }

  indexOf(lane, position) {
    return this.known.pinned(lane, position) ?? -1;
  }

  /** Return the number of the first interval of a lane among all of the run. */
  first(lane) {
    let number = 0;
    for (let i = 0; i < lane; i++) number += this.scene.lanes[i].count;
    return number;
  }

  /** Whether the intervals of a lane at a time are all here. */
  #complete(lane, time) {
    const { exact, known } = this, margin = exact ? (exact.to - exact.from) / 2 : 0;
    return exact && known.every.has(lane) && time >= exact.from - margin && time <= exact.to + margin;
  }

  at(lane, time) {
    const found = this.known.lod.at(lane, time);
    return found >= 0 || this.#complete(lane, time) ? found : this.#place(lane, time, 0).index;
  }

  near(lane, time, slack) {
    const found = this.known.lod.near(lane, time, slack);
    return found >= 0 || this.#complete(lane, time) ? found : this.#place(lane, time, slack).index;
  }

  #place(lane, time, slack) {
    const { index, under } = this.placeBy.get(lane, time, slack) ?? { index: -1, under: 0 };
    this.#under = { lane, under };
    return { index };
  }

  /** How many intervals lie at the place that was asked for last. */
  #under = null;

  async #fetchPlace(lane, time, slack) {
    const message = await this.connection.message("at", { lane, time, slack });
    this.learn(message.head);
    const [index = -1] = this.known.pin(takeRows(message, message.head.rows[0]));
    return { index, under: message.head.under };
  }

  async #fetchRange(what, start, end) {
    const answer = await this.connection.json(what, { start, end });
    this.learn(answer);
    return answer;
  }

  /** Keep the names that an answer brings. */
  learn({ names = {}, shorts = {}, collectives = {} }) {
    for (const [id, name] of Object.entries(names)) this.scene.names[id] = name;
    learnShortNames(names, shorts);
    for (const [id, entry] of Object.entries(collectives)) this.scene.collectives[id] = entry;
  }

  /** Return the number of intervals that touch a range: that of the view, or of a place that was asked for. */
  count(lane, from, to) {
    const { exact } = this;
    if (exact && exact.from === from && exact.to === to) return this.known.touching.get(lane) ?? 0;
    return this.#under?.lane === lane && !this.#complete(lane, from) ? this.#under.under : this.known.lod.count(lane, from, to);
  }

  /** Return the time that a category covers in [from, to], exactly; until the server has answered, as `about` does. */
  busy(lane, category, from, to) {
    if (!(to > from) || !this.has(lane, category)) return 0;
    const answer = this.busyBy.get(lane, from, to);
    return answer ? (answer[category] ?? 0) : this.about(lane, category, from, to);
  }

  /** Return the time that a category covers in [from, to] to a pixel, without asking. */
  about(lane, category, from, to) {
    const answer = this.busyBy.known(lane, from, to), { exact } = this;
    if (answer) return answer[category] ?? 0;
    const plane = exact?.columns.get(lane)?.find(([k]) => k === category)?.[1];
    if (!plane) return 0;
    const px = (exact.to - exact.from) / exact.width, sum = new Float64Array(1);
    const low = Math.max(from, exact.from), high = Math.min(to, exact.to);
    if (!(high > low)) return 0;
    for (let x = Math.floor((low - exact.from) / px), last = Math.min(exact.width - 1, Math.floor((high - exact.from) / px)); x <= last; x++) {
      const begin = exact.from + x * px;
      sum[0] += (plane[x] / 255) * Math.max(0, Math.min(high, begin + px) - Math.max(low, begin));
    }
    return sum[0];
  }

  /** Return the sums of a range over all tracks { parts, overlapped }, or undefined until they have arrived. */
  sums(from, to) {
    return this.sumsBy.get(from, to);
  }

  /** Return what a range holds by the name of an answer, as data/range.js does, or undefined until it has arrived. */
  inRange(what, from, to) {
    return this.rangeBy.get(what, from, to);
  }

  /** Return the lanes of a track's streams [{ lane, stream }], made by the server. */
  async streams(track) {
    const { lanes } = this.scene, made = await this.connection.json("streams", { track });
    for (const { lane, count, categories } of made) {
      // Lanes of the server that the page does not show.
      while (lanes.length <= lane) lanes.push({ track: -1, role: "", count: 0, categories: [] });
      lanes[lane] = { track, role: "stream", count, categories };
    }
    this.masks = lanes.map(({ categories }) => new Set(categories));
    this.lanes = lanes.length;
    return made;
  }

  /** Fetch the exposed time of each step of each track. */
  async loadSteps() {
    this.exposedPerStep ??= await this.connection.json("exposed", {});
  }

  /** Return the interval of a lane at a time, fetched and held, or -1. */
  async find(lane, time) {
    return (await this.#fetchPlace(lane, time, 0)).index;
  }

  /** Return the indices of intervals { lane, position }, fetched and held. */
  async hold(places) {
    const wanted = places.filter(({ lane, position }) => this.known.pinned(lane, position) === undefined);
    if (wanted.length) {
      const message = await this.connection.message("rows", { places: wanted.map(({ lane, position }) => [lane, position]) });
      this.learn(message.head);
      for (const head of message.head.rows) this.known.pin(takeRows(message, head));
    }
    return places.map(({ lane, position }) => this.known.pinned(lane, position));
  }
}
