/** The panel beside the chart, or below it on a narrow page: a selection, a measurement or a search; one at a time. */

import { button, element } from "../../../base/static/dom.js";

export class Card {
  #close = () => {};

  /** `changed` is called when the panel has appeared or gone. */
  constructor(root, changed = () => {}) {
    Object.assign(this, { root, changed });
    this.key = null;
    /** What the view keeps of the panel, see view.js; "" for nothing. */
    this.setting = "";
    this.title = element("h2");
    this.body = element("div", "body");
    const head = element("div", "top"), inside = element("div", "inside");
    head.append(this.title, button("close", "×", { title: "Close (Escape)", ariaLabel: "Close", onclick: () => this.hide() }));
    inside.append(head, this.body);
    root.append(inside);
  }

  /** Show nodes under a title; `close` is called when others replace them, or nothing does. */
  show(key, title, nodes, { close = () => {}, setting = "" } = {}) {
    if (this.key !== null && this.key !== key) this.#close();
    Object.assign(this, { key, setting });
    this.#close = close;
    this.title.textContent = this.title.title = title;
    this.body.replaceChildren(...nodes);
    this.body.scrollTop = 0;
    const appears = this.root.hidden;
    this.root.hidden = false;
    if (appears) this.changed();
  }

  /** Hide the card; with `key`, only if it was shown under that key. */
  hide(key = this.key) {
    if (this.key === null || key !== this.key) return;
    const close = this.#close;
    Object.assign(this, { key: null, setting: "" });
    this.#close = () => {};
    this.root.hidden = true;
    close();
    this.changed();
  }
}
