/** Saves what the page shows as SVG or PNG: all shown rows in full height, with axis, names and legend, nothing else. */

import { FONT_FAMILY, patternsOf } from "../../../base/static/theme.js";
import { isDark } from "../drawing/raster.js";
import { drawAxis, drawLegend, drawNames, legendLines } from "./sheet_frame.js";
import { SvgContext } from "./svg_context.js";
import { duration } from "../data/text.js";

/** In pixels: height of the axis, margin at the right, and gap above the legend. */
const FRAME = { axis: 24, right: 40, gap: 8 };
/** Rectangles of a file at most; with more, the raster has fewer columns. Columns per pixel, finest first. */
const MAX_BOXES = 120_000, FINENESS = [1, 0.5, 0.25];
/** Device pixels of a PNG per pixel, and the largest side that browsers draw. */
const SCALE = 2, MAX_SIDE = 16_000;

export class SavedView {
  /** Takes the parts of the page; `measure()` returns the measurement. */
  constructor({ plot, picture, stage, scene, theme, labels, hidden, whole, measure }) {
    Object.assign(this, { plot, picture, stage, scene, theme, labels, hidden, whole, measure });
  }

  /** Save the view as a file of a kind, "svg" or "png". */
  async save(kind) {
    const done = await this.whole.fetched(this.#columns(kind));
    let blob;
    try {
      blob = kind === "svg" ? new Blob([this.svg()], { type: "image/svg+xml" }) : await this.png();
    } finally {
      done();
    }
    const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: `${this.#name()}.${kind}` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }

  /** Number of columns that a picture of a kind has at first. */
  #columns(kind) {
    const { width } = this.#size;
    return Math.round(width * (kind === "svg" ? FINENESS[0] : this.#scale));
  }

  #name() {
    const title = document.querySelector("h1")?.textContent ?? "", { from, to } = this.plot.range;
    return `${title.replace(/[^\p{L}\p{N}._-]+/gu, "-").replace(/^[-.]+|-+$/g, "").slice(0, 60) || "gantt"}-${duration(to - from).replace(/[ ,]/g, "").replace("µ", "u")}`;
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

  /** Draw with all rows in the frame; the page's own frame comes back. */
  #inFull(draw) {
    const { stage } = this, { scroll, frame } = stage;
    stage.setFrame(0, stage.height);
    try {
      return draw();
    } finally {
      stage.setFrame(scroll, frame);
    }
  }

  #legend(width, context) {
    const { scene, hidden } = this, letters = this.labels.pixels;
    context.font = `${letters}px ${FONT_FAMILY}`;
    const causes = new Set(document.documentElement.classList.contains("causes") ? [] : scene.special.causes);
    const shown = scene.order.filter((category) => scene.used.includes(category) && !hidden[category] && !causes.has(category));
    return legendLines(shown.map((category) => ({ category, label: scene.categories[category].label })), width, (text) => context.measureText(text).width);
  }

  /** Return the view as SVG. */
  svg() {
    return this.#inFull(() => {
      const size = this.#size, patterns = new Map(Object.entries(patternsOf(this.scene)).map(([category, name]) => [this.theme.looks.categories[category].color.toUpperCase(), name]));
      const measure = document.createElement("canvas").getContext("2d"), legend = this.#legend(size.width, measure);
      const whole = { width: size.left + size.width + FRAME.right, height: FRAME.axis + size.height + FRAME.gap + legend.height + 4 };
      const make = () => new SvgContext({ ...whole, paper: this.theme.looks.chrome.paper, measure, patterns });
      let context;
      for (const fine of FINENESS) {
        context = make();
        const columns = Math.max(1, Math.round(size.width * fine));
        if (this.#compose(context, size, legend, (view) => context.drawRows(this.picture.raster, this.picture.rows(), { ...view, columns })) <= MAX_BOXES) break;
      }
      return context.finish(document.title);
    });
  }

  /** Return the view as a PNG, as a Blob. */
  png() {
    return this.#inFull(() => {
      const size = this.#size, scale = this.#scale, canvas = document.createElement("canvas"), context = canvas.getContext("2d");
      const legend = this.#legend(size.width, context), { chrome } = this.theme.looks;
      canvas.width = Math.round((size.left + size.width + FRAME.right) * scale);
      canvas.height = Math.round((FRAME.axis + size.height + FRAME.gap + legend.height + 4) * scale);
      context.setTransform(scale, 0, 0, scale, 0, 0);
      context.fillStyle = chrome.paper;
      context.fillRect(0, 0, canvas.width, canvas.height);
      this.#compose(context, size, legend, null, scale);
      return new Promise((resolve, reject) => canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("the picture is too large"))), "image/png"));
    });
  }

  /** Draw the whole picture; `vector(view)` draws the rows as shapes, without it they are pixels. Returns what it returns. */
  #compose(context, { from, to, left, width, height }, legend, vector, scale = 1) {
    const { picture, stage, scene, theme, labels } = this, { looks } = theme, letters = labels.pixels, view = { from, to, width, hidden: this.hidden };
    let drawn = 0;
    context.save();
    context.translate(0, FRAME.axis);
    drawAxis(context, { from, to, left, width, height }, looks, letters);
    drawNames(context, stage, scene, left, looks, new Set(stage.order), letters);
    context.translate(left, 0);
    context.textAlign = "left";
    if (vector) {
      this.#bands(context, width);
      drawn = vector(view);
      picture.over(context, view);
    } else context.drawImage(this.#rows({ from, to, width, height, scale }), 0, 0, width, height);
    this.#span(context, view, height, looks.chrome);
    context.restore();
    context.save();
    context.translate(left, FRAME.axis + height + FRAME.gap);
    drawLegend(context, legend, looks, letters, (category, ...box) => this.#swatch(context, category, box));
    context.restore();
    return drawn;
  }

  #rows({ from, to, width, height, scale }) {
    const canvas = document.createElement("canvas");
    this.picture.paintOn(canvas, { from, to, width: Math.round(width * scale), height: Math.round(height * scale), scale });
    return canvas;
  }

  /** Shade every second GPU. */
  #bands(context, width) {
    context.save();
    Object.assign(context, { fillStyle: this.picture.band.color, globalAlpha: this.picture.band.alpha });
    for (const { y, h } of this.picture.bands()) context.fillRect(0, y - 4, width, h + 8);
    context.restore();
  }

  /** Draw a category's color with its pattern. */
  #swatch(context, category, [x, y, w, h]) {
    const { color } = this.theme.looks.categories[category], pattern = patternsOf(this.scene)[category];
    context.fillStyle = context.filled?.(color) ?? color;
    context.fillRect(x, y, w, h);
    if (context.filled || !pattern) return;
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
