/** Where the page gets what the host did: each GPU's data from the page itself, or from the server of a served page. */

import { foldedSums, known, sums, texts, unpack, unpackAll } from "../data/columns.js";
import { above } from "../data/lod.js";
import { laneOf, RECORDED } from "../data/rows.js";
import { HostCalls } from "./host_rows.js";

// What the host did at each instant, by the analysis of idle causes: pieces of time with one label each.

export class HostActivity {
  static async of({ words, labels, delta, label, end }) {
    return new HostActivity({ words, labels, start: sums(await unpack(delta)), label: await unpack(label), end });
  }

  constructor(fields) {
    Object.assign(this, fields);
  }

  /** Return { word, what, where, ns } for each label in [from, to], most time first; they add up to the whole time. */
  spent(from, to) {
    const { start, label, end, labels, words } = this, ns = new Map();
    let rest = to - from;
    for (let i = Math.max(0, above(start, 0, start.length, from) - 1); i < start.length && start[i] < to; i++) {
      const time = Math.min(to, start[i + 1] ?? end) - Math.max(from, start[i]);
      if (time <= 0) continue;
      rest -= time;
      ns.set(label[i], (ns.get(label[i]) ?? 0) + time);
    }
    const found = [...ns].map(([i, time]) => ({ word: words[labels[i][0]], what: labels[i][1], where: labels[i][2], ns: time }));
    if (rest > 0) {
      const nothing = found.find(({ word, what }) => word === words[0] && !what);
      if (nothing) nothing.ns += rest;
      else found.push({ word: words[0], what: "", where: "", ns: rest });
    }
    return found.sort((a, b) => b.ns - a.ns);
  }
}

// What launched each interval of a GPU; the columns hold its compute, collectives and copies, one after the other.

export class HostLaunches {
  static async of(packed, scene, track) {
    const { start, correlation, ...others } = await unpackAll(packed);
    return new HostLaunches({ start: foldedSums(start), correlation: foldedSums(correlation), ...others }, scene, track);
  }

  #sorted = null;

  constructor(columns, scene, track) {
    let first = 0;
    this.columns = columns;
    this.parts = RECORDED.map((role) => laneOf(scene, track, role)).filter((lane) => lane >= 0).map((lane) => {
      const { count } = scene.lanes[lane];
      first += count;
      return { lane, first: first - count, count };
    });
  }

  /** Return what launched the interval at a position of a lane: { start, end, thread, correlation, detail }, null where unknown. */
  of({ lane, position }) {
    const part = this.parts.find((one) => one.lane === lane);
    return part ? this.#at(part.first + position) : null;
  }

  #at(place) {
    const { start, length, thread, correlation, detail } = this.columns, begin = length[place] ? start[place] : null;
    const end = begin === null ? null : begin + length[place] - 1;
    return { start: begin, end, thread: known(thread[place]), correlation: known(correlation[place]), detail: known(detail[place]) };
  }

  /** Return the intervals { lane, position } launched by calls of a thread that begin in [from, to), in order. */
  launchedIn(thread, from, to, most) {
    this.#sorted ??= this.#byLaunch();
    const { times, places } = this.#sorted, found = [];
    for (let i = above(times, 0, times.length, from - 1); i < times.length && times[i] < to && found.length < most; i++) {
      if (known(this.columns.thread[places[i]]) !== thread) continue;
      const part = this.parts.find(({ first, count }) => places[i] < first + count);
      found.push({ lane: part.lane, position: places[i] - part.first });
    }
    return found;
  }

  #byLaunch() {
    const { start, length } = this.columns, places = Int32Array.from(start.keys()).filter((place) => length[place]);
    places.sort((a, b) => start[a] - start[b] || a - b);
    return { times: Float64Array.from(places, (place) => start[place]), places };
  }
}

/** Margin on either side of a window that is asked of the server, as a multiple of its width. */
const MARGIN = 1;

async function asked(address) {
  const answer = await fetch(`host/${address}`);
  if (!answer.ok) throw new Error(`fetching the host's calls failed with HTTP status ${answer.status}`);
  return answer.json();
}

