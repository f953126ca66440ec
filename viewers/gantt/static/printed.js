/** Printing: draws all rows on as many sheets as needed, in the light theme. */

import { element } from "../../base/static/dom.js";
import { FONT_FAMILY } from "../../base/static/theme.js";
import { duration, tickLabels } from "./text.js";

/**
 * A sheet in pixels: width, margin right of the frame, height of the axis, height of a page; the factor by which paper
 * shrinks the page; and the extra height on paper of legends that wrap and of the figures of a run.
 */
const SHEET = { width: 1240, right: 34, axis: 24, height: 820, shrunk: 1.18, wrapped: 90, figures: 72 };
/** Number of sheets up to which they are drawn at double resolution, and the maximum number of sheets. */
const SHARP_SHEETS = 16, MAX_SHEETS = 40;

/** Return about `count` round times between two others. */
export function roundTicks(from, to, count) {
  const least = (to - from) / count, size = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].find((mantissa) => mantissa * size >= least) * size, ticks = [];
  for (let tick = Math.ceil(from / step) * step; tick <= to; tick += step) ticks.push(Math.round(tick / step) * step + 0);
  return ticks;
}

export class PrintView {
  constructor(root, { picture, stage, scene, plot, theme }) {
    Object.assign(this, { root, picture, stage, scene, plot, theme });
    addEventListener("beforeprint", () => this.lay());
    addEventListener("afterprint", () => this.clear());
  }

  /** Draw all rows as sheets, which replace the chart while the page is printed. */
  lay() {
    const { stage, root, scene } = this, { changed, scroll, frame, growth } = stage;
    this.#openNotes(true);
    stage.changed = () => {};
    stage.scale(1);
    // Estimate the height of what lies above the rows on their first page. In a report that is the second page, which
    // begins with the summary; the first one is the cover.
    const top = document.querySelector(".cover") ? document.querySelector("#summary").getBoundingClientRect().top : -scrollY;
    const above = (document.querySelector("#gantt").getBoundingClientRect().top - top) * SHEET.shrunk + SHEET.wrapped + SHEET.figures * (scene.groups?.length ?? 1);
    const sheets = stage.sheets(SHEET.height - above - SHEET.axis, SHEET.height - SHEET.axis), drawn = sheets.slice(0, MAX_SHEETS);
    root.replaceChildren(...drawn.map((sheet) => this.#sheet(sheet, drawn.length > SHARP_SHEETS ? 1 : 2)));
    stage.scale(growth);
    stage.setFrame(scroll, frame);
    stage.changed = changed;
    root.prepend(element("p", "quiet", this.#caption(drawn, sheets)));
    document.documentElement.classList.add("printing");
  }

  /** Open the notes for printing, or restore them. */
  #openNotes(yes) {
    const notes = document.querySelector("details#notes");
    if (!notes) return;
    if (yes) this.folded ??= !notes.open;
    notes.open = yes || !this.folded;
    if (!yes) this.folded = undefined;
  }

  clear() {
    this.#openNotes(false);
    document.documentElement.classList.remove("printing");
    this.root.replaceChildren();
  }

  /** Describe what the sheets show. */
  #caption(drawn, sheets) {
    const { from, to } = this.plot.range, { tracks } = this.scene, last = drawn.at(-1)?.tracks.at(-1);
    const part = drawn.length < sheets.length ? `${tracks[0].label} to ${tracks[last].label} of ${tracks.length} GPUs; use --ranks to draw the others. ` : "";
    return `${part}${duration(to - from)} shown.`;
  }

  #sheet({ scroll, height, tracks }, scale) {
    const { stage, scene } = this, { left } = scene.layout, width = SHEET.width - left - SHEET.right;
    stage.setFrame(scroll, height);
    const rows = element("canvas"), canvas = element("canvas");
    const { from, to } = this.plot.range, size = { from, to, width: Math.round(width * scale), height: Math.round(height * scale), scale };
    this.picture.paintOn(rows, size);
    canvas.width = SHEET.width * scale;
    canvas.height = (height + SHEET.axis + 2) * scale;
    const context = canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, SHEET.axis * scale);
    context.textBaseline = "middle";
    this.#axis(context, { from, to, left, width, height });
    context.drawImage(rows, left, 0, width, height);
    this.#names(context, left, tracks);
    const sheet = element("div", "sheet");
    sheet.append(canvas);
    sheet.dataset.tracks = tracks.join();
    return sheet;
  }

  #axis(context, { from, to, left, width, height }) {
    const { chrome } = this.theme.looks, ticks = roundTicks(from, to, 10), labels = tickLabels(ticks);
    context.font = `12px ${FONT_FAMILY}`;
    context.textAlign = "center";
    context.fillStyle = chrome.quiet;
    context.strokeStyle = chrome.grid;
    ticks.forEach((tick, i) => {
      const x = Math.round(left + ((tick - from) / (to - from)) * width) + 0.5;
      context.strokeRect(x, -5, 0, height + 5);
      context.fillText(labels[i], x, -13);
    });
    context.strokeStyle = chrome.line;
    context.strokeRect(left - 0.5, 0, width + 1, height);
  }

  /** Draw the names of a sheet's GPUs, rows and step strips. */
  #names(context, left, tracks) {
    const { stage, scene, theme } = this, { chrome } = theme.looks, shown = new Set(tracks);
    const write = (text, x, { y, h }, font, color, align) => {
      Object.assign(context, { font: `${font} ${FONT_FAMILY}`, fillStyle: color, textAlign: align });
      context.fillText(text, x, y + h / 2);
    };
    for (const { track, rows } of stage.blocks) {
      if (!shown.has(track)) continue;
      write(scene.tracks[track].label, 8, rows[0], "bold 13px", chrome.text, "left");
      if (!stage.collapsed[track]) for (const row of rows) write(row.label, left - 8, row, "12px", chrome.quiet, "right");
    }
    for (const strip of stage.strips) write(strip.label, left - 8, strip, "12px", chrome.quiet, "right");
  }
}
