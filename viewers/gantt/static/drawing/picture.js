/** A plot's canvas: draws the raster and what lies over it whenever the plot is painted. */

/** Device pixels per CSS pixel at most; a finer canvas costs time without a visible difference. */
const MAX_SCALE = 2;

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

// A plot: the canvas of a picture and its range of time. Until Bokeh has started, it stands at the place that Bokeh will
// give it; then bokeh_adapter.js joins it with a figure of Bokeh, which brings axes and tools. It can be used before.

/** In pixels, as Bokeh lays out the figures of document.py: outer margins, and what lies above the chart besides its letters. */
export const RIGHT = 44;
const EDGE = 5, AXIS = 28;

export class Plot {
  #range;
  /** What `arrange` was given. */
  #sides = [0, 0, 0, RIGHT];
  #chrome = null;
  #paint = () => {};
  /** The figure of Bokeh, once it is there. */
  #bokeh = null;

  /** `below` is the height of the plot above this one, with whose axis this one begins; null for none. */
  constructor(figure, { from, to }, height, below = null) {
    Object.assign(this, { figure, events: figure, height, below, repaint: oncePerFrame(() => (this.#bokeh ? this.#bokeh.repaint() : this.#paint())) });
    this.#range = { from, to };
    // Bokeh's layers are in a shadow root, out of reach of the page's style sheet.
    this.layer = Object.assign(document.createElement("div"), { className: "layer", style: "position:absolute;inset:0;pointer-events:none" });
    this.canvas = Object.assign(document.createElement("canvas"), { style: "position:absolute;image-rendering:pixelated" });
    this.layer.append(this.canvas);
    figure.append(this.layer);
  }

  /** Go to a figure of Bokeh, which is laid out like this plot. */
  join(bokeh) {
    bokeh.arrange(...this.#sides);
    bokeh.resize(this.height);
    bokeh.dress(this.#chrome);
    bokeh.show(this.range);
    bokeh.onPaint(() => this.#paint());
    bokeh.primary.after(this.layer);
    this.#bokeh = bokeh;
    this.figure.classList.remove("still");
    this.figure.style.minHeight = "";
    this.repaint();
  }

  /** Name the canvas for a screen reader. */
  describe(name) {
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", name);
  }

  get range() {
    return this.#bokeh?.range ?? this.#range;
  }

  /** Show another range, and repaint. */
  show(from, to) {
    this.#range = { from, to };
    if (this.#bokeh) this.#bokeh.show(this.#range);
    else this.repaint();
  }

  /** Call `paint` whenever the plot is painted. */
  onPaint(paint) {
    this.#paint = paint;
  }

  get #top() {
    const [, , letters] = this.#sides;
    return this.below === null ? EDGE : this.below + AXIS + letters;
  }

  /** Return the frame's box in CSS pixels: { left, top, width, height }. */
  frame() {
    const [left, , , right] = this.#sides;
    return this.#bokeh?.frame() ?? { left, top: this.#top, width: Math.max(1, this.figure.clientWidth - left - right), height: this.height };
  }

  /** Place the canvas over the frame, which moves when tick labels change size; return its size in CSS pixels. */
  align() {
    const { left, top, width, height } = this.frame();
    Object.assign(this.canvas.style, { left: `${left}px`, top: `${top}px`, width: `${width}px`, height: `${height}px` });
    return { width, height };
  }

  /** Whether the canvas lies exactly over the frame. */
  aligned() {
    const { left, top, width, height } = this.frame();
    const { offsetLeft, offsetTop, offsetWidth, offsetHeight } = this.canvas;
    return offsetLeft === left && offsetTop === top && offsetWidth === Math.round(width) && offsetHeight === Math.round(height);
  }

  /** Return the frame's box relative to another element, in CSS pixels. */
  within(element) {
    const own = this.layer.getBoundingClientRect(), box = element.getBoundingClientRect(), frame = this.frame();
    return { ...frame, left: own.left - box.left + frame.left, top: own.top - box.top + frame.top };
  }

  /** Return the position of a mouse event in the frame in CSS pixels: { x, y, width, height }, or null when outside. */
  position(event) {
    const own = this.layer.getBoundingClientRect(), { left, top, width, height } = this.frame();
    const x = event.clientX - own.left - left, y = event.clientY - own.top - top;
    return x < 0 || y < 0 || x > width || y > height ? null : { x, y, width, height };
  }

  /** Set the frame's height in pixels. */
  resize(height) {
    this.height = height;
    if (this.#bokeh) this.#bokeh.resize(height);
    else this.figure.style.minHeight = `${this.#top + height + EDGE}px`;
  }

  /** Set the margins left and right of the frame, the approximate number of ticks, and their font size in pixels. */
  arrange(left, ticks, letters, right = RIGHT) {
    this.#sides = [left, ticks, letters, right];
    this.#bokeh?.arrange(...this.#sides);
  }

  /** Take on a theme's colors. */
  dress(chrome) {
    this.#chrome = chrome;
    this.#bokeh?.dress(chrome);
  }
}

/** Return a function that calls `callback` in the next frame, once for any number of calls until then. */
export function oncePerFrame(callback) {
  let planned = false;
  return () => {
    if (planned) return;
    planned = true;
    requestAnimationFrame(() => {
      planned = false;
      callback();
    });
  };
}

/** Resolves when the browser has had time to show what was drawn; in a hidden tab, which shows nothing, soon. */
export function shown() {
  return Promise.race([new Promise((done) => requestAnimationFrame(() => setTimeout(done))), new Promise((done) => setTimeout(done, 100))]);
}