export class HostSource {
  #tracks = new Map();
  /** GPUs whose calls are being asked for: one request at a time. */
  #asking = new Set();

  constructor(scene) {
    this.scene = scene;
  }

  /** Whether the page has, or can ask for, what the host did on a GPU. */
  has(track) {
    const { host } = this.scene;
    return Boolean(host?.served || host?.tracks?.[track]);
  }

  /** Whether that includes its calls, or may include them. */
  hasCalls(track) {
    const { host } = this.scene;
    return Boolean(host?.served || host?.tracks?.[track]?.calls);
  }

  /**
   * Return a GPU's data: { threads (their names), calls, launches, launchDetails, activity, unread }; calls and launches
   * are null where they were not recorded, are not on the page, or the file could not be read again (`unread`). Null
   * without data.
   */
  of(track) {
    if (!this.has(track)) return Promise.resolve(null);
    if (!this.#tracks.has(track)) this.#tracks.set(track, this.#read(track));
    return this.#tracks.get(track);
  }

  /**
   * Return a GPU's calls and annotations whose names contain a text, most time first, with the place of the longest:
   * [{ name, count, time, thread, flame, depth, start, longest }].
   */
  async named(track, text) {
    if (!this.hasCalls(track)) return [];
    if (this.scene.host.served) return (await asked(`${track}/find/${encodeURIComponent(text)}`)).map(([name, count, time, thread, flame, depth, start, longest]) => ({ name, count, time, thread, flame, depth, start, longest }));
    const { calls } = await this.of(track), found = new Map();
    if (!calls) return [];
    const { names, lod: { start, duration } } = calls, wanted = names.map((name) => name.toLowerCase().includes(text));
    calls.name.forEach((number, index) => {
      if (!wanted[number]) return;
      const sum = found.get(number) ?? { name: names[number], count: 0, time: 0, longest: -1 };
      if (duration[index] > sum.longest) Object.assign(sum, { ...calls.levelOf(index), start: start[index], longest: duration[index] });
      found.set(number, Object.assign(sum, { count: sum.count + 1, time: sum.time + duration[index] }));
    });
    return [...found.values()];
  }

  async #read(track) {
    const packed = this.scene.host.served ? await asked(track) : this.scene.host.tracks[track];
    const { threads, calls, launches, details, activity, unread = false } = packed;
    return {
      ...{ threads, unread, launchDetails: details ? await texts(details) : [] },
      calls: calls ? await HostCalls.of(calls) : null,
      launches: launches ? await HostLaunches.of(launches, this.scene, track) : null,
      activity: await HostActivity.of(activity),
    };
  }

  /** Return a GPU's calls around a time, also those that its rows leave out; null where they were not recorded. */
  async callsAt(track, time) {
    const { calls } = (await this.of(track)) ?? {};
    if (!calls || time === null || !this.scene.host.served) return calls ?? null;
    const [begin, end] = calls.window;
    if (!calls.leftOut && time >= begin && time < end) return calls;
    return HostCalls.of((await asked(`${track}/${time}/${time + 1}`)).calls);
  }

  /**
   * Replace a GPU's calls by those of a window if the server left out some that the window could show; returns whether
   * it did.
   */
  async refine(track, from, to) {
    const data = await this.of(track), known = data?.calls;
    if (!this.scene.host.served || !known?.leftOut) return false;
    const [begin, end] = known.window, margin = MARGIN * (to - from);
    const whole = [0, this.scene.end], low = Math.max(whole[0], Math.floor(from - margin)), high = Math.min(whole[1], Math.ceil(to + margin));
    // The view has a margin on either side of the run, where nothing is.
    const inside = Math.max(from, whole[0]) >= begin && Math.min(to, whole[1]) <= end, closer = high - low < 0.5 * (end - begin);
    if ((inside && !closer) || this.#asking.has(track)) return false;
    this.#asking.add(track);
    try {
      const { calls } = await asked(`${track}/${low}/${Math.max(high, low + 1)}`);
      data.calls = await HostCalls.of(calls);
    } finally {
      this.#asking.delete(track);
    }
    return true;
  }
}
