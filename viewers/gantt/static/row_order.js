/** The order of the GPUs: a list in the toolbar, and the rows that follow it. */

/** Number of GPUs from which those that an order is not about are collapsed. */
const MANY = 8;

export class RowOrder {
  constructor(root, stage, scene) {
    Object.assign(this, { stage, scene });
    const orders = scene.orders ?? [];
    root.hidden = orders.length < 2;
    for (const { label } of orders) root.append(new Option(label));
    root.addEventListener("change", () => this.choose(root.selectedIndex));
  }

  /** Show the GPUs in an order; those that it is about are expanded, and where there are many, the others are collapsed. */
  choose(number) {
    const { tracks, open } = this.scene.orders[number], { stage } = this;
    const place = new Map(tracks.map((track, i) => [track, i]));
    stage.sort((a, b) => place.get(a) - place.get(b));
    if (open && tracks.length > MANY) stage.collapseBut(tracks.slice(0, open));
    stage.scrollTo(0);
  }
}
