/** A collective's other ranks, and launch delays; their columns are unpacked on first use. */

import { unpack } from "./columns.js";
import { laneOf } from "./rows.js";

/** Convert a time that is packed plus 1, since 0 stands for an unknown one. */
const known = (packed) => (packed ? packed - 1 : null);

const LAUNCHED_ROLES = new Set(["compute", "collectives", "memory"]);

export class CollectiveMembers {
  #ready = null;

  constructor(lod, scene, columns) {
    Object.assign(this, { lod, scene, columns, memberColumns: null, launch: null });
  }

  /** Resolves when `of` and `launchDelay` have their data. */
  ready() {
    this.#ready ??= this.#unpack(this.scene.details ?? {});
    return this.#ready;
  }

  async #unpack({ launch, instance, wait, late, instances, groups }) {
    if (launch) this.launch = await unpack(launch);
    if (!instance) return;
    const { names, ...packed } = instances;
    const keys = Object.keys(packed), columns = await Promise.all(keys.map((key) => unpack(packed[key])));
    this.memberColumns = { names, groups, instance: await unpack(instance), wait: await unpack(wait), late: await unpack(late) };
    this.instances = Object.fromEntries(keys.map((key, i) => [key, columns[i]]));
    this.#group();
  }

  /** List each instance's collectives, track by track. */
  #group() {
    const { instance } = this.memberColumns, count = this.instances.transfer.length;
    this.first = new Int32Array(count + 1);
    for (const number of instance) if (number) this.first[number]++;
    for (let i = 0; i < count; i++) this.first[i + 1] += this.first[i];
    const next = this.first.slice(0, count);
    this.places = new Int32Array(this.first[count]);
    instance.forEach((number, place) => number && (this.places[next[number - 1]++] = place));
  }

  /** Convert an index of a track to the position among all collectives. */
  #place(track, index) {
    return index - this.columns.exposedFrom[track];
  }

  /** Convert a position among all collectives to { track, index }. */
  #at(place) {
    for (let track = 0; track < this.scene.tracks.length; track++) {
      const lane = laneOf(this.scene, track, "collectives"), index = place + this.columns.exposedFrom[track];
      if (index >= this.lod.offsets[lane] && index < this.lod.offsets[lane + 1]) return { track, index };
    }
    return null;
  }

  /**
   * Return the collective at an index of a track, with all its ranks: { name, group, seq, bytes, transfer, algbw,
   * busbw, last (its track, or -1), members: [{ track, index, wait, late, exposed }] }; null if it was not matched.
   * Times in ns, null where unknown; rates in bytes per second, 0 where unknown.
   */
  of(track, index) {
    const number = this.memberColumns?.instance[this.#place(track, index)];
    if (!number) return null;
    const field = (key) => this.instances[key][number - 1];
    const members = Array.from(this.places.subarray(this.first[number - 1], this.first[number]), (place) => {
      const { wait, late } = this.memberColumns;
      return { ...this.#at(place), wait: known(wait[place]), late: known(late[place]), exposed: this.columns.exposed[place] };
    });
    return {
      ...{ bytes: field("bytes"), transfer: known(field("transfer")), algbw: 1000 * field("algbw"), busbw: 1000 * field("busbw") },
      ...{ name: this.memberColumns.names[field("name")], group: this.memberColumns.groups[field("group")], seq: field("seq") - 1, last: field("last") - 1 },
      members,
    };
  }

  /** Return the time from the launch of an interval to its start in ns, or null if unknown. */
  launchDelay(index) {
    if (!this.launch) return null;
    let before = 0;
    for (let lane = 0; lane < this.scene.lanes.length; lane++) {
      if (!LAUNCHED_ROLES.has(this.scene.lanes[lane].role)) continue;
      const from = this.lod.offsets[lane], to = this.lod.offsets[lane + 1];
      if (index >= from && index < to) {
        const delay = this.launch[before + index - from];
        return delay ? delay - 1 : null;
      }
      before += to - from;
    }
    return null;
  }
}
