/** The labels left of the rows in the frame: a button per GPU that collapses it, and the name of each row. */

import { button, element } from "../../../base/static/dom.js";

/** Pixels of a row that what covers it may hide. */
const OVER = 8;

export class RowNames {
  #buttons = new Map();
  /** The buttons of rows that can be unfolded, by GPU and name. */
  #folds = new Map();
  /** The buttons of groups, by name. */
  #groups = new Map();

  constructor(root, stage, scene) {
    Object.assign(this, { root, stage, scene, pin: () => {} });
    this.why = scene.why ?? {};
    this.list = element("div", "list");
    this.list.setAttribute("role", "group");
    this.list.setAttribute("aria-label", "Ranks: click to collapse or expand");
    if (scene.tracks.length > 1) root.append(this.#allButtons());
    root.append(this.list);
    this.list.addEventListener("keydown", (event) => this.#key(event));
  }

  #allButtons() {
    const bar = element("div", "all");
    for (const [label, title, collapsed] of [["collapse all", "Show one row per rank", true], ["expand all", "Show all rows of every rank", false]]) {
      bar.append(button("", label, { title, onclick: () => this.stage.collapseAll(collapsed) }));
    }
    return bar;
  }

  /** Up and down move between GPUs, left and right collapse and expand, P pins. */
  #key(event) {
    const track = Number(event.target.dataset?.track ?? NaN), { key } = event;
    if (!(track >= 0)) return;
    if (key === "ArrowLeft" || key === "ArrowRight") this.stage.collapse(track, key === "ArrowLeft");
    else if (key === "ArrowUp" || key === "ArrowDown") this.focus(this.#neighbor(track, key === "ArrowUp" ? -1 : 1));
    else if (key.toLowerCase() === "p" && !event.ctrlKey && !event.metaKey && !event.altKey) this.pin(track);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Return the GPU that many places below another, in the order that is shown. */
  #neighbor(track, places) {
    const { order } = this.stage;
    return order[order.indexOf(track) + places];
  }

  /** Scroll to a GPU and focus its name. */
  focus(track) {
    if (!(track in this.scene.tracks)) return;
    this.stage.reveal(track);
    this.#buttons.get(track)?.focus();
  }

  /** Place the names left of a frame; `left` and `top` are in pixels of the root's parent. */
  place({ left, top, height }) {
    Object.assign(this.root.style, { width: `${left}px`, top: `${top}px`, height: `${height}px` });
  }

  /** Show the names of the rows in the frame. */
  update() {
    const shown = new Map();
    const nodes = [];
    for (const block of this.stage.blocks) {
      const name = this.#buttons.get(block.track) ?? this.#button(block.track), collapsed = Boolean(this.stage.collapsed[block.track]);
      // Of a GPU that has begun to leave the frame, the first whole row has the name.
      const first = block.held ? 0 : Math.max(0, block.rows.findIndex(({ y, h }) => h && y >= this.stage.above - OVER)), row = block.rows[first];
      name.setAttribute("aria-expanded", String(!collapsed));
      name.classList.toggle("later", first > 0);
      shown.set(block.track, put(name, row.y, row.h));
      const own = [name, this.#pin(block.track, row)];
      // Beside the labels of the next rows; of a collapsed GPU, in place of its row's label, and all in its tooltip.
      const [why] = (this.why[block.track] ?? "").split(", "), about = [this.scene.tracks[block.track].place, why].filter(Boolean);
      if (collapsed && why) own.push(label(why, block.rows[0]));
      if (!collapsed) block.rows.slice(first + 1, first + 1 + about.length).forEach((below, i) => own.push(label(about[i], below, "place")));
      if (!collapsed) for (const one of block.rows) own.push(one.toggle ? this.#foldable(one) : label(one.label, one, `row ${one.role}`));
      // Pinned GPUs cover the names of those that scroll below them.
      for (const node of own) node.style.clipPath = block.y < block.clip ? `inset(${Math.max(0, block.clip - parseFloat(node.style.top))}px 0 0 0)` : "";
      nodes.push(...own);
    }
    for (const heading of this.stage.headings) if (heading.y >= this.stage.covered) nodes.push(this.#heading(heading));
    for (const strip of this.stage.strips) nodes.push(label(strip.label, strip, "row strip"));
    this.#buttons = shown;
    this.#show(nodes);
  }

  /** Replace the nodes without moving a button, which would lose its focus. */
  #show(nodes) {
    const kept = new Set(nodes);
    for (const old of [...this.list.children]) if (!kept.has(old)) old.remove();
    let before = null;
    for (const node of nodes.toReversed()) {
      if (node.nextSibling !== before || node.parentNode !== this.list) this.list.insertBefore(node, before);
      before = node;
    }
  }

  /** Return the name of a row that can be unfolded, as a button; the same one each time, which keeps its focus. */
  #foldable(row) {
    const key = `${row.track} ${row.host?.thread ?? row.role} ${row.label}`;
    const title = row.title ?? "Show all levels of this rank's host rows, or the outermost ones (C)";
    if (!this.#folds.has(key)) this.#folds.set(key, button("row fold", row.label, { title }));
    const fold = Object.assign(this.#folds.get(key), { onclick: () => row.toggle() });
    fold.setAttribute("aria-expanded", String(row.open));
    return put(fold, row.y, Math.min(row.h, 26));
  }

  /** Return a button that pins a GPU; the key P does the same, so it is no stop of the tab key. */
  #pin(track, { y, h }) {
    const pinned = this.stage.pins.includes(track), name = this.scene.tracks[track].label;
    const title = pinned ? "Let this rank go back to its place (P)" : "Keep this rank at the top (P)";
    const pin = button("pin", "", { tabIndex: -1, title, ariaLabel: `Pin ${name}`, onclick: () => this.pin(track) });
    pin.setAttribute("aria-pressed", String(pinned));
    return put(pin, y, Math.min(h, 24));
  }

  /** Return the button of a group, which collapses its GPUs, or expands them. */
  #heading({ label: text, tracks, y, h }) {
    const folded = tracks.every((track) => this.stage.collapsed[track]);
    if (!this.#groups.has(text)) this.#groups.set(text, button("group", text, { title: "Collapse or expand the ranks of this group" }));
    const heading = Object.assign(this.#groups.get(text), { onclick: () => this.stage.collapseSome(tracks, !folded) });
    heading.setAttribute("aria-expanded", String(!folded));
    return put(heading, y, h);
  }

  #button(track) {
    const { label: text, place } = this.scene.tracks[track];
    const title = [text, place, this.why[track]].filter(Boolean).join(" · ");
    const [, word, rest] = /^(step )?(.*)$/s.exec(text), name = button("track", "", { title, onclick: () => this.stage.collapse(track) });
    name.append(element("span", "word", word), rest);
    name.dataset.track = track;
    return name;
  }
}

function label(text, { y, h }, className = "row") {
  return put(element("span", className, text), y, h);
}

/** Place a node at a height of the frame, in pixels. */
function put(node, top, height) {
  Object.assign(node.style, { top: `${top}px`, height: `${height}px`, lineHeight: `${height}px` });
  return node;
}
