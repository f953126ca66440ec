/** Saves what the page shows as PNG: all shown rows in full height, with axis, names and legend, nothing else. */

import { saveFile } from "../../../base/static/dom.js";
import { FONT_FAMILY, patternsOf } from "../../../base/static/theme.js";
import { isDark } from "../drawing/raster.js";
import { drawSheet } from "./sheet_frame.js";
import { duration } from "../data/text.js";

/** In pixels: height of the axis, margin at the right, and gap above the legend. */
const FRAME = { axis: 24, right: 40, gap: 8 };
/** In pixels: size of an entry's color in the legend, its distance from the text, gap between entries, height of a line. */
const LEGEND = { width: 15, height: 12, text: 20, gap: 16, line: 20 };
/** Device pixels per pixel, and the largest side that browsers draw. */
const SCALE = 2, MAX_SIDE = 16_000;

export class SavedView {
  /** Takes the parts of the page; `measure()` returns the measurement. */
  constructor({ plot, picture, stage, scene, theme, labels, hidden, whole, measure }) {
    Object.assign(this, { plot, picture, stage, scene, theme, labels, hidden, whole, measure });
  }

  /** Save the view as a file. */
  async save() {
    const done = await this.whole.fetched(Math.round(this.#size.width * this.#scale));
    let blob;
    try {
      blob = await this.#png();
    } finally {
      done();
    }
    const { from, to } = this.plot.range;
    saveFile(blob, `-${duration(to - from).replace(/[ ,]/g, "").replace("µ", "u")}.png`);
  }

  /** The size of the frame on the page, whose height is that of all shown rows. */
  get #size() {
    const { from, to } = this.plot.range, { width } = this.plot.frame();
    return { from, to, left: this.scene.layout.left, width: Math.round(width), height: this.stage.height };
  }

  get #scale() {
    const { left, width, height } = this.#size;
    return Math.min(SCALE, MAX_SIDE / (left + width + FRAME.right), MAX_SIDE / (height + FRAME.axis + 200));
  }

  /** Return the view as a Blob: drawn with all rows in the frame; the page's own frame comes back. */
  #png() {
    const { stage } = this, { scroll, frame } = stage, canvas = document.createElement("canvas");
    stage.setFrame(0, stage.height);
    try {
      this.#draw(canvas, this.#size, this.#scale);
    } finally {
      stage.setFrame(scroll, frame);
    }
    return new Promise((resolve, reject) => canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("the picture is too large"))), "image/png"));
  }

  #draw(canvas, { from, to, left, width, height }, scale) {
    const { stage, theme: { looks }, labels: { pixels } } = this, context = canvas.getContext("2d"), legend = this.#legend(width, context);
    canvas.width = Math.round((left + width + FRAME.right) * scale);
    canvas.height = Math.round((FRAME.axis + height + FRAME.gap + legend.height + 4) * scale);
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.fillStyle = looks.chrome.paper;
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.save();
    context.translate(0, FRAME.axis);
    drawSheet(context, this, { from, to, left, width, height }, looks, new Set(stage.order), pixels);
    context.translate(left, 0);
    this.#span(context, { from, to, width }, height, looks.chrome);
    context.restore();
    context.translate(left, FRAME.axis + height + FRAME.gap);
    this.#drawLegend(context, legend);
  }

  /** Place the legend in lines of a width. */
  #legend(width, context) {
    const { scene, hidden } = this, causes = new Set(document.documentElement.classList.contains("causes") ? [] : scene.special.causes);
    context.font = `${this.labels.pixels}px ${FONT_FAMILY}`;
    let x = 0, y = 0;
    const placed = scene.order.filter((category) => scene.used.includes(category) && !hidden[category] && !causes.has(category)).map((category) => {
      const { label } = scene.categories[category], wide = LEGEND.text + context.measureText(label).width;
      if (x > 0 && x + wide > width) [x, y] = [0, y + LEGEND.line];
      const at = { category, label, x, y };
      x += wide + LEGEND.gap;
      return at;
    });
    return { placed, height: y + LEGEND.line };
  }

  #drawLegend(context, { placed }) {
    Object.assign(context, { font: `${this.labels.pixels}px ${FONT_FAMILY}`, textAlign: "left", textBaseline: "middle" });
    for (const { label, category, x, y } of placed) {
      const middle = y + LEGEND.line / 2;
      this.#swatch(context, category, [x, middle - LEGEND.height / 2, LEGEND.width, LEGEND.height]);
      context.fillStyle = this.theme.looks.chrome.text;
      context.fillText(label, x + LEGEND.text, middle);
    }
  }

  /** Draw a category's color with its pattern. */
  #swatch(context, category, [x, y, w, h]) {
    const pattern = patternsOf(this.scene)[category];
    context.fillStyle = this.theme.looks.categories[category].color;
    context.fillRect(x, y, w, h);
    if (!pattern) return;
    context.fillStyle = "rgba(0, 0, 0, 0.28)";
    for (let i = 0; i < w; i++) for (let j = 0; j < h; j++) if (isDark(pattern, i, j)) context.fillRect(x + i, y + j, 1, 1);
  }

  /** Draw the measured range. */
  #span(context, { from, to, width }, height, { mark, paper }) {
    const span = this.measure()?.span;
    if (!span || span.to < from || span.from > to) return;
    const x = (time) => ((Math.max(from, Math.min(to, time)) - from) / (to - from)) * width, left = x(span.from), wide = x(span.to) - left;
    context.save();
    context.globalAlpha = 0.13;
    context.fillStyle = mark;
    context.fillRect(left, 0, wide, height);
    context.globalAlpha = 1;
    Object.assign(context, { font: `600 12px ${FONT_FAMILY}`, textAlign: "center", textBaseline: "middle" });
    const text = duration(span.to - span.from), room = context.measureText(text).width + 14;
    context.fillRect(left, 0, 2, height);
    context.fillRect(left + wide - 2, 0, 2, height);
    const middle = Math.max(room / 2, Math.min(width - room / 2, left + wide / 2));
    context.fillRect(middle - room / 2, 3, room, 18);
    context.fillStyle = paper;
    context.fillText(text, middle, 12);
    context.restore();
  }
}
