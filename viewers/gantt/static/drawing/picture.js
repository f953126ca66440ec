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
