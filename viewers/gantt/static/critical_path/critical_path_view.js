/**
 * The critical path on the chart: a row of its pieces below each GPU that it passes, outlines around its kernels,
 * collectives and copies, and lines where it jumps to another row or GPU. The rest can be dimmed.
 */

import { button, element, line, table } from "../../../base/static/dom.js";
import { FONT_FAMILY } from "../../../base/static/theme.js";
import { frame } from "../drawing/canvas.js";
import { between, joined, PathData } from "./critical_path.js";
import { rowOf, rowRole, startFacts, stepNamed, trackName } from "../data/rows.js";
import { duration, integer, moment, percentOf, shortName, truncateMiddle, visible } from "../data/text.js";

/** Height of a row of pieces; width from which a piece is outlined, and labelled; gap below which outlines join; in pixels. */
const ROW = 18, OUTLINED = 3, LABELLED = 56, JOINED = 1.5;
/** How much of what is not on the path the page's color hides. */
const VEIL = 0.72;
/** Distance in pixels within which the pointer finds a piece. */
const NEAR = 2;

export class CriticalPathView {
  constructor({ scene, lod, stage, plot, hover, card, navigation, redraw, button }) {
    Object.assign(this, { scene, lod, stage, plot, hover, card, navigation, redraw, button, data: null, dimmed: false, chosen: -1 });
    button.hidden = !scene.path;
    if (!scene.path) return;
    plot.events.addEventListener("click", () => this.#click());
  }

  /** Show the path, and its step. */
  async begin() {
    if (!this.scene.path) return;
    this.data = await PathData.of(this.scene);
    this.rows = Array.from({ length: this.data.count }, (_, i) => rowRole(this.data.roleOf(i)) || "path");
    this.categories = Uint8Array.from(this.rows, (_, i) => this.#categoryOf(i));
    // Of a few GPUs, all have the row, so that their rows stay comparable.
    this.data.byTrack.forEach((pieces, track) => (pieces.length || !this.scene.layout.collapsed) && this.#lay(track));
    const found = stepNamed(this.scene.strips, this.data.step);
    if (found && !location.hash) this.navigation.step(found.step, found.strip);
  }

  #lay(track) {
    const row = { ...rowOf(this.scene, { track, role: "path", label: "critical path", h: ROW }), extra: true };
    this.stage.extend(track, "path", [{ ...row, path: this }]);
  }

  /** Hide most of what is not on the path, or show it again. */
  dim(yes = !this.dimmed) {
    if (!this.data) return;
    this.dimmed = yes;
    this.button.setAttribute("aria-pressed", String(yes));
    this.redraw();
  }

  /** Show the details of the first piece in view. */
  open() {
    const { from, to } = this.plot.range, { data } = this;
    const first = data ? data.start.findIndex((start, i) => data.trackOf(i) >= 0 && start >= from && start <= to) : -1;
    if (first < 0) return;
    this.choose(first);
    document.querySelector("#card .pieces button:last-child")?.focus();
  }

  /** Return facts on an interval for its details: its part of the path, or its slack. */
  factsOf(index) {
    if (!this.data) return [];
    const place = this.lod.placeOf(index), piece = this.data.ofInterval(place), slack = this.data.slackOf(place), { label } = this.data;
    if (piece >= 0) return [["critical path", this.#share(piece)], ...this.#gain(piece)];
    if (slack === null) return [];
    return [["slack", slack === Infinity ? `${label} does not wait for it` : `${duration(slack)}: it could take that much longer before ${label} does`]];
  }

  #share(i) {
    const { data } = this;
    return `${duration(data.duration[i])}, ${percentOf(data.duration[i], data.length)} of ${data.label}`;
  }

  #gain(i) {
    const gain = this.data.gainOf(i);
    return gain === null ? [] : [["10 % less", `of all like it makes a step ${gain < 0 ? `${duration(-gain)} longer` : `${duration(gain)} shorter`}, by replay`]];
  }

  #kind(i) {
    return this.data.kinds[this.data.kind[i]].label;
  }

  /** Return what a piece is called: its kernel or collective, what the host did, else its kind. */
  #title(i) {
    const name = this.data.names[this.data.name[i]];
    if (!name) return this.#kind(i);
    return visible(this.data.kinds[this.data.kind[i]].word === "host" ? name : shortName(name));
  }

