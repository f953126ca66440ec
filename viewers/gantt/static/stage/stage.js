/**
 * Which rows are on the screen, and where. A GPU can be collapsed to its phases, hidden, or pinned to the top. `y` of
 * rows, strips, headings and blocks is in pixels from the top of the frame and moves with the scroll position; `h` is 0
 * for a hidden row, and `clip` is where what covers a row ends.
 */

import { rowsOf } from "../data/rows.js";

const EDGE = 2;
/** In pixels: height of a group's heading, gap below it, and room below the pinned GPUs; share of the frame that these take at most. */
const HEADING = 20, BELOW_HEADING = 3, BAND = 7, MOST_PINNED = 0.7;
/** Maximum growth factor of the rows, and the pixels per GPU that stay free for rows on demand; more with larger letters. */
const MAX_GROWTH = 3, SPARE = 20;

/** The roles of rows below a GPU's own rows, in the order in which they stand there. */
const BELOW = ["path", "memory_use", "host", "idle", "stream"];

export class Stage {
  /** `changed` is called when rows have moved; `moves` counts how often. */
  constructor(scene, changed = () => {}) {
    const { strips, height, gaps, low, collapsed = false } = scene.layout;
    Object.assign(this, { scene, changed, gaps, low, scroll: 0, moves: 0, marked: -1, growth: 1, zoom: 1, frame: height, height, visible: [], strips: [], blocks: [], headings: [], covered: 0 });
    this.rows = rowsOf(scene).map((row) => Object.assign(row, { full: row.h, base: row.h, top: 0 }));
    this.collapsed = new Uint8Array(scene.tracks.length).fill(collapsed ? 1 : 0);
    this.hidden = new Uint8Array(scene.tracks.length);
    const { tracks: first = [], groups, open } = collapsed ? (scene.orders?.[0] ?? {}) : {}, place = new Map(first.map((track, i) => [track, i]));
    for (const track of first.slice(0, open ?? 0)) this.collapsed[track] = 0;
    /** The GPUs that the page opens with expanded. */
    this.opened = [...scene.tracks.keys()].filter((track) => !this.collapsed[track]);
    /** The GPUs that stay at the top, and the names of the groups by GPU, none if they are not grouped. */
    Object.assign(this, { pins: [], groupOf: new Map(groups?.map((group, track) => [track, group])), allHeadings: [] });
    this.allStrips = strips.map((strip) => Object.assign(strip, { top: 0, end: 0, base: strip.h, tracks: [...strip.tracks].sort((a, b) => place.get(a) - place.get(b) || 0) }));
    this.allBlocks = strips.flatMap(({ tracks }) => tracks).map((track, i) => ({ track, top: 0, rows: [], shaded: i % 2 === 0 }));
    this.blockOf = new Map(this.allBlocks.map((block) => [block.track, block]));
    for (const row of this.rows) this.blockOf.get(row.track).rows.push(row);
    this.#arrange();
  }

