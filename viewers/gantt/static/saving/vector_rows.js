/** Turns the pixels of a raster's rows into rectangles: columns of equal colors are joined. */

/** Steps of a pixel in which the height of a share is drawn. */
const STEPS = 2;

/** Write a pixel of a little-endian RGBA image as "#rrggbb", with "aa" where it is not opaque. */
export function colorOf(pixel) {
  const hex = (shift) => ((pixel >>> shift) & 255).toString(16).padStart(2, "0");
  return `#${hex(0)}${hex(8)}${hex(16)}${pixel >>> 24 === 255 ? "" : hex(24)}`;
}

/**
 * Join the pixels of an image to rectangles: a Map from pixel to [x, y, w, h, ...] in pixels. A run of one color in a
 * column is joined with the same run in the next column: for the rows "aab" and "aab" these are two rectangles.
 */
export function boxesOf(image, width, height) {
  const found = new Map();
  let open = new Map();
  for (let x = 0; x <= width; x++) {
    const next = new Map();
    for (let y = 0; x < width && y < height; ) {
      const pixel = image[y * width + x];
      let end = y + 1;
      while (end < height && image[end * width + x] === pixel) end++;
      if (pixel) {
        const key = y * (height + 1) + end, before = open.get(key), joins = before?.pixel === pixel;
        next.set(key, joins ? before : { pixel, x, y, end });
        if (joins) open.delete(key);
      }
      y = end;
    }
    for (const { pixel, x: left, y, end } of open.values()) {
      if (!found.has(pixel)) found.set(pixel, []);
      found.get(pixel).push(left, y, x - left, end - y);
    }
    open = next;
  }
  return found;
}

/**
 * Return the shapes of rows { y, h } by color: a Map from color to { path, boxes (how many) }. A view is { from, to,
 * width, columns (of the raster), hidden }; what a row shows is that of the page, without patterns.
 */
export function shapesOf(raster, rows, { from, to, width, columns, hidden }) {
  const { patterns, rows: before } = raster, shapes = new Map(), across = width / columns;
  raster.patterns = {};
  for (const row of rows) {
    const height = Math.round(row.h * STEPS), round = (value) => String(Math.round(value * 100) / 100);
    raster.rows = [{ ...row, y: 0, clip: 0 }];
    const image = raster.draw({ from, to, width: columns, height, scale: STEPS, hidden });
    for (const [pixel, boxes] of boxesOf(image, columns, height)) {
      const color = colorOf(pixel), shape = shapes.get(color) ?? { parts: [], boxes: 0 };
      for (let i = 0; i < boxes.length; i += 4) {
        const [x, y, w, h] = [boxes[i] * across, row.y + boxes[i + 1] / STEPS, boxes[i + 2] * across, boxes[i + 3] / STEPS];
        shape.parts.push(`M${round(x)} ${round(y)}h${round(w)}v${round(h)}h${round(-w)}z`);
      }
      shape.boxes += boxes.length / 4;
      shapes.set(color, shape);
    }
  }
  Object.assign(raster, { patterns, rows: before });
  return new Map([...shapes].map(([color, { parts, boxes }]) => [color, { path: parts.join(""), boxes }]));
}