  /** Return the tooltip of a row at { time, pixel } as lines. */
  tip({ track }, { time, pixel }) {
    const i = this.data.at(track, time, NEAR * pixel);
    if (i < 0) return null;
    return [line(this.#title(i), "head"), line(this.#kind(i)), line(`on the critical path: ${this.#share(i)}`), ...this.#gain(i).map((fact) => line(fact.join(" "))), line(trackName(this.scene.tracks[track]), "dim")];
  }

  #click() {
    const { row, point } = this.hover;
    if (!row?.path || !point) return;
    const i = this.data.at(row.track, point.time, NEAR * point.pixel);
    if (i >= 0) this.choose(i);
  }

  /** Show the details of a piece. */
  choose(i) {
    if (!this.data || !(i in this.data.start)) return;
    const { data, scene } = this, track = data.trackOf(i), operator = data.names[data.operator[i]], name = data.names[data.name[i]];
    this.chosen = i;
    const facts = [
      ["rank", track < 0 ? "not on this page" : trackName(scene.tracks[track])],
      ["kind", this.#kind(i)],
      ["length", this.#share(i)],
      ...(track < 0 ? [["on the axis", moment(data.start[i], 1e6)]] : startFacts(scene, track, data.start[i])),
      ...(operator && operator !== name ? [["operator", visible(operator)]] : []),
      ["slack", "none: where it takes longer, so does the step"],
      ...this.#gain(i),
      ["piece", `${integer(i + 1)} of ${integer(data.count)}`],
    ];
    const buttons = element("p", "pieces");
    buttons.append(this.#stepButton("‹ before", i - 1), this.#stepButton("after ›", i + 1));
    this.card.show("path", this.#title(i), [...(name ? [element("p", "full", visible(name))] : []), table(null, facts, "facts-table"), buttons], { close: () => this.#clear(), setting: `path,${i}` });
    this.redraw();
  }

  /** Return a button that goes to another piece of the path. */
  #stepButton(text, i) {
    const onclick = () => {
      const { from, to } = this.plot.range, { start, end } = this.data;
      if (this.data.trackOf(i) >= 0) this.stage.reveal(this.data.trackOf(i), "path");
      if (start[i] < from || end[i] > to) this.navigation.show((start[i] + end[i] - (to - from)) / 2, (start[i] + end[i] + (to - from)) / 2);
      this.choose(i);
      [...document.querySelectorAll("#card .pieces button")].find((one) => one.textContent === text)?.focus();
    };
    return button("link", text, { disabled: i < 0 || i >= this.data.count, onclick });
  }

  #clear() {
    this.chosen = -1;
    this.redraw();
  }

  /** Draw the path over the rows; the context is in CSS pixels. */
  draw(context, view, looks) {
    if (!this.data) return;
    const drawing = new Drawing(this, context, view, looks);
    context.save();
    if (this.dimmed) drawing.veil();
    drawing.rows();
    drawing.outlines();
    drawing.jumps();
    context.restore();
  }

  /** The label of a piece in its row, widest first. */
  texts(i) {
    const title = this.#title(i);
    return [`${title} · ${duration(this.data.duration[i])}`, title];
  }

  /** The category whose color a piece has. */
  #categoryOf(i) {
    const { kinds, kind, position } = this.data, { category } = kinds[kind[i]];
    if (category !== null) return category;
    const at = position[i] ? this.lod.indexOf(this.data.laneOf(i), position[i] - 1) : -1;
    return at < 0 ? this.scene.special.idle : this.lod.category[at];
  }
}

/** One picture of the path. */
class Drawing {
  #boxes = new Map();

  constructor(path, context, { from, to, width }, looks) {
    const px = (to - from) / width, margin = OUTLINED * px;
    // `roles` are the rows that the pieces are outlined in: those of their intervals, else those of the path.
    Object.assign(this, { path, data: path.data, roles: path.rows, context, looks, width, from, px });
    this.pieces = path.data.byTrack.map((_, track) => path.data.within(track, from - margin, to + margin));
    this.spans = this.#spans();
  }

  #x(time) {
    return (time - this.from) / this.px;
  }

  /** Return the place of a row of a GPU, that of its phases if it is collapsed, or null if the GPU is hidden. */
  #box(track, role) {
    const key = `${track} ${role}`, { stage } = this.path;
    if (!this.#boxes.has(key)) this.#boxes.set(key, stage.boxOf(track, role) ?? stage.boxOf(track, "phases"));
    return this.#boxes.get(key);
  }

  #seen(i) {
    return this.#x(this.data.end[i]) >= -OUTLINED && this.#x(this.data.start[i]) <= this.width + OUTLINED;
  }

