/** What stands on the raster as text and lines: steps, their edges, and names where they fit. */

import { stepAt, stepEnd, stripSteps } from "./rows.js";
import { laneAt } from "./extra_rows.js";
import { looks } from "../../base/static/theme.js";
import { bytes, collectiveWord, duration, shortOperator, truncateMiddle, shortName, visible } from "./text.js";

const LABEL_FACE = "Inter, 'Segoe UI', 'Liberation Sans', Helvetica, Arial, sans-serif";
const NARROWEST = 34, NARROWEST_NUMBER = 24;
const PADDING = 5;
const LOWEST_ROW = 12;
/** A frame must not spend its time on text. */
const MOST = 1000;
/** Steps narrower than this are a grey band without edges. */
const NARROWEST_STEP = 4;
/** Share of another color that a label bears under it: of a collective; of a phase on its own color, or in a neutral box. */
const MIXED = 0.03, MIXED_PHASE = 0.05;
/** Pixels between two places along a stretch at which a label is tried. */
const TRIED = 8;
/** Places that are tried for one text: on a wide screen a thousand would cost more than the picture. */
const MOST_TRIED = 24;

export class Labels {
  #widths = new Map();
  #shown = new Map();
  #pixels = 12;

  constructor(lod, scene, stage, columns) {
    // What a theme changes: see theme.js.
    Object.assign(this, { lod, scene, stage, columns, looks: looks(scene, "light") });
  }

  /** Write in letters of so many pixels from now on. */
  resize(pixels) {
    if (pixels === this.#pixels) return;
    this.#pixels = pixels;
    this.#measure = null;
    this.#widths.clear();
  }

  get #font() {
    return `${this.#pixels}px ${LABEL_FACE}`;
  }

  /** Draw on a context that is scaled to CSS pixels. */
  draw(context, { from, to, width, hidden }) {
    const view = { context, from, to, px: (to - from) / width, width, hidden, left: MOST };
    context.font = this.#font;
    context.textBaseline = "middle";
    this.#edges(view);
    for (const row of this.stage.visible) if (row.h >= LOWEST_ROW) this.#row(row, view);
    // Last, since a strip stays at the top of the frame while rows pass below it.
    for (const strip of this.stage.strips) this.#strip(strip, view);
  }

  #strip({ y, h, strip }, view) {
    const { context, from, to, px } = view;
    const { names } = this.scene.strips[strip];
    const steps = stripSteps(this.scene, this.scene.strips[strip]), { bounds } = steps;
    const first = Math.max(0, stepAt({ bounds }, Math.max(from, bounds[0])));
    context.clearRect(0, y - 2, view.width, h + 3);
    for (let step = first; step < names.length && bounds[step] < to; step++) {
      const left = Math.max(0, (bounds[step] - from) / px), right = Math.min(view.width, (stepEnd(steps, step) - from) / px);
      context.fillStyle = this.looks.chrome[step % 2 ? "strip-odd" : "strip"];
      context.fillRect(left, y, Math.max(right - left - (right - left > NARROWEST_STEP ? 1 : 0), 0), h);
      const fitting = this.#stepTexts(names[step], stepEnd(steps, step) - bounds[step]).find((text) => this.#width(text) + 8 <= right - left);
      if (!fitting) continue;
      context.fillStyle = this.looks.chrome["strip-ink"];
      context.fillText(fitting, (left + right - this.#width(fitting)) / 2, y + h / 2 + 0.5);
    }
  }

  #stepTexts(full, ns) {
    const name = visible(full), number = /\d+$/.exec(name)?.[0];
    return [`${name} · ${duration(ns)}`, ...(number ? [`#${number} · ${duration(ns)}`, name, number] : [name])];
  }

