/** What a collective has on its other ranks, and launch delays; their columns are unpacked on first use. */

import { known, unpack, unpackAll } from "./columns.js";
import { above } from "./lod.js";
import { laneOf, recordedPlace } from "./rows.js";

export class CollectiveMembers {
  #ready = null;

  constructor(lod, scene, columns) {
    Object.assign(this, { lod, scene, columns, memberColumns: null, launch: null });
  }

  /** Resolves when `of` and `launchDelay` have their data for an interval. */
  async ready(index) {
    this.#ready ??= this.#load();
    await this.#ready;
    await this.lod.hold(Array.from(this.#placesOf(index), (place) => this.#at(place)));
  }

  async #load() {
    const { details, served } = this.scene;
    const { launch, instance, wait, late, within, instances, groups } = (served ? await (await fetch("details")).json() : details) ?? {};
    if (launch) this.launch = await unpack(launch);
    if (!instance) return;
    const { names, ...packed } = instances;
    this.memberColumns = { names, groups, ...(await unpackAll({ instance, wait, late, within })) };
    this.instances = await unpackAll(packed);
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

  /** The number of collectives before each track's own, and of all. */
  get #before() {
    this.before ??= this.scene.tracks.reduce((sums, _, track) => [...sums, sums.at(-1) + (this.scene.lanes[laneOf(this.scene, track, "collectives")]?.count ?? 0)], [0]);
    return this.before;
  }

  /** Convert an index to the position among all collectives; -1 for another interval. */
  #place(index) {
    const { lane, position } = this.lod.placeOf(index), { role, track } = this.scene.lanes[lane];
    return role === "collectives" ? this.#before[track] + position : -1;
  }

  /** Convert a position among all collectives to { track, lane, position }. */
  #at(place) {
    const track = above(this.#before, 0, this.#before.length, place) - 1;
    return { track, lane: laneOf(this.scene, track, "collectives"), position: place - this.#before[track] };
  }

  /** Return the positions of the calls of an interval's instance; none if it was not matched. */
  #placesOf(index) {
    const number = this.memberColumns?.instance[this.#place(index)];
    return number ? this.places.subarray(this.first[number - 1], this.first[number]) : [];
  }

  /**
   * Return the collective at an index of a track, with all its ranks: { name, group, seq, bytes, transfer, algbw,
   * busbw, last (its track, or -1), members: [{ track, index, wait, late, within, exposed }] }; null if it was not matched.
   * `within` is the uncertainty of the clocks that hides when a rank arrived. Times in ns, null where unknown; rates in bytes per second, 0 where unknown.
   */
  of(index) {
    const number = this.memberColumns?.instance[this.#place(index)];
    if (!number) return null;
    const field = (key) => this.instances[key][number - 1];
    const members = Array.from(this.#placesOf(index), (place) => {
      const { wait, late, within } = this.memberColumns, { track: member, lane, position } = this.#at(place), at = this.lod.indexOf(lane, position);
      const exposed = this.columns.exposed[at - this.columns.exposedFrom[member]];
      return { track: member, index: at, wait: known(wait[place]), late: known(late[place]), within: known(within[place]), exposed };
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
    return known(this.launch[recordedPlace(this.scene, this.lod.placeOf(index))]);
  }
}
