/** Measuring: a drag over the chart selects a time range. */

import { element } from "../../../base/static/dom.js";
import { elapsed } from "../data/rows.js";
import { duration } from "../data/text.js";

/** In pixels: minimum length of a drag, and the distance at which the band snaps to the edge of an interval. */
const MIN_DRAG = 3, SNAP = 5;

/** A band over the plot; `onSpan({ from, to })` is called while the user drags, and `onSpan(null)` when it is removed. */
export class Measure {
  #mode = false;
  #drag = null;

  constructor(plot, hover, { onSpan, onModeChange = () => {} }) {
    Object.assign(this, { plot, hover, onSpan, onModeChange, span: null });
    this.band = element("div");
    this.band.style.cssText = "position:absolute;display:none;pointer-events:none;box-sizing:border-box;border:solid;border-width:0 2px";
    this.label = element("span");
    this.label.style.cssText = "position:absolute;top:3px;left:50%;transform:translateX(-50%);padding:1px 8px;border-radius:9px;white-space:nowrap;font:600 12px sans-serif";
    this.band.append(this.label);
    plot.canvas.after(this.band);
    // In the capture phase, before Bokeh, which would pan.
    addEventListener("pointerdown", (event) => this.#down(event), true);
    addEventListener("pointermove", (event) => this.#move(event), true);
    addEventListener("pointerup", (event) => this.#up(event), true);
    addEventListener("pointercancel", (event) => this.#up(event), true);
    addEventListener("click", (event) => this.#click(event), true);
  }

  get mode() {
    return this.#mode;
  }

  set mode(yes) {
    this.#mode = yes;
    this.plot.events.style.cursor = yes ? "crosshair" : "";
    this.onModeChange(yes);
  }

  dress({ chrome }) {
    Object.assign(this.band.style, { borderColor: chrome.mark, background: `${chrome.mark}22` });
    Object.assign(this.label.style, { background: chrome.mark, color: chrome.paper });
  }

  /** Measure a range. */
  show(span) {
    if (!(span.to > span.from)) return;
    this.span = span;
    this.place();
    this.onSpan(span);
  }

  clear() {
    if (!this.span) return;
    this.span = null;
    this.place();
    this.onSpan(null);
  }

  /** Move the band to its time range. */
  place() {
    const { style } = this.band;
    const { from, to } = this.plot.range, { left, top, width, height } = this.plot.frame();
    const x = (time) => Math.max(-3, Math.min(width + 3, ((time - from) / (to - from)) * width));
    const begin = this.span && x(this.span.from), end = this.span && x(this.span.to);
    style.display = this.span && end > -3 && begin < width + 3 ? "block" : "none";
    if (!this.span) return;
    Object.assign(style, { left: `${left + begin}px`, width: `${Math.max(end - begin, 1)}px`, top: `${top}px`, height: `${height}px` });
    this.label.textContent = duration(elapsed(this.hover.scene, this.span.from, this.span.to));
  }

  #inside(event) {
    return event.composedPath().includes(this.plot.events);
  }

  #down(event) {
    this.moved = false;
    if (event.button !== 0 || !(event.shiftKey || this.#mode) || !this.#inside(event)) return;
    const point = this.hover.time(event);
    if (!point) return;
    event.stopImmediatePropagation();
    event.preventDefault();
    this.hover.quiet = true;
    this.#drag = { time: this.#snapped(point), x: event.clientX };
  }

  #move(event) {
    if (!this.#drag) return;
    event.stopImmediatePropagation();
    if (!this.moved && Math.abs(event.clientX - this.#drag.x) < MIN_DRAG) return;
    this.moved = true;
    const time = this.#snapped(this.hover.nearestTime(event));
    this.show({ from: Math.min(time, this.#drag.time), to: Math.max(time, this.#drag.time) });
  }

  #up(event) {
    if (!this.#drag) return;
    event.stopImmediatePropagation();
    this.#drag = null;
    this.hover.quiet = false;
  }

  /** Ignore the click that ends a drag. */
  #click(event) {
    if (!this.moved || !this.#inside(event)) return;
    this.moved = false;
    event.stopImmediatePropagation();
  }

  /** Return the time of a nearby interval edge, else the time under the pointer, in whole ns. */
  #snapped({ time, pixel, y }) {
    const { hover } = this, { lod } = hover, row = hover.stage.rowAt(y);
    const index = row && row.found >= 0 && !row.lod ? lod.near(row.found, time, SNAP * pixel) : -1;
    if (index < 0) return Math.round(time);
    const edges = [lod.start[index], lod.start[index] + lod.duration[index]].sort((a, b) => Math.abs(a - time) - Math.abs(b - time));
    return Math.abs(edges[0] - time) <= SNAP * pixel ? edges[0] : Math.round(time);
  }
}
