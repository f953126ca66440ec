/** Draws text over the raster: labels of intervals where they fit, and the names of steps and groups. */

import { busyCategories } from "../data/rows.js";
import { collectiveTexts, waitTexts } from "../data/collective_labels.js";
import { laneAt } from "../stage/extra_rows.js";
import { FONT_FAMILY, looks } from "../../../base/static/theme.js";
import { StepNames } from "./step_names.js";
import { duration, kernelTexts, truncateMiddle, visible } from "../data/text.js";

/** Minimum width of a labelled interval in pixels; of a labelled phase, whose label may be a micro-batch number. */
const MIN_WIDTH = 34, MIN_WIDTH_PHASE = 24;
const PADDING = 5;
/** Minimum height of a labelled row in pixels. */
const MIN_ROW = 12;
/** Labels per frame, since drawing text is slow. */
const MAX_LABELS = 1000;
/** Share of other colors allowed under the label of a collective, and of a phase. */
const MIXED = 0.03, MIXED_PHASE = 0.05;
/** Minimum share of a phase's color under its label: over idle time alone it would name no work. */
const LEAST_FILLED = 0.01;
/** Distance in pixels between two positions at which a label is tried, and the number of positions per text. */
const TRY_DISTANCE = 8, MAX_TRIES = 24;

/** Return the x positions between which the label of an interval has room. */
function room(begin, end, { from, px, width }) {
  return [Math.max(0, (begin - from) / px) + PADDING, Math.min(width, (end - from) / px) - PADDING];
}

export class Labels {
  #widths = new Map();
  #kernelTextCache = new Map();
  #pixels = 12;

  constructor(lod, scene, stage, columns) {
    // `looks` are the theme's colors, see theme.js.
    Object.assign(this, { lod, scene, stage, columns, looks: looks(scene, "light") });
    this.steps = new StepNames(scene, stage, (text) => this.#width(text));
  }

  /** Set the font size in pixels. */
  resize(pixels) {
    if (pixels === this.#pixels) return;
    this.#pixels = pixels;
    this.#measure = null;
    this.#widths.clear();
  }

  /** The font size in pixels. */
  get pixels() {
    return this.#pixels;
  }

  get #font() {
    return `${this.#pixels}px ${FONT_FAMILY}`;
  }

  /** Draw all labels; the context is in CSS pixels. */
  draw(context, { from, to, width, hidden }) {
    const view = { context, from, to, px: (to - from) / width, width, hidden, left: MAX_LABELS };
    context.font = this.#font;
    context.textBaseline = "middle";
    this.steps.drawEdges(view, this.looks.chrome);
    for (const row of this.stage.visible) if (row.h >= MIN_ROW) this.#row(row, view);
    // Drawn last, since rows scroll below a strip at the top of the frame.
    this.steps.drawNames(view, this.looks.chrome);
  }

  #row(row, view) {
    const lod = row.lod ?? this.lod, { from, to, px, hidden } = view;
    if (row.labels < 0) return;
    view.taken = [];
    const least = row.role === "phases" ? MIN_WIDTH_PHASE : MIN_WIDTH;
    lod.eachLong(row.labels, from, to, least * px, (index) => {
      const category = lod.category[index];
      if (view.left <= 0 || hidden[category]) return;
      if (row.role === "exposure") return this.#collective(row, index, view);
      const [left, right] = room(lod.start[index], lod.start[index] + lod.duration[index], view);
      const texts = this.#texts(row, row.source ? row.source[index] : index);
      if (row.role === "phases") return this.#onPhaseColor(texts, left, right, row, category, view);
      const text = this.#fit(texts, right - left, row.role);
      if (text) this.#text(text, left, row, category, view);
    });
  }

