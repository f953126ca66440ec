/**
 * Draws the rows as pixels, without a canvas: every pixel column of a row is a stacked bar of the exact time shares of
 * its categories; every interval of at least three pixels is drawn whole, on the pixel grid.
 */

/** Minimum width of an interval that is drawn whole, in pixels. */
const WHOLE = 3;
/** Minimum width, in pixels, of an interval that is separated from the one it touches by a line. */
const SEPARATED = 5;
/** The dark pixels of each pattern; patterns mark categories for readers who cannot tell the colors apart. */
const PATTERNS = {
  hatch: (x, y) => (x + y) % 7 === 0,
  back: (x, y) => (x + 6 * y) % 7 === 0,
  dots: (x, y) => x % 5 < 2 && y % 5 < 2,
  bars: (x) => x % 4 === 0,
  rails: (x, y) => y % 4 === 0,
};
/** Whether a pattern is dark at a pixel. */
export function isDark(pattern, x, y) {
  return PATTERNS[pattern](x, y);
}

/** Number of columns after which every pattern repeats. */
const PERIOD = 140;
/** Alpha channel of time outside the steps, which no figure counts. */
const PALE = 0x48000000;
/** Minimum share of a column that is drawn. */
const MIN_SHARE = 0.004;

/** Convert "#RRGGBB" to a pixel of a little-endian RGBA image, darkened by `factor`. */
export function pixel(color, factor = 1) {
  const value = parseInt(color.slice(1), 16);
  const channel = (shift) => Math.round(((value >> shift) & 255) * factor);
  return (0xff000000 | (channel(0) << 16) | (channel(8) << 8) | channel(16)) >>> 0;
}

export class Raster {
  #density = new Float32Array(0);
  #image = new Uint32Array(0);

  /**
   * `rows`: { y, h, clip (what is above is not drawn), lane, idle (fill the background), floor (minimum height in px of any time above 0), separated (the
   * lane whose touching intervals a line separates, or -1), from, to (time of the steps) }; `palette`: colors by
   * category, stacking `order`, the `exposed` and `idle` categories, and the names of `patterns` by category.
   */
  constructor(lod, rows, palette) {
    Object.assign(this, { lod, rows, palette });
    this.patterns = palette.patterns ?? { [palette.exposed]: "hatch" };
    this.paint(palette.colors);
  }

  /** Set the colors: by category, of the line below a row, and of the line between intervals that touch. */
  paint(colors, baseline = "#DFE2E6", separator = "#FFFFFF") {
    this.colors = colors.map((color) => pixel(color));
    this.dark = colors.map((color) => pixel(color, 0.72));
    this.baseline = pixel(baseline);
    this.separator = pixel(separator);
  }

  /** Draw [from, to] as width × height device pixels, `scale` of them per CSS pixel; `hidden` by category. */
  draw({ from, to, width, height, scale, hidden }) {
    const { rows, lod } = this;
    const cells = rows.length * lod.categories * width;
    if (this.#density.length !== cells) this.#density = new Float32Array(cells);
    if (this.#image.length !== width * height) this.#image = new Uint32Array(width * height);
    else this.#image.fill(0);
    const view = { from, width, scale, hidden, px: (to - from) / width, density: this.#density, image: this.#image };
    view.hatch = ((Math.round(from / view.px) % PERIOD) + PERIOD) % PERIOD;
    this.#densities(view, to);
    rows.forEach((row, position) => {
      // Rows are clipped at the top and bottom of the image.
      const top = Math.round(row.y * scale), bottom = Math.round((row.y + row.h) * scale);
      const box = { top, bottom, first: Math.max(0, top, Math.round((row.clip ?? 0) * scale)), last: Math.min(height, bottom) };
      const whole = this.#takeWhole(row, position, view);
      this.#background(row, box, view);
      this.#stack(row, position, box, view);
      for (const index of whole) this.#interval(row, index, box, view);
      if (row.separated >= 0) this.#separate(row, box, view);
      this.#fade(row, box, view);
    });
    return view.image;
  }

  /** Compute the shares of all rows; a row can have a Lod of its own. */
  #densities(view, to) {
    const { from, width, density } = view, { rows, lod } = this, each = lod.categories * width;
    if (rows.some((row) => row.lod))
      rows.forEach((row, i) => (row.lod ?? lod).density(from, to, width, [row.lane], density.subarray(i * each, (i + 1) * each)));
    else lod.density(from, to, width, rows.map((row) => row.lane), density);
  }

  /**
   * Find the intervals to draw whole, and remove their shares of their first and last column if these are otherwise
   * idle: the interval is rounded to the pixel grid, and either fills these columns or does not.
   */
  #takeWhole(row, position, { from, width, px, density }) {
    const lod = row.lod ?? this.lod, { categories } = lod;
    const found = [];
    const total = (column) => {
      let sum = 0;
      for (let k = 0; k < categories; k++) sum += density[(position * categories + k) * width + column];
      return sum;
    };
    const take = (index, edge, share) => {
      const column = Math.floor(edge);
      if (column < 0 || column >= width || total(column) - share >= 0.05) return;
      const at = (position * categories + lod.category[index]) * width + column;
      density[at] = Math.max(0, density[at] - share);
    };
    lod.eachLong(row.lane, from, from + px * width, WHOLE * px, (index) => {
      found.push(index);
      const left = (lod.start[index] - from) / px, right = left + lod.duration[index] / px;
      take(index, left, Math.floor(left) + 1 - left);
      take(index, right, right - Math.floor(right));
    });
    return found;
  }

  #columns(row, { from, px, width }) {
    const clamp = (time) => Math.max(0, Math.min(width, Math.round((time - from) / px)));
    return [clamp(row.from), clamp(row.to)];
  }

