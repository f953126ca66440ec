/**
 * The keyboard's cursor: arrow keys move along a lane and between lanes, Enter opens the panel of the interval or call.
 * It works while the chart has the focus; a live region says where it is.
 */

import { frame } from "../drawing/canvas.js";
import { stepClock } from "../data/rows.js";
import { duration, tickText, visible } from "../data/text.js";

const ROLES = new Set(["compute", "exposure", "memory", "idle", "stream", "host"]);
/** Time shown on either side of an interval that the cursor moves to outside the view, as a share of the view. */
const MARGIN = 0.5;
/** Room in pixels between the ring and what covers the rows at the top of the frame. */
const MARGIN_ABOVE = 14;
/** Distance of the ring from its interval, in pixels. */
const RING = 2;

export class Cursor {
  constructor({ root, says, plot, hover, stage, lod, navigation, selection, host, redraw }) {
    Object.assign(this, { root, says, plot, hover, stage, lod, navigation, selection, host, redraw, row: null, lane: -1, index: -1, time: null, shown: false });
    root.addEventListener("keydown", (event) => this.#key(event));
    for (const change of ["focusin", "focusout"]) root.addEventListener(change, () => this.redraw());
    plot.events.addEventListener("click", () => this.#follow());
  }

  /** Start from what was clicked; the ring appears with the first key. */
  #follow() {
    this.shown = false;
    const { row, index, point } = this.hover;
    if (!row || !point || !ROLES.has(row.role)) return;
    const found = row.host ? this.host.callAt(row, point) : row.source ? row.source.indexOf(index) : index;
    if (found < 0) return;
    const lane = row.host ? row.host.calls.lod.laneAt(found) : row.found;
    // A blocking call on the last level of a folded row can be of a deeper one.
    if (!row.host || row.host.lanes.includes(lane)) this.#put({ row, lane }, found);
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    const actions = {
      ArrowRight: () => this.#along(1),
      ArrowLeft: () => this.#along(-1),
      ArrowDown: () => this.#across(1),
      ArrowUp: () => this.#across(-1),
      Enter: () => this.#open(),
    };
    if (!(event.key in actions)) return;
    event.preventDefault();
    event.stopPropagation();
    actions[event.key]();
  }

  /** The lanes of the rows that are not hidden, from top to bottom: { row, lane, level }. */
  #lanes() {
    const rows = this.stage.order.flatMap((track) => this.stage.blockOf.get(track).rows).filter(({ h, role }) => h > 0 && ROLES.has(role));
    return rows.flatMap((row) => (row.host ? row.host.lanes.map((lane, level) => ({ row, lane, level })) : row.found >= 0 ? [{ row, lane: row.found, level: 0 }] : []));
  }

  #lodOf(row) {
    return row.host?.calls.lod ?? row.lod ?? this.lod;
  }

  /** Return the interval of a lane nearest to a time, or -1. */
  #nearest({ row, lane }, time) {
    return this.#lodOf(row).near(lane, time, Infinity);
  }

  #begin() {
    const { from, to } = this.plot.range;
    this.time = (from + to) / 2;
    const first = this.#lanes().find(({ row, lane }) => this.stage.visible.includes(row) && this.#nearest({ row, lane }, this.time) >= 0);
    if (first) this.#move(first, this.#nearest(first, this.time));
  }

  async #along(step) {
    if (!this.#holds()) return this.#begin();
    const { row, lane } = this, lod = this.#lodOf(row), position = lod.placeOf(this.index).position + step;
    const count = lod === this.lod ? this.stage.scene.lanes[lane].count : lod.offsets[lane + 1] - lod.offsets[lane];
    if (position < 0 || position >= count) return;
    const [next] = await lod.hold([{ lane, position }]);
    this.#move({ row, lane }, next);
  }

  #across(step) {
    if (!this.#holds()) return this.#begin();
    const lanes = this.#lanes(), { time } = this;
    let place = lanes.findIndex(({ row, lane }) => row === this.row && lane === this.lane);
    for (place += step; place >= 0 && place < lanes.length; place += step) {
      const index = this.#nearest(lanes[place], time);
      if (index < 0) continue;
      this.#move(lanes[place], index);
      // Moving between lanes keeps the time, so that the way back leads to the same interval.
      this.time = time;
      return;
    }
  }

  /** Whether the cursor is on a row that still exists; rows that were folded are replaced. */
  #holds() {
    if (this.index < 0) return false;
    const same = this.stage.rows.find((row) => row.track === this.row.track && row.label === this.row.label && row.role === this.row.role && row.host?.thread === this.row.host?.thread);
    if (!same || !same.h || (same.host && (same.host.calls !== this.row.host.calls || !same.host.lanes.includes(this.lane)))) return false;
    this.row = same;
    return true;
  }

  #put({ row, lane }, index) {
    const { start, duration: length } = this.#lodOf(row);
    Object.assign(this, { row, lane, index, time: start[index] + length[index] / 2 });
  }

  #move(place, index) {
    this.#put(place, index);
    this.shown = true;
    const { from, to } = this.plot.range, { start, duration: length } = this.#lodOf(place.row), end = start[index] + length[index];
    if (end < from || start[index] > to) this.navigation.show(start[index] - MARGIN * (to - from), start[index] + (1 - MARGIN) * (to - from));
    this.#scroll(place.row);
    this.says.textContent = this.#words();
    this.redraw();
  }

  #scroll({ y, h, held }) {
    const { frame, above } = this.stage, top = above + MARGIN_ABOVE;
    if (held) return;
    if (y < top) this.stage.scrollBy(y - top);
    else if (y + h > frame) this.stage.scrollBy(Math.min(y + h - frame, y - top));
  }

  /** Say what the cursor is on. */
  #words() {
    const { row, index } = this, lod = this.#lodOf(row), { from, to } = this.plot.range;
    const name = row.host ? row.host.calls.nameOf(index) : this.hover.titleOf(row, row.source ? row.source[index] : index);
    return [visible(name), duration(lod.duration[index]), `starts ${tickText(lod.start[index], to - from, stepClock(this.stage.scene, row.track))}`, row.label, this.stage.scene.tracks[row.track].label].join(" · ");
  }

  async #open() {
    if (!this.#holds()) return;
    const { row, index } = this;
    if (row.host) await this.host.choose(row.track, row.host.data, index);
    else if (row.role === "idle") await this.host.chooseGap(row.track, this.lod.start[index]);
    else await this.selection.choose(row.source ? row.source[index] : index, row.track);
  }

  /** Draw a ring around the interval; the context is in CSS pixels. */
  draw(context, { from, to, width }, { chrome: { focus, paper } }) {
    if (!this.shown || !this.root.contains(document.activeElement) || !this.#holds() || !this.stage.visible.includes(this.row)) return;
    const { row, lane, index } = this, { start, duration: length } = this.#lodOf(row), px = (to - from) / width;
    const level = row.host ? row.h / row.host.lanes.length : row.h, y = row.host ? row.y + row.host.lanes.indexOf(lane) * level : row.y;
    const left = Math.max(-8, (start[index] - from) / px), right = Math.min(width + 8, (start[index] + length[index] - from) / px);
    frame(context, { x: left - RING, y: y - RING, width: Math.max(right - left, 1) + 2 * RING, height: level + 2 * RING - 1 }, focus, paper, 3, 3);
  }
}
