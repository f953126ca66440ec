/** Draws text over the raster: labels of intervals where they fit, and the names of steps and groups. */

import { FONT_FAMILY, looks } from "../../../base/static/theme.js";
import { fitted, widthsIn } from "./canvas.js";
import { stepAt, stepEnd, stripParts, trackWord } from "../data/rows.js";
import { collectiveTexts, duration, kernelTexts, truncateMiddle, visible, waitTexts } from "../data/text.js";

// Draws the names of steps and of groups of GPUs, and lines where steps begin.

/** Narrower steps, in pixels, are drawn as a grey band without edges. */
const MIN_STEP = 4;
/** In pixels: least width of the time between two windows for the text in it. */
const BREAK = 14;
/** Height in pixels of a mark where the step of another rank begins. */
const TICK = 5;

class StepNames {
  /** `width(text)` returns the width of a text in pixels, in the font that the context has. */
  constructor(scene, stage, width) {
    Object.assign(this, { scene, stage, width });
  }

  /** Draw the headings and strips in the frame; the context is in CSS pixels. */
  drawNames(view, chrome) {
    for (const heading of this.stage.headings) this.#heading(heading, view, chrome);
    for (const strip of this.stage.strips) this.#strip(strip, view, chrome);
    this.#breaks(view, chrome);
    const { covered } = this.stage;
    if (!covered) return;
    view.context.fillStyle = chrome["strong-line"];
    view.context.fillRect(0, covered - 3, view.width, 2);
  }

  /** Leave out the chart between two windows, and say for how long nothing is recorded. */
  #breaks({ context, from, to, px }, { paper, line, quiet }) {
    const { frame } = this.stage;
    for (const [begin, end, ns] of this.scene.breaks) {
      if (end < from || begin > to) continue;
      const left = Math.round((begin - from) / px), wide = Math.round((end - begin) / px), text = `${duration(ns)} not recorded`;
      context.fillStyle = line;
      context.fillRect(left, 0, wide, frame);
      context.fillStyle = paper;
      context.fillRect(left + 1, 0, wide - 2, frame);
      if (wide < BREAK || this.width(text) > frame) continue;
      context.save();
      context.translate(left + wide / 2, frame / 2);
      context.rotate(-Math.PI / 2);
      context.fillStyle = quiet;
      context.fillText(text, -this.width(text) / 2, 0.5);
      context.restore();
    }
  }

  /** Say whose steps the strips show; whether that has changed. */
  follow({ from, to }) {
    let changed = false;
    // Steps of a comparison are those of a run.
    for (const strip of this.stage.strips.filter(({ strips, tracks }) => tracks.length > 1 && !this.scene.strips[strips[0]].bounds)) {
      const [part] = stripParts(this.scene, strip, this.stage.below(strip), { from, to }), label = `steps, ${this.#whose(part)}`;
      changed ||= strip.label !== label;
      strip.label = label;
    }
    return changed;
  }

  /** Return the name of the rank whose steps a part of a strip shows. */
  #whose({ track }) {
    return this.scene.tracks[track].label.split(" · ")[0];
  }

  #strip(row, view, chrome) {
    const { context, from, to } = view, parts = stripParts(this.scene, row, this.stage.below(row), { from, to });
    context.clearRect(0, row.y - 2, view.width, row.h + 3);
    // The margin names whose steps come first; others stand beside them.
    parts.forEach((part, i) => this.#steps(row, part, view, chrome, i ? this.#whose(part) : ""));
    this.#ticks(row, parts, view, chrome);
  }

  #steps({ y, h }, { number, steps }, { context, from, to, px, width }, chrome, whose) {
    const { names, ns } = this.scene.strips[number], { bounds } = steps;
    const first = Math.max(0, stepAt({ bounds }, Math.max(from, bounds[0])));
    for (let step = first; step < names.length && bounds[step] < to; step++) {
      const left = Math.max(0, (bounds[step] - from) / px), right = Math.min(width, (stepEnd(steps, step) - from) / px);
      if (right <= left) continue;
      context.fillStyle = chrome[step % 2 ? "strip-odd" : "strip"];
      context.fillRect(left, y, Math.max(right - left - (right - left > MIN_STEP ? 1 : 0), 0), h);
      const fitting = this.#stepTexts(names[step], ns?.[step] ?? stepEnd(steps, step) - bounds[step], whose).find((text) => this.width(text) + 8 <= right - left);
      if (!fitting) continue;
      context.fillStyle = chrome["strip-ink"];
      context.fillText(fitting, (left + right - this.width(fitting)) / 2, y + h / 2 + 0.5);
    }
  }

  /** Mark where the steps of the GPUs in the frame begin, if that is not where the strip says. */
  #ticks({ y, h, strips }, parts, { context, from, to, px }, chrome) {
    if (strips.length < 2) return;
    const drawn = new Set(parts.flatMap(({ steps: { bounds } }) => bounds.map((time) => Math.round((time - from) / px))));
    context.fillStyle = chrome.edge;
    for (const { track } of this.stage.blocks) {
      const { bounds } = this.scene.tracks[track];
      if ((bounds.at(-1) - bounds[0]) / px < MIN_STEP * bounds.length) continue;
      for (const time of bounds) {
        const x = Math.round((time - from) / px);
        if (time >= from && time <= to && !drawn.has(x)) context.fillRect(x, y + h - TICK, 1, TICK);
        drawn.add(x);
      }
    }
  }

  #stepTexts(full, ns, whose) {
    const name = visible(full), number = /\d+$/.exec(name)?.[0];
    const texts = [`${name} · ${duration(ns)}`, ...(number ? [`#${number} · ${duration(ns)}`, name, number] : [name])];
    return whose ? [`${whose}: ${texts[0]}`, `${whose}: ${number ? `#${number}` : name}`, ...texts] : texts;
  }

  /** Name the groups of GPUs. */
  #heading({ y, h, tracks }, { context, width }, { quiet, line }) {
    const text = `${tracks.length} ${trackWord(this.scene, tracks.length)}`;
    context.fillStyle = line;
    context.fillRect(this.width(text) + 12, Math.round(y + h / 2), Math.max(0, width - this.width(text) - 12), 1);
    context.fillStyle = quiet;
    context.fillText(text, 4, y + h / 2 + 0.5);
  }

  /** Draw dashed lines through each GPU's rows where its steps begin. */
  drawEdges({ context, from, to, px }, chrome) {
    context.strokeStyle = chrome.edge;
    context.lineWidth = 1;
    context.setLineDash([3, 3]);
    context.beginPath();
    for (const { y, h, track } of this.stage.blocks) {
      const { bounds } = this.scene.tracks[track];
      if ((bounds.at(-1) - bounds[0]) / px < MIN_STEP * bounds.length) continue;
      for (let step = Math.max(0, stepAt({ bounds }, from)); step < bounds.length && bounds[step] <= to; step++) {
        const x = Math.round((bounds[step] - from) / px) + 0.5;
        context.moveTo(x, y - 6);
        context.lineTo(x, y + h + 4);
      }
    }
    context.stroke();
    context.setLineDash([]);
  }
}

