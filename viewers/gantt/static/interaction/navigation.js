/** Navigation in time by wheel, keys, steps and clicks; Bokeh handles drag and minimap. */

import { typing } from "../../../base/static/dom.js";
import { stepSpan } from "../data/rows.js";
import { wheelPixels } from "../stage/scrolling.js";

/** Shortest view in ns, below the resolution of any trace. */
const MIN_WIDTH_NS = 200;
/** Margin on either side of a step or interval that is zoomed to, as a share of its length. */
const MARGIN = { step: 0.02, interval: 0.1 };
/** Zooms are in powers of e. A key moves by TAP at once and, held for HOLD_MS, by SPEED per second; a wheel by its pixels. */
const SPEED = { zoom: 2.2, pan: 0.95 };
const TAP = { zoom: 0.175, pan: 0.08 };
const HOLD_MS = 180, WHEEL = 400;
/** Number of moves that can be taken back by their opposites. */
const MAX_TRAIL = 100;
/** What the keys do: which way they zoom or pan. */
const KEYS = { w: ["zoom", -1], s: ["zoom", 1], a: ["pan", -1], d: ["pan", 1] };
const REDUCED_MOTION = matchMedia("(prefers-reduced-motion: reduce)");

export class Navigation {
  #held = new Set();
  #frame = 0;
  #last = 0;
  #step = -1;
  #stepRange = null;
  #strip = 0;
  #pointer = 0.5;
  #trail = [];
  /** The interval under the pointer when a button was pressed. */
  #aim = -1;

  constructor(plot, scene, hover, bounds) {
    Object.assign(this, { plot, scene, hover, bounds });
    plot.events.addEventListener("mousemove", (event) => {
      const point = hover.time(event);
      this.#pointer = point ? point.x / point.width : 0.5;
    });
    plot.events.addEventListener("mouseleave", () => (this.#pointer = 0.5));
    // In the capture phase: Bokeh has nothing to do with it.
    plot.events.addEventListener("wheel", (event) => this.#wheel(event), { capture: true, passive: false });
    plot.events.addEventListener("click", (event) => this.#click(event));
    plot.events.addEventListener("dblclick", () => this.#interval());
    // The first click of two can open the panel, which moves the chart under the pointer.
    plot.events.addEventListener("mousedown", ({ detail }) => detail < 2 && (this.#aim = hover.index));
    addEventListener("keydown", (event) => this.#down(event));
    addEventListener("keyup", (event) => this.#held.delete(event.key.toLowerCase()));
    addEventListener("blur", () => this.#held.clear());
  }

  /** Show [from, to], limited to the run and to the shortest view. */
  show(from, to) {
    const { bounds } = this;
    const width = Math.max(MIN_WIDTH_NS, Math.min(bounds.to - bounds.from, to - from));
    const begin = Math.max(bounds.from, Math.min(bounds.to - width, (from + to - width) / 2));
    this.plot.show(begin, begin + width);
  }

  all() {
    this.#step = -1;
    this.#strip = 0;
    this.plot.show(this.bounds.from, this.bounds.to);
  }

  /** Show a step of a strip; numbers beyond either end continue in the neighbouring strip, or stay at the last step. */
  step(number, strip = this.#strip) {
    const { strips, slots } = this.scene;
    // The steps of two aligned runs have the same places on the axis, so one strip stands for both.
    const ordered = slots ? strips.slice(0, 1) : strips;
    if (number >= strips[strip].names.length && strip + 1 < ordered.length) return this.step(0, strip + 1);
    if (number < 0 && strip > 0 && !slots) return this.step(strips[strip - 1].names.length - 1, strip - 1);
    const chosen = strips[strip];
    this.#strip = strip;
    this.#step = Math.max(0, Math.min(chosen.names.length - 1, number));
    const { from, to } = stepSpan(this.scene, chosen, this.#step);
    this.show(from - (to - from) * MARGIN.step, to + (to - from) * MARGIN.step);
    this.#stepRange = this.plot.range;
  }

  /** Show a part of the current step, without leaving the step. */
  within(from, to) {
    this.show(from, to);
    this.#stepRange = this.plot.range;
  }

  /** Return the name of the step that `step` showed, or undefined if the view has moved since. */
  stepShown() {
    const { from, to } = this.plot.range;
    if (this.#stepRange?.from !== from || this.#stepRange?.to !== to) return undefined;
    return this.scene.strips[this.#strip].names[this.#step];
  }

  /**
   * Zoom around the pointer by a power of e, or pan by a share of the view. What takes back the last move ends exactly where
   * that one began, also if an end of the run had cut it short.
   */
  #go(kind, amount) {
    const { from, to } = this.plot.range, width = to - from, last = this.#trail.at(-1);
    if (last?.kind === kind && last.amount === -amount && last.after.from === from && last.after.to === to) {
      this.#trail.pop();
      return this.plot.show(last.before.from, last.before.to);
    }
    const wide = kind === "zoom" ? width * Math.exp(amount) : width, begin = from + (kind === "zoom" ? this.#pointer * (width - wide) : amount * width);
    if (wide < MIN_WIDTH_NS) return;
    this.show(begin, begin + wide);
    const after = this.plot.range;
    if (after.from !== from || after.to !== to) this.#trail.push({ kind, amount, before: { from, to }, after });
    this.#trail.splice(0, this.#trail.length - MAX_TRAIL);
  }

  #wheel(event) {
    // Where the wheel scrolls the page, it zooms with Ctrl only.
    if (event.defaultPrevented || (this.scene.zoomKey && !event.ctrlKey)) return;
    event.preventDefault();
    event.stopPropagation();
    const { x, width } = this.hover.nearestTime(event), pixels = wheelPixels(event, innerHeight);
    this.#pointer = x / width;
    if (event.deltaY) this.#go("zoom", pixels / WHEEL);
    else this.#go("pan", pixels / width);
  }

  #click(event) {
    const point = this.hover.time(event);
    const hit = point && this.hover.stage.stripAt(point.y);
    if (!hit) return;
    const found = this.hover.stepUnder(hit, point.time);
    if (found) this.step(found.step, found.number);
  }

  /** Zoom to the interval that was under the pointer. */
  #interval() {
    const { lod } = this.hover, index = this.#aim;
    if (index < 0) return;
    const margin = lod.duration[index] * MARGIN.interval;
    this.show(lod.start[index] - margin, lod.start[index] + lod.duration[index] + margin);
  }

  #down(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event)) return;
    const key = event.key.toLowerCase();
    if (key in KEYS) this.#hold(key);
    else if (key === "f") this.all();
    else if (key === "]") this.step(this.#step + 1);
    else if (key === "[") this.step(this.#step - 1);
    else return;
    event.preventDefault();
  }

  /** Move by a bit, then for as long as the key is held; a user who wants less motion gets the bits only. */
  #hold(key) {
    const { matches: inBits } = REDUCED_MOTION;
    if (this.#held.has(key) && !inBits) return;
    this.#held.add(key);
    const [kind, way] = KEYS[key];
    this.#go(kind, way * TAP[kind]);
    if (this.#frame || inBits) return;
    this.#last = performance.now() + HOLD_MS;
    this.#frame = requestAnimationFrame((now) => this.#tick(now));
  }

  #tick(now) {
    const seconds = Math.min(0.05, (now - this.#last) / 1000);
    if (seconds > 0) {
      this.#last = now;
      for (const [kind, way] of [...this.#held].map((key) => KEYS[key])) this.#go(kind, way * SPEED[kind] * seconds);
    }
    this.#frame = this.#held.size ? requestAnimationFrame((next) => this.#tick(next)) : 0;
  }
}