  #edges({ context, from, to, px }) {
    context.strokeStyle = this.looks.chrome.edge;
    context.lineWidth = 1;
    context.setLineDash([3, 3]);
    context.beginPath();
    for (const { y, h, track } of this.stage.blocks) {
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
    const lod = row.lod ?? this.lod, { from, to, px, hidden } = view;
    if (row.labels < 0) return;
    view.taken = [];
    const least = row.role === "phases" ? NARROWEST_NUMBER : NARROWEST;
    lod.eachLong(row.labels, from, to, least * px, (index) => {
      const category = lod.category[index];
      if (view.left <= 0 || hidden[category]) return;
      const left = Math.max(0, (lod.start[index] - from) / px) + PADDING;
      const right = Math.min(view.width, (lod.start[index] + lod.duration[index] - from) / px) - PADDING;
      const texts = this.#texts(row, row.source ? row.source[index] : index);
      if (row.role === "phases") return this.#onItsOwn(texts, left, right, row, category, view);
      const text = this.#fit(texts, right - left, row.role);
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
    if (row.role !== "phases" && (row.lod ?? this.lod).begins(row.labels, from + left * px, from + right * px)) return false;
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

  /**
   * Label a stretch where its own color fills what is under the text. Where it never does since it idles between, a
   * neutral box bears the text, for one in its color would look like work; over other work there is none.
   */
  #onItsOwn(texts, left, right, row, category, view) {
    let best = null;
    for (const text of texts) {
      const room = right - this.#width(text) - left, apart = Math.max(TRIED, room / MOST_TRIED);
      for (let x = left; x <= left + room; x += apart) {
        const under = [x - PADDING + 1, x + this.#width(text) + PADDING - 1], own = this.#share(row, [category], under, view);
        if (own >= 1 - MIXED_PHASE) return this.#text(text, x, row, category, view);
        if (own >= (best?.own ?? 1) || (best && best.text !== text)) continue;
        const others = this.#order.filter((k) => k !== category && !view.hidden[k]);
        if (this.#share(row, others, under, view) <= MIXED_PHASE) best = { text, x, own };
      }
    }
    return best && this.#text(best.text, best.x, row, category, view, true);
  }

  /** Share that categories have of the time between two places in a row. */
  #share(row, categories, [left, right], { from, px }) {
    const time = (sum, k) => sum + this.lod.busy(row.lane, k, from + left * px, from + right * px);
    return categories.reduce(time, 0) / ((right - left) * px);
  }

  /** All that can fill a row of phases but idle time. */
  get #order() {
    const { idle, overlapped } = this.scene.special;
    return this.scene.order.filter((k) => k < overlapped && k !== idle);
  }

  /** Texts for an interval, the best first. */
  #texts(row, index) {
    const { lod, scene, columns } = this;
    if (row.role === "phases") {
      const { short } = scene.categories[lod.category[index]];
      const end = lod.start[index] + lod.duration[index], label = columns.name[index];
      // What a pipeline does with a micro-batch is known by its number.
      if (label) return [`${visible(scene.names[label - 1])} ${duration(lod.duration[index])}`, visible(scene.names[label - 1])];
      return [`${short} ${duration(lod.busy(row.lane, lod.category[index], lod.start[index], end))}`, short];
    }
    if (row.role === "idle") {
      const { short } = scene.categories[lod.category[index]];
      return [`${short} ${duration(lod.duration[index])}`, short];
    }
    const role = row.role === "stream" ? scene.lanes[laneAt(lod, index)].role : row.role;
    if (!["exposure", "collectives"].includes(role)) return this.#names(scene.names[columns.name[index]]);
    const known = scene.collectives[columns.name[index]], word = visible(collectiveWord(known));
    if (!word) return this.#names(known.name);
    const whole = known.bytes ? `${word} ${bytes(known.bytes)}` : word;
    return [...(known.label ? [`${whole} · ${visible(known.label)}`] : []), whole, word];
  }

  /** A kernel's name as it is, and what it is for, which is shorter and says more. */
  #names(full) {
    if (!this.#shown.has(full)) this.#shown.set(full, [...new Set([visible(shortName(full)), visible(shortOperator(full))])]);
    return this.#shown.get(full);
  }

  #fit(texts, room, role) {
    const whole = texts.find((text) => this.#width(text) <= room);
    // Names of kernels are told by a part of them; a part of "Backward" tells nothing that its color does not.
    if (whole !== undefined || ["phases", "exposure", "idle"].includes(role)) return whole;
    const last = texts.at(-1);
    const cut = truncateMiddle(last, Math.floor((last.length * room) / this.#width(last)));
    return this.#width(cut) <= room ? cut : truncateMiddle(last, cut.length - 1);
  }

  #text(text, x, row, category, view, neutral = false) {
    const { context } = view, { ink, color } = this.looks.categories[category], { paper, quiet, text: plain } = this.looks.chrome;
    if (!this.#claim(x - PADDING + 1, x + this.#width(text), row, view)) return false;
    const y = row.y + row.h / 2;
    view.left--;
    if (row.role === "phases" || row.role === "idle") {
      // In idle's row a label stands on a pattern, and a phase may have gaps: a tag of its own color keeps it readable.
      context.fillStyle = neutral ? paper : color;
      context.strokeStyle = quiet;
      context.beginPath();
      const half = this.#pixels / 2 + 1.5;
      context.roundRect(x - 3.5, Math.round(y) - half, this.#width(text) + 7, 2 * half, 4);
      context.fill();
      if (neutral) context.stroke();
    }
    context.fillStyle = neutral ? plain : ink;
    context.fillText(text, x, y + 0.5);
    return true;
  }

  #width(text) {
    let width = this.#widths.get(text);
    if (width === undefined) {
      if (this.#widths.size > 20_000) this.#widths.clear();
      this.#measure ??= Object.assign(document.createElement("canvas").getContext("2d"), { font: this.#font });
      width = this.#measure.measureText(text).width;
      this.#widths.set(text, width);
    }
    return width;
  }

  #measure;
}
