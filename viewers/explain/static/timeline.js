/** Who does what when: a row for each lane of a rank, a bar for each piece of work, and a line at the current time. */

import { timeAt } from "./geometry.js";
import { shape } from "./svg.js";

const NAME = 142, AXIS = 22, PAD = 8;

export class Timeline {
  constructor(svg, explanation) {
    Object.assign(this, { svg, explanation });
    const all = explanation.steps.flatMap((step) => step.work);
    const of = (rank) => JSON.stringify(all.filter((one) => one.rank === rank).map((one) => ({ ...one, rank: 0 })));
    // Where all ranks do the same, one is drawn for all.
    const same = explanation.rows.every((_, rank) => of(rank) === of(0));
    const work = same ? all.filter(({ rank }) => rank === 0) : all;
    const key = ({ rank, lane }) => `${same ? "each rank" : explanation.rows[rank]}${this.several ? ` ${lane}` : ""}`;
    this.several = new Set(work.map(({ lane }) => lane)).size > 1;
    const order = (one, other) => one.rank - other.rank || (one.lane === "compute" ? -1 : 0) - (other.lane === "compute" ? -1 : 0);
    this.lanes = [...new Set([...work].sort(order).map(key))];
    this.work = work.map((one) => ({ ...one, row: this.lanes.indexOf(key(one)) }));
    this.end = Math.max(...work.map((one) => one.end));
    this.resize();
  }

  resize() {
    const { svg, lanes } = this;
    const width = Math.max(480, svg.parentElement.clientWidth);
    this.row = Math.min(34, Math.max(20, 520 / lanes.length));
    this.margin = this.several ? NAME : 60;
    this.scale = (width - this.margin - PAD) / this.end;
    const height = AXIS + this.row * lanes.length + 6;
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.height = height;
    this.#frame();
  }

  #x(time) {
    return this.margin + time * this.scale;
  }

  #y(row) {
    return AXIS + row * this.row;
  }

  #frame() {
    const every = [1, 2, 5, 10, 20, 50].find((unit) => unit * this.scale >= 34) ?? 100;
    const ticks = [];
    for (let time = 0; time <= this.end; time += every) {
      ticks.push(shape("line", { x1: this.#x(time), x2: this.#x(time), y1: AXIS - 4, y2: this.height, class: "grid" }));
      ticks.push(shape("text", { x: this.#x(time), y: 12, class: "head" }, time));
    }
    const names = this.lanes.map((name, row) => shape("text", { x: 0, y: this.#y(row) + this.row / 2 + 4, class: "name" }, name));
    this.bars = this.work.map((one) => ({ one, node: this.#bar(one) }));
    this.wires = shape("g");
    this.head = shape("line", { y1: AXIS - 6, y2: this.height, class: "playhead" });
    this.svg.replaceChildren(this.svg.firstElementChild, ...ticks, ...names, ...this.bars.map(({ node }) => node), this.wires, this.head);
  }

  #bar(one) {
    const x = this.#x(one.start) + 0.75, width = Math.max(1, (one.end - one.start) * this.scale - 1.5);
    const group = shape("g", { class: `bar ${one.kind}` });
    group.append(shape("title", {}, `${this.lanes[one.row]}: ${one.label}, from ${one.start} to ${one.end}`));
    group.append(shape("rect", { x, y: this.#y(one.row) + 2, width, height: this.row - 4, rx: 3 }));
    if (one.kind === "weight") group.append(shape("rect", { x, y: this.#y(one.row) + 2, width, height: this.row - 4, rx: 3, class: "striped" }));
    const font = Math.min(12, width / (0.62 * one.label.length));
    const style = `font-size: ${font}px`;
    if (font >= 8) group.append(shape("text", { x: x + width / 2, y: this.#y(one.row) + this.row / 2 + 4, style }, one.label));
    return group;
  }

  draw({ position, done, part }) {
    const { steps } = this.explanation;
    const time = timeAt(steps, position), whole = position === 0;
    const step = steps[part > 0 || done === 0 ? done : done - 1];
    for (const { one, node } of this.bars) {
      const now = one.start < Math.max(time, step.start + 1e-9) && one.end > step.start;
      const when = whole || one.end <= step.start ? "past" : now ? "now" : "later";
      node.setAttribute("class", `bar ${one.kind} ${when}`);
    }
    for (const name of ["x1", "x2"]) this.head.setAttribute(name, this.#x(time));
    this.wires.replaceChildren(...(whole || this.several ? [] : step.messages.map((message) => this.#wire(message, step.start))));
  }

  /** A message arrives where its receiver may begin. */
  #wire({ source, target, label }, time) {
    const x = this.#x(time), down = target > source ? 1 : -1;
    const from = this.#y(source) + this.row / 2, to = this.#y(target) + this.row / 2;
    const wire = shape("path", { d: `M${x},${from} L${x},${to} M${x - 5},${to - 7 * down} L${x},${to} L${x + 5},${to - 7 * down}`, class: "wire" });
    wire.append(shape("title", {}, label));
    return wire;
  }
}
