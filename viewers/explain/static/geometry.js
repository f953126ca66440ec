/** Where things are in the pictures of an explanation: numbers only. */

const NAME = 66, GAP = 10;

/** Return the places of the cells: rows of ranks, columns of chunks. */
export function boardLayout(rows, columns, width) {
  const cell = Math.min(150, Math.max(30, (width - NAME - GAP) / columns));
  const row = Math.min(76, Math.max(34, 600 / rows));
  const height = Math.min(40, row - 12);
  return {
    name: NAME, cell, row, height, top: 26,
    width: NAME + cell * columns + GAP,
    bottom: 26 + row * rows,
    x: (column) => NAME + cell * column,
    y: (rank) => 26 + row * rank + (row - height) / 2,
  };
}

/** Return the path of a message, bent so that the messages down and up a column do not lie on each other. */
export function curve(layout, message) {
  const { source, target, column, into, columns } = message;
  const half = (layout.cell * columns) / 2, down = target > source;
  const from = { x: layout.x(column) + half, y: layout.y(source) + (down ? layout.height : 0) };
  const to = { x: layout.x(into) + half, y: layout.y(target) + (down ? 0 : layout.height) };
  const far = Math.abs(target - source) > 1 ? 0.42 : 0.1;
  const bend = layout.cell * far * (down ? 1 : -1);
  return { from, to, control: { x: (from.x + to.x) / 2 + bend, y: (from.y + to.y) / 2 } };
}

/** Return the point of a quadratic curve at a share of its way, slow at both ends. */
export function along({ from, to, control }, share) {
  const t = share * share * (3 - 2 * share), u = 1 - t;
  return {
    x: u * u * from.x + 2 * u * t * control.x + t * t * to.x,
    y: u * u * from.y + 2 * u * t * control.y + t * t * to.y,
  };
}

/** Return the time of a position: that at which the step under way begins, moved on towards the next. */
export function timeAt(steps, position) {
  const end = Math.max(...steps.flatMap(({ work }) => work.map((one) => one.end)));
  const begin = (k) => (k < steps.length ? steps[k].start : end);
  const done = Math.min(steps.length, Math.floor(position));
  return begin(done) + (position - done) * (begin(Math.min(done + 1, steps.length)) - begin(done));
}

/** Return the label that fits into a width: the whole, how many ranks' data it has, or that number alone. */
export function fitting({ label, parts }, ranks, width) {
  const texts = parts > 1 ? [label, `${parts} of ${ranks}`, `${parts}`] : [label];
  return texts.find((text) => text.length * 7.2 <= width - 6) ?? texts.at(-1);
}

/** Format a number in four digits at most. */
export function figure(value) {
  return String(Number(value.toPrecision(4)));
}
