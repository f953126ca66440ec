/** Draws rows with what is around them, the axis and the names, on paper and in a saved picture. */

import { FONT_FAMILY } from "../../../base/static/theme.js";
import { drawTimes } from "../drawing/axis.js";

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
  drawTimes(context, scene, view, looks.chrome, letters);
  context.strokeStyle = looks.chrome.line;
  context.strokeRect(left - 0.5, 0, width + 1, height);
  picture.paintOn(rows, { from, to, width: Math.round(width * scale), height: Math.round(height * scale), scale });
  context.drawImage(rows, left, 0, width, height);
  drawNames(context, stage, scene, left, looks, shown, letters);
}
