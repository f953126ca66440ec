/**
 * The chart before Bokeh has started: a plot at the place that Bokeh will give it, on which the first picture is drawn.
 * It has what Picture and the layout use of a plot of bokeh_adapter.js.
 */

/** In pixels, as Bokeh lays out the figures of page.py: outer margins, and what lies above the chart besides its letters. */
const EDGE = 5, RIGHT = 44, AXIS = 28;

export class StillPlot {
  #left = 0;
  #letters = 0;

  /** `below` is the height of the plot above this one, with whose axis this one begins; null for none. */
  constructor(figure, { from, to }, height, below = null) {
    Object.assign(this, { figure, range: { from, to }, height, below, canvas: document.createElement("canvas") });
    this.canvas.style.cssText = "position:absolute;image-rendering:pixelated;pointer-events:none";
    figure.classList.add("still");
    figure.append(this.canvas);
  }

  get #top() {
    return this.below === null ? EDGE : this.below + AXIS + this.#letters;
  }

  /** It is never painted again by itself. */
  onPaint() {}

  frame() {
    return { left: this.#left, top: this.#top, width: Math.max(1, this.figure.clientWidth - this.#left - RIGHT), height: this.height };
  }

  within(element) {
    const figure = this.figure.getBoundingClientRect(), box = element.getBoundingClientRect(), frame = this.frame();
    return { ...frame, left: figure.left - box.left + frame.left, top: figure.top - box.top + frame.top };
  }

  resize(height) {
    this.height = height;
    this.figure.style.minHeight = `${this.#top + height + EDGE}px`;
  }

  arrange(left, ticks, letters) {
    this.#left = left;
    this.#letters = letters;
  }

  align() {
    const { left, top, width, height } = this.frame();
    Object.assign(this.canvas.style, { left: `${left}px`, top: `${top}px`, width: `${width}px`, height: `${height}px` });
    return { width, height };
  }

  /** Give the place to the figures of Bokeh, which are hidden until then: their rows may lie elsewhere. */
  remove() {
    this.canvas.remove();
    this.figure.classList.remove("still");
    this.figure.style.minHeight = "";
  }
}

/** Resolves when the browser has had time to show what was drawn; in a hidden tab, which shows nothing, soon. */
export function shown() {
  return Promise.race([new Promise((done) => requestAnimationFrame(() => setTimeout(done))), new Promise((done) => setTimeout(done, 100))]);
}
