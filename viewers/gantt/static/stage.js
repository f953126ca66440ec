/**
 * Which rows are on the screen, and where. A GPU can be collapsed to its phases. `y` of rows, strips and blocks is in
 * pixels from the top of the frame and moves with the scroll position; `h` is 0 for a row hidden by collapsing.
 */

import { rowsOf } from "./rows.js";

/** In pixels: height of a collapsed GPU's row, and gap between two of these. */
const COLLAPSED = { height: 16, gap: 3 };
/** Gaps in pixels between rows, between expanded GPUs, and below a strip. */
const GAP = { rows: 2, tracks: 9, strip: 8 };
const EDGE = 2;
/** Maximum growth factor of the rows, and the pixels per GPU that stay free for rows on demand. */
const MAX_GROWTH = 3, SPARE = 20;

export class Stage {
  /** `changed` is called when rows have moved; `moves` counts how often. */
  constructor(scene, changed = () => {}) {
    const { strips, blocks, height, collapsed = false } = scene.layout;
    Object.assign(this, { scene, changed, scroll: 0, moves: 0, marked: -1, growth: 1, frame: height, height, visible: [], strips: [], blocks: [] });
    this.rows = rowsOf(scene).map((row) => Object.assign(row, { full: row.h, base: row.h, top: 0 }));
    this.collapsed = new Uint8Array(scene.tracks.length).fill(collapsed ? 1 : 0);
    this.allStrips = strips.map((strip) => Object.assign(strip, { top: 0, end: 0 }));
    this.allBlocks = blocks.map((block, i) => Object.assign(block, { top: 0, rows: [], shaded: i % 2 === 0 }));
    this.blockOf = new Map(this.allBlocks.map((block) => [block.track, block]));
    for (const row of this.rows) this.blockOf.get(row.track).rows.push(row);
    this.#arrange();
  }

