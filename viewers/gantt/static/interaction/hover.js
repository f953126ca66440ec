/** The tooltip and the outline of the interval under the pointer. */

import { line } from "../../../base/static/dom.js";
import { collectiveName, waitedFor, bytes, duration, integer, percent, percentOf, shortName, tickText, visible } from "../data/text.js";
import { busyCategories, laneOf, stepAt, stepClock, stepEnd, streamWord, stripParts, trackName, unknownIn } from "../data/rows.js";

/** Distance from the pointer, in pixels, within which a narrow interval is still found. */
const SLACK = 2;
/** How long a view rests, in ms, before the tooltip comes back after zooming. */
const REST_MS = 250;
/** Ranks listed in the tooltip of a step. */
const MAX_RANKS = 8;

export class Hover {
  /** The pointer's position, and the view for which the tooltip was last computed. */
  #pointer = null;
  #view = "";
  #quiet = false;
  #width = 0;
  #rest = 0;

  constructor(plot, lod, scene, stage, columns) {
    Object.assign(this, { plot, lod, scene, stage, columns, index: -1, row: null });
    this.tip = line("", "tip");
    this.tip.setAttribute("role", "tooltip");
    this.tip.hidden = true;
    document.body.append(this.tip);
    this.outline = document.createElement("div");
    this.outline.style.cssText = "position:absolute;box-sizing:border-box;border:2px solid;border-radius:2px;pointer-events:none;display:none";
    plot.canvas.after(this.outline);
    plot.events.addEventListener("mousemove", ({ clientX, clientY }) => this.#move({ clientX, clientY }));
    plot.events.addEventListener("mouseleave", () => this.#leave());
    // The chart can move under a pointer that rests: the page scrolls, or something opens above the chart.
    addEventListener("scroll", () => this.follow(true), { passive: true });
    document.addEventListener("toggle", () => this.follow(true), { capture: true });
  }

  /** The position and time under the pointer over the plot, or null. */
  get point() {
    return this.#pointer && this.time(this.#pointer);
  }

  /** Return the lines of a tooltip over a host's row; the page sets it. */
  hostTip() {
    return null;
  }

  /** Hide the tooltip until the pointer moves: the chart has moved under it. */
  rest() {
    this.#leave();
  }

  get quiet() {
    return this.#quiet;
  }

  /** Hide the tooltip, while the user measures. */
  set quiet(yes) {
    this.#quiet = yes;
    if (yes) this.#clear();
  }

  /**
   * Update the tooltip if the view or the rows have moved under a resting pointer, or in any case with `force`. While the
   * user zooms it would flicker: it is hidden until the view rests.
   */
  follow(force = false) {
    const { from, to } = this.plot.range, view = `${from} ${to} ${this.stage.moves}`, zoomed = to - from !== this.#width;
    this.#width = to - from;
    if (!this.#pointer || (view === this.#view && !force)) return;
    if (zoomed && !force) {
      this.#view = view;
      this.#clear();
      clearTimeout(this.#rest);
      this.#rest = setTimeout(() => this.follow(true), REST_MS);
      return;
    }
    const { clientX, clientY } = this.#pointer, target = document.elementFromPoint(clientX, clientY);
    if (target?.closest("#figure")) this.#move(this.#pointer);
    else this.#leave();
  }

  dress({ chrome }) {
    this.outline.style.borderColor = chrome.text;
  }

  /** Return the position and time under the pointer, or null outside the frame. */
  time(event) {
    return this.plot.position(event) && this.nearestTime(event);
  }

  /** Return the position and time of the pointer; outside the frame, the time of its nearest edge. */
  nearestTime(event) {
    const box = this.plot.within(document.documentElement), origin = document.documentElement.getBoundingClientRect();
    const x = Math.max(0, Math.min(box.width, event.clientX - origin.left - box.left)), y = event.clientY - origin.top - box.top;
    const { from, to } = this.plot.range, pixel = (to - from) / box.width;
    return { x, y, width: box.width, height: box.height, time: from + x * pixel, pixel };
  }

  /** Move the outline to its interval. */
  place() {
    this.follow();
    this.#placeOutline();
  }

  #placeOutline() {
    const { style } = this.outline;
    style.display = this.index < 0 ? "none" : "block";
    if (this.index < 0) return;
    const { from, to } = this.plot.range, { left, top, width } = this.plot.frame();
    const x = (time) => Math.max(-4, Math.min(width + 4, ((time - from) / (to - from)) * width));
    const begin = x(this.lod.start[this.index]), end = x(this.lod.start[this.index] + this.lod.duration[this.index]);
    Object.assign(style, { left: `${left + begin - 1}px`, width: `${Math.max(end - begin, 1) + 2}px`, top: `${top + this.row.y - 1}px`, height: `${this.row.h + 2}px` });
  }

  #clear() {
    this.tip.hidden = true;
    this.index = -1;
    this.#placeOutline();
  }

  #leave() {
    this.#pointer = this.row = null;
    this.#clear();
  }

  #move(event) {
    const { from, to } = this.plot.range;
    this.#pointer = event;
    this.#view = `${from} ${to} ${this.stage.moves}`;
    const point = this.quiet ? null : this.time(event);
    const strip = point && this.stage.stripAt(point.y);
    this.row = point && this.stage.rowAt(point.y);
    const near = this.row && this.row.found >= 0 ? (this.row.lod ?? this.lod).near(this.row.found, point.time, SLACK * point.pixel) : -1;
    this.index = near >= 0 && this.row.source ? this.row.source[near] : near;
    const lines = strip ? this.#step(strip, point) : this.row ? this.#row(this.index, point) : null;
    if (!lines) return this.#clear();
    this.#placeOutline();
    this.tip.replaceChildren(...lines);
    this.#placeTip(event);
  }

