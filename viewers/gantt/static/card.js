/** A card over a corner of the page: what is selected, measured or found, in figures. One at a time. */

import { element } from "../../base/static/dom.js";

export class Card {
  #close = () => {};

  constructor(root) {
    this.root = root;
    this.key = null;
    this.title = element("h2");
    this.body = element("div", "body");
    const close = Object.assign(element("button", "close", "×"), { type: "button", title: "close (Escape)" });
    close.setAttribute("aria-label", "Close");
    close.addEventListener("click", () => this.hide());
    const head = element("div", "top");
    head.append(this.title, close);
    root.append(head, this.body);
  }

  /** Show nodes under a title; `x` is where on the screen what they tell of is, so that the card stays off it. */
  show(key, title, nodes, { x = 0, close = () => {} } = {}) {
    if (this.key !== null && this.key !== key) this.#close();
    Object.assign(this, { key });
    this.#close = close;
    this.title.textContent = this.title.title = title;
    this.body.replaceChildren(...nodes);
    if (this.root.hidden) this.root.classList.toggle("left", x > innerWidth / 2);
    this.root.hidden = false;
  }

  /** Hide it, if it is the one of that key or any. */
  hide(key = this.key) {
    if (this.key === null || key !== this.key) return;
    const close = this.#close;
    this.key = null;
    this.#close = () => {};
    this.root.hidden = true;
    close();
  }
}
