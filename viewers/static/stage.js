/**
 * Which rows are on the screen, and where: a GPU can be collapsed to its phases, and of all rows only those that the
 * frame shows are placed in it. `y` of rows, strips and blocks is in pixels from the frame's top and moves with the
 * scroll; `h` is 0 for a row that is collapsed away.
 */

import { rowsOf } from "./rows.js";

/** Pixels: of a collapsed GPU's one row, and between two of these. */
const COLLAPSED = { height: 16, between: 3 };
/** Pixels between rows, between GPUs that show all theirs, and below a strip. */
const APART = { rows: 2, tracks: 9, strip: 8 };
const EDGE = 2;

export class Stage {
  /** `changed` is called when rows have moved. */
  constructor(scene, changed = () => {}) {
    const { strips, blocks, height, collapsed = false } = scene.layout;
    Object.assign(this, { scene, changed, scroll: 0, frame: height, height, visible: [], strips: [], blocks: [] });
    this.rows = rowsOf(scene).map((row) => Object.assign(row, { full: row.h, top: 0 }));
    this.collapsed = new Uint8Array(scene.tracks.length).fill(collapsed ? 1 : 0);
    this.allStrips = strips.map((strip) => Object.assign(strip, { top: 0, end: 0 }));
    this.allBlocks = blocks.map((block, i) => Object.assign(block, { top: 0, rows: [], shaded: i % 2 === 0 }));
    this.blockOf = new Map(this.allBlocks.map((block) => [block.track, block]));
    for (const row of this.rows) this.blockOf.get(row.track).rows.push(row);
    this.#arrange();
  }

  /** Stack everything from the top, as if there were room for all of it. */
  #arrange() {
    let y = EDGE;
    for (const strip of this.allStrips) {
      strip.top = y;
      y += strip.h + APART.strip;
      for (const track of this.scene.strips[strip.strip].tracks) y = this.#stack(this.blockOf.get(track), y);
      strip.end = y;
    }
    const last = this.collapsed.at(-1) ? COLLAPSED.between : APART.tracks;
    this.height = Math.max(y - last + 2 * EDGE, 40);
    this.#place();
  }

  #stack(block, top) {
    const folded = this.collapsed[block.track];
    block.top = top;
    let y = top;
    block.rows.forEach((row, i) => {
      row.top = y;
      row.h = folded ? (i ? 0 : Math.min(row.full, COLLAPSED.height)) : row.full;
      if (row.h) y += row.h + APART.rows;
    });
    block.h = y - APART.rows - top;
    return y - APART.rows + (folded ? COLLAPSED.between : APART.tracks);
  }

  /** Lay what is stacked into the frame; a strip stays at its top while its GPUs pass. */
  #place() {
    this.scroll = Math.max(0, Math.min(this.height - this.frame, this.scroll));
    const shown = (one) => one.h > 0 && one.y < this.frame && one.y + one.h > 0;
    for (const one of this.rows) one.y = one.top - this.scroll;
    for (const one of this.allBlocks) one.y = one.top - this.scroll;
    for (const one of this.allStrips) one.y = Math.max(one.top - this.scroll, Math.min(EDGE, one.end - this.scroll - one.h));
    this.visible = this.rows.filter(shown);
    this.blocks = this.allBlocks.filter(shown);
    this.strips = this.allStrips.filter(shown);
  }

  /** Show so many pixels of all rows. */
  resize(frame) {
    if (frame === this.frame) return;
    this.frame = frame;
    this.#place();
    this.changed();
  }

  scrollTo(y) {
    const before = this.scroll;
    this.scroll = Math.round(y);
    this.#place();
    if (this.scroll !== before) this.changed();
  }

  scrollBy(pixels) {
    this.scrollTo(this.scroll + pixels);
  }

  /** Collapse a GPU to one row, or show all of its rows; the GPU stays where it is on the screen. */
  collapse(track, yes = !this.collapsed[track]) {
    if (Boolean(this.collapsed[track]) === yes) return;
    this.collapsed[track] = yes ? 1 : 0;
    this.#arrange();
    this.changed();
  }

  /** Collapse all GPUs, or show all of their rows; what is at the top of the frame stays there. */
  collapseAll(yes) {
    const first = this.blocks[0];
    this.collapsed.fill(yes ? 1 : 0);
    this.#arrange();
    if (first && this.scroll) this.scroll = first.top - this.#pinned();
    this.#place();
    this.changed();
  }

  /** Put further rows below those that a GPU has, or with none take away those of a role. */
  extend(track, role, rows = []) {
    const block = this.blockOf.get(track), own = (row) => row.track === track && row.role === role;
    const added = rows.map((row) => Object.assign(row, { full: row.h, top: 0, y: 0 }));
    block.rows = [...block.rows.filter((row) => !own(row)), ...added];
    const others = this.rows.filter((row) => !own(row));
    // The same list as before: others hold it, too.
    this.rows.splice(0, this.rows.length, ...others, ...added);
    this.#arrange();
    this.changed();
  }

  /** Height at the top of the frame that a strip lies over. */
  #pinned() {
    return (this.allStrips[0]?.h ?? 0) + 3 * EDGE;
  }

  /** The strip at a height in the frame, or nothing. */
  stripAt(y) {
    return this.strips.find((strip) => y >= strip.y && y < strip.y + strip.h);
  }

  /** The row at a height in the frame, or nothing; a strip lies over the rows below it. */
  rowAt(y) {
    return this.stripAt(y) ? undefined : this.visible.find((row) => y >= row.y && y < row.y + row.h);
  }

  /** Where a row is in the frame: { y, h }, or null when it is collapsed away or not there. */
  boxOf(track, role) {
    const row = this.blockOf.get(track)?.rows.find((one) => one.role === role);
    return row?.h ? { y: row.y, h: row.h } : null;
  }

  /** Scroll until a GPU is in the frame, and show all its rows when the one that is asked for is collapsed away. */
  reveal(track, role = "phases") {
    const block = this.blockOf.get(track);
    if (!block) return;
    if (!this.boxOf(track, role)) this.collapse(track, false);
    const low = block.top - this.#pinned(), high = block.top + block.h + EDGE - this.frame;
    if (this.scroll > low) this.scrollTo(low);
    else if (this.scroll < high) this.scrollTo(Math.min(low, high));
  }
}