  /** Label the wait of a collective and what comes after it, each on its own part, or both on the wait. */
  #collective(row, index, view) {
    const { lod, columns } = this, { waiting } = this.scene.special, start = lod.start[index];
    const place = index - columns.exposedFrom[row.track], wait = Math.max(0, columns.wait[place] - 1), texts = this.#texts(row, index);
    const named = this.#onPart(texts, row, start + wait, start + lod.duration[index], view);
    if (!wait || waiting === undefined) return;
    const whole = lod.busy(row.lane, waiting, start, start + wait) >= (1 - MIXED) * wait;
    const waits = waitTexts(columns.waitsFor[place] - 1, whole ? wait : null), both = named ? [] : waits.map((text) => `${texts.at(-1)} · ${text}`);
    this.#onPart(named ? waits : [...both, ...texts.slice(-1), ...waits], row, start, start + wait, view, waiting);
  }

  /** Label the part of a collective between two times, with `only` on that category; whether there was room. */
  #onPart(texts, row, begin, end, view, only) {
    const [left, right] = room(begin, end, view), text = texts.find((one) => this.#width(one) <= right - left);
    if (text === undefined) return false;
    // Where no color fills the place of the text, it stands in a neutral box, which is read as none of them.
    return this.#onOneColor(text, left, right, row, view, only) || (only === undefined && this.#text(text, left, row, this.scene.special.exposed, view, true));
  }

  /**
   * Reserve the place of a label in a row; false if it would overlap another label (intervals of several streams can
   * overlap) or the start of another interval.
   */
  #claim(left, right, row, { taken, from, px }) {
    if (taken.some((other) => left < other.right && right > other.left)) return false;
    if (row.role !== "phases" && (row.lod ?? this.lod).begins(row.labels, from + left * px, from + right * px)) return false;
    taken.push({ left, right });
    return true;
  }

  /** Label a part of a collective at its left or right end, if one color fills the place of the text; whether one does. */
  #onOneColor(text, left, right, row, view, only) {
    const { exposed, waiting, overlapped } = this.scene.special, width = this.#width(text);
    const categories = [exposed, waiting, overlapped].filter((k) => k !== undefined);
    for (const x of [left, right - width]) {
      const under = [x - PADDING + 1, x + width + PADDING - 1], shares = categories.map((k) => this.#share(row, [k], under, view));
      const category = categories.find((k, i) => shares[i] >= 1 - MIXED && shares.every((share, other) => other === i || share <= MIXED));
      if (category === undefined || (only ?? category) !== category) continue;
      if (this.#text(text, x, row, category, view)) return true;
    }
    return false;
  }

  /**
   * Label a phase where its color fills the place of the text. If idle gaps leave no such place, draw the text in a
   * neutral box, since a box in the phase's color would look like work; never over other categories.
   */
  #onPhaseColor(texts, left, right, row, category, view) {
    let best = null;
    for (const text of texts) {
      const spare = right - this.#width(text) - left, distance = Math.max(TRY_DISTANCE, spare / MAX_TRIES);
      for (let x = left; x <= left + spare; x += distance) {
        const under = [x - PADDING + 1, x + this.#width(text) + PADDING - 1], share = this.#share(row, [category], under, view);
        if (share >= 1 - MIXED_PHASE) return this.#text(text, x, row, category, view);
        if (share < LEAST_FILLED || (best && (best.share >= share || best.text !== text))) continue;
        const others = this.#phaseCategories.filter((k) => k !== category && !view.hidden[k]);
        if (this.#share(row, others, under, view) <= MIXED_PHASE) best = { text, x, share };
      }
    }
    // In the one row of a collapsed GPU, boxes would hide the work that they stand for.
    return best && !this.stage.collapsed[row.track] && this.#text(best.text, best.x, row, category, view, true);
  }

  /** Return the share of categories in the time between two x positions of a row. */
  #share(row, categories, [left, right], { from, px }) {
    const time = (sum, k) => sum + this.lod.about(row.lane, k, from + left * px, from + right * px);
    return categories.reduce(time, 0) / ((right - left) * px);
  }

  /** The categories that can fill a row of phases, without idle. */
  get #phaseCategories() {
    return busyCategories(this.scene);
  }

  /** Return the candidate texts for an interval, best first. */
  #texts(row, index) {
    const { lod, scene, columns } = this;
    if (row.role === "phases") {
      const { short } = scene.categories[lod.category[index]];
      const end = lod.start[index] + lod.duration[index], label = columns.name[index];
      // An action of a pipeline schedule has its own label, such as F3.
      const name = label ? visible(scene.names[label - 1]) : short, waits = lod.category[index] === scene.special.waiting;
      // Where idle time interrupts a phase, a time next to its name would be read as that of the block under the label.
      const busy = lod.busy(row.lane, lod.category[index], lod.start[index], end), whole = busy >= (1 - MIXED_PHASE) * lod.duration[index];
      if (label && waits) return whole ? [`${name} · ${duration(busy)}`, `${short} ${duration(busy)}`, short] : [name, short];
      return whole ? [`${name} ${duration(busy)}`, name] : [name];
    }
    if (row.role === "idle") {
      const { short } = scene.categories[lod.category[index]];
      return [`${short} ${duration(lod.duration[index])}`, short];
    }
    const role = row.role === "stream" ? scene.lanes[laneAt(lod, index)].role : row.role;
    if (!["exposure", "collectives"].includes(role)) return this.#kernelTexts(scene.names[columns.name[index]]);
    const known = scene.collectives[columns.name[index]], texts = collectiveTexts(known);
    return texts.length ? texts : kernelTexts(known.short ?? known.name);
  }

  /** Return the candidate texts for a kernel. */
  #kernelTexts(full) {
    if (!this.#kernelTextCache.has(full)) this.#kernelTextCache.set(full, kernelTexts(full));
    return this.#kernelTextCache.get(full);
  }

  #fit(texts, room, role) {
    const whole = texts.find((text) => this.#width(text) <= room);
    // A truncated kernel name is still useful; a truncated "Idle" adds nothing to the color.
    if (whole !== undefined || role === "idle") return whole;
    const last = texts.at(-1);
    const cut = truncateMiddle(last, Math.floor((last.length * room) / this.#width(last)));
    return this.#width(cut) <= room ? cut : truncateMiddle(last, cut.length - 1);
  }

  #text(text, x, row, category, view, neutral = false) {
    const { context } = view, { ink, color } = this.looks.categories[category], { paper, quiet, text: plain } = this.looks.chrome;
    if (!this.#claim(x - PADDING + 1, x + this.#width(text), row, view)) return false;
    const y = row.y + row.h / 2;
    view.left--;
    if (neutral || row.role === "phases" || this.scene.categories[category].pattern) {
      // Patterns and gaps (phases) under a text are covered by a box in the interval's color.
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
