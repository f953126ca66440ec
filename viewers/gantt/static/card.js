/** A card in a corner of the page with the figures of the selection, the measurement or the search; one at a time. */

import { element } from "../../base/static/dom.js";

export class Card {
  #close = () => {};

  constructor(root) {
    this.root = root;
    this.key = null;
    this.title = element("h2");
    this.body = element("div", "body");
    const close = Object.assign(element("button", "close", "×"), { type: "button", title: "Close (Escape)" });
    close.setAttribute("aria-label", "Close");
    close.addEventListener("click", () => this.hide());
    const head = element("div", "top");
    head.append(this.title, close);
    root.append(head, this.body);
  }

  /** Show nodes under a title; `x` is the screen position of what they describe, which the card must not cover. */
  show(key, title, nodes, { x = 0, close = () => {} } = {}) {
    if (this.key !== null && this.key !== key) this.#close();
    Object.assign(this, { key });
    this.#close = close;
    this.title.textContent = this.title.title = title;
    this.body.replaceChildren(...nodes);
    if (this.root.hidden) this.root.classList.toggle("left", x > innerWidth / 2);
    this.root.hidden = false;
  }

  /** Hide the card; with `key`, only if it was shown under that key. */
  hide(key = this.key) {
    if (this.key === null || key !== this.key) return;
    const close = this.#close;
    this.key = null;
    this.#close = () => {};
    this.root.hidden = true;
    close();
  }
}
