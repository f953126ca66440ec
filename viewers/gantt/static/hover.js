/** What is under the pointer: the interval's outline, and all that is known of it. */

import { element } from "../../base/static/dom.js";
import { laneAt } from "./extra_rows.js";
import { laneOf, stepAt, stepEnd, stripSteps } from "./rows.js";
import { bytes, duration, moment, percent, shortName, visible } from "./text.js";

/** Pixels beside the pointer in which an interval that is narrower than a pixel is still found. */
const SLACK = 2;
const MOST_RANKS = 8;
/** What each cause of idling means. */
const CAUSES = {
  "Idle: data loading": "the host waited for its DataLoader",
  "Idle: host-bound": "the host launched what came next too late",
  "Idle: launch latency": "launched in time; a launch takes this long",
  "Idle: waiting": "launched in time; waited for a copy or another stream",
  "Idle: pipeline bubble": "the pipeline's schedule had no work for this stage",
};

const line = (text, className = "") => element("div", className, text);

export class Hover {
  /** Where the pointer rests, and the view and rows that it was last held against. */
  #pointer = null;
  #held = "";
  #quiet = false;

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
    // The picture moves under a pointer that rests: with the page, or below something that opens over it.
    addEventListener("scroll", () => this.follow(true), { passive: true });
    document.addEventListener("toggle", () => this.follow(true), { capture: true });
  }

  get quiet() {
    return this.#quiet;
  }

  /** While something is measured nothing is told. */
  set quiet(yes) {
    this.#quiet = yes;
    if (yes) this.#clear();
  }

  /** Tell what lies under the pointer now, where the view or the rows have moved since it came to rest. */
  follow(anew = false) {
    const { from, to } = this.plot.range, now = `${from} ${to} ${this.stage.moves}`;
    if (!this.#pointer || (now === this.#held && !anew)) return;
    const { clientX, clientY } = this.#pointer, over = document.elementFromPoint(clientX, clientY);
    if (over?.closest("#figure")) this.#move(this.#pointer);
    else this.#leave();
  }

  dress({ chrome }) {
    this.outline.style.borderColor = chrome.text;
  }

  /** The time under the pointer, or nothing. */
  time(event) {
    return this.plot.position(event) && this.beyond(event);
  }

  /** The time where the pointer is, also beside the frame: then that of its edge. */
  beyond(event) {
    const box = this.plot.within(document.documentElement), origin = document.documentElement.getBoundingClientRect();
    const x = Math.max(0, Math.min(box.width, event.clientX - origin.left - box.left)), y = event.clientY - origin.top - box.top;
    const { from, to } = this.plot.range, pixel = (to - from) / box.width;
    return { x, y, width: box.width, height: box.height, time: from + x * pixel, pixel };
  }

  /** Put the outline where its interval is now. */
  place() {
    this.follow();
    this.#outlined();
  }

  #outlined() {
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
    this.#outlined();
  }

  #leave() {
    this.#pointer = this.row = null;
    this.#clear();
  }

  #move(event) {
    const { from, to } = this.plot.range;
    this.#pointer = event;
    this.#held = `${from} ${to} ${this.stage.moves}`;
    const at = this.quiet ? null : this.time(event);
    const strip = at && this.stage.stripAt(at.y);
    this.row = at && this.stage.rowAt(at.y);
    const near = this.row && this.row.found >= 0 ? (this.row.lod ?? this.lod).near(this.row.found, at.time, SLACK * at.pixel) : -1;
    const found = near >= 0 && this.row.source ? this.row.source[near] : near;
    this.index = found;
    const lines = strip ? this.#step(strip, at) : this.row ? this.#row(found, at) : null;
    if (!lines) return this.#clear();
    this.#outlined();
    this.tip.replaceChildren(...lines);
    this.#beside(event);
  }

  #beside({ clientX, clientY }) {
    this.tip.hidden = false;
    const { offsetWidth, offsetHeight } = this.tip;
    const below = clientY + 18, fits = below + offsetHeight <= innerHeight;
    this.tip.style.left = `${Math.max(4, Math.min(innerWidth - offsetWidth - 8, clientX + 14))}px`;
    this.tip.style.top = `${fits ? below : Math.max(4, clientY - offsetHeight - 12)}px`;
  }

  #step({ strip }, { time }) {
    const { tracks, names } = this.scene.strips[strip];
    const step = stepAt(stripSteps(this.scene, this.scene.strips[strip]), time);
    if (step < 0) return null;
    const wall = tracks.map((track) => this.scene.tracks[track]).map((one) => stepEnd(one, step) - one.bounds[step]);
    const listed = tracks.slice(0, MOST_RANKS).map((track, i) => line(`${this.scene.tracks[track].label}: ${duration(wall[i])}`));
    const rest = tracks.length > MOST_RANKS ? [line(`… and ${tracks.length - MOST_RANKS} more, ${duration(Math.min(...wall))} to ${duration(Math.max(...wall))}`)] : [];
    return [line(visible(names[step]), "head"), ...listed, ...rest, line("click to zoom to it", "dim")];
  }

  #row(found, at) {
    if (this.row.role === "phases") return this.#part(found, at);
    if (found < 0) return null;
    if (this.row.role === "idle") return this.#cause(found);
    const collective = this.scene.lanes[laneAt(this.lod, found)].role === "collectives";
    const lines = collective ? this.#collective(found) : this.#kernel(found);
    const under = (this.row.lod ?? this.lod).count(this.row.found, at.time - at.pixel / 2, at.time + at.pixel / 2);
    return [...lines, line(this.#where(found), "dim"), ...(under > 1 ? [line(`${under.toLocaleString("en-US")} under the pointer`, "dim")] : [])];
  }

  #span(index) {
    const { from, to } = this.plot.range;
    return `${duration(this.lod.duration[index])} · starts ${moment(this.lod.start[index], to - from)}`;
  }

  #where(index) {
    const track = this.scene.tracks[this.row.track], step = stepAt(track, this.lod.start[index]);
    const stream = this.scene.columns.streams[this.columns.stream[index]];
    const lane = track.label.endsWith("CPU") ? `thread ${stream}` : `stream ${stream}`;
    return [step < 0 ? "outside the steps, not counted" : visible(track.steps[step]), track.label, lane].join(" · ");
  }

  #kernel(index) {
    const full = this.scene.names[this.columns.name[index]], short = shortName(full);
    const { label } = this.scene.categories[this.lod.category[index]];
    const lines = [line(visible(short), "head")];
    if (short !== full) lines.push(line(visible(full), "full"));
    return [...lines, line(this.#span(index)), ...(this.row.role === "memory" ? [] : [line(label)])];
  }

  /** A stretch of idle time, and what it was for. */
  #cause(index) {
    const { label } = this.scene.categories[this.lod.category[index]], { label: track } = this.scene.tracks[this.row.track];
    return [line(label, "head"), line(CAUSES[label] ?? ""), line(this.#span(index)), line(track, "dim")];
  }

  /** Of a time at which nothing ran: why, as a line or none. */
  #why({ time }) {
    const lane = laneOf(this.scene, this.row.track, "idle"), index = lane < 0 ? -1 : this.lod.at(lane, time);
    if (index < 0) return [];
    const { label } = this.scene.categories[this.lod.category[index]];
    return [line(`${label.replace("Idle: ", "Here: ")}, ${duration(this.lod.duration[index])}`), line(CAUSES[label] ?? "", "dim")];
  }

  #collective(index) {
    const { name, kind, bytes: size, dtype, group, size: members } = this.scene.collectives[this.columns.name[index]];
    const exposed = this.columns.exposed[index - this.columns.exposedFrom[this.row.track]];
    const time = this.lod.duration[index];
    const about = [size ? bytes(size) : "", dtype, group && `group ${group}`, members ? `${members} ranks` : ""].filter(Boolean);
    const lines = [line(visible(kind && kind !== "other" ? kind : shortName(name)), "head"), line(visible(name), "full")];
    if (about.length) lines.push(line(visible(about.join(" · "))));
    lines.push(line(this.#span(index)));
    lines.push(line(`exposed ${duration(exposed)} (${percent(time ? exposed / time : 0)}) · overlapped ${duration(time - exposed)}`));
    return lines;
  }

  #part(found, at) {
    const { time } = at;
    const { scene, lod, row } = this, track = scene.tracks[row.track], step = stepAt(track, time);
    if (step < 0) return null;
    const category = found < 0 ? scene.special.idle : lod.category[found];
    const from = track.bounds[step], to = stepEnd(track, step);
    const busy = (k) => lod.busy(laneOf(scene, row.track, "phases"), k, from, to);
    const parts = scene.categories.map((_, k) => (k < scene.special.overlapped && k !== scene.special.idle ? busy(k) : 0));
    const ns = category === scene.special.idle ? to - from - parts.reduce((a, b) => a + b, 0) : parts[category];
    const inStep = line(`${visible(track.steps[step])}: ${duration(ns)}, ${percent(ns / (to - from))} of its ${duration(to - from)}`);
    return [line(scene.categories[category].label, "head"), inStep, ...(found < 0 ? this.#why(at) : []), ...(found < 0 ? [] : [line(`this stretch: ${this.#span(found)}`)]), line(track.label, "dim")];
  }
}
