/** Printing: draws all rows on as many sheets as needed, in the light theme. */

import { element } from "../../../base/static/dom.js";
import { drawSheet } from "./sheet_frame.js";
import { duration } from "../data/text.js";

/**
 * A sheet in pixels: width, margin right of the frame, height of the axis, height of a page; the factor by which paper
 * shrinks the page; and the extra height on paper of legends that wrap and of the figures of a run.
 */
const SHEET = { width: 1240, right: 34, axis: 24, height: 820, shrunk: 1.18, wrapped: 90, figures: 72 };
/** Number of sheets up to which they are drawn at double resolution, and the maximum number of sheets. */
const SHARP_SHEETS = 16, MAX_SHEETS = 40;
/** Number of GPUs up to which a served page fetches them at double resolution. */
const SHARP_GPUS = 64;
/** Space above and below the rows of a sheet, in pixels. */
const EDGE = 2;

export class PrintView {
  constructor(root, { picture, stage, scene, plot, theme, whole }) {
    Object.assign(this, { root, picture, stage, scene, plot, theme, whole, scale: 0 });
    addEventListener("beforeprint", () => this.lay());
    addEventListener("afterprint", () => this.clear());
    if (scene.served) addEventListener("keydown", (event) => this.#key(event));
  }

  /** Print a served page once it has all rows: after "beforeprint" it is too late to fetch any. */
  async #key(event) {
    if (!(event.ctrlKey || event.metaKey) || event.shiftKey || event.altKey || event.key.toLowerCase() !== "p") return;
    event.preventDefault();
    this.scale = this.stage.order.length > SHARP_GPUS ? 1 : 2;
    const end = await this.whole.fetched(Math.round(this.#width * this.scale)).catch(() => () => {});
    print();
    this.scale = 0;
    end();
  }

  /** The width of a sheet's frame in pixels. */
  get #width() {
    return SHEET.width - this.scene.layout.left - SHEET.right;
  }

  /** Draw all rows as sheets, which replace the chart while the page is printed. */
  lay() {
    const { stage, root, scene } = this, { changed, scroll, frame, growth, pins } = stage;
    this.#openNotes(true);
    stage.changed = () => {};
    stage.pins = [];
    stage.scale(1);
    // Estimate the height of what lies above the rows on their first page. In a report that is the second page, which
    // begins with the summary; the first one is the cover.
    const top = document.querySelector(".cover") ? document.querySelector("#summary").getBoundingClientRect().top : -scrollY;
    const above = (document.querySelector("#gantt").getBoundingClientRect().top - top) * SHEET.shrunk + SHEET.wrapped + SHEET.figures * (scene.groups?.length ?? 1);
    const sheets = sheetsOf(stage, SHEET.height - above - SHEET.axis, SHEET.height - SHEET.axis), drawn = sheets.slice(0, MAX_SHEETS);
    root.replaceChildren(...drawn.map((sheet) => this.#sheet(sheet, this.scale || (drawn.length > SHARP_SHEETS ? 1 : 2))));
    stage.pins = pins;
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
    const { from, to } = this.plot.range, { tracks } = this.scene, first = drawn[0]?.tracks[0], last = drawn.at(-1)?.tracks.at(-1);
    const part = drawn.length < sheets.length ? `${tracks[first].label} to ${tracks[last].label} of ${tracks.length} GPUs; use --ranks to draw the others. ` : "";
    const rough = this.whole.there ? "" : " Rows that were not on the screen are drawn from what was fetched of them, which may be little or nothing: print with Ctrl+P in the page, which fetches them first, not with the browser's menu.";
    return `${part}${duration(to - from)} shown.${rough}`;
  }

  #sheet({ scroll, height, tracks }, scale) {
    const canvas = element("canvas"), { left } = this.scene.layout;
    this.stage.setFrame(scroll, height);
    canvas.width = SHEET.width * scale;
    canvas.height = (height + SHEET.axis + 2) * scale;
    const context = canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, SHEET.axis * scale);
    drawSheet(context, this, { ...this.plot.range, left, width: this.#width, height }, this.theme.looks, new Set(tracks));
    const sheet = element("div", "sheet");
    sheet.append(canvas);
    sheet.dataset.tracks = tracks.join();
    return sheet;
  }
}

/**
 * Split all rows into sheets of at most `room` pixels, the first of at most `first`: [{ scroll, height, tracks }]. Only a
 * GPU that is higher than a sheet is split; each sheet begins with a strip. No GPU may be pinned.
 */
export function sheetsOf(stage, first, room) {
  const sheets = [], headed = new Map(stage.allHeadings.map((heading) => [heading.tracks.find((track) => !stage.hidden[track]), heading]));
  let sheet = null;
  for (const strip of stage.allStrips)
    strip.tracks.filter((track) => !stage.hidden[track]).forEach((track, i) => {
      const block = stage.blockOf.get(track), rows = block.rows.filter(({ h }) => h), begin = headed.get(track)?.top ?? block.top;
      const pieces = block.h > room ? rows.map(({ top, h }) => ({ top, bottom: top + h })) : [{ top: begin, bottom: block.top + block.h }];
      pieces.forEach(({ top, bottom }, j) => {
        const scroll = i || j ? top - stage.above : strip.top - EDGE, limit = sheets.length > 1 ? room : Math.max(first, bottom - scroll);
        if (!sheet || bottom - sheet.scroll > limit) sheets.push((sheet = { scroll, height: 0, tracks: [] }));
        sheet.height = bottom - sheet.scroll + EDGE;
        if (sheet.tracks.at(-1) !== track) sheet.tracks.push(track);
      });
    });
  return sheets;
}
