/** Where the page gets what the host did: each GPU's data from the page itself, or from the server of a served page. */

import { HostActivity } from "./host_activity.js";
import { HostCalls } from "./host_calls.js";
import { HostLaunches } from "./host_launches.js";
import { texts } from "../data/columns.js";

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
   * Return a GPU's data: { threads (their names), otherThreads (how many more there are), calls, launches, launchDetails,
   * activity }; calls and launches are null where they were not recorded or are not on the page. Null without data.
   */
  of(track) {
    if (!this.has(track)) return Promise.resolve(null);
    if (!this.#tracks.has(track)) this.#tracks.set(track, this.#read(track));
    return this.#tracks.get(track);
  }

  async #read(track) {
    const packed = this.scene.host.served ? await asked(track) : this.scene.host.tracks[track];
    const { threads, otherThreads = 0, calls, launches, details, activity } = packed;
    return {
      ...{ threads, otherThreads, launchDetails: details ? await texts(details) : [] },
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
