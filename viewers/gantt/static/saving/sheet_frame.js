/** Draws what is around the rows on paper and in a saved picture: the axis, the names, and the legend. */

import { FONT_FAMILY } from "../../../base/static/theme.js";
import { tickLabels } from "../data/text.js";

/** In pixels: size of an entry's color in the legend, its distance from the text, gap between entries, height of a line. */
const LEGEND = { width: 15, height: 12, text: 20, gap: 16, line: 20 };

/** Return about `count` round times between two others. */
export function roundTicks(from, to, count) {
  const least = (to - from) / count, size = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].find((mantissa) => mantissa * size >= least) * size, ticks = [];
  for (let tick = Math.ceil(from / step) * step; tick <= to; tick += step) ticks.push(Math.round(tick / step) * step + 0);
  return ticks;
}

/** Draw times above a frame and lines through it. */
export function drawAxis(context, { from, to, left, width, height }, { chrome }, letters = 12) {
  const ticks = roundTicks(from, to, Math.max(2, Math.min(10, Math.floor(width / 90)))), labels = tickLabels(ticks);
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
export function drawNames(context, stage, scene, left, { chrome }, shown, letters = 12) {
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

/** Place the entries of a legend { label, category } in lines of a width; `measure(text)` returns a text's width. */
export function legendLines(entries, width, measure) {
  let x = 0, y = 0;
  const placed = entries.map((entry) => {
    const wide = LEGEND.text + measure(entry.label);
    if (x > 0 && x + wide > width) [x, y] = [0, y + LEGEND.line];
    const at = { ...entry, x, y };
    x += wide + LEGEND.gap;
    return at;
  });
  return { placed, height: y + LEGEND.line };
}

/** Draw a legend; `box(category, x, y, w, h)` draws a category's color and pattern. */
export function drawLegend(context, { placed }, { chrome }, letters, box) {
  Object.assign(context, { font: `${letters}px ${FONT_FAMILY}`, textAlign: "left", textBaseline: "middle" });
  for (const { label, category, x, y } of placed) {
    const middle = y + LEGEND.line / 2;
    box(category, x, middle - LEGEND.height / 2, LEGEND.width, LEGEND.height);
    context.fillStyle = chrome.text;
    context.fillText(label, x + LEGEND.text, middle);
  }
}
