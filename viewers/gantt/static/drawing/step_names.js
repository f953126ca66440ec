/** Draws the names of steps and of groups of GPUs, and lines where steps begin. */

import { stepAt, stepEnd, stripLead, stripParts } from "../data/rows.js";
import { duration, visible } from "../data/text.js";

/** Narrower steps, in pixels, are drawn as a grey band without edges. */
const MIN_STEP = 4;
/** Height in pixels of a mark where the step of another rank begins. */
const TICK = 5;

export class StepNames {
  /** `width(text)` returns the width of a text in pixels, in the font that the context has. */
  constructor(scene, stage, width) {
    Object.assign(this, { scene, stage, width });
  }

  /** Draw the headings and strips in the frame; the context is in CSS pixels. */
  drawNames(view, chrome) {
    for (const heading of this.stage.headings) this.#heading(heading, view, chrome);
    for (const strip of this.stage.strips) this.#strip(strip, view, chrome);
    const { covered } = this.stage;
    if (!covered) return;
    view.context.fillStyle = chrome["strong-line"];
    view.context.fillRect(0, covered - 3, view.width, 2);
  }

  /** Say whose steps the strips show; whether that has changed. */
  follow({ from, to }) {
    let changed = false;
    for (const strip of this.stage.strips.filter(({ strips }) => strips.length > 1)) {
      const [{ number }] = stripParts(this.scene, strip, this.stage.below(strip), { from, to }), label = `steps, ${this.#whose(number)}`;
      changed ||= strip.label !== label;
      strip.label = label;
    }
    return changed;
  }

  /** Return the name of the rank whose steps a strip shows. */
  #whose(number) {
    return this.scene.tracks[stripLead(this.scene.strips[number])].label.split(" · ")[0];
  }

  #strip(row, view, chrome) {
    const { context, from, to } = view, parts = stripParts(this.scene, row, this.stage.below(row), { from, to });
    context.clearRect(0, row.y - 2, view.width, row.h + 3);
    // The margin names whose steps come first; others stand beside them.
    parts.forEach((part, i) => this.#steps(row, part, view, chrome, i ? this.#whose(part.number) : ""));
    this.#ticks(row, parts, view, chrome);
  }

  #steps({ y, h }, { number, steps }, { context, from, to, px, width }, chrome, whose) {
    const { names } = this.scene.strips[number], { bounds } = steps;
    const first = Math.max(0, stepAt({ bounds }, Math.max(from, bounds[0])));
    for (let step = first; step < names.length && bounds[step] < to; step++) {
      const left = Math.max(0, (bounds[step] - from) / px), right = Math.min(width, (stepEnd(steps, step) - from) / px);
      if (right <= left) continue;
      context.fillStyle = chrome[step % 2 ? "strip-odd" : "strip"];
      context.fillRect(left, y, Math.max(right - left - (right - left > MIN_STEP ? 1 : 0), 0), h);
      const fitting = this.#stepTexts(names[step], stepEnd(steps, step) - bounds[step], whose).find((text) => this.width(text) + 8 <= right - left);
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
    const text = `${tracks.length} GPU${tracks.length > 1 ? "s" : ""}`;
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