  /** Whether one strip stands for all GPUs; the two runs of a comparison have one each. */
  get #single() {
    return this.allStrips.length === 1;
  }

  /** Stack all rows from the top, regardless of the frame: the pinned GPUs, then the others by strip and group. */
  #arrange() {
    let y = EDGE + (this.#single ? this.allStrips[0].h + this.gaps.strip : 0);
    const pinned = new Set(this.pins);
    this.order = this.pins.filter((track) => !this.hidden[track]);
    for (const track of this.order) y = this.#stack(this.blockOf.get(track), y);
    // Without it, the line below them would cover the top of the next GPU.
    if (this.order.length) y += BAND;
    this.allHeadings = [];
    for (const strip of this.allStrips) {
      strip.top = this.#single ? EDGE : y;
      if (!this.#single) y += strip.h + this.gaps.strip;
      const tracks = strip.tracks.filter((track) => !this.hidden[track] && !pinned.has(track));
      tracks.forEach((track, i) => {
        const group = this.groupOf.get(track);
        if (group !== undefined && group !== this.groupOf.get(tracks[i - 1])) y = this.#head(group, tracks, y);
        y = this.#stack(this.blockOf.get(track), y);
      });
      this.order.push(...tracks);
      strip.end = y;
    }
    this.allBlocks.forEach((block) => this.hidden[block.track] && this.#hide(block));
    this.order.forEach((track, i) => (this.blockOf.get(track).shaded = i % 2 === 0));
    this.height = Math.max(y - (this.collapsed[this.order.at(-1)] ? this.gaps.collapsed : this.gaps.tracks) + 2 * EDGE, 40);
    this.#place();
  }

  /** Place the heading of a group. */
  #head(label, tracks, top) {
    this.allHeadings.push({ label, top, h: HEADING, tracks: tracks.filter((track) => this.groupOf.get(track) === label) });
    return top + HEADING + BELOW_HEADING;
  }

  #hide(block) {
    block.h = 0;
    for (const row of block.rows) row.h = 0;
  }

  #stack(block, top) {
    const folded = this.collapsed[block.track];
    block.top = top;
    let y = top;
    block.rows.forEach((row, i) => {
      row.top = y;
      row.h = folded ? (i ? 0 : Math.min(row.full, Math.floor(this.low * this.growth))) : row.full;
      if (row.h) y += row.h + this.gaps.rows;
    });
    block.h = y - this.gaps.rows - top;
    return y - this.gaps.rows + (folded ? this.gaps.collapsed : this.gaps.tracks);
  }

  /**
   * Move the stacked rows to the scroll position. Pinned GPUs stay at the top of the frame, as many as leave room for
   * others, and so does a strip while its GPUs pass.
   */
  #place() {
    this.moves++;
    this.scroll = Math.max(0, Math.min(this.height - this.frame, this.scroll));
    const pinned = this.pins.map((track) => this.blockOf.get(track)).filter(({ h }) => h);
    const fitting = pinned.findIndex(({ top, h }) => top + h > this.frame * MOST_PINNED);
    const held = new Set(fitting < 0 ? pinned : pinned.slice(0, fitting)), lowest = [...held].at(-1);
    this.covered = lowest ? lowest.top + lowest.h + BAND : 0;
    const offset = this.#offset(held), under = this.covered && this.above;
    for (const block of this.allBlocks) {
      const still = held.has(block);
      for (const box of [block, ...block.rows]) Object.assign(box, { y: box.top - (still ? 0 : offset), held: still, clip: still ? 0 : under });
    }
    for (const heading of this.allHeadings) heading.y = heading.top - offset;
    const sticky = this.covered || EDGE;
    for (const strip of this.allStrips) strip.y = this.#single ? EDGE : Math.max(strip.top - offset, Math.min(sticky, strip.end - offset - strip.h));
    const shown = ({ y, h, clip = 0 }) => h > 0 && y < this.frame && y + h > clip;
    this.blocks = this.order.map((track) => this.blockOf.get(track)).filter(shown);
    this.visible = this.blocks.flatMap(({ rows }) => rows.filter(shown));
    this.headings = this.allHeadings.filter(({ y, h }) => y < this.frame && y + h > this.covered);
    this.strips = this.allStrips.filter(shown);
  }

  /** Return how far rows are moved up; below pinned GPUs, so far that one begins there: half a row would be read as theirs. */
  #offset(held) {
    if (!this.covered || !this.scroll) return this.scroll;
    const rows = this.allBlocks.flatMap((block) => (held.has(block) ? [] : block.rows)), least = this.scroll + this.above - BAND;
    const first = [...this.allHeadings, ...rows].reduce((top, box) => (box.h && box.top >= least && box.top < top ? box.top : top), Infinity);
    return first < Infinity ? first - this.above : this.scroll;
  }

  /**
   * Draw the frame in parts that do not cover each other: what scrolls, and what stays above it. `draw` is called with the
   * range { top, bottom } of each, while `visible`, `blocks`, `headings` and `strips` hold what is in it.
   */
  inParts(draw) {
    const { visible, blocks, headings, strips, covered, frame } = this;
    if (!covered) return draw({ top: 0, bottom: frame });
    for (const [top, bottom] of [[covered, frame], [0, covered]]) {
      const inside = ({ held }) => held === !top, ofStrip = ({ y, h }) => y + h <= covered === !top;
      Object.assign(this, { visible: visible.filter(inside), blocks: blocks.filter(inside), headings: top ? headings : [], strips: strips.filter(ofStrip) });
      draw({ top, bottom });
    }
    Object.assign(this, { visible, blocks, headings, strips });
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
    const rest = this.height - shown + SPARE * this.zoom * this.collapsed.filter((yes) => !yes).length;
    this.scale(Math.max(1, Math.min(MAX_GROWTH * this.zoom, (room - rest) / natural)) || 1);
  }

  /** Set the factor of the rows' natural height. */
  scale(growth) {
    this.growth = growth;
    for (const row of this.rows) row.full = Math.floor(row.base * this.growth);
    // The names in them grow with the page's letters.
    for (const strip of this.allStrips) strip.h = Math.round(strip.base * this.zoom);
    this.#arrange();
  }

  /** Set scroll position and frame height without calling `changed`. */
  setFrame(scroll, frame) {
    Object.assign(this, { scroll, frame });
    this.#place();
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

  /** Stack the rows again, and say so. */
  #rearrange() {
    this.#arrange();
    this.changed();
  }

  /** Collapse a GPU to one row, or expand it; the GPU keeps its place on the screen. */
  collapse(track, yes = !this.collapsed[track]) {
    if (Boolean(this.collapsed[track]) !== yes) this.collapseSome([track], yes);
  }

  /** Collapse or expand all GPUs; the GPU at the top of the frame stays there. */
  collapseAll(yes) {
    const first = this.blocks[0];
    this.collapsed.fill(yes ? 1 : 0);
    this.#arrange();
    if (first && this.scroll) this.scroll = first.top - this.above;
    this.#place();
    this.changed();
  }

  /** Collapse or expand some GPUs; what is above them stays where it is. */
  collapseSome(tracks, yes) {
    for (const track of tracks) this.collapsed[track] = yes ? 1 : 0;
    this.#rearrange();
  }

  /** Collapse all GPUs but some. */
  collapseBut(open) {
    this.collapsed.fill(1);
    this.collapseSome(open, false);
  }

  /** Order the GPUs by a comparison of their numbers; `groupOf` holds the name of each one's group, if they are grouped. */
  sort(compare, groupOf = new Map()) {
    for (const strip of this.allStrips) strip.tracks.sort(compare);
    this.groupOf = groupOf;
    this.#rearrange();
  }

  /** Show only some GPUs, expanded, and those that are pinned; with null all of them. */
  showOnly(tracks) {
    this.hidden.fill(tracks ? 1 : 0);
    for (const track of tracks ?? []) this.hidden[track] = this.collapsed[track] = 0;
    for (const track of this.pins) this.hidden[track] = 0;
    this.#rearrange();
  }

  /** Keep a GPU at the top of the frame, below those that are there already, or let it go back to its place. */
  pin(track, yes = !this.pins.includes(track)) {
    this.pins = [...this.pins.filter((one) => one !== track), ...(yes ? [track] : [])];
    this.hidden[track] = 0;
    this.#rearrange();
  }

  /** Replace a GPU's rows of a role by others, placed below its own rows; without rows, remove them. */
  extend(track, role, rows = []) {
    const block = this.blockOf.get(track), replaced = (row) => row.track === track && row.role === role;
    // On a large screen they grow with the letters in them.
    const added = rows.map((row) => Object.assign(row, { full: Math.round(row.h * this.zoom), base: Math.round(row.h * this.zoom), top: 0, y: 0 }));
    block.rows = [...block.rows.filter((row) => !replaced(row)), ...added].sort((a, b) => BELOW.indexOf(a.role) - BELOW.indexOf(b.role));
    const others = this.rows.filter((row) => !replaced(row));
    // In place, since other objects hold the same list.
    this.rows.splice(0, this.rows.length, ...others, ...added);
    this.#rearrange();
  }

  /** Height of what covers the rows at the top of the frame. */
  get above() {
    return this.#single && this.covered ? this.covered : this.covered + (this.allStrips[0]?.h ?? 0) + 3 * EDGE;
  }

  /** Return the GPUs in the frame of those below a strip, without one whose name it covers, unless there is no other. */
  below({ tracks, y, h }) {
    const own = new Set(tracks), all = this.blocks.filter(({ track }) => own.has(track));
    const named = all.filter(({ y: top, rows }) => top + rows[0].h > y + h);
    return (named.length ? named : all).map(({ track }) => track);
  }

  /** Return the strip at a y position in the frame, or undefined. */
  stripAt(y) {
    return this.strips.find((strip) => y >= strip.y && y < strip.y + strip.h);
  }

  /** Return the row at a y position in the frame, or undefined; strips and pinned GPUs cover the rows below them. */
  rowAt(y) {
    return this.stripAt(y) ? undefined : this.visible.find((row) => y >= Math.max(row.y, row.clip) && y < row.y + row.h);
  }

  /** Return a row's place in the frame, { y, h }, or null if it is hidden or does not exist. */
  boxOf(track, role) {
    const row = this.blockOf.get(track)?.rows.find((one) => one.role === role);
    return row?.h ? { y: row.y, h: row.h } : null;
  }

  /** Return what pinned GPUs leave of a row's place, { y, h }, with an h of 0 for nothing; null if it is hidden. */
  seenBox(track, role) {
    const box = this.boxOf(track, role), { clip } = this.blockOf.get(track) ?? {};
    if (!box || !clip || box.y >= clip) return box;
    return { y: clip, h: Math.max(0, box.y + box.h - clip) };
  }

  /** Expand a GPU, center it in the frame, mark it, and show its steps in the strip above. */
  center(track) {
    const strip = this.allStrips.find(({ tracks }) => tracks.includes(track)), block = this.blockOf.get(track);
    if (strip && strip.tracks.length > 1 && this.#single) {
      const group = this.scene.strips.find(({ tracks }) => tracks.includes(track));
      strip.lead = group.lead = track;
    }
    this.marked = track;
    this.collapsed[track] = this.hidden[track] = 0;
    this.#arrange();
    this.scroll = Math.round(block.top + block.h / 2 - (this.frame + this.above) / 2);
    this.#place();
    this.changed();
  }

  /** Scroll to a GPU, show it if it is hidden, and expand it if the row of that role is. */
  reveal(track, role = "phases") {
    const block = this.blockOf.get(track);
    if (!block) return;
    if (this.hidden[track]) {
      this.hidden[track] = 0;
      this.#rearrange();
    }
    if (!this.boxOf(track, role)) this.collapse(track, false);
    if (block.held) return;
    const low = block.top - this.above, high = block.top + block.h + EDGE - this.frame;
    if (this.scroll > low) this.scrollTo(low);
    else if (this.scroll < high) this.scrollTo(Math.min(low, high));
  }
}
