/** Which GPUs are shown, and in which order: two lists in the toolbar, and the GPUs that are pinned to the top. */

import { rankNames, trackWord } from "../data/rows.js";

/** Number of GPUs from which those that an order is not about are collapsed. */
const MANY = 8;

export class RowOrder {
  #order = 0;

  /** `changed` is called after the rows have moved, to fit them to the window. */
  constructor({ order, which, stage, scene, changed = () => {} }) {
    Object.assign(this, { stage, scene, which, list: order, changed });
    const orders = scene.orders ?? [];
    order.hidden = orders.length < 2;
    for (const { label } of orders) order.append(new Option(label));
    order.addEventListener("change", () => this.choose(order.selectedIndex));
    which.hidden = !scene.few;
    if (scene.few) which.append(new Option(`all ${scene.tracks.length} ${trackWord(scene)}`), new Option(scene.few.label));
    which.addEventListener("change", () => this.showFew(which.selectedIndex === 1));
  }

  /** Show the GPUs in an order; those that it is about are expanded, and where there are many, the others are collapsed. */
  choose(number) {
    const { tracks, open, groups } = this.scene.orders[number], { stage } = this;
    const place = new Map(tracks.map((track, i) => [track, i]));
    this.#order = this.list.selectedIndex = number;
    stage.sort((a, b) => place.get(a) - place.get(b), new Map(groups?.map((group, track) => [track, group])));
    if (open && tracks.length > MANY) stage.collapseBut(tracks.slice(0, open));
    stage.scrollTo(0);
    this.changed();
  }

  /** Show only the few GPUs to look at first, or all. */
  showFew(yes) {
    const { few } = this.scene;
    this.which.selectedIndex = Number(yes);
    this.stage.showOnly(yes ? few.tracks : null);
    this.stage.scrollTo(0);
    this.changed();
  }

  pin(track, yes) {
    if (track === undefined) return;
    this.stage.pin(track, yes);
    this.changed();
  }

  /** The settings of the view. */
  get state() {
    const { stage, scene } = this;
    return {
      order: this.#order ? scene.orders[this.#order].label : null,
      few: scene.few && this.which.selectedIndex === 1 ? "1" : null,
      pin: stage.pins.map((track) => rankNames(scene)[track]).join(),
    };
  }

  /** Apply the settings of a view; those that do not exist in this run are ignored. */
  show({ order, few, pin = "" }) {
    const { stage, scene, state } = this, number = (scene.orders ?? []).findIndex(({ label }) => label === order), names = rankNames(scene);
    if (order ? number >= 0 && order !== state.order : state.order) this.choose(Math.max(0, number));
    if (scene.few && Boolean(few) !== Boolean(state.few)) this.showFew(Boolean(few));
    if (pin === state.pin) return;
    for (const track of [...stage.pins]) this.pin(track, false);
    for (const name of pin.split(",")) if (names.includes(name)) this.pin(names.indexOf(name), true);
  }
}