  /** Stack all rows from the top, regardless of the frame. */
  #arrange() {
    let y = EDGE;
    for (const strip of this.allStrips) {
      strip.top = y;
      y += strip.h + GAP.strip;
      for (const track of this.scene.strips[strip.strip].tracks) y = this.#stack(this.blockOf.get(track), y);
      strip.end = y;
    }
    const last = this.collapsed.at(-1) ? COLLAPSED.gap : GAP.tracks;
    this.height = Math.max(y - last + 2 * EDGE, 40);
    this.#place();
  }

  #stack(block, top) {
    const folded = this.collapsed[block.track];
    block.top = top;
    let y = top;
    block.rows.forEach((row, i) => {
      row.top = y;
      row.h = folded ? (i ? 0 : Math.min(row.full, Math.floor(COLLAPSED.height * this.growth))) : row.full;
      if (row.h) y += row.h + GAP.rows;
    });
    block.h = y - GAP.rows - top;
    return y - GAP.rows + (folded ? COLLAPSED.gap : GAP.tracks);
  }

  /** Move the stacked rows to the scroll position; a strip stays at the top of the frame while its GPUs pass. */
  #place() {
    this.moves++;
    this.scroll = Math.max(0, Math.min(this.height - this.frame, this.scroll));
    const shown = ({ y, h }) => h > 0 && y < this.frame && y + h > 0;
    for (const box of [...this.rows, ...this.allBlocks]) box.y = box.top - this.scroll;
    for (const strip of this.allStrips) strip.y = Math.max(strip.top - this.scroll, Math.min(EDGE, strip.end - this.scroll - strip.h));
    this.visible = this.rows.filter(shown);
    this.blocks = this.allBlocks.filter(shown);
    this.strips = this.allStrips.filter(shown);
  }

  /** Set the height of the frame in pixels. */
  resize(frame) {
    if (frame === this.frame) return;
    this.frame = frame;
    this.#place();
    this.changed();
  }

  /** Scale the rows up to fill `room` pixels, at most by MAX_GROWTH, never below their natural height. */
  grow(room) {
    const shown = this.rows.reduce((sum, { h }) => sum + h, 0), natural = this.rows.reduce((sum, { h, base }) => sum + (h ? base : 0), 0);
    const rest = this.height - shown + SPARE * this.collapsed.filter((yes) => !yes).length;
    this.scale(Math.max(1, Math.min(MAX_GROWTH, (room - rest) / natural)) || 1);
  }

  /** Set the factor of the rows' natural height. */
  scale(growth) {
    this.growth = growth;
    for (const row of this.rows) row.full = Math.floor(row.base * this.growth);
    this.#arrange();
  }

  /** Set scroll position and frame height without calling `changed`. */
  setFrame(scroll, frame) {
    Object.assign(this, { scroll, frame });
    this.#place();
  }

  /**
   * Split all rows into sheets of at most `room` pixels, the first of at most `first`: [{ scroll, height, tracks }]. Only
   * a GPU that is higher than a sheet is split; each sheet begins with a strip.
   */
  sheets(first, room) {
    const sheets = [];
    let sheet = null;
    for (const { strip, top: above } of this.allStrips)
      this.scene.strips[strip].tracks.forEach((track, i) => {
        const block = this.blockOf.get(track), rows = block.rows.filter(({ h }) => h);
        const pieces = block.h > room ? rows.map(({ top, h }) => ({ top, bottom: top + h })) : [{ top: block.top, bottom: block.top + block.h }];
        pieces.forEach(({ top, bottom }, j) => {
          const scroll = i || j ? top - this.#pinned() : above - EDGE, limit = sheets.length > 1 ? room : Math.max(first, bottom - scroll);
          if (!sheet || bottom - sheet.scroll > limit) sheets.push((sheet = { scroll, height: 0, tracks: [] }));
          sheet.height = bottom - sheet.scroll + EDGE;
          if (sheet.tracks.at(-1) !== track) sheet.tracks.push(track);
        });
      });
    return sheets;
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

  /** Collapse a GPU to one row, or expand it; the GPU keeps its place on the screen. */
  collapse(track, yes = !this.collapsed[track]) {
    if (Boolean(this.collapsed[track]) === yes) return;
    this.collapsed[track] = yes ? 1 : 0;
    this.#arrange();
    this.changed();
  }

  /** Collapse or expand all GPUs; the GPU at the top of the frame stays there. */
  collapseAll(yes) {
    const first = this.blocks[0];
    this.collapsed.fill(yes ? 1 : 0);
    this.#arrange();
    if (first && this.scroll) this.scroll = first.top - this.#pinned();
    this.#place();
    this.changed();
  }

  /** Collapse all GPUs but some. */
  collapseBut(open) {
    this.collapsed.fill(1);
    for (const track of open) this.collapsed[track] = 0;
    this.#arrange();
    this.changed();
  }

  /** Order the GPUs below each strip by a comparison of their numbers; a strip goes on showing the steps of the same GPU. */
  sort(compare) {
    for (const strip of this.scene.strips) {
      strip.lead ??= strip.tracks[0];
      strip.tracks.sort(compare);
    }
    this.#arrange();
    this.allBlocks.sort((a, b) => a.top - b.top).forEach((block, i) => (block.shaded = i % 2 === 0));
    this.#place();
    this.changed();
  }

  /** Replace a GPU's rows of a role by others, placed below its own rows; without rows, remove them. */
  extend(track, role, rows = []) {
    const block = this.blockOf.get(track), replaced = (row) => row.track === track && row.role === role;
    const added = rows.map((row) => Object.assign(row, { full: row.h, base: row.h, top: 0, y: 0 }));
    block.rows = [...block.rows.filter((row) => !replaced(row)), ...added];
    const others = this.rows.filter((row) => !replaced(row));
    // In place, since other objects hold the same list.
    this.rows.splice(0, this.rows.length, ...others, ...added);
    this.#arrange();
    this.changed();
  }

  /** Height that a strip covers at the top of the frame. */
  #pinned() {
    return (this.allStrips[0]?.h ?? 0) + 3 * EDGE;
  }

  /** Return the strip at a y position in the frame, or undefined. */
  stripAt(y) {
    return this.strips.find((strip) => y >= strip.y && y < strip.y + strip.h);
  }

  /** Return the row at a y position in the frame, or undefined; a strip covers the rows below it. */
  rowAt(y) {
    return this.stripAt(y) ? undefined : this.visible.find((row) => y >= row.y && y < row.y + row.h);
  }

  /** Return a row's place in the frame, { y, h }, or null if it is hidden or does not exist. */
  boxOf(track, role) {
    const row = this.blockOf.get(track)?.rows.find((one) => one.role === role);
    return row?.h ? { y: row.y, h: row.h } : null;
  }

  /** Expand a GPU, center it in the frame, mark it, and show its steps in the strip above. */
  center(track) {
    const strip = this.scene.strips.find(({ tracks }) => tracks.includes(track)), block = this.blockOf.get(track);
    if (strip && strip.tracks.length > 1 && !strip.bounds) {
      strip.lead = track;
      this.allStrips.find((one) => this.scene.strips[one.strip] === strip).label = `steps, ${this.scene.tracks[track].label.split(" · ")[0]}`;
    }
    this.marked = track;
    this.collapsed[track] = 0;
    this.#arrange();
    this.scroll = Math.round(block.top + block.h / 2 - (this.frame + this.#pinned()) / 2);
    this.#place();
    this.changed();
  }

  /** Scroll to a GPU, and expand it if the row of that role is hidden. */
  reveal(track, role = "phases") {
    const block = this.blockOf.get(track);
    if (!block) return;
    if (!this.boxOf(track, role)) this.collapse(track, false);
    const low = block.top - this.#pinned(), high = block.top + block.h + EDGE - this.frame;
    if (this.scroll > low) this.scrollTo(low);
    else if (this.scroll < high) this.scrollTo(Math.min(low, high));
  }
}