/** Labels per frame, since drawing text is slow. */
const MAX_LABELS = 1000;

export class Labels {
  /** Returns the width of a text in the font of a drawing. */
  #width = null;
  #kernelTextCache = new Map();
  /** The font size in pixels. */
  pixels = 12;

  constructor(lod, scene, stage, columns) {
    // `looks` are the theme's colors, see theme.js.
    Object.assign(this, { lod, scene, stage, columns, looks: looks(scene, "light"), rules: scene.layout.labels });
    this.steps = new StepNames(scene, stage, (text) => this.#width(text));
  }

  /** Draw all labels; the context is in CSS pixels. */
  draw(context, { from, to, width, hidden }) {
    const view = { context, from, to, px: (to - from) / width, width, hidden, left: MAX_LABELS };
    context.font = `${this.pixels}px ${FONT_FAMILY}`;
    this.#width = widthsIn(context.font);
    context.textBaseline = "middle";
    this.steps.drawEdges(view, this.looks.chrome);
    for (const row of this.stage.visible) if (row.h >= this.rules.row) this.#row(row, view);
    // Drawn last, since rows scroll below a strip at the top of the frame.
    this.steps.drawNames(view, this.looks.chrome);
  }

  #row(row, view) {
    const lod = row.lod ?? this.lod, { from, to, px, hidden } = view;
    if (row.labels < 0) return;
    view.taken = [];
    const least = row.role === "phases" ? this.rules.phase : this.rules.width;
    if (row.role === "phases") this.#gaps(row, view);
    lod.eachLong(row.labels, from, to, least * px, (index) => {
      const category = lod.category[index];
      if (view.left <= 0 || hidden[category]) return;
      if (row.role === "exposure") return this.#collective(row, index, view);
      const start = lod.start[index], end = start + lod.duration[index], [left, right] = this.#room(start, end, view);
      const texts = this.#texts(row, row.source ? row.source[index] : index);
      if (row.role === "phases") return this.#place(texts, start, end, [category], row, view, this.rules.apart);
      const text = this.#fit(texts, right - left, row.role);
      if (text) this.#text(text, left, row, category, view);
    });
  }