  #placeTip({ clientX, clientY }) {
    this.tip.hidden = false;
    const { offsetWidth, offsetHeight } = this.tip;
    const below = clientY + 18, fits = below + offsetHeight <= innerHeight;
    this.tip.style.left = `${Math.max(4, Math.min(innerWidth - offsetWidth - 8, clientX + 14))}px`;
    this.tip.style.top = `${fits ? below : Math.max(4, clientY - offsetHeight - 12)}px`;
  }

  /** Return the step of a row of step names at a time: { number (of its strip), step }, or undefined. */
  stepUnder(row, time) {
    const parts = stripParts(this.scene, row, this.stage.below(row), this.plot.range);
    return parts.map(({ number, steps }) => ({ number, step: stepAt(steps, time) })).find(({ step }) => step >= 0);
  }

  #step(row, { time }) {
    const { number, step } = this.stepUnder(row, time) ?? {};
    if (step === undefined) return null;
    const { tracks, names } = this.scene.strips[number];
    const wall = tracks.map((track) => this.scene.tracks[track]).map((track) => stepEnd(track, step) - track.bounds[step]);
    const listed = tracks.slice(0, MAX_RANKS).map((track, i) => line(`${this.scene.tracks[track].label}: ${duration(wall[i])}`));
    const rest = tracks.length > MAX_RANKS ? [line(`… and ${tracks.length - MAX_RANKS} more, ${duration(Math.min(...wall))} to ${duration(Math.max(...wall))}`)] : [];
    return [line(visible(names[step]), "head"), ...listed, ...rest, line("click to zoom", "dim")];
  }

  #row(index, point) {
    if (this.row.host) return this.hostTip(this.row, point);
    const drawn = this.row.memory ?? this.row.path;
    if (drawn) return drawn.tip(this.row, point);
    if (this.row.role === "phases") return this.#part(index, point);
    if (index < 0) return null;
    if (this.row.role === "idle") return this.#cause(index);
    const collective = this.scene.lanes[this.lod.laneAt(index)].role === "collectives";
    const lines = collective ? this.#collective(index) : this.#kernel(index);
    const count = this.scene.merged ? 0 : (this.row.lod ?? this.lod).count(this.row.found, point.time - point.pixel / 2, point.time + point.pixel / 2);
    return [...lines, line(this.#where(index), "dim"), ...(count > 1 ? [line(`${integer(count)} intervals under the pointer`, "dim")] : [])];
  }

  /** Return the name of an interval of a row. */
  titleOf({ role }, index) {
    if (role === "idle") return this.scene.categories[this.lod.category[index]].label;
    if (this.scene.lanes[this.lod.laneAt(index)].role !== "collectives") return shortName(this.scene.names[this.columns.name[index]]);
    return collectiveName(this.scene.collectives[this.columns.name[index]]);
  }

  #span(index) {
    const { from, to } = this.plot.range, { merged } = this.scene, several = merged && this.lod.duration[index] <= merged && this.scene.lanes[this.lod.laneAt(index)].role !== "collectives";
    // Short intervals of a very large run in one file; see viewers/gantt/tiles/merged.py.
    return `${several ? `several in ${duration(merged)}, together ` : ""}${duration(this.lod.duration[index])} · starts ${tickText(this.lod.start[index], to - from, stepClock(this.scene, this.row.track))}`;
  }

  #where(index) {
    const track = this.scene.tracks[this.row.track], step = stepAt(track, this.lod.start[index]);
    const stream = this.scene.columns.streams[this.columns.stream[index]];
    return [step < 0 ? "outside the steps, not counted" : visible(track.steps[step]), trackName(track), `${streamWord(track)} ${stream}`].join(" · ");
  }

  #kernel(index) {
    const full = this.scene.names[this.columns.name[index]], short = shortName(full);
    const { label } = this.scene.categories[this.lod.category[index]];
    const lines = [line(visible(short), "head")];
    if (short !== full) lines.push(line(visible(full), "full"));
    return [...lines, line(this.#span(index)), ...(this.row.role === "memory" ? [] : [line(label)])];
  }

  /** An idle interval and its cause. */
  #cause(index) {
    const { label, why } = this.scene.categories[this.lod.category[index]], track = this.scene.tracks[this.row.track];
    return [line(label, "head"), line(why), line(this.#span(index)), line(trackName(track), "dim")];
  }

  /** The idle cause at a time, as lines; empty if there is none. */
  #why({ time }) {
    const lane = laneOf(this.scene, this.row.track, "idle"), index = lane < 0 ? -1 : this.lod.at(lane, time);
    if (index < 0) return [];
    const { label, why } = this.scene.categories[this.lod.category[index]];
    return [line(`${label.replace("Idle: ", "Here: ")}, ${duration(this.lod.duration[index])}`), line(why, "dim")];
  }

  #collective(index) {
    const known = this.scene.collectives[this.columns.name[index]], { name, kind, bytes: size, dtype, group, label, size: members } = known;
    const exposed = this.columns.exposed[index - this.columns.exposedFrom[this.row.track]];
    const time = this.lod.duration[index];
    const facts = [known.title && kind !== "other" ? kind : "", size ? bytes(size) : "", dtype, group && `group ${group}`, members ? `${members} ranks` : ""].filter(Boolean);
    const lines = [line(visible(collectiveName(known)), "head"), line(visible([name, label].filter(Boolean).join(" · ")), "full")];
    if (facts.length) lines.push(line(visible(facts.join(" · "))));
    lines.push(line(this.#span(index)));
    lines.push(line(`exposed ${duration(exposed)} (${percentOf(exposed, time)}) · overlapped ${duration(time - exposed)}`));
    return [...lines, ...this.#waited(index)];
  }

  /** How long a collective waited, and for which rank, or why that is not known; nothing where it did not wait. */
  #waited(index) {
    const place = index - this.columns.exposedFrom[this.row.track];
    const wait = this.columns.wait[place] - 1, rank = this.columns.waitsFor[place] - 1;
    const { unknownWaits } = [this.scene, ...(this.scene.groups ?? []).filter(({ tracks }) => tracks.includes(this.row.track))].at(-1);
    if (wait < 0 && unknownWaits) return [line(`waiting unknown: ${unknownWaits}`, "dim")];
    return wait > 0 ? [line(`${waitedFor(rank)}: ${duration(wait)}`)] : [];
  }

  /** A part of a step: its time in the step, and the interval under the pointer. */
  #part(index, point) {
    const { scene, lod, row } = this, track = scene.tracks[row.track], step = stepAt(track, point.time);
    if (step < 0) return null;
    const category = index < 0 ? scene.special.idle : lod.category[index];
    const from = track.bounds[step], to = stepEnd(track, step);
    const busy = (k) => lod.busy(laneOf(scene, row.track, "phases"), k, from, to);
    const parts = busyCategories(scene);
    const ns = category === scene.special.idle ? to - from - parts.reduce((sum, k) => sum + busy(k), 0) : busy(category);
    const why = unknownIn(track, from, to)[category], share = why ? `unknown, because ${why}` : `${duration(ns)}, ${percent(ns / (to - from))} of its ${duration(to - from)}`;
    const inStep = line(`${visible(track.steps[step])}: ${share}`);
    const detail = index < 0 ? this.#why(point) : [line(`this interval: ${this.#span(index)}`)];
    const rank = category === scene.special.waiting ? this.columns.name[index] : 0;
    const label = rank ? `Waiting for rank ${rank - 1}` : scene.categories[category].label;
    return [line(label, "head"), inStep, ...detail, line(trackName(track), "dim")];
  }
}
