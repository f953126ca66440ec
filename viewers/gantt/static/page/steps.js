/** The panel of steps to compare: two or more that are chosen stand side by side on one axis. */

import { button, element, sortable } from "../../../base/static/dom.js";
import { stepLength, stepsOf } from "../data/compared.js";
import { duration, visible } from "../data/text.js";

/** Steps on one axis. */
const MOST = 8;

export class Steps {
  /** `go` shows the view of a text. */
  constructor({ scene, card, button: opener, go }) {
    Object.assign(this, { scene, card, opener, go, chosen: new Set(scene.compared?.keys) });
    // A page of several runs compares those, and a frame in a notebook has no address to go to.
    opener.hidden = Boolean(scene.embedded) || (!scene.compared && (scene.strips[0].names.length < 2 || Boolean(scene.groups)));
    opener.setAttribute("aria-pressed", String(Boolean(scene.compared)));
  }

  toggle() {
    if (this.opener.hidden) return;
    if (this.card.key === "steps") return void this.card.hide();
    const rows = stepsOf(this.scene).map((step) => {
      const { key, label, name } = step, ns = stepLength(this.scene, step);
      const choice = button("link", label, { title: visible(name), onclick: () => this.#choose(key, choice) });
      choice.setAttribute("aria-pressed", String(this.chosen.has(key)));
      return { cells: [choice, duration(ns)], values: [label, ns] };
    });
    // A server knows steps by their numbers, which those of other programs can lack.
    const note = element("p", "quiet", rows.length ? "Choose two or more: each begins at 0, on one axis." : "The names of these steps end in no number of their own, by which the server of this page would find them.");
    const all = button("chip", "Show the whole run", { hidden: !this.scene.compared, onclick: () => this.go("") });
    this.card.show("steps", "Compare steps", [note, all, sortable(["step", "length"], rows)]);
  }

  #choose(key, choice) {
    if (!this.chosen.delete(key)) this.chosen.add(key);
    choice.setAttribute("aria-pressed", String(this.chosen.has(key)));
    if (this.chosen.size < 2 || this.chosen.size > MOST) return;
    const keys = stepsOf(this.scene).flatMap(({ key: own }) => (this.chosen.has(own) ? [own] : [])).join();
    if (this.scene.served) open(`steps/${keys}`);
    else this.go(`#compare=${keys}`);
  }
}
