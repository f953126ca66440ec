/** The findings above the chart: a click shows where each one is, and what to do about it. */

import { button, table } from "../../../base/static/dom.js";
import { laneOf, stepAt } from "../data/rows.js";
import { collectiveName, duration, moment, visible } from "../data/text.js";

export class Findings {
  /** Takes the parts of the page; `resized` is called when the list has become taller or shorter. */
  constructor(list, { scene, lod, stage, navigation, interactions, resized }) {
    Object.assign(this, { scene, lod, stage, navigation, interactions, resized });
    this.buttons = list ? [...list.querySelectorAll("button")] : [];
    this.buttons.forEach((button, number) => button.addEventListener("click", () => this.#click(number)));
  }

  /** Show a finding, or close it if it is open. */
  #click(number) {
    const open = this.buttons[number].getAttribute("aria-expanded") === "true";
    this.#expand(open ? -1 : number);
    if (open) this.hide();
    else this.show(number);
  }

  /** The number of the finding that is open, or -1. */
  get open() {
    return this.buttons.findIndex((button) => button.getAttribute("aria-expanded") === "true");
  }

  /** Open the finding of a view, or none; with `go`, show where it is. */
  async restore(number, go) {
    const { place } = this.scene.findings?.[number] ?? {}, wanted = place ? number : -1;
    if (wanted === this.open && !go) return;
    this.#expand(wanted);
    this.stage.marked = -1;
    if (wanted >= 0) await (go ? this.show(wanted) : this.stage.center(place.track));
  }

  #expand(number) {
    this.buttons.forEach((button, other) => {
      button.setAttribute("aria-expanded", String(other === number));
      button.parentElement.querySelector("p").hidden = other !== number;
    });
    this.resized();
  }

  /** Remove the frame and the selection; the view stays. */
  hide() {
    this.stage.marked = -1;
    this.interactions.selection.clear();
    this.interactions.host.panel.clear();
    this.stage.changed();
  }

  /**
   * Zoom to a finding's evidence, frame its GPU, and select its longest gap, or its collective on all ranks; of a rank
   * that held others up, list its late arrivals.
   */
  async show(number) {
    const { place, idle } = this.scene.findings[number], { navigation, stage, interactions } = this;
    if (idle) interactions.showIdle(true);
    navigation.show(place.from, place.to);
    stage.center(place.track);
    interactions.selection.clear();
    if (place.gap !== undefined) await interactions.host.panel.chooseGap(place.track, place.gap);
    else if (place.collective) await this.#choose(...place.collective);
    if (!place.late) return;
    await this.#listLate(place);
    // The rows of its host, which have opened, have moved it.
    if (this.open === number) stage.center(place.track);
  }

  async #choose(track, position) {
    const [index] = await this.lod.hold([{ lane: laneOf(this.scene, track, "collectives"), position }]);
    await this.interactions.selection.choose(index, track);
  }

  /** Add a rank's late arrivals in a step to the panel, below the cause. */
  async #listLate({ track, late }) {
    const { scene, lod, interactions: { selection: { columns }, card } } = this, lane = laneOf(scene, track, "collectives"), { steps, bounds } = scene.tracks[track];
    const held = await lod.hold(late.map(([position]) => ({ lane, position }))), step = Math.max(0, stepAt(scene.tracks[track], lod.start[held[0]]));
    const rows = held.map((index, i) => {
      const name = visible(collectiveName(scene.collectives[columns.name[index]])), [position, ns] = late[i];
      return [button("link", name, { onclick: () => this.#choose(track, position) }), moment(lod.start[index] - bounds[step], 1e6), `+${duration(ns)}`];
    });
    const [above] = [...card.body.children].slice(0, 2).toReversed();
    above?.after(table([`late arrivals in ${visible(steps[step])}`, "into the step", "after the others"], rows));
  }
}
