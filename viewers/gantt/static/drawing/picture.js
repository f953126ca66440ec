/** A plot's canvas: draws the raster and what lies over it whenever the plot is painted. */

/** Device pixels per CSS pixel at most; a finer canvas costs time without a visible difference. */
const MAX_SCALE = 2;

/** A canvas over the frame of a plot, which `frame()` returns in CSS pixels: { left, top, width, height }. */
export class CanvasOver {
  // Bokeh's layers are in a shadow root, out of reach of the page's style sheet.
  canvas = Object.assign(document.createElement("canvas"), { style: "position:absolute;image-rendering:pixelated;pointer-events:none" });

  /** Place the canvas over the frame, which moves when tick labels change size; return its size in CSS pixels. */
  align() {
    const { left, top, width, height } = this.frame();
    Object.assign(this.canvas.style, { left: `${left}px`, top: `${top}px`, width: `${width}px`, height: `${height}px` });
    return { width, height };
  }
}

export class Picture {
  #drawn = "";

  /**
   * `rows()` returns the rows to draw, `bands()` the blocks to shade; `over` draws over them, on a context in CSS
   * pixels; `after` is called whenever the plot was painted.
   */
  constructor(plot, raster, hidden, { rows, height, bands = () => [], over = () => {}, after = () => {} }) {
    Object.assign(this, { plot, raster, hidden, rows, height, bands, over, after });
    // Background of every second GPU; transparent, so that the grid stays visible.
    this.band = { color: "#1F3C6E", alpha: 0.04 };
    plot.onPaint(() => this.draw());
  }

  /** Draw if the view has changed, or in any case with `force`. */
  draw(force = false) {
    const frame = this.plot.align(), { from, to } = this.plot.range;
    const scale = Math.min(MAX_SCALE, devicePixelRatio || 1);
    const width = Math.max(1, Math.round(frame.width * scale)), height = Math.max(1, Math.round(this.height() * scale));
    const view = [from, to, width, height].join();
    if (view !== this.#drawn || force) {
      this.#drawn = view;
      this.paintOn(this.plot.canvas, { from, to, width, height, scale });
    }
    this.after(from, to);
  }

  /** Draw the rows at their current places on a canvas; width and height in device pixels, `scale` per CSS pixel. */
  paintOn(canvas, { from, to, width, height, scale }) {
    const { hidden } = this, context = canvas.getContext("2d");
    this.raster.rows = this.rows();
    const image = this.raster.draw({ from, to, width, height, scale, hidden });
    if (canvas.width !== width) canvas.width = width;
    if (canvas.height !== height) canvas.height = height;
    context.putImageData(new ImageData(new Uint8ClampedArray(image.buffer), width, height), 0, 0);
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.globalCompositeOperation = "destination-over";
    Object.assign(context, { fillStyle: this.band.color, globalAlpha: this.band.alpha });
    for (const { y, h, clip = 0 } of this.bands()) {
      const top = Math.max(clip, y - 4);
      context.fillRect(0, top, width / scale, y + h + 4 - top);
    }
    Object.assign(context, { globalCompositeOperation: "source-over", globalAlpha: 1 });
    this.over(context, { from, to, width: width / scale, hidden });
    context.setTransform(1, 0, 0, 1, 0, 0);
  }

  /** Whether the canvas lies over the frame and shows its range. */
  exact() {
    const { from, to } = this.plot.range;
    return this.plot.aligned() && this.#drawn.startsWith(`${from},${to},`);
  }
}

// The chart before Bokeh has started: a plot at the place that Bokeh will give it, on which the first picture is drawn.
// It has what Picture and the layout use of a plot of bokeh_adapter.js.

/** In pixels, as Bokeh lays out the figures of page.py: outer margins, and what lies above the chart besides its letters. */
export const RIGHT = 44;
const EDGE = 5, AXIS = 28;

export class StillPlot extends CanvasOver {
  #left = 0;
  #right = RIGHT;
  #letters = 0;

  /** `below` is the height of the plot above this one, with whose axis this one begins; null for none. */
  constructor(figure, { from, to }, height, below = null) {
    super();
    Object.assign(this, { figure, range: { from, to }, height, below });
    figure.classList.add("still");
    figure.append(this.canvas);
  }

  get #top() {
    return this.below === null ? EDGE : this.below + AXIS + this.#letters;
  }

  /** It is never painted again by itself. */
  onPaint() {}

  frame() {
    return { left: this.#left, top: this.#top, width: Math.max(1, this.figure.clientWidth - this.#left - this.#right), height: this.height };
  }

  within(element) {
    const figure = this.figure.getBoundingClientRect(), box = element.getBoundingClientRect(), frame = this.frame();
    return { ...frame, left: figure.left - box.left + frame.left, top: figure.top - box.top + frame.top };
  }

  resize(height) {
    this.height = height;
    this.figure.style.minHeight = `${this.#top + height + EDGE}px`;
  }

  arrange(left, ticks, letters, right = RIGHT) {
    this.#right = right;
    this.#left = left;
    this.#letters = letters;
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
