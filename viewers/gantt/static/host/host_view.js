/** The host's part of the page: its rows, their drawing, their panel and their button. */

import { Flame, HostRows } from "./host_rows.js";
import { HostPanel } from "./host_panel.js";
import { HostSource } from "./host_source.js";

export class HostView {
  constructor({ plot, hover, stage, lod, scene, columns, card, redraw, button }) {
    Object.assign(this, { plot, button });
    this.source = new HostSource(scene);
    this.rows = new HostRows({ stage, scene, source: this.source, failed: (error) => this.#failed(error) });
    this.panel = new HostPanel({ plot, hover, stage, lod, scene, columns, card, rows: this.rows, source: this.source, redraw });
    this.flame = new Flame(scene.host?.kinds ?? []);
    hover.hostTip = (row, point) => this.panel.tip(row, point);
    const any = scene.tracks.some((_, track) => this.source.hasCalls(track));
    button.hidden = !any;
    button.addEventListener("click", () => this.toggle());
  }

  async begin() {
    await this.rows.begin();
    this.#press();
  }

  /** Show or hide the rows of all GPUs. */
  async toggle() {
    await this.rows.showAll();
    this.#press();
  }

  /** Unfold the rows of a GPU, or fold them. */
  async fold(track) {
    if (track === undefined) return;
    await this.rows.show(track);
    this.#press();
  }

  /** Called when the view has moved. */
  moved() {
    const { from, to } = this.plot.range;
    this.rows.moved(from, to);
    this.#press();
  }

  #press() {
    this.button.setAttribute("aria-pressed", String(this.rows.shown));
  }

  #failed(error) {
    this.button.title = error.message;
    console.error(error);
  }
}
