/** Search on the server of a page: the same as search.js of the page's own columns. */

import { RECORDED } from "../data/rows.js";
import { Answers } from "./served_lod.js";

/** The hits of a text; counts and columns arrive later. */
class ServedHits {
  constructor(asked, lod, changed) {
    const { text, wanted: { roles } = { roles: RECORDED } } = asked;
    Object.assign(this, { asked, text, lod, count: null });
    this.answers = new Answers((...view) => this.#fetch(...view), { changed, failed: (error) => lod.failed(error) });
    const lanes = lod.scene.lanes.flatMap(({ role }, lane) => (roles.includes(role) ? [lane] : []));
    this.byLane = new Map(lanes.map((lane) => [lane, { lane, touched: (view) => this.#columns(view)?.[lane] ?? [] }]));
    const tracks = lod.scene.tracks.map(() => []);
    for (const lane of lanes) tracks[lod.scene.lanes[lane].track].push(lane);
    this.lanes = tracks.map((of, track) => ({ track, touched: (view) => of.flatMap((lane) => this.#columns(view)?.[lane] ?? []) }));
    this.answers.get(0, Math.max(1, lod.scene.end), 1);
  }

  #columns({ from, px, width }) {
    return this.answers.get(from, px, width)?.columns;
  }

  async #fetch(from, px, width) {
    const lanes = [...this.byLane.keys()], answer = await this.lod.connection.json("find", { ...this.asked, start: from, end: from + px * width, width, lanes });
    this.count = answer.count;
    return answer;
  }

  /** Hits within [from, to] by track, as Hits returns them; none until they have arrived. */
  perTrack(from, to) {
    const answer = this.answers.get(from, to - from, 1);
    return (answer?.tracks ?? []).map(([track, count, time]) => ({ track, count, time }));
  }

  /** Resolves to the hit after { start, number }, or before it with -1; null without any. */
  async next({ start, number = -1 }, direction = 1) {
    const { hit, ordinal } = await this.lod.connection.json("next", { text: this.text, start, number: Number.isFinite(number) ? number : 2 ** 53, direction });
    if (!hit) return null;
    const [lane, position] = hit, [index] = await this.lod.hold([{ lane, position }]), { track, role } = this.lod.scene.lanes[lane];
    return { start: this.lod.start[index], index, track, role, lane, ordinal, number: this.lod.first(lane) + position };
  }

  ordinal({ ordinal }) {
    return ordinal;
  }
}

export class ServedSearch {
  constructor(lod) {
    Object.assign(this, { lod, changed: () => {} });
  }

  find(text) {
    return text.trim() ? new ServedHits({ text }, this.lod, () => this.changed()) : null;
  }

  /** The same as callsIn() of the page's own columns, resolved when the server has answered. */
  async calls({ from, to, ...asked }) {
    const { places, ...found } = await this.lod.connection.json("calls", { ...asked, start: from, end: to });
    return { ...found, places: places.map(([lane, position]) => ({ lane, position })) };
  }

  pick(wanted) {
    return new ServedHits({ wanted }, this.lod, () => this.changed());
  }
}
