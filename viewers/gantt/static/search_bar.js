/** The field that searches: counts what it finds, goes from hit to hit, and tells their time on each GPU in view. */

import { element, table } from "../../base/static/dom.js";
import { drawHits, drawMiniHits } from "./hits.js";
import { duration, visible } from "./text.js";

/** Milliseconds of rest after a key before a search of ten million kernels is worth it. */
const PATIENCE = 90;
/** A hit that is narrower is zoomed to, until it is so large a share of the view. */
const NARROWEST = 6, SHARE = 1 / 12;
/** Share of the view beside its edges where a hit counts as out of sight. */
const EDGE_SHARE = 0.06;
const MOST_TRACKS = 16;

export class SearchBar {
  #timer = 0;

  constructor({ input, output, searchIndex, plot, navigation, stage, scene, lod, card, redraw }) {
    Object.assign(this, { input, output, searchIndex, plot, navigation, stage, scene, lod, card, redraw, hits: null, current: null });
    input.addEventListener("input", () => {
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.search(input.value), PATIENCE);
    });
    input.addEventListener("keydown", (event) => this.#key(event));
  }

  open() {
    this.input.focus();
    this.input.select();
  }

  /** Look for a text; an empty one ends the search. */
  search(text) {
    clearTimeout(this.#timer);
    if (this.input.value !== text) this.input.value = text;
    if ((this.hits?.text ?? "") === text) return;
    this.hits = this.searchIndex.find(text);
    this.current = null;
    this.dismissed = false;
    if (!this.hits) this.card.hide("find");
    this.report();
    this.redraw();
  }

  close() {
    this.input.blur();
    this.search("");
  }

  #key(event) {
    if (event.key === "Escape") this.close();
    else if (event.key === "Enter") {
      this.search(this.input.value);
      this.go(event.shiftKey ? -1 : 1);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Go to the next hit, or with -1 to the one before; at first to the first in view. */
  go(direction) {
    if (!this.hits?.count) return;
    const { from, to } = this.plot.range;
    const at = this.current ?? (direction > 0 ? { start: from, index: -1 } : { start: to, index: Infinity });
    const hit = this.hits.next(at, direction);
    this.current = { ...hit, duration: this.lod.duration[hit.index] };
    this.stage.reveal(hit.track, hit.role === "collectives" ? "exposure" : hit.role);
    this.#bring(this.current);
    this.report(true);
    this.redraw();
  }

  #bring({ start, duration: ns }) {
    const { from, to } = this.plot.range, width = to - from, { width: pixels } = this.plot.frame();
    if ((ns / width) * pixels < NARROWEST) {
      const wide = ns / SHARE, middle = start + ns / 2;
      this.navigation.show(middle - wide / 2, middle + wide / 2);
    } else if (start + ns < from + EDGE_SHARE * width || start > to - EDGE_SHARE * width) {
      this.navigation.show(start + ns / 2 - width / 2, start + ns / 2 + width / 2);
    }
  }

  /** Say how many there are, and, where one asks or no other card is open, how much of the time in view is theirs. */
  report(asked = false) {
    const { hits, current } = this;
    const number = (value) => value.toLocaleString("en-US");
    this.output.textContent = !hits ? "" : !hits.count ? "nothing found" : current ? `${number(hits.ordinal(current))} of ${number(hits.count)}` : `${number(hits.count)} found`;
    if (!hits?.count || this.dismissed || (!asked && this.card.key !== null && this.card.key !== "find")) return;
    const { from, to } = this.plot.range, tracks = hits.perTrack(from, to);
    const rows = tracks.slice(0, MOST_TRACKS).map(({ track, count, time }) => [this.scene.tracks[track].label, number(count), duration(time)]);
    const total = tracks.reduce((sum, one) => ({ count: sum.count + one.count, time: sum.time + one.time }), { count: 0, time: 0 });
    if (tracks.length > 1) rows.push(Object.assign([tracks.length > MOST_TRACKS ? `all ${tracks.length} GPUs` : "together", number(total.count), duration(total.time)], { className: "total" }));
    const note = element("p", "quiet", `Of the ${duration(to - from)} in view. Enter goes to the next, Shift and Enter back.`);
    this.card.show("find", `“${visible(hits.text)}”`, [table(["GPU", "in view", "their time"], rows), note], { close: () => (this.dismissed = true) });
  }

  draw(context, view, { chrome }) {
    if (this.hits) drawHits(context, view, this.stage.visible, this.hits, this.current, chrome);
  }

  drawMini(context, view, rows, { chrome }) {
    if (this.hits) drawMiniHits(context, view, rows, this.hits, chrome);
  }
}
