/** The columns of a served page's minimap: exact, of the whole run, fetched once for each width. */

import { takeColumns } from "./loader.js";
import { Answers } from "./served_lod.js";

export class Overview {
  constructor(lod) {
    Object.assign(this, { lod, categories: lod.categories, changed: () => {} });
    const listeners = { changed: () => this.changed(), failed: (error) => lod.failed(error) };
    this.columnsBy = new Answers((...view) => this.#fetch(...view), listeners);
  }

  has(lane, category) {
    return this.lod.has(lane, category);
  }

  density(from, to, width, lanes, out) {
    out.fill(0);
    const columns = this.columnsBy.get(from, to, width, lanes);
    lanes.forEach((lane, place) => {
      for (const [k, plane] of columns?.get(lane) ?? [])
        for (let x = 0; x < width; x++) out[(place * this.categories + k) * width + x] = plane[x] / 255;
    });
    return out;
  }

  eachLong() {
    // No single interval is drawn: the columns hold them.
  }

  async #fetch(from, to, width, lanes) {
    return takeColumns(await this.lod.connection.message("view", { start: from, end: to, width, columns: lanes, raw: [], shortest: 0 }), width);
  }
}

// Fetches all shown rows of a served page, for paper and saved pictures; a page in one file has them.

/** Time after which the server is no longer waited for, and between two looks at what has arrived, in ms. */
const PATIENCE_MS = 30_000, POLL_MS = 30;

export class WholeView {
  #held = null;

  /** `redraw` is called when the view of the screen is wanted again. */
  constructor({ lod, plot, stage, redraw }) {
    Object.assign(this, { lod, plot, stage, redraw });
  }

  /** Fetch what the screen shows, unless all rows are being fetched. */
  look(view) {
    this.lod.look?.(this.#held ?? view);
  }

  /** Whether all shown rows are there. */
  get there() {
    return !this.lod.look || (this.#held !== null && this.lod.loaded);
  }

  /** Fetch all shown rows for a width in columns; resolves to a function to call when they are no longer needed. */
  async fetched(width) {
    if (!this.lod.look) return () => {};
    const { from, to } = this.plot.range, { stage } = this;
    const rows = stage.order.flatMap((track) => stage.blockOf.get(track).rows).filter(({ h, host }) => h > 0 && !host);
    const done = () => {
      this.#held = null;
      this.redraw();
    };
    this.#held = { from, to, width, rows };
    this.lod.look(this.#held);
    for (const end = performance.now() + PATIENCE_MS; !this.there; await new Promise((later) => setTimeout(later, POLL_MS))) {
      if (performance.now() < end) continue;
      done();
      throw new Error("the server did not send all rows");
    }
    return done;
  }
}
