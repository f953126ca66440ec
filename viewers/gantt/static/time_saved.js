/** Of two runs on one axis: the time that one has left where the other still works, and how much that is. */

import { duration, percent } from "./text.js";

/** By whether the second run takes less time than the first, or more; a theme may have others. */
const TIME_SAVED_INKS = { saved: "#0B7A50", lost: "#B3261E" };
/** Opacity of the ground in the same colour. */
const TIME_SAVED_SHADE = 0.09;
const TIME_SAVED_FACE = "Inter, 'Segoe UI', 'Liberation Sans', Helvetica, Arial, sans-serif";
const TIME_SAVED_FONT = `600 13px ${TIME_SAVED_FACE}`;
const TIME_SAVED_LINE = 17;
/** Pixels that a text keeps from either edge of its stretch, and below which nothing is written. */
const TIME_SAVED_MARGIN = 6;
const TIME_SAVED_NARROWEST = 16;

/** What is said of a stretch, in lines: the widest way first. */
export function timeSavedTexts({ ns, share }) {
  const verb = ns > 0 ? "saved" : "lost", time = duration(Math.abs(ns)), part = `(${percent(Math.abs(share))})`;
  return [[`${time} ${verb} ${part}`], [`${time} ${verb}`, part], [time, verb, part]];
}

/** The strip of a run, and how much of its tracks' rows the frame shows below it: { head, top, height }, or nothing. */
function timeSavedArea({ scene, stage }, strip) {
  const { tracks } = scene.strips[strip];
  const blocks = scene.layout.blocks.filter(({ track }) => tracks.includes(track));
  const head = scene.layout.strips.find((one) => one.strip === strip);
  if (!blocks.length || !head) return null;
  const top = Math.max(head.y + head.h, Math.min(...blocks.map(({ y }) => y)));
  const bottom = Math.min(stage.frame, Math.max(...blocks.map(({ y, h }) => y + h)));
  return { head, top, height: Math.max(0, bottom - top) };
}

export class TimeSaved {
  constructor(scene, stage) {
    // What a theme changes: see theme.js.
    Object.assign(this, { scene, stage, looks: null });
  }

  /** Draw on a context that is scaled to CSS pixels. */
  draw(context, { from, to, width }) {
    const { freed = [] } = this.scene, px = (to - from) / width;
    context.save();
    for (const one of freed) {
      if (one.to <= from || one.from >= to) continue;
      const box = timeSavedArea(this, one.strip);
      if (!box) continue;
      const left = Math.max(0, (one.from - from) / px), right = Math.min(width, (one.to - from) / px);
      const verb = one.ns > 0 ? "saved" : "lost";
      context.fillStyle = this.looks?.chrome[verb] ?? TIME_SAVED_INKS[verb];
      this.#ground(context, box, left, right);
      if (right - left >= TIME_SAVED_NARROWEST) this.#words(context, box, left, right, timeSavedTexts(one));
    }
    context.restore();
  }

  #ground(context, { head, top, height }, left, right) {
    context.globalAlpha = TIME_SAVED_SHADE;
    context.fillRect(left, top, right - left, height);
    context.globalAlpha = 1;
    context.fillRect(left, head.y + head.h - 3, right - left, 3);
  }

  #words(context, { top, height }, left, right, texts) {
    context.font = TIME_SAVED_FONT;
    context.textAlign = "center";
    context.textBaseline = "middle";
    const width = (text) => context.measureText(text).width + 2 * TIME_SAVED_MARGIN;
    const fitting = texts.find((lines) => Math.max(...lines.map(width)) <= right - left && lines.length * TIME_SAVED_LINE <= height);
    const x = (left + right) / 2, y = top + height / 2;
    if (fitting) return fitting.forEach((text, i) => context.fillText(text, x, y + (i - (fitting.length - 1) / 2) * TIME_SAVED_LINE));
    // Too narrow for lines: upright, as much as the rows' height holds.
    const [time, verb, part] = texts.at(-1);
    const upright = [`${time} ${verb} ${part}`, `${time} ${verb}`, time].find((text) => width(text) <= height);
    if (!upright) return;
    context.save();
    context.translate(x, y);
    context.rotate(-Math.PI / 2);
    context.fillText(upright, 0, 0);
    context.restore();
  }
}
