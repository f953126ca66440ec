/** Moving through time: keys, steps, clicks. Wheel, drag and minimap are Bokeh's. */

import { stepAt, stepSpan, stripSteps } from "./rows.js";

const SHORTEST = 200;
/** Share of a step or a kernel that is shown on either side of it. */
const MARGIN = { step: 0.02, interval: 0.1 };
/** Per second while a key is held; a tap moves by TAP. */
const SPEED = { zoom: 2.2, pan: 0.95 };
const TAP = { zoom: 0.84, pan: 0.08 };

export class Navigation {
  #held = new Set();
  #frame = 0;
  #last = 0;
  #step = -1;
  #stepRange = null;
  #strip = 0;
  #pointer = 0.5;

  constructor(plot, scene, hover, bounds) {
    Object.assign(this, { plot, scene, hover, bounds });
    plot.events.addEventListener("mousemove", (event) => {
      const at = hover.time(event);
      this.#pointer = at ? at.x / at.width : 0.5;
    });
    plot.events.addEventListener("mouseleave", () => (this.#pointer = 0.5));
    plot.events.addEventListener("click", (event) => this.#click(event));
    plot.events.addEventListener("dblclick", () => this.#interval());
    addEventListener("keydown", (event) => this.#down(event));
    addEventListener("keyup", (event) => this.#held.delete(event.key.toLowerCase()));
    addEventListener("blur", () => this.#held.clear());
  }

  /** Show [from, to], kept inside the run and no shorter than a clock tick. */
  show(from, to) {
    const { bounds } = this;
    const width = Math.max(SHORTEST, Math.min(bounds.to - bounds.from, to - from));
    const begin = Math.max(bounds.from, Math.min(bounds.to - width, (from + to - width) / 2));
    this.plot.show(begin, begin + width);
  }

  all() {
    this.#step = -1;
    this.#strip = 0;
    this.plot.show(this.bounds.from, this.bounds.to);
  }

  /** Show a step of a strip; beyond either end the neighbouring strip goes on, and the first and the last stay. */
  step(number, strip = this.#strip) {
    const { strips, slots } = this.scene;
    // Two runs that are paired have their steps in the same places.
    const joined = slots ? strips.slice(0, 1) : strips;
    if (number >= strips[strip].names.length && strip + 1 < joined.length) return this.step(0, strip + 1);
    if (number < 0 && strip > 0 && !slots) return this.step(strips[strip - 1].names.length - 1, strip - 1);
    const chosen = strips[strip];
    this.#strip = strip;
    this.#step = Math.max(0, Math.min(chosen.names.length - 1, number));
    const { from, to } = stepSpan(this.scene, chosen, this.#step);
    this.show(from - (to - from) * MARGIN.step, to + (to - from) * MARGIN.step);
    this.#stepRange = this.plot.range;
  }

  /** Show a part of the step that was shown, which stays the one that is told and gone on from. */
  within(from, to) {
    this.show(from, to);
    this.#stepRange = this.plot.range;
  }

  /** Name of the step that fills the view, as `step` showed it; nothing since one has moved on. */
  stepShown() {
    const { from, to } = this.plot.range;
    if (this.#stepRange?.from !== from || this.#stepRange?.to !== to) return undefined;
    return this.scene.strips[this.#strip].names[this.#step];
  }

  #zoom(factor) {
    const { from, to } = this.plot.range, width = to - from, fixed = from + this.#pointer * width;
    if (width * factor < SHORTEST) return;
    this.show(fixed - this.#pointer * width * factor, fixed + (1 - this.#pointer) * width * factor);
  }

  #pan(share) {
    const { from, to } = this.plot.range;
    this.show(from + share * (to - from), to + share * (to - from));
  }

  #click(event) {
    const at = this.hover.time(event);
    const hit = at && this.hover.stage.stripAt(at.y);
    if (!hit) return;
    const step = stepAt(stripSteps(this.scene, this.scene.strips[hit.strip]), at.time);
    if (step >= 0) this.step(step, hit.strip);
  }

  #interval() {
    const { index, lod } = this.hover;
    if (index < 0) return;
    const margin = lod.duration[index] * MARGIN.interval;
    this.show(lod.start[index] - margin, lod.start[index] + lod.duration[index] + margin);
  }

  #down(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    const key = event.key.toLowerCase();
    if ("wasd".includes(key)) this.#hold(key);
    else if (key === "f") this.all();
    else if (key === "]") this.step(this.#step + 1);
    else if (key === "[") this.step(this.#step - 1);
    else return;
    event.preventDefault();
  }

  #hold(key) {
    if (this.#held.has(key)) return;
    this.#held.add(key);
    this.#go(key, { w: TAP.zoom, s: 1 / TAP.zoom, a: -TAP.pan, d: TAP.pan }[key]);
    if (this.#frame) return;
    this.#last = performance.now();
    this.#frame = requestAnimationFrame((now) => this.#tick(now));
  }

  #go(key, amount) {
    if (key === "w" || key === "s") this.#zoom(amount);
    else this.#pan(amount);
  }

  #tick(now) {
    const seconds = Math.max(0, Math.min(0.05, (now - this.#last) / 1000));
    this.#last = now;
    const factor = Math.exp(SPEED.zoom * seconds), share = SPEED.pan * seconds;
    for (const key of this.#held) this.#go(key, { w: 1 / factor, s: factor, a: -share, d: share }[key]);
    this.#frame = this.#held.size ? requestAnimationFrame((next) => this.#tick(next)) : 0;
  }
}
