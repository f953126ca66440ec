/** Vertical scrolling: scrollbar, Shift + wheel, drag, arrow keys, Page Up and Page Down. */

import { typing } from "../../../base/static/dom.js";

/** Height of a line in pixels, for wheels that count in lines; an arrow key scrolls by two. */
const LINE = 19;

/** Return how far a wheel has turned, in pixels; `page` are those of a page. */
export function wheelPixels({ deltaMode, deltaX, deltaY }, page) {
  return (deltaY || deltaX) * (deltaMode === 1 ? LINE : deltaMode === 2 ? page : 1);
}

export class Scrolling {
  #drag = null;

  /** With a `zoomKey` the wheel alone scrolls the page; it zooms with that key, and scrolls the rows with Shift. */
  constructor(plot, stage, root, names, zoomKey = "") {
    Object.assign(this, { plot, stage, root });
    this.spacer = document.createElement("div");
    root.append(this.spacer);
    root.addEventListener("scroll", () => {
      if (Math.abs(root.scrollTop - stage.scroll) >= 1) stage.scrollTo(root.scrollTop);
    });
    // In the capture phase, before the chart, which would zoom.
    plot.events.addEventListener("wheel", (event) => event.shiftKey && this.#wheel(event), { capture: true, passive: false });
    names.addEventListener("wheel", (event) => (event.shiftKey || !zoomKey) && this.#wheel(event), { passive: false });
    plot.events.addEventListener("pointerdown", (event) => this.#grab(event));
    // In the capture phase, since Bokeh stops these events during a drag.
    addEventListener("pointermove", (event) => this.#move(event), { capture: true });
    for (const end of ["pointerup", "pointercancel", "blur"]) addEventListener(end, () => (this.#drag = null));
    addEventListener("keydown", (event) => this.#key(event));
  }

  get needed() {
    return this.stage.height > this.stage.frame;
  }

  #wheel(event) {
    if (!this.needed || event.ctrlKey) return;
    event.preventDefault();
    event.stopPropagation();
    this.stage.scrollBy(wheelPixels(event, this.stage.frame));
  }

  #grab(event) {
    if (event.button === 0 && !event.shiftKey && this.needed && this.plot.position(event)) this.#drag = { y: event.clientY, scroll: this.stage.scroll };
  }

  #move(event) {
    if (this.#drag && event.buttons & 1) this.stage.scrollTo(this.#drag.scroll + this.#drag.y - event.clientY);
  }

  #key(event) {
    const page = { PageUp: -0.9, PageDown: 0.9 }[event.key] ?? 0, line = { ArrowUp: -1, ArrowDown: 1 }[event.key] ?? 0;
    if (!(page || line) || !this.needed || event.defaultPrevented || event.ctrlKey || event.altKey || event.metaKey) return;
    if (typing(event)) return;
    this.stage.scrollBy(page * this.stage.frame + line * LINE * 2);
    event.preventDefault();
  }

  /** Place the scrollbar right of a frame, in pixels of its parent. */
  place({ left, top, width, height }) {
    Object.assign(this.root.style, { left: `${left + width + 3}px`, top: `${top}px`, height: `${height}px` });
  }

  update() {
    this.root.hidden = !this.needed;
    this.spacer.style.height = `${this.stage.height}px`;
    if (Math.abs(this.root.scrollTop - this.stage.scroll) >= 1) this.root.scrollTop = this.stage.scroll;
  }
}
