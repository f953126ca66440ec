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
/** How many times their height rows are at most, and the pixels of each GPU that stay free for rows on demand. */
const HIGHEST_ROWS = 2, SPARE = 20;

export class Stage {
  /** `changed` is called when rows have moved. */
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
      row.h = folded ? (i ? 0 : Math.min(row.full, Math.floor(COLLAPSED.height * this.growth))) : row.full;
      if (row.h) y += row.h + APART.rows;
    });
    block.h = y - APART.rows - top;
    return y - APART.rows + (folded ? COLLAPSED.between : APART.tracks);
  }

  /** Lay what is stacked into the frame, and count how often that was; a strip stays at its top while its GPUs pass. */
  #place() {
    this.moves++;
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

  /** Make rows higher where that fills so many pixels, and as they were where there is less. */
  grow(room) {
    const shown = this.rows.reduce((sum, { h }) => sum + h, 0), natural = this.rows.reduce((sum, { h, base }) => sum + (h ? base : 0), 0);
    const rest = this.height - shown + SPARE * this.collapsed.filter((yes) => !yes).length;
    this.rise(Math.max(1, Math.min(HIGHEST_ROWS, (room - rest) / natural)) || 1);
  }

  /** Make rows so many times as high as they are by themselves. */
  rise(growth) {
    this.growth = growth;
    for (const row of this.rows) row.full = Math.floor(row.base * this.growth);
    this.#arrange();
  }

  /** Place what so many pixels show from a height on, and tell nobody. */
  look(scroll, frame) {
    Object.assign(this, { scroll, frame });
    this.#place();
  }

  /**
   * Cut all rows into sheets of at most so many pixels, the first of them lower: { scroll, height, tracks }. A GPU is cut
   * only when it is higher than a sheet; each sheet begins with a strip.
   */
  sheets(first, room) {
    const sheets = [];
    let sheet = null;
    for (const { strip, top: above } of this.allStrips)
      this.scene.strips[strip].tracks.forEach((track, i) => {
        const block = this.blockOf.get(track), rows = block.rows.filter(({ h }) => h);
        const pieces = block.h > room ? rows.map(({ top, h }) => ({ top, bottom: top + h })) : [{ top: block.top, bottom: block.top + block.h }];
        pieces.forEach(({ top, bottom }, j) => {
          const scroll = i || j ? top - this.#pinned() : above - EDGE, most = sheets.length > 1 ? room : Math.max(first, bottom - scroll);
          if (!sheet || bottom - sheet.scroll > most) sheets.push((sheet = { scroll, height: 0, tracks: [] }));
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
    const added = rows.map((row) => Object.assign(row, { full: row.h, base: row.h, top: 0, y: 0 }));
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

  /** Bring a GPU into the middle of the frame, with all its rows, its own steps in the strip above; and mark it. */
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
