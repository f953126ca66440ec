/** Printing: draws each GPU as a picture that no page cuts, below an axis that each page repeats, in the light theme. */

import { element } from "../../../base/static/dom.js";
import { drawSheet } from "./sheet_frame.js";
import { trackWord } from "../data/rows.js";
import { duration } from "../data/text.js";

/** In pixels: width of a picture, margin right of the frame, height of the axis. */
const SHEET = { width: 1240, right: 34, axis: 24 };
/** Number of GPUs up to which they are drawn at double resolution, and the maximum number of GPUs. */
const SHARP_GPUS = 64, MAX_GPUS = 1024;

export class PrintView {
  constructor(root, { picture, stage, scene, plot, theme, whole }) {
    Object.assign(this, { root, picture, stage, scene, plot, theme, whole });
    addEventListener("beforeprint", () => this.lay());
    addEventListener("afterprint", () => this.clear());
    if (scene.served) addEventListener("keydown", (event) => this.#key(event));
  }

  /** Print a served page once it has all rows: after "beforeprint" it is too late to fetch any. */
  async #key(event) {
    if (!(event.ctrlKey || event.metaKey) || event.shiftKey || event.altKey || event.key.toLowerCase() !== "p") return;
    event.preventDefault();
    const end = await this.whole.fetched(Math.round(this.#width * this.#scale)).catch(() => () => {});
    print();
    end();
  }

  /** The width of a picture's frame in pixels. */
  get #width() {
    return SHEET.width - this.scene.layout.left - SHEET.right;
  }

  get #scale() {
    return this.stage.order.length > SHARP_GPUS ? 1 : 2;
  }

  /** Draw all rows; they replace the chart while the page is printed. */
  lay() {
    const { stage, root } = this, { changed, scroll, frame, growth, pins } = stage;
    this.#openNotes(true);
    Object.assign(stage, { changed: () => {}, pins: [] });
    stage.scale(1);
    const drawn = stage.order.slice(0, MAX_GPUS);
    root.replaceChildren(element("p", "quiet", this.#caption(drawn)), ...stage.allStrips.map((strip) => this.#table(strip, new Set(drawn))));
    stage.pins = pins;
    stage.scale(growth);
    stage.setFrame(scroll, frame);
    stage.changed = changed;
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

  /** Describe what is drawn. */
  #caption(drawn) {
    const { from, to } = this.plot.range, { order } = this.stage, [first, last] = [drawn[0], drawn.at(-1)].map((track) => this.scene.tracks[track]?.label);
    const part = drawn.length < order.length ? `${first} to ${last} of ${order.length} ${trackWord(this.scene)}; use --ranks to draw the others. ` : "";
    const rough = this.whole.there ? "" : " Rows that were not on the screen are drawn from what was fetched of them, which may be little or nothing: print with Ctrl+P in the page, which fetches them first, not with the browser's menu.";
    return `${part}${duration(to - from)} shown.${rough}`;
  }

  /** Return a table of the GPUs below a strip, whose head has the axis and the steps. */
  #table({ top, tracks }, drawn) {
    const { stage } = this, { above } = stage, table = element("table"), head = element("thead"), body = element("tbody");
    const line = (parent, ...given) => {
      const row = element("tr"), cell = element("td");
      cell.append(this.#picture(...given));
      row.append(cell);
      parent.append(row);
      return row;
    };
    const headed = new Map(stage.allHeadings.map((heading) => [heading.tracks.find((track) => !stage.hidden[track]), heading.top]));
    line(head, top, top - SHEET.axis, top + above, []);
    // Browsers repeat an image on each page, but no canvas.
    const [canvas] = head.getElementsByTagName("canvas");
    canvas.replaceWith(Object.assign(element("img"), { src: canvas.toDataURL(), alt: "time axis" }));
    for (const track of tracks.filter((one) => drawn.has(one))) {
      const { top: first, h } = stage.blockOf.get(track), half = stage.gaps[stage.collapsed[track] ? "collapsed" : "tracks"] / 2;
      const row = line(body, first - above, headed.get(track) ?? first - half, first + h + half, [track]);
      row.className = "sheet";
      row.dataset.tracks = track;
    }
    table.append(head, body);
    return table;
  }

  /** Draw what lies between two heights of all rows, at a scroll position. */
  #picture(scroll, top, bottom, tracks) {
    const canvas = element("canvas"), { left } = this.scene.layout, { stage } = this, scale = this.#scale, height = bottom - scroll;
    stage.setFrame(scroll, height);
    canvas.width = SHEET.width * scale;
    canvas.height = Math.round((bottom - top) * scale);
    const context = canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, (stage.scroll - top) * scale);
    drawSheet(context, this, { ...this.plot.range, left, width: this.#width, height: height + 2 }, this.theme.looks, new Set(tracks));
    return canvas;
  }
}
