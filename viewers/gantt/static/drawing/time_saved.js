/** Comparison of two runs: marks the time that one run saves, where the other still works. */

import { FONT_FAMILY } from "../../../base/static/theme.js";
import { duration, percent } from "../data/text.js";

/** Opacity of the background in the same color. */
const SHADE = 0.09;
const FONT = `600 13px ${FONT_FAMILY}`;
const LINE = 17;
/** In pixels: margin of the text at either side, and minimum width of a labelled range. */
const MARGIN = 6;
const MIN_WIDTH = 16;

/** Return what the second run does: it saves or loses time only if the comparison says that this is more than noise. */
function verbOf({ ns, certain }) {
  if (!certain) return ns > 0 ? "shorter" : "longer";
  return ns > 0 ? "saved" : "lost";
}

/** Return the candidate labels of a saved time, each as lines, widest first; beside another run, they say `who` has it. */
export function timeSavedTexts({ ns, share, certain, who }) {
  const verb = verbOf({ ns, certain }), time = `${who ? `${who}: ` : ""}${duration(Math.abs(ns))}`, part = `(${percent(Math.abs(share))})`;
  return [[`${time} ${verb} ${part}`], [`${time} ${verb}`, part], [time, verb, part]];
}

/** Return the strip of a run and the visible rows below it: { head, top, height }, or null. */
function areaOf({ scene, stage }, strip) {
  const { tracks } = scene.strips[strip];
  const blocks = stage.allBlocks.filter(({ track, h, held }) => h && !held && tracks.includes(track));
  const head = stage.allStrips.find((entry) => entry.strips.includes(strip));
  if (!blocks.length || !head) return null;
  const top = Math.max(head.y + head.h, Math.min(...blocks.map(({ y }) => y)));
  const bottom = Math.min(stage.frame, Math.max(...blocks.map(({ y, h }) => y + h)));
  return { head, top, height: Math.max(0, bottom - top) };
}

export class TimeSaved {
  constructor(scene, stage) {
    // `looks` are the theme's colors, see theme.js.
    Object.assign(this, { scene, stage, looks: null });
  }

  /** Draw all marks; the context is in CSS pixels. */
  draw(context, { from, to, width }) {
    const { freed = [] } = this.scene, px = (to - from) / width;
    context.save();
    for (const range of freed) {
      if (range.to <= from || range.from >= to) continue;
      const box = areaOf(this, range.strip);
      if (!box) continue;
      const left = Math.max(0, (range.from - from) / px), right = Math.min(width, (range.to - from) / px);
      const ink = range.certain ? verbOf(range) : "quiet";
      context.fillStyle = this.looks.chrome[ink];
      this.#background(context, box, left, right);
      if (right - left >= MIN_WIDTH) this.#label(context, box, left, right, timeSavedTexts(range));
    }
    context.restore();
  }

  #background(context, { head, top, height }, left, right) {
    context.globalAlpha = SHADE;
    context.fillRect(left, top, right - left, height);
    context.globalAlpha = 1;
    context.fillRect(left, head.y + head.h - 3, right - left, 3);
  }

  #label(context, { top, height }, left, right, texts) {
    context.font = FONT;
    context.textAlign = "center";
    context.textBaseline = "middle";
    const width = (text) => context.measureText(text).width + 2 * MARGIN;
    const fitting = texts.find((lines) => Math.max(...lines.map(width)) <= right - left && lines.length * LINE <= height);
    const x = (left + right) / 2, y = top + height / 2;
    if (fitting) return fitting.forEach((text, i) => context.fillText(text, x, y + (i - (fitting.length - 1) / 2) * LINE));
    // Too narrow for horizontal text: write as much as fits vertically.
    const [time, verb, part] = texts.at(-1);
    const vertical = [`${time} ${verb} ${part}`, `${time} ${verb}`, time].find((text) => width(text) <= height);
    if (!vertical) return;
    context.save();
    context.translate(x, y);
    context.rotate(-Math.PI / 2);
    context.fillText(vertical, 0, 0);
    context.restore();
  }
}
