/** The axis of time: round times with their labels above a frame, and lines through it; and the window in the overview. */

import { FONT_FAMILY } from "../../../base/static/theme.js";
import { widthsIn } from "./canvas.js";
import { lastStep, stepClock } from "../data/rows.js";
import { isFine, tickLabels, visible } from "../data/text.js";

/** Least distance of ticks and of their labels, in letters' sizes; ticks at most. */
const APART = 6, GAP = 0.7, MOST = 10;
/** In pixels: length of a tick's mark, and room right of a frame on paper and in a picture. */
const MARK = 5, PAPER = 34;
/** Opacity of what covers the part of the overview that the chart does not show. */
const COVER = 0.62;

/** Return about `count` round times between two others. */
export function roundTicks(from, to, count) {
  const least = (to - from) / count, size = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].find((mantissa) => mantissa * size >= least) * size, ticks = [];
  for (let tick = Math.ceil(from / step) * step; tick <= to; tick += step) ticks.push(Math.round(tick / step) * step + 0);
  return ticks;
}

/** Return the ticks of a view with letters of some pixels, and where they stand. */
function ticksOf({ from, to, width }, letters) {
  const ticks = roundTicks(from, to, Math.max(2, Math.min(MOST, Math.floor(width / (APART * letters)))));
  return { ticks, places: ticks.map((tick) => Math.round(((tick - from) / (to - from)) * width)) };
}

/** Draw times above a frame that begins at 0 and `left`, with room `right` of it; of labels that would touch, the first. */
export function drawTimes(context, scene, { left, right = PAPER, ...view }, chrome, letters) {
  const { ticks, places } = ticksOf(view, letters), labels = tickLabels(ticks, view.to - view.from, stepClock(scene));
  // Close up, times count from the start of a step: the first says of which.
  if (isFine(view.to - view.from) && ticks.length) labels[0] = `${visible(lastStep(scene, ticks[0]).name)} + ${labels[0]}`;
  Object.assign(context, { font: `${letters}px ${FONT_FAMILY}`, textAlign: "center", textBaseline: "alphabetic" });
  const widthOf = widthsIn(context.font);
  let end = -Infinity;
  places.forEach((x, i) => {
    context.fillStyle = chrome["strong-line"];
    context.fillRect(left + x, -MARK, 1, MARK);
    const half = widthOf(labels[i]) / 2, middle = Math.max(half - left, Math.min(x + 0.5, view.width + right - half));
    if (middle - half < end) return;
    end = middle + half + GAP * letters;
    context.fillStyle = chrome.quiet;
    context.fillText(labels[i], left + middle, -MARK - 4);
  });
}

/** Draw lines through a frame at those times. */
export function drawGrid(context, view, height, chrome, letters) {
  context.fillStyle = chrome.grid;
  for (const x of ticksOf(view, letters).places) context.fillRect(x, 0, 1, height);
}

/** Frame the part [from, to] of an overview of `whole`, and cover the rest of it. */
export function drawWindow(context, whole, { from, to }, { width, height }, { paper, text }) {
  const place = (time) => Math.max(0, Math.min(width, ((time - whole.from) / (whole.to - whole.from)) * width));
  const left = place(from), wide = Math.max(1, place(to) - left);
  Object.assign(context, { fillStyle: paper, strokeStyle: text, lineWidth: 1.5, globalAlpha: COVER });
  context.fillRect(0, 0, left, height);
  context.fillRect(left + wide, 0, width - left - wide, height);
  context.globalAlpha = 0.8;
  context.strokeRect(left, 0, wide, height);
  context.globalAlpha = 1;
}