  /** Name what filled the idle gaps of a GPU. */
  #gaps(row, view) {
    const { gaps, special: { idle } } = this.scene, { from, to, px, hidden } = view;
    for (const [begin, end, name, ns] of hidden[idle] ? [] : (gaps?.tracks[row.track] ?? [])) {
      if (end < from || begin > to || end - begin < this.rules.width * px) continue;
      const [left, right] = this.#room(begin, end, view), what = visible(gaps.texts[name]), [short] = what.split(" in ");
      const text = this.#fit([`${what} · ${duration(ns)}`, what, `${short} · ${duration(ns)}`, short], right - left);
      if (text) this.#text(text, left, row, idle, view);
    }
  }

  /** Label the wait of a collective and what comes after it, each on its own part, or both on the wait. */
  #collective(row, index, view) {
    const { lod, columns } = this, { waiting } = this.scene.special, start = lod.start[index];
    const place = index - columns.exposedFrom[row.track], wait = Math.max(0, columns.wait[place] - 1), texts = this.#texts(row, index);
    const named = this.#onPart(texts, row, start + wait, start + lod.duration[index], view);
    if (!wait || waiting === undefined) return;
    const whole = lod.busy(row.lane, waiting, start, start + wait) >= (1 - this.rules.mixed) * wait;
    const waits = waitTexts(columns.waitsFor[place] - 1, whole ? wait : null), both = named ? [] : waits.map((text) => `${texts.at(-1)} · ${text}`);
    this.#onPart(named ? waits : [...both, ...texts.slice(-1), ...waits], row, start, start + wait, view, waiting);
  }

  /** Return the x positions between which the label of an interval has room. */
  #room(begin, end, { from, px, width }) {
    return [Math.max(0, (begin - from) / px) + this.rules.padding, Math.min(width, (end - from) / px) - this.rules.padding];
  }

  /** Label the part of a collective between two times, with `only` on that category; whether there was room. */
  #onPart(texts, row, begin, end, view, only) {
    const { exposed, waiting, overlapped } = this.scene.special, allowed = only === undefined ? [exposed, waiting, overlapped] : [only];
    if (this.#place(texts, begin, end, allowed.filter((k) => k !== undefined), row, view)) return true;
    // Where no color fills the place of the text, it stands in a neutral box, which is read as none of them.
    const [left, right] = this.#room(begin, end, view), text = only === undefined && texts.find((one) => this.#width(one) <= right - left);
    return text && this.#text(text, left, row, exposed, view, true);
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

  /**
   * Write the first text that has a place on one of the allowed colors, alone: over idle time or another color, it would be
   * taken for theirs. Places are `apart`, or the ends; whether there is one.
   */
  #place(texts, begin, end, allowed, row, view, apart = Infinity) {
    const { padding, mixed, tries } = this.rules, [left, right] = this.#room(begin, end, view);
    for (const text of texts) {
      const width = this.#width(text), spare = right - width - left, distance = Math.max(Math.min(apart, spare), spare / tries, 1);
      for (let x = left; x <= left + spare; x += distance) {
        const under = [x - padding + 1, x + width + padding - 1], shares = allowed.map((k) => this.#share(row, k, under, view));
        const fills = shares.findIndex((share, i) => share >= 1 - mixed && shares.every((other, j) => j === i || other <= mixed));
        if (fills >= 0 && this.#text(text, x, row, allowed[fills], view)) return true;
      }
    }
    return false;
  }

  /** Return the share of a category in the time between two x positions of a row. */
  #share(row, category, [left, right], { from, px }) {
    return this.lod.about(row.lane, category, from + left * px, from + right * px) / ((right - left) * px);
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
      const busy = lod.busy(row.lane, lod.category[index], lod.start[index], end), whole = busy >= (1 - this.rules.mixed) * lod.duration[index];
      if (label && waits) return whole ? [`${name} · ${duration(busy)}`, `${short} ${duration(busy)}`, short] : [name, short];
      return whole ? [`${name} ${duration(busy)}`, name] : [name];
    }
    if (row.role === "idle") {
      const { short } = scene.categories[lod.category[index]];
      return [`${short} ${duration(lod.duration[index])}`, short];
    }
    const role = row.role === "stream" ? scene.lanes[lod.laneAt(index)].role : row.role;
    if (!["exposure", "collectives"].includes(role)) return this.#kernelTexts(scene.names[columns.name[index]]);
    const known = scene.collectives[columns.name[index]], texts = collectiveTexts(known);
    return texts.length ? texts : kernelTexts(known.short ?? known.name);
  }

  #kernelTexts(full) {
    if (!this.#kernelTextCache.has(full)) this.#kernelTextCache.set(full, kernelTexts(full));
    return this.#kernelTextCache.get(full);
  }

  #fit(texts, room, role) {
    const whole = texts.find((text) => this.#width(text) <= room);
    // A truncated kernel name is still useful; a truncated "Idle" adds nothing to the color.
    if (whole !== undefined || role === "idle") return whole;
    return fitted(texts.at(-1), room, this.#width, truncateMiddle);
  }

  #text(text, x, row, category, view, neutral = false) {
    const { context } = view, { ink, color } = this.looks.categories[category], { paper, quiet, text: plain } = this.looks.chrome;
    if (!this.#claim(x - this.rules.padding + 1, x + this.#width(text), row, view)) return false;
    const y = row.y + row.h / 2;
    view.left--;
    if (neutral || row.role === "phases" || this.scene.categories[category].pattern) {
      // Patterns and gaps (phases) under a text are covered by a box in the interval's color.
      context.fillStyle = neutral ? paper : color;
      context.strokeStyle = quiet;
      context.beginPath();
      const half = this.pixels / 2 + 1.5;
      context.roundRect(x - 3.5, Math.round(y) - half, this.#width(text) + 7, 2 * half, 4);
      context.fill();
      if (neutral) context.stroke();
    }
    context.fillStyle = neutral ? plain : ink;
    context.fillText(text, x, y + 0.5);
    return true;
  }
}
