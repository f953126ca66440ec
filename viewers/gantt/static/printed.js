/** On paper: all rows on as many sheets as they take, however few of them the screen shows, light whatever it is. */

import { element } from "../../base/static/dom.js";
import { duration, tickLabels } from "./text.js";

/**
 * Pixels of a sheet across, which the paper's width is; right of the frame; above it for the axis; of a page down; how
 * much smaller paper shows a page; and by how much legends that wrap, and the figures of a run, are higher there.
 */
const SHEET = { width: 1240, right: 34, axis: 24, height: 820, shrunk: 1.18, wrapped: 90, figures: 72 };
/** Sheets up to which each is drawn sharply, and which are drawn at all. */
const SHARP_SHEETS = 16, MOST_SHEETS = 40;
const PAPER_FACE = "Inter, 'Segoe UI', 'Liberation Sans', Helvetica, Arial, sans-serif";

/** Times between two others that are round, about so many. */
export function roundTicks(from, to, many) {
  const least = (to - from) / many, size = 10 ** Math.floor(Math.log10(least));
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

  /** Draw all rows as sheets; the page shows them instead of its picture while it is printed. */
  lay() {
    const { stage, root, scene } = this, { changed, scroll, frame, growth } = stage;
    this.#open(true);
    stage.changed = () => {};
    stage.rise(1);
    // What stands above the rows takes as much of the first page as of the window, or so.
    // Of a report the first page is the cover, and the figures of all steps begin the second one.
    const top = document.querySelector(".cover") ? document.querySelector("#summary").getBoundingClientRect().top : -scrollY;
    const above = (document.querySelector("#gantt").getBoundingClientRect().top - top) * SHEET.shrunk + SHEET.wrapped + SHEET.figures * (scene.groups?.length ?? 1);
    const sheets = stage.sheets(SHEET.height - above - SHEET.axis, SHEET.height - SHEET.axis), drawn = sheets.slice(0, MOST_SHEETS);
    root.replaceChildren(...drawn.map((sheet) => this.#sheet(sheet, drawn.length > SHARP_SHEETS ? 1 : 2)));
    stage.rise(growth);
    stage.look(scroll, frame);
    stage.changed = changed;
    root.prepend(element("p", "quiet", this.#said(drawn, sheets)));
    document.documentElement.classList.add("printing");
  }

  /** Notes that are folded on the screen are read on paper. */
  #open(yes) {
    const notes = document.querySelector("details#notes");
    if (!notes) return;
    if (yes) this.folded ??= !notes.open;
    notes.open = yes || !this.folded;
    if (!yes) this.folded = undefined;
  }

  clear() {
    this.#open(false);
    document.documentElement.classList.remove("printing");
    this.root.replaceChildren();
  }

  /** What is on the sheets. */
  #said(drawn, sheets) {
    const { from, to } = this.plot.range, { tracks } = this.scene, last = drawn.at(-1)?.tracks.at(-1);
    const part = drawn.length < sheets.length ? `${tracks[0].label} to ${tracks[last].label}, of ${tracks.length} GPUs; --ranks draws the others. ` : "";
    return `${part}${duration(to - from)} shown.`;
  }

  #sheet({ scroll, height, tracks }, scale) {
    const { stage, scene } = this, { left } = scene.layout, width = SHEET.width - left - SHEET.right;
    stage.look(scroll, height);
    const rows = document.createElement("canvas"), canvas = document.createElement("canvas");
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
    context.font = `12px ${PAPER_FACE}`;
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

  /** The names of the GPUs of a sheet, of their rows, and of the strips above them. */
  #names(context, left, tracks) {
    const { stage, scene, theme } = this, { chrome } = theme.looks, own = new Set(tracks);
    const write = (text, x, { y, h }, font, color, align) => {
      Object.assign(context, { font: `${font} ${PAPER_FACE}`, fillStyle: color, textAlign: align });
      context.fillText(text, x, y + h / 2);
    };
    for (const { track, rows } of stage.blocks) {
      if (!own.has(track)) continue;
      write(scene.tracks[track].label, 8, rows[0], "bold 13px", chrome.text, "left");
      if (!stage.collapsed[track]) for (const row of rows) write(row.label, left - 8, row, "12px", chrome.quiet, "right");
    }
    for (const strip of stage.strips) write(strip.label, left - 8, strip, "12px", chrome.quiet, "right");
  }
}