  #background(row, { bottom, first, last }, view) {
    // Rows of the minimap and of tests have no spans.
    for (const [from, to] of row.spans ?? [[row.from, row.to]]) {
      const [left, right] = this.#columns({ from, to }, view);
      if (row.idle && !view.hidden[this.palette.idle])
        for (let y = first; y < last; y++) view.image.fill(this.colors[this.palette.idle], y * view.width + left, y * view.width + right);
      else if (bottom === last) view.image.fill(this.baseline, (bottom - 1) * view.width + left, (bottom - 1) * view.width + right);
    }
  }

  #stack(row, position, { top, bottom, first, last }, { width, density, hidden, scale, px, image, hatch }) {
    const lod = row.lod ?? this.lod, order = this.palette.order.filter((k) => lod.has(row.lane, k));
    const places = order.map((k) => (position * lod.categories + k) * width), blank = order.map((k) => hidden[k] && !row.idle);
    // Hidden categories are blank, since the idle background would suggest that nothing ran.
    const colors = order.map((k) => (hidden[k] ? 0 : this.colors[k])), patterns = order.map((k) => (hidden[k] ? undefined : PATTERNS[this.patterns[k]]));
    // A minimum height distorts the shares, so only rows with few intervals have one.
    const height = bottom - top, floor = row.floor > 1 ? Math.round(row.floor * scale) : 0;
    // In these rows half a nanosecond is drawn; less is a rounding error.
    const least = row.floor > 1 ? 0.5 / px : MIN_SHARE;
    for (let x = 0; x < width; x++) {
      let sum = 0;
      for (let i = 0; i < places.length; i++) sum += density[places[i] + x];
      if (sum <= least) continue;
      // Concurrent kernels can sum to more than the column; the bar then shows their shares of the sum.
      const fit = height / Math.max(1, sum);
      let share = 0, next = bottom;
      for (let i = 0; i < places.length; i++) {
        const part = density[places[i] + x], low = next;
        share += part;
        next = bottom - Math.round(share * fit);
        if (part <= least || blank[i]) continue;
        const high = Math.max(top, Math.min(low - floor, next)), begin = Math.max(first, high), color = colors[i], dark = patterns[i];
        const end = Math.min(last, Math.max(low, high + Math.min(floor, 1)));
        for (let at = begin * width + x, stop = end * width + x; at < stop; at += width) image[at] = color;
        if (dark) for (let y = begin; y < end; y++) if (dark(x + hatch, y)) image[y * width + x] = this.dark[order[i]];
      }
    }
  }

  #interval(row, index, { first, last }, { image, width, from, px, hidden, hatch }) {
    const lod = row.lod ?? this.lod, category = lod.category[index], blank = hidden[category];
    if (blank && !row.idle) return;
    const dark = blank ? null : PATTERNS[this.patterns[category]];
    const exact = (lod.start[index] - from) / px;
    const begin = Math.round(exact), stop = Math.round(exact + lod.duration[index] / px);
    const left = Math.max(0, begin), right = Math.min(width, stop);
    if (right <= left) return;
    for (let y = first; y < last; y++) {
      image.fill(blank ? 0 : this.colors[category], y * width + left, y * width + right);
      if (dark) for (let x = left; x < right; x++) if (dark(x + hatch, y)) image[y * width + x] = this.dark[category];
    }
  }

  /** Draw lines between intervals that touch. */
  #separate(row, box, { image, width, from, px }) {
    const lod = row.lod ?? this.lod, { start, duration, offsets } = lod;
    const first = offsets[row.separated];
    lod.eachLong(row.separated, from, from + px * width, SEPARATED * px, (index) => {
      const begin = (start[index] - from) / px, column = Math.round(begin);
      const gap = index > first ? (start[index] - start[index - 1] - duration[index - 1]) / px : Infinity;
      if (column < 0 || column >= width || gap >= 1.5) return;
      for (let y = box.first; y < box.last; y++) image[y * width + column] = this.separator;
    });
  }

  /** Fade the time before the first and after the last step. */
  #fade(row, { first, last }, view) {
    const [left, right] = this.#columns(row, view);
    const { image, width } = view;
    for (let y = first; y < last; y++)
      for (const [begin, end] of [[0, left], [right, width]])
        for (let at = y * width + begin; at < y * width + end; at++) if (image[at]) image[at] = ((image[at] & 0xffffff) | PALE) >>> 0;
  }
}
