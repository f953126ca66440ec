/** A plot's canvas: draws the raster and what lies over it whenever the plot is painted. */

/** Device pixels per CSS pixel at most; a finer canvas costs time without a visible difference. */
const MAX_SCALE = 2;

export class Picture {
  #drawn = "";

  /**
   * `rows()` returns the rows to draw, `bands()` the blocks to shade; `over` draws over them and `under` below, on a
   * context in CSS pixels; `beside` draws beside them, `placed` is called when the frame has moved, and `after` whenever the
   * plot was painted.
   */
  constructor(plot, raster, hidden, { rows, height, bands = () => [], over = () => {}, under = () => {}, beside = () => {}, placed = () => {}, after = () => {} }) {
    Object.assign(this, { plot, raster, hidden, rows, height, bands, over, under, beside, placed, after });
    // Background of every second GPU; transparent, so that the grid stays visible.
    this.band = { color: "#1F3C6E", alpha: 0.04 };
    plot.paint = () => this.draw();
  }

  /** Draw if the view has changed, or in any case with `force`. */
  draw(force = false) {
    const frame = this.plot.align(), { from, to } = this.plot.range;
    const scale = Math.min(MAX_SCALE, devicePixelRatio || 1);
    const width = Math.max(1, Math.round(frame.width * scale)), height = Math.max(1, Math.round(this.height() * scale));
    const view = [from, to, width, height].join();
    if (frame.moved) this.placed();
    if (view !== this.#drawn || force || frame.moved) {
      this.#drawn = view;
      this.paintOn(this.plot.canvas, { from, to, width, height, scale });
      this.beside(from, to, scale);
    }
    this.after(from, to);
  }

  /** Draw the rows at their current places on a canvas; width and height in device pixels, `scale` per CSS pixel. */
  paintOn(canvas, { from, to, width, height, scale }) {
    const { hidden } = this, context = canvas.getContext("2d");
    this.raster.rows = this.rows();
    const image = this.raster.draw({ from, to, width, height, scale, hidden });
    size(canvas, width, height);
    context.putImageData(new ImageData(new Uint8ClampedArray(image.buffer), width, height), 0, 0);
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.globalCompositeOperation = "destination-over";
    Object.assign(context, { fillStyle: this.band.color, globalAlpha: this.band.alpha });
    for (const { y, h, clip = 0 } of this.bands()) {
      const top = Math.max(clip, y - 4);
      context.fillRect(0, top, width / scale, y + h + 4 - top);
    }
    context.globalAlpha = 1;
    this.under(context, { from, to, width: width / scale, height: height / scale });
    context.globalCompositeOperation = "source-over";
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
// give it; then bokeh_adapter.js joins it with a figure of Bokeh, which brings tools. It can be used before.

/** In pixels, as Bokeh lays out the figures of document.py: outer margins, and what lies above the chart besides its letters. */
export const RIGHT = 44;
const EDGE = 5, AXIS = 16, BETWEEN = 12;
/** In pixels: what a label of the axis may take left of the frame. */
const SPACE = 60;
/** How long a range rests before Bokeh, which lays out and paints for each, takes it over, in ms. */
const REST_MS = 100;

export class Plot {
  /** The frame's margins and its height. */
  #place;
  #box = "";
  /** The figure of Bokeh, once it is there, and the timer after which it takes over the range. */
  #bokeh = null;
  #rest = 0;

  /** `below` is the height of the plot above this one, with whose axis this one begins; null for none. */
  constructor(figure, { from, to }, height, below = null) {
    // `paint` is called whenever the plot is painted.
    Object.assign(this, { figure, events: figure, below, range: { from, to }, whole: { from, to }, paint: () => {}, repaint: oncePerFrame(() => this.paint()) });
    this.#place = { left: 0, right: RIGHT, top: EDGE, height };
    // Bokeh's layers are in a shadow root, out of reach of the page's style sheet.
    this.layer = Object.assign(document.createElement("div"), { className: "layer", style: "position:absolute;inset:0;pointer-events:none" });
    this.canvas = Object.assign(document.createElement("canvas"), { style: "position:absolute;image-rendering:pixelated;outline:1px solid var(--line)" });
    /** What lies beside the picture: the axis above it, or the window over it. */
    this.beside = Object.assign(document.createElement("canvas"), { style: "position:absolute", ariaHidden: "true" });
    this.layer.append(this.canvas, this.beside);
    figure.append(this.layer);
    // Its tools begin where the range is.
    figure.addEventListener("pointerdown", () => this.#settle(), true);
  }

  /** Go to a figure of Bokeh, which is laid out like this plot. */
  join(bokeh) {
    bokeh.arrange(this.#place);
    bokeh.bound(this.whole);
    bokeh.show(this.range);
    bokeh.follow((range) => this.#move(range), () => this.paint());
    bokeh.primary.after(this.layer);
    this.#bokeh = bokeh;
    this.figure.classList.remove("still");
    this.figure.style.minHeight = "";
    this.repaint();
  }

  /** Show another range, and repaint. */
  show(from, to) {
    this.#move({ from, to });
    clearTimeout(this.#rest);
    this.#rest = setTimeout(() => this.#settle(), REST_MS);
  }

  #move(range) {
    if (range.from === this.range.from && range.to === this.range.to) return;
    this.range = range;
    this.repaint();
  }

  #settle() {
    clearTimeout(this.#rest);
    this.#bokeh?.show(this.range);
  }

  /** Return the frame's box in CSS pixels: { left, top, width, height }. */
  frame() {
    const { left, right, top, height } = this.#place, above = this.below === null ? 0 : this.below + BETWEEN;
    return this.#bokeh?.frame() ?? { left, top: above + top, width: Math.max(1, this.figure.clientWidth - left - right), height };
  }

  /** Place the canvas over the frame; return its size in CSS pixels, and whether it has `moved`. */
  align() {
    const { left, top, width, height } = this.frame(), box = [left, top, width, height, this.#bokeh !== null].join(), moved = box !== this.#box;
    this.#box = box;
    if (moved) Object.assign(this.canvas.style, { left: `${left}px`, top: `${top}px`, width: `${width}px`, height: `${height}px` });
    return { width, height, moved };
  }

  /** Draw beside the picture, in CSS pixels from the corner of the frame: from so many `above` it, and between its margins. */
  drawBeside(draw, above, below, scale) {
    const { left, top, width, height } = this.frame(), { right } = this.#place, wide = SPACE + width + right, high = above + below, context = this.beside.getContext("2d");
    Object.assign(this.beside.style, { left: `${left - SPACE}px`, top: `${top - above}px`, width: `${wide}px`, height: `${high}px` });
    size(this.beside, Math.round(wide * scale), Math.round(high * scale));
    context.setTransform(scale, 0, 0, scale, SPACE * scale, above * scale);
    context.clearRect(-SPACE, -above, wide, high);
    draw(context, { width, height, right });
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

  /** Set the frame's margins and height in pixels; with `letters`, room for an axis of that size above it. */
  arrange({ letters, ...place }) {
    Object.assign(this.#place, place, letters && this.below !== null && { top: AXIS + letters });
    if (this.#bokeh) this.#bokeh.arrange(this.#place);
    else this.figure.style.minHeight = `${this.frame().top + this.#place.height + EDGE}px`;
  }
}

/** Give a canvas a size, which clears it. */
function size(canvas, width, height) {
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
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