  /** Return where the path is in each row that it passes, in pixels: [{ track, role, spans }]. */
  #spans() {
    const { data } = this;
    return this.pieces.flatMap((pieces, track) => {
      const spans = {};
      for (const i of pieces) {
        const span = [this.#x(data.start[i]), this.#x(data.end[i])], role = this.roles[i];
        (spans[role] ??= []).push(span);
        if (role !== "path") (spans.path ??= []).push([...span]);
      }
      return Object.entries(spans).map(([role, own]) => ({ track, role, spans: joined(own, JOINED) }));
    });
  }

  /** Dim all rows where the path does not pass. */
  veil() {
    const { context, looks, width, path } = this;
    context.save();
    context.globalAlpha = VEIL;
    context.fillStyle = looks.chrome.paper;
    context.beginPath();
    for (const { track, role, y, h } of path.stage.visible) {
      if (role === "path") continue;
      const collapsed = role === "phases" && path.stage.collapsed[track];
      const own = this.spans.filter((one) => one.track === track && (collapsed || one.role === role)).flatMap(({ spans }) => spans);
      const sorted = joined(own.map(([a, b]) => [Math.max(0, a), Math.min(width, Math.max(b, a + 1))]).sort((a, b) => a[0] - b[0]), JOINED);
      for (const [left, right] of between(sorted, width)) context.rect(left, y, right - left, h);
    }
    context.fill();
    context.restore();
  }

  /** Fill the rows of the path: short pieces by the kind that has most of each pixel. */
  rows() {
    const { data, context, looks, path } = this;
    this.pieces.forEach((pieces, track) => {
      const box = path.stage.boxOf(track, "path");
      if (!box || !pieces.length) return;
      const columns = new Map();
      for (const i of pieces) {
        const left = this.#x(data.start[i]), wide = this.#x(data.end[i]) - left, category = path.categories[i];
        if (wide < 1) this.#add(columns, Math.floor(left), category, wide);
        else {
          this.#fill(box, left, wide, looks.categories[category].color);
          if (wide >= OUTLINED) this.#fill(box, left, 1, looks.chrome.paper);
        }
      }
      for (const [x, shares] of columns) {
        const [category] = [...shares].reduce((best, one) => (one[1] > best[1] ? one : best));
        this.#fill(box, x, 1, looks.categories[category].color);
      }
      Object.assign(context, { font: `11px ${FONT_FAMILY}`, textBaseline: "middle", textAlign: "left" });
      for (const i of pieces) this.#label(i, box);
      for (const run of path.data.runs[track]) this.#labelRun(run, box);
    });
  }

