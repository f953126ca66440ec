/** Draws the hits of a search: everything else turns grey, each hit is underlined, and the current one is framed. */

import { above } from "../data/lod.js";

/** Height and minimum length of the underline in pixels. */
const LINE_HEIGHT = 3, MIN_LINE = 2;
const SEARCHED_ROLES = new Set(["compute", "exposure", "memory"]);

/**
 * Return the ranges [left, right) of pixel columns that hits touch, at most one per column for any number of hits.
 * `starts` is ascending, `reach` the latest end of the hits up to each.
 */
export function touched({ starts, reach }, { from, px, width }) {
  const runs = [];
  let column = 0;
  while (column < width) {
    const begin = from + column * px, place = above(starts, 0, starts.length, begin);
    const running = place > 0 && reach[place - 1] > begin;
    if (!running) {
      if (place >= starts.length) break;
      const next = Math.floor((starts[place] - from) / px);
      if (next >= width) break;
      column = Math.max(column, next);
    }
    const until = running ? reach[place - 1] : Math.max(reach[place], starts[place]);
    const right = Math.min(width, Math.max(column + 1, Math.ceil((until - from) / px)));
    const last = runs.at(-1);
    if (last && last[1] >= column) last[1] = right;
    else runs.push([column, right]);
    column = right;
  }
  return runs;
}

/** Draw the hits over rows { y, h, role, found }; the context is in CSS pixels. */
export function drawHits(context, { from, to, width }, rows, hits, current, { paper, mark }) {
  const view = { from, px: (to - from) / width, width: Math.ceil(width) };
  for (const row of rows) {
    if (!SEARCHED_ROLES.has(row.role)) continue;
    const lane = hits.byLane.get(row.found), runs = lane ? (lane.touched?.(view) ?? touched(lane, view)) : [];
    // Grey of the same lightness: a faded bar or text could not be seen.
    context.globalCompositeOperation = "saturation";
    context.fillStyle = paper;
    let left = 0;
    for (const [begin, end] of [...runs, [view.width, view.width]]) {
      if (begin > left) context.fillRect(left, row.y, begin - left, row.h);
      left = end;
    }
    context.globalCompositeOperation = "source-over";
    context.fillStyle = mark;
    for (const [begin, end] of runs) context.fillRect(begin, row.y + row.h - LINE_HEIGHT, Math.max(end - begin, MIN_LINE), LINE_HEIGHT);
    if (current && lane && current.lane === lane.lane) frame(context, current, row, view, mark);
  }
}

function frame(context, { start, duration }, row, { from, px, width }, mark) {
  const left = Math.max(-4, (start - from) / px), right = Math.min(width + 4, (start + duration - from) / px);
  if (right < 0 || left > width) return;
  context.strokeStyle = mark;
  context.lineWidth = 3;
  context.strokeRect(left - 1.5, row.y + 0.5, Math.max(right - left, 1) + 3, row.h - 1);
}

/** Mark the hits on the minimap's rows. */
export function drawMiniHits(context, { from, to, width }, rows, hits, { mark }) {
  const view = { from, px: (to - from) / width, width: Math.ceil(width) };
  context.fillStyle = mark;
  for (const { track, y, h } of rows)
    for (const lane of hits.lanes)
      if (lane.track === track) for (const [begin, end] of lane.touched?.(view) ?? touched(lane, view)) context.fillRect(begin, y + h / 2, Math.max(end - begin, MIN_LINE), h / 2);
}
