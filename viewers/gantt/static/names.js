/** The names left of the rows: of each GPU a button that collapses it, of each row its word; only those in the frame. */

export class RowNames {
  #buttons = new Map();

  constructor(root, stage, scene) {
    Object.assign(this, { root, stage, scene });
    this.list = document.createElement("div");
    this.list.className = "list";
    this.list.setAttribute("role", "group");
    this.list.setAttribute("aria-label", "GPUs: click to collapse or to show all rows");
    if (scene.tracks.length > 1) root.append(this.#all());
    root.append(this.list);
    this.list.addEventListener("click", (event) => this.#toggle(event.target.closest("button")));
    this.list.addEventListener("keydown", (event) => this.#walk(event));
  }

  #all() {
    const bar = document.createElement("div");
    bar.className = "all";
    for (const [label, title, collapsed] of [["collapse all", "one row for each GPU", true], ["expand all", "all rows of each GPU", false]]) {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: label, title });
      button.addEventListener("click", () => this.stage.collapseAll(collapsed));
      bar.append(button);
    }
    return bar;
  }

  #toggle(button) {
    if (button) this.stage.collapse(Number(button.dataset.track));
  }

  /** Up and down go from GPU to GPU, left and right collapse and expand. */
  #walk(event) {
    const track = Number(event.target.dataset?.track ?? NaN), { key } = event;
    if (!(track >= 0)) return;
    if (key === "ArrowLeft" || key === "ArrowRight") this.stage.collapse(track, key === "ArrowLeft");
    else if (key === "ArrowUp" || key === "ArrowDown") this.focus(track + (key === "ArrowUp" ? -1 : 1));
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Bring a GPU's name into the frame and put the focus on it. */
  focus(track) {
    if (!(track in this.scene.tracks)) return;
    this.stage.reveal(track);
    this.#buttons.get(track)?.focus();
  }

  /** Lay the names beside a frame: `left` and `top` in pixels of the root's parent. */
  place({ left, top, height }) {
    Object.assign(this.root.style, { width: `${left}px`, top: `${top}px`, height: `${height}px` });
  }

  /** Show the names of what is in the frame now. */
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
      if (!collapsed) for (const row of block.rows) nodes.push(label(row.label, row));
    }
    for (const strip of this.stage.strips) nodes.push(label(strip.label, strip, "row strip"));
    this.#buttons = shown;
    this.#show(nodes);
  }

  /** Exchange what is shown without moving a button, since that would take the focus from it. */
  #show(nodes) {
    const kept = new Set(nodes);
    for (const old of [...this.list.children]) if (!kept.has(old)) old.remove();
    let before = null;
    for (const node of nodes.toReversed()) {
      if (node.nextSibling !== before || node.parentNode !== this.list) this.list.insertBefore(node, before);
      before = node;
    }
  }

  #button(track) {
    const button = Object.assign(document.createElement("button"), { type: "button", className: "track", textContent: this.scene.tracks[track].label });
    button.dataset.track = track;
    button.title = this.scene.tracks[track].label;
    return button;
  }
}

function label(text, { y, h }, className = "row") {
  const node = Object.assign(document.createElement("span"), { className, textContent: text });
  Object.assign(node.style, { top: `${y}px`, height: `${h}px`, lineHeight: `${h}px` });
  return node;
}
