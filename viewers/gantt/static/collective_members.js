/** A collective's other ranks, and when kernels were launched: columns that are unpacked when first asked for. */

import { unpack } from "./columns.js";
import { laneOf } from "./rows.js";

const OF_LAUNCHES = new Set(["compute", "collectives", "memory"]);

export class CollectiveMembers {
  #ready = null;

  constructor(lod, scene, columns) {
    Object.assign(this, { lod, scene, columns, memberColumns: null, launch: null });
  }

  /** Resolves when `of` and `launchDelay` can tell. */
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

  /** Gather each instance's collectives, track by track. */
  #group() {
    const { instance } = this.memberColumns, count = this.instances.transfer.length;
    this.first = new Int32Array(count + 1);
    for (const one of instance) if (one) this.first[one]++;
    for (let i = 0; i < count; i++) this.first[i + 1] += this.first[i];
    const next = this.first.slice(0, count);
    this.places = new Int32Array(this.first[count]);
    instance.forEach((one, place) => one && (this.places[next[one - 1]++] = place));
  }

  /** Place among all collectives of one on a track. */
  #place(track, index) {
    return index - this.columns.exposedFrom[track];
  }

  /** Track and index of the collective at a place among all. */
  #at(place) {
    for (let track = 0; track < this.scene.tracks.length; track++) {
      const lane = laneOf(this.scene, track, "collectives"), index = place + this.columns.exposedFrom[track];
      if (index >= this.lod.offsets[lane] && index < this.lod.offsets[lane + 1]) return { track, index };
    }
    return null;
  }

  /**
   * What is known of the collective at an index of a track, together with its other ranks: { name, group, seq, bytes,
   * transfer, upper, algbw, busbw, last (its track, or -1), members: [{ track, index, wait, late, exposed }] }; null
   * where nothing is. Times in ns, rates in bytes a second; 0 where not known, and for lateness null.
   */
  of(track, index) {
    const number = this.memberColumns?.instance[this.#place(track, index)];
    if (!number) return null;
    const one = (key) => this.instances[key][number - 1];
    const members = Array.from(this.places.subarray(this.first[number - 1], this.first[number]), (place) => {
      const late = this.memberColumns.late[place];
      return { ...this.#at(place), wait: this.memberColumns.wait[place], late: late ? late - 1 : null, exposed: this.columns.exposed[place] };
    });
    return {
      ...{ bytes: one("bytes"), transfer: one("transfer"), algbw: 1000 * one("algbw"), busbw: 1000 * one("busbw") },
      ...{ name: this.memberColumns.names[one("name")], group: this.memberColumns.groups[one("group")], seq: one("seq") - 1, last: one("last") - 1 },
      upper: Boolean(one("upper")),
      members,
    };
  }

  /** Ns from the launch of an interval to its start, or null. */
  launchDelay(index) {
    if (!this.launch) return null;
    let before = 0;
    for (let lane = 0; lane < this.scene.lanes.length; lane++) {
      if (!OF_LAUNCHES.has(this.scene.lanes[lane].role)) continue;
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
