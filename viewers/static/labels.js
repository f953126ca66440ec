/** What stands on the raster as text and lines: steps, their edges, and names where they fit. */

import { stepAt } from "./rows.js";
import { bytes, duration, middle, shortName, visible } from "./words.js";

export const FONT = "12px Inter, 'Segoe UI', 'Liberation Sans', Helvetica, Arial, sans-serif";
const NARROWEST = 34;
const PADDING = 5;
const LOWEST_ROW = 12;
/** A frame must not spend its time on text. */
const MOST = 400;
/** Steps narrower than this are a grey band without edges. */
const NARROWEST_STEP = 4;
/** Share of another color that a label bears under it. */
const MIXED = 0.03;

export class Labels {
  #widths = new Map();
  #shown = new Map();

  constructor(lod, scene, rows, columns) {
    Object.assign(this, { lod, scene, rows, columns });
  }

  /** Draw on a context that is scaled to CSS pixels. */
  draw(context, { from, to, width, hidden }) {
    const view = { context, from, to, px: (to - from) / width, width, hidden, left: MOST };
    context.font = FONT;
    context.textBaseline = "middle";
      this.#edges(view);
    for (const strip of this.scene.layout.strips) this.#strip(strip, view);
    for (const row of this.rows) if (row.h >= LOWEST_ROW) this.#row(row, view);
  }

  #strip({ y, h, strip }, view) {
    const { context, from, to, px } = view;
    const { tracks, names } = this.scene.strips[strip];
    const { bounds } = this.scene.tracks[tracks[0]];
    const first = Math.max(0, stepAt({ bounds }, Math.max(from, bounds[0])));
    for (let step = first; step < names.length && bounds[step] < to; step++) {
      const left = Math.max(0, (bounds[step] - from) / px), right = Math.min(view.width, (bounds[step + 1] - from) / px);
      context.fillStyle = step % 2 ? "#D3DBE7" : "#E4E9F0";
      context.fillRect(left, y, Math.max(right - left - (right - left > NARROWEST_STEP ? 1 : 0), 0), h);
      const fitting = this.#stepTexts(names[step], bounds[step + 1] - bounds[step]).find((text) => this.#width(text) + 8 <= right - left);
      if (!fitting) continue;
      context.fillStyle = "#2B3544";
      context.fillText(fitting, (left + right - this.#width(fitting)) / 2, y + h / 2 + 0.5);
    }
  }

  #stepTexts(full, ns) {
    const name = visible(full), number = /\d+$/.exec(name)?.[0];
    return [`${name} · ${duration(ns)}`, ...(number ? [`#${number} · ${duration(ns)}`, name, number] : [name])];
  }

  #edges({ context, from, to, px }) {
    context.strokeStyle = "#8593A8";
    context.lineWidth = 1;
    context.setLineDash([3, 3]);
    context.beginPath();
    for (const { y, h, track } of this.scene.layout.blocks) {
      const { bounds } = this.scene.tracks[track];
      if ((bounds.at(-1) - bounds[0]) / px < NARROWEST_STEP * bounds.length) continue;
      for (let step = Math.max(0, stepAt({ bounds }, from)); step < bounds.length && bounds[step] <= to; step++) {
        const x = Math.round((bounds[step] - from) / px) + 0.5;
        context.moveTo(x, y - 6);
        context.lineTo(x, y + h + 4);
      }
    }
    context.stroke();
    context.setLineDash([]);
  }

  #row(row, view) {
    const { lod } = this, { from, to, px, hidden } = view;
    if (row.labels < 0) return;
    view.taken = [];
    lod.eachLong(row.labels, from, to, NARROWEST * px, (index) => {
      const category = lod.category[index];
      if (view.left <= 0 || hidden[category]) return;
      const left = Math.max(0, (lod.start[index] - from) / px) + PADDING;
      const right = Math.min(view.width, (lod.start[index] + lod.duration[index] - from) / px) - PADDING;
      const text = this.#fit(this.#texts(row, index), right - left, row.role);
      if (!text) return;
      if (row.role === "exposure") this.#onOneColor(text, left, right, row, view);
      else this.#text(text, left, row, category, view);
    });
  }

  /**
   * Claim a place in a row for a text: intervals of several streams may lie over each other, their labels must not,
   * nor may a label lie over the beginning of another interval.
   */
  #claim(left, right, row, { taken, from, px }) {
    if (taken.some((other) => left < other.right && right > other.left)) return false;
    if (row.role !== "phases" && this.lod.begins(row.labels, from + left * px, from + right * px)) return false;
    taken.push({ left, right });
    return true;
  }

  /** Label a collective at its left or right end, where one color is under the whole text; else not at all. */
  #onOneColor(text, left, right, row, view) {
    const { exposed, overlapped } = this.scene.special, width = this.#width(text);
    for (const x of [left, right - width]) {
      const from = view.from + x * view.px, to = from + width * view.px;
      const share = this.lod.busy(row.lane, exposed, from, to) / (to - from);
      if (share > MIXED && share < 1 - MIXED) continue;
      if (this.#text(text, x, row, share > 0.5 ? exposed : overlapped, view)) return;
    }
  }

  /** Texts for an interval, the best first. */
  #texts(row, index) {
    const { lod, scene, columns } = this;
    if (row.role === "phases") {
      const { short } = scene.categories[lod.category[index]];
      const end = lod.start[index] + lod.duration[index];
      return [`${short} ${duration(lod.busy(row.lane, lod.category[index], lod.start[index], end))}`, short];
    }
    if (row.role !== "exposure") return [this.#name(scene.names[columns.name[index]])];
    const { name, kind, bytes: size } = scene.collectives[columns.name[index]];
    if (!kind || kind === "other") return [this.#name(name)];
    const word = visible(kind.replaceAll("_", "-"));
    return size ? [`${word} ${bytes(size)}`, word] : [word];
  }

  #name(full) {
    if (!this.#shown.has(full)) this.#shown.set(full, visible(shortName(full)));
    return this.#shown.get(full);
  }

  #fit(texts, room, role) {
    const whole = texts.find((text) => this.#width(text) <= room);
    // Names of kernels are told by a part of them; a part of "Backward" tells nothing that its color does not.
    if (whole !== undefined || role === "phases" || role === "exposure") return whole;
    const last = texts.at(-1);
    const cut = middle(last, Math.floor((last.length * room) / this.#width(last)));
    return this.#width(cut) <= room ? cut : middle(last, cut.length - 1);
  }

  #text(text, x, row, category, view) {
    const { context } = view, { ink, color } = this.scene.categories[category];
    if (!this.#claim(x - PADDING + 1, x + this.#width(text), row, view)) return false;
    const y = row.y + row.h / 2;
    view.left--;
    if (row.role === "phases") {
      // Where a stretch is idle in part, its label would stand half on idle: a tag of its own color keeps it readable.
      context.fillStyle = color;
      context.beginPath();
      context.roundRect(x - 4, y - 8, this.#width(text) + 8, 16, 4);
      context.fill();
    }
    context.fillStyle = ink;
    context.fillText(text, x, y + 0.5);
    return true;
  }

  #width(text) {
    let width = this.#widths.get(text);
    if (width === undefined) {
      if (this.#widths.size > 20_000) this.#widths.clear();
      this.#measure ??= Object.assign(document.createElement("canvas").getContext("2d"), { font: FONT });
      width = this.#measure.measureText(text).width;
      this.#widths.set(text, width);
    }
    return width;
  }

  #measure;
}
