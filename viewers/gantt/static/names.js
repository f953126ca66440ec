/** The labels left of the rows in the frame: a button per GPU that collapses it, and the name of each row. */

import { element } from "../../base/static/dom.js";

export class RowNames {
  #buttons = new Map();
  /** The buttons of rows that can be unfolded, by GPU and name. */
  #folds = new Map();

  constructor(root, stage, scene) {
    Object.assign(this, { root, stage, scene });
    this.list = element("div", "list");
    this.list.setAttribute("role", "group");
    this.list.setAttribute("aria-label", "GPUs: click to collapse or expand");
    if (scene.tracks.length > 1) root.append(this.#allButtons());
    root.append(this.list);
    this.list.addEventListener("click", (event) => this.#toggle(event.target.closest("button.track")));
    this.list.addEventListener("keydown", (event) => this.#key(event));
  }

  #allButtons() {
    const bar = element("div", "all");
    for (const [label, title, collapsed] of [["collapse all", "Show one row per GPU", true], ["expand all", "Show all rows of every GPU", false]]) {
      const button = Object.assign(element("button", "", label), { type: "button", title });
      button.addEventListener("click", () => this.stage.collapseAll(collapsed));
      bar.append(button);
    }
    return bar;
  }

  #toggle(button) {
    if (button) this.stage.collapse(Number(button.dataset.track));
  }

  /** Up and down move between GPUs, left and right collapse and expand. */
  #key(event) {
    const track = Number(event.target.dataset?.track ?? NaN), { key } = event;
    if (!(track >= 0)) return;
    if (key === "ArrowLeft" || key === "ArrowRight") this.stage.collapse(track, key === "ArrowLeft");
    else if (key === "ArrowUp" || key === "ArrowDown") this.focus(this.#neighbor(track, key === "ArrowUp" ? -1 : 1));
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Return the GPU that many places below another, in the order that is shown. */
  #neighbor(track, places) {
    const shown = this.scene.strips.flatMap(({ tracks }) => tracks);
    return shown[shown.indexOf(track) + places];
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
      const button = this.#buttons.get(block.track) ?? this.#button(block.track), collapsed = Boolean(this.stage.collapsed[block.track]);
      button.setAttribute("aria-expanded", String(!collapsed));
      button.style.top = `${block.y}px`;
      button.style.height = button.style.lineHeight = `${block.rows[0].h}px`;
      shown.set(block.track, button);
      nodes.push(button);
      const { place } = this.scene.tracks[block.track];
      // Beside the label of the second row; a collapsed GPU has it in its tooltip.
      if (place && !collapsed && block.rows.length > 1) nodes.push(label(place, block.rows[1], "place"));
      if (!collapsed) for (const row of block.rows) nodes.push(row.toggle ? this.#foldable(row) : label(row.label, row));
    }
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
    const key = `${row.track} ${row.host.thread} ${row.label}`;
    if (!this.#folds.has(key)) {
      const button = Object.assign(element("button", "row fold", row.label), { type: "button", title: "Show all levels of this GPU's host rows, or the outermost ones (C)" });
      button.addEventListener("click", () => button.act());
      this.#folds.set(key, button);
    }
    const button = this.#folds.get(key);
    button.act = row.toggle;
    button.setAttribute("aria-expanded", String(row.open));
    const height = Math.min(row.h, 26);
    Object.assign(button.style, { top: `${row.y}px`, height: `${height}px`, lineHeight: `${height}px` });
    return button;
  }

  #button(track) {
    const { label: text, place } = this.scene.tracks[track];
    const button = Object.assign(element("button", "track", text), { type: "button", title: place ? `${text} · ${place}` : text });
    button.dataset.track = track;
    return button;
  }
}

function label(text, { y, h }, className = "row") {
  const node = element("span", className, text);
  Object.assign(node.style, { top: `${y}px`, height: `${h}px`, lineHeight: `${h}px` });
  return node;
}
