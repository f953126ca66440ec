/** What is under the pointer: the interval's outline, and all that is known of it. */

import { laneOf, stepAt } from "./rows.js";
import { bytes, duration, moment, percent, shortName, visible } from "./words.js";

/** Pixels beside the pointer in which an interval that is narrower than a pixel is still found. */
const SLACK = 2;
const MOST_RANKS = 8;

function line(text, className = "") {
  const made = document.createElement("div");
  made.className = className;
  made.textContent = text;
  return made;
}

export class Hover {
  constructor(plot, lod, scene, rows, columns) {
    Object.assign(this, { plot, lod, scene, rows, columns, index: -1, row: null });
    this.tip = line("", "tip");
    this.tip.setAttribute("role", "tooltip");
    this.tip.hidden = true;
    document.body.append(this.tip);
    this.outline = document.createElement("div");
    this.outline.style.cssText = "position:absolute;box-sizing:border-box;border:2px solid #111827;border-radius:2px;pointer-events:none;display:none";
    plot.canvas.after(this.outline);
    plot.events.addEventListener("mousemove", (event) => this.#move(event));
    plot.events.addEventListener("mouseleave", () => this.#clear());
  }

  /** The time under the pointer, or nothing. */
  time(event) {
    const at = this.plot.position(event), { from, to } = this.plot.range;
    return at && { ...at, time: from + (at.x / at.width) * (to - from), pixel: (to - from) / at.width };
  }

  /** Put the outline where its interval is now. */
  place() {
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
    this.place();
  }

  #move(event) {
    const at = this.time(event);
    const strip = at && this.scene.layout.strips.find(({ y, h }) => at.y >= y && at.y < y + h);
    this.row = at && this.rows.find(({ y, h }) => at.y >= y && at.y < y + h);
    const found = this.row && this.row.found >= 0 ? this.lod.near(this.row.found, at.time, SLACK * at.pixel) : -1;
    this.index = found;
    const lines = strip ? this.#step(strip, at) : this.row ? this.#row(found, at) : null;
    if (!lines) return this.#clear();
    this.place();
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
    const step = stepAt(this.scene.tracks[tracks[0]], time);
    if (step < 0) return null;
    const wall = tracks.map((track) => this.scene.tracks[track].bounds).map((bounds) => bounds[step + 1] - bounds[step]);
    const listed = tracks.slice(0, MOST_RANKS).map((track, i) => line(`${this.scene.tracks[track].label}: ${duration(wall[i])}`));
    const rest = tracks.length > MOST_RANKS ? [line(`… and ${tracks.length - MOST_RANKS} more, ${duration(Math.min(...wall))} to ${duration(Math.max(...wall))}`)] : [];
    return [line(visible(names[step]), "head"), ...listed, ...rest, line("click to zoom to it", "dim")];
  }

  #row(found, at) {
    if (this.row.role === "phases") return this.#part(found, at);
    if (found < 0) return null;
    const lines = this.row.role === "exposure" ? this.#collective(found) : this.#kernel(found);
    const under = this.lod.count(this.row.found, at.time - at.pixel / 2, at.time + at.pixel / 2);
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

  #collective(index) {
    const { name, kind, bytes: size, dtype, group, size: members } = this.scene.collectives[this.columns.name[index]];
    const exposed = this.columns.exposed[index - this.columns.exposedFrom[this.row.track]];
    const time = this.lod.duration[index];
    const about = [size ? bytes(size) : "", dtype, group && `group ${group}`, members ? `${members} ranks` : ""].filter(Boolean);
    const lines = [line(visible(kind && kind !== "other" ? kind.replaceAll("_", "-") : shortName(name)), "head"), line(visible(name), "full")];
    if (about.length) lines.push(line(visible(about.join(" · "))));
    lines.push(line(this.#span(index)));
    lines.push(line(`exposed ${duration(exposed)} (${percent(time ? exposed / time : 0)}) · overlapped ${duration(time - exposed)}`));
    return lines;
  }

  #part(found, { time }) {
    const { scene, lod, row } = this, track = scene.tracks[row.track], step = stepAt(track, time);
    if (step < 0) return null;
    const category = found < 0 ? scene.special.idle : lod.category[found];
    const from = track.bounds[step], to = track.bounds[step + 1];
    const busy = (k) => lod.busy(laneOf(scene, row.track, "phases"), k, from, to);
    const parts = scene.categories.map((_, k) => (k < scene.special.overlapped && k !== scene.special.idle ? busy(k) : 0));
    const ns = category === scene.special.idle ? to - from - parts.reduce((a, b) => a + b, 0) : parts[category];
    const inStep = line(`${visible(track.steps[step])}: ${duration(ns)}, ${percent(ns / (to - from))} of its ${duration(to - from)}`);
    return [line(scene.categories[category].label, "head"), inStep, ...(found < 0 ? [] : [line(`this stretch: ${this.#span(found)}`)]), line(track.label, "dim")];
  }
}
