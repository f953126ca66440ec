/** Draws rows with what is around them, the axis and the names, on paper and in a saved picture. */

import { FONT_FAMILY } from "../../../base/static/theme.js";
import { stepClock } from "../data/rows.js";
import { tickLabels } from "../data/text.js";

/** Return about `count` round times between two others. */
export function roundTicks(from, to, count) {
  const least = (to - from) / count, size = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].find((mantissa) => mantissa * size >= least) * size, ticks = [];
  for (let tick = Math.ceil(from / step) * step; tick <= to; tick += step) ticks.push(Math.round(tick / step) * step + 0);
  return ticks;
}

/** Draw times above a frame and lines through it. */
function drawAxis(context, scene, { from, to, left, width, height }, { chrome }, letters) {
  const ticks = roundTicks(from, to, Math.max(2, Math.min(10, Math.floor(width / 90)))), labels = tickLabels(ticks, to - from, stepClock(scene));
  Object.assign(context, { font: `${letters}px ${FONT_FAMILY}`, textAlign: "center", textBaseline: "middle", fillStyle: chrome.quiet, strokeStyle: chrome.grid, lineWidth: 1 });
  ticks.forEach((tick, i) => {
    const x = Math.round(left + ((tick - from) / (to - from)) * width) + 0.5;
    context.beginPath();
    context.moveTo(x, -5);
    context.lineTo(x, height);
    context.stroke();
    context.fillText(labels[i], x, -13);
  });
  context.strokeStyle = chrome.line;
  context.strokeRect(left - 0.5, 0, width + 1, height);
}

/** Draw the names of GPUs, rows, groups and step strips left of a frame; `shown` are the GPUs to name. */
function drawNames(context, stage, scene, left, { chrome }, shown, letters) {
  const write = (text, x, { y, h }, font, color, align) => {
    Object.assign(context, { font: `${font} ${FONT_FAMILY}`, fillStyle: color, textAlign: align, textBaseline: "middle" });
    context.fillText(text, x, y + h / 2);
  };
  const small = `${letters}px`;
  for (const { track, rows } of stage.blocks) {
    if (!shown.has(track)) continue;
    const { label, place } = scene.tracks[track];
    write(label, 8, rows[0], `bold ${letters + 1}px`, chrome.text, "left");
    if (stage.collapsed[track]) continue;
    if (place && rows.length > 1) write(place, 16, rows[1], `${letters - 1}px`, chrome.quiet, "left");
    for (const row of rows) if (row.h) write(row.label, left - 8, row, small, chrome.quiet, "right");
  }
  for (const heading of stage.headings) write(heading.label, 8, heading, `600 ${small}`, chrome.quiet, "left");
  for (const strip of stage.strips) write(strip.label, left - 8, strip, small, chrome.quiet, "right");
}

/** Draw rows { from, to, left, width, height } with axis and names, at the scale of the context; `shown` are the GPUs to name. */
export function drawSheet(context, { picture, stage, scene }, view, looks, shown, letters = 12) {
  const { from, to, left, width, height } = view, rows = document.createElement("canvas"), scale = context.getTransform().a;
  drawAxis(context, scene, view, looks, letters);
  picture.paintOn(rows, { from, to, width: Math.round(width * scale), height: Math.round(height * scale), scale });
  context.drawImage(rows, left, 0, width, height);
  drawNames(context, stage, scene, left, looks, shown, letters);
}