  #add(columns, x, category, share) {
    if (!columns.has(x)) columns.set(x, new Map());
    const shares = columns.get(x);
    shares.set(category, (shares.get(category) ?? 0) + share);
  }

  #fill({ y, h }, left, wide, color) {
    const begin = Math.max(0, left);
    this.context.fillStyle = color;
    this.context.fillRect(begin, y, Math.min(this.width, left + wide) - begin, h);
  }

  #label(i, box) {
    const { data, path, px } = this;
    if (data.duration[i] >= LABELLED * px) this.#write(data.start[i], data.end[i], box, path.categories[i], () => path.texts(i));
  }

  /** Label pieces of one kind in a row by their kind, where none of them has room for a label of its own. */
  #labelRun({ first, last, longest, kind }, box) {
    const { data, path, px } = this;
    if (first === last || longest / px >= LABELLED) return;
    const { word } = data.kinds[kind], from = data.start[first], to = data.end[last];
    this.#write(from, to, box, path.categories[first], () => [`${word} · ${duration(to - from)}`, word], true);
  }

  /** Write the first of some texts that fits between two times. */
  #write(from, to, { y, h }, category, texts, boxed = false) {
    const { context, looks, width } = this, left = Math.max(0, this.#x(from)), right = Math.min(width, this.#x(to)), room = right - left - 8;
    if (room < LABELLED - 8) return;
    const known = texts(), wide = (text) => context.measureText(text).width, last = known.at(-1);
    const text = known.find((one) => wide(one) <= room) ?? truncateMiddle(last, Math.floor((last.length * room) / wide(last)) - 1);
    if (!text) return;
    if (boxed) this.#fill({ y: y + 2, h: h - 4 }, left + 2, wide(text) + 5, looks.categories[category].color);
    context.fillStyle = looks.categories[category].ink;
    context.fillText(text, left + 4, y + h / 2 + 0.5);
  }

  /** Outline the path's pieces in each row; a bar stands for what is too narrow. */
  outlines() {
    const { context, looks: { chrome }, width } = this;
    for (const { track, role, spans } of this.spans) {
      const box = this.#box(track, role);
      if (!box) continue;
      for (const [from, to] of spans) {
        const left = Math.max(-4, from), wide = Math.min(width + 4, to) - left;
        if (wide < OUTLINED) this.#fill(box, left + wide / 2 - 0.75, 1.5, chrome.text);
        else frame(context, { x: left, y: box.y, width: wide, height: box.h }, chrome.text, chrome.paper, 2);
      }
    }
    this.#chosen(chrome);
  }

  /** Frame the piece whose details are shown. */
  #chosen({ mark, paper }) {
    const { path: { chosen }, data, context } = this;
    if (chosen < 0 || data.trackOf(chosen) < 0 || !this.#seen(chosen)) return;
    const left = this.#x(data.start[chosen]), wide = Math.max(2, this.#x(data.end[chosen]) - left);
    for (const role of new Set([this.roles[chosen], "path"])) {
      const box = this.#box(data.trackOf(chosen), role);
      if (box) frame(context, { x: left - 1, y: box.y, width: wide + 2, height: box.h }, mark, paper, 3);
    }
  }

  /** Whether a piece gets a place of its own among jumps: not a short pause between two kernels of a GPU. */
  #isStop(i, last) {
    const wide = (this.data.end[i] - this.data.start[i]) / this.px;
    return wide >= OUTLINED || this.roles[i] !== "path" || this.data.trackOf(i) !== this.data.trackOf(last);
  }

  /** Connect pieces in different rows: one line for each pixel and pair of rows, since a step can have thousands. */
  jumps() {
    const { data, context, looks: { chrome } } = this, drawn = new Set();
    context.beginPath();
    for (let i = 1, last = 0; i < data.count; i++) {
      if (!this.#isStop(i, last)) continue;
      if (!this.#seen(i) && !this.#seen(last)) {
        last = i;
        continue;
      }
      const pair = [last, i], tracks = pair.map((one) => data.trackOf(one)), roles = pair.map((one) => this.roles[one]);
      last = i;
      if ((roles[0] === roles[1] && tracks[0] === tracks[1]) || Math.min(...tracks) < 0) continue;
      const [above, below] = tracks.map((track, k) => this.#box(track, roles[k])), x = [this.#x(data.end[pair[0]]), this.#x(data.start[i])];
      const key = `${Math.round(x[1])} ${tracks} ${roles}`;
      if (!above || !below || above.y === below.y || drawn.has(key)) continue;
      drawn.add(key);
      const down = above.y < below.y;
      context.moveTo(x[0], down ? above.y + above.h : above.y);
      context.lineTo(x[1], down ? below.y : below.y + below.h);
    }
    for (const [color, thick] of [[chrome.paper, 3], [chrome.text, 1.25]]) {
      Object.assign(context, { strokeStyle: color, lineWidth: thick });
      context.stroke();
    }
  }
}
