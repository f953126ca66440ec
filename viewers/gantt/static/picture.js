/** A plot's canvas: what the raster and the labels draw upon it, and when. */

/** Sharper than two device pixels to one is not seen, and costs time. */
const SHARPEST = 2;

export class Picture {
  #drawn = "";

  /**
   * `rows` gives those to draw, `bands` the blocks to shade; `over` draws upon them, on a context scaled to CSS
   * pixels, and `after` is called whenever the plot was painted.
   */
  constructor(plot, raster, hidden, { rows, height, bands = () => [], over = () => {}, after = () => {} }) {
    Object.assign(this, { plot, raster, hidden, rows, height, bands, over, after });
    // Of the ground behind every second GPU, which must let the grid through.
    this.band = "rgba(31, 60, 110, 0.04)";
    plot.onPaint(() => this.draw());
  }

  /** Draw unless what is drawn already is still right. */
  draw(anew = false) {
    const frame = this.plot.align(), { from, to } = this.plot.range;
    const scale = Math.min(SHARPEST, devicePixelRatio || 1);
    const width = Math.max(1, Math.round(frame.width * scale)), height = Math.max(1, Math.round(this.height() * scale));
    const wanted = [from, to, width, height].join();
    if (wanted !== this.#drawn || anew) {
      this.#drawn = wanted;
      this.paintOn(this.plot.canvas, { from, to, width, height, scale });
    }
    this.after(from, to);
  }

  /** Draw the rows as they are placed now on a canvas, of so many device pixels, `scale` of them to a CSS pixel. */
  paintOn(canvas, { from, to, width, height, scale }) {
    const { hidden } = this, context = canvas.getContext("2d");
    this.raster.rows = this.rows();
    const image = this.raster.draw({ from, to, width, height, scale, hidden });
    if (canvas.width !== width) canvas.width = width;
    if (canvas.height !== height) canvas.height = height;
    context.putImageData(new ImageData(new Uint8ClampedArray(image.buffer), width, height), 0, 0);
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.globalCompositeOperation = "destination-over";
    context.fillStyle = this.band;
    for (const { y, h } of this.bands()) context.fillRect(0, y - 4, width / scale, h + 8);
    context.globalCompositeOperation = "source-over";
    this.over(context, { from, to, width: width / scale, hidden });
    context.setTransform(1, 0, 0, 1, 0, 0);
  }

  /** Tell whether the canvas lies over the frame and shows its range. */
  exact() {
    const { from, to } = this.plot.range;
    return this.plot.aligned() && this.#drawn.startsWith(`${from},${to},`);
  }
}
