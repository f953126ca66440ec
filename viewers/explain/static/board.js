/** What the ranks hold: a row for each rank, a column for each chunk, and messages that move between them. */

import { along, boardLayout, curve, figure, fitting } from "./geometry.js";
import { shape } from "./svg.js";

export class Board {
  constructor(svg, explanation) {
    Object.assign(this, { svg, explanation, shown: -1 });
    this.resize();
  }

  resize() {
    const { rows, columns } = this.explanation;
    this.layout = boardLayout(rows.length, columns.length, this.svg.parentElement.clientWidth);
    this.svg.setAttribute("viewBox", `0 0 ${this.layout.width} ${this.layout.bottom}`);
    this.svg.style.maxWidth = `${this.layout.width}px`;
    this.shown = -1;
  }

  /** Draw a position: the cells as they are, and the messages of the step under way or just over. */
  draw({ done, part, still }) {
    if (this.shown !== done || part === 0) this.#cells(done, part);
    const step = this.explanation.steps[part > 0 ? done : done - 1];
    this.moving.replaceChildren(...(step ? step.messages.flatMap((message) => this.#message(message, part, still)) : []));
  }

  #cells(done, part) {
    const { steps, rows, columns } = this.explanation;
    const state = done ? steps[done - 1].after : steps[0].before;
    const changed = done && part === 0 ? steps[done - 1].before : state;
    const cells = state.flatMap((row, rank) => row.flatMap((cell, column) => this.#cell(cell, changed[rank][column], rank, column)));
    const { layout } = this;
    const heads = columns.map((name, column) =>
      shape("text", { x: layout.x(column) + layout.cell / 2, y: 14, class: "head" }, layout.cell < 60 ? name.split(" ").at(-1) : name),
    );
    const names = rows.map((name, rank) => shape("text", { x: 0, y: layout.y(rank) + layout.height / 2 + 4, class: "name" }, name));
    this.moving = shape("g");
    this.svg.replaceChildren(this.svg.firstElementChild, ...heads, ...names, ...cells, this.moving);
    this.shown = done;
  }

  #cell(cell, before, rank, column) {
    const { layout } = this;
    const x = layout.x(column) + 2, y = layout.y(rank), width = layout.cell - 4;
    const fresh = cell.label !== before.label ? " fresh" : "";
    const box = shape("rect", { x, y, width, height: layout.height, rx: 4, class: `cell ${cell.state}${fresh}` });
    if (!cell.label) return [box];
    const two = layout.height >= 34 && cell.values.length > 0 && layout.cell >= 44;
    const middle = x + width / 2, base = y + layout.height / 2;
    const text = shape("text", { x: middle, y: base + (two ? -2 : 4), class: `label ${cell.state}` }, fitting(cell, this.explanation.ranks, width));
    box.append(shape("title", {}, `${cell.label}${cell.values.length ? ` = ${cell.values.map(figure).join(", ")}` : ""}`));
    if (!two) return [box, text];
    const more = cell.values.length > 1 ? " …" : "";
    return [box, text, shape("text", { x: middle, y: base + 13, class: `value ${cell.state}` }, figure(cell.values[0]) + more)];
  }

  #message(message, part, still) {
    const { layout } = this;
    const way = curve(layout, message);
    const { from, to, control } = way;
    const path = shape("path", { d: `M${from.x},${from.y} Q${control.x},${control.y} ${to.x},${to.y}`, class: part > 0 ? "way" : "way past" });
    const at = along(way, part === 0 || still ? 1 : part);
    const room = (layout.cell - 4) * message.columns * 0.86, height = Math.min(20, layout.height - 6);
    const tip = along(way, 0.85), angle = (Math.atan2(to.y - tip.y, to.x - tip.x) * 180) / Math.PI;
    const head = shape("path", { d: "M0,0 L-9,-5 L-9,5 Z", class: part > 0 ? "arrow" : "arrow past", transform: `translate(${to.x},${to.y}) rotate(${angle})` });
    if (part === 0 || still) return [path, head];
    const many = message.columns > 1 && message.label.length * 7.2 > room;
    const parts = message.label.split("+").length;
    const label = many ? `${message.columns} chunks` : fitting({ label: message.label, parts }, this.explanation.ranks, room);
    const width = Math.min(room, label.length * 7.2 + 14);
    return [
      path,
      shape("rect", { x: at.x - width / 2, y: at.y - height / 2, width, height, rx: 10, class: "chip" }),
      shape("text", { x: at.x, y: at.y + 4, class: "chip" }, label),
    ];
  }
}
