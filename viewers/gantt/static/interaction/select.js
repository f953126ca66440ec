/** The selected interval: details of a kernel, or a collective with its calls on all ranks. */

import { button, element, table } from "../../../base/static/dom.js";
import { frame } from "../drawing/canvas.js";
import { collectiveTitle, duration, percentOf, rate, shortName, visible } from "../data/text.js";
import { isExposed, laneOf, rankNames, rowRole, startFacts, streamWord, trackName } from "../data/rows.js";

/** Shown for a time that the traces do not tell: a rank is missing, or the clocks are not certain enough. */
const UNKNOWN = "unknown";
const orUnknown = (time) => (time === null ? UNKNOWN : duration(time));

/** Return a table row { track, last, cells } for each rank of a collective. */
export function memberRows(memberDetails, scene, lod) {
  return memberDetails.members.map(({ track, index, wait, late, within, exposed }) => ({
    track,
    last: track === memberDetails.last,
    cells: [
      scene.tracks[track].label + (track === memberDetails.last ? " · last" : ""),
      late === null ? (within === null ? UNKNOWN : `within ±${duration(within)}`) : late ? `+${duration(late)}` : "first",
      orUnknown(wait),
      orUnknown(memberDetails.transfer),
      duration(exposed),
      duration(lod.duration[index] - exposed),
    ],
  }));
}

export class Selection {
  constructor({ plot, hover, stage, lod, scene, columns, members, card, host, path, redraw }) {
    Object.assign(this, { plot, hover, stage, lod, scene, columns, members, card, host, path, redraw, chosen: null });
    plot.events.addEventListener("click", () => this.#click());
  }

  async #click() {
    const { index, row, point } = this.hover;
    if (index < 0 || !row || row.role === "idle") return;
    const chosen = row.role === "phases" ? await this.#behind(index, row.track, point.time) : index;
    if (chosen >= 0) await this.choose(chosen, row.track);
  }

  /** Return the call behind exposed communication in a row of phases, or -1; behind waiting, of several one that waits. */
  async #behind(phase, track, time) {
    const { lod, scene, columns } = this, lane = laneOf(scene, track, "collectives"), category = lod.category[phase];
    if (lane < 0 || !isExposed(scene, category)) return -1;
    const at = Math.max(lod.start[phase], Math.min(time, lod.start[phase] + lod.duration[phase] - 1));
    const waits = (call) => at < lod.start[call] + columns.wait[call - columns.exposedFrom[track]] - 1;
    let found = await lod.find(lane, at);
    if (category === scene.special.waiting && !waits(found)) lod.eachLong(lane, at, at + 1, 0, (call) => waits(call) && (found = call));
    return found;
  }

  /** Select an interval by its index. */
  async choose(index, track) {
    const { role } = this.scene.lanes[this.lod.laneAt(index)];
    // Intervals of a served page are held as long as they are selected.
    [index] = await this.lod.hold([this.lod.placeOf(index)]);
    this.chosen = { index, track, role, memberDetails: null };
    await this.members.ready(index);
    const launch = await this.host.factsOf(track, index);
    if (this.chosen?.index !== index) return;
    this.chosen.launch = launch;
    if (role === "collectives") this.chosen.memberDetails = this.members.of(index);
    const [title, nodes] = role === "collectives" ? this.#collective() : this.#kernel();
    const setting = [role, rankNames(this.scene)[track], this.lod.placeOf(index).position, this.lod.start[index]].join();
    this.card.show("selection", title, nodes, { close: () => this.clear(), setting });
    this.redraw();
  }

  /** Select the interval of a view: the one at a position, or in a page that counts others, the one that starts then. */
  async restore(role, track, position, start) {
    const lane = laneOf(this.scene, track, role), { lod } = this;
    if (lane < 0) return;
    const inside = Number.isInteger(position) && position < this.scene.lanes[lane].count;
    let [index] = inside ? await lod.hold([{ lane, position }]) : [-1];
    if (lod.start[index] !== start) index = await lod.find(lane, start);
    if (lod.start[index] === start) await this.choose(index, track);
  }

  clear() {
    if (!this.chosen) return;
    this.chosen = this.host.launch = null;
    this.card.hide("selection");
    this.redraw();
  }

  #facts(index, track) {
    const { lod, scene, columns } = this, owner = scene.tracks[track];
    const delay = this.members.launchDelay(index);
    return [
      // A CPU has no other name.
      ["rank", [trackName(owner), ...(owner.label.endsWith(owner.device) ? [] : [owner.device])].join(" · ")],
      ...startFacts(scene, track, lod.start[index]),
      ["duration", duration(lod.duration[index])],
      ...(delay === null ? [] : [["launched", `${duration(delay)} before its start`]]),
      [streamWord(owner), String(scene.columns.streams[columns.stream[index]])],
      ...this.path.factsOf(index),
      ...this.chosen.launch,
    ].map(([key, text]) => [key, key === "stack" ? text : visible(text)]);
  }

  #kernel() {
    const { scene, columns, lod } = this, { index, track, role } = this.chosen, full = scene.names[columns.name[index]];
    const phase = role === "memory" ? "memory" : scene.categories[lod.category[index]].label;
    const facts = [["phase", phase], ...this.#facts(index, track)];
    return [visible(shortName(full)), [element("p", "full", visible(full)), table(null, facts, "facts-table")]];
  }

  #collective() {
    const { scene, columns, lod } = this, { index, track, memberDetails } = this.chosen, known = scene.collectives[columns.name[index]];
    const title = collectiveTitle(known);
    const exposed = columns.exposed[index - columns.exposedFrom[track]], time = lod.duration[index];
    const name = element("p", "full", visible([known.name, known.label].filter(Boolean).join(" · ")));
    if (!memberDetails) return [title, [name, table(null, [...this.#facts(index, track), ["exposed", `${duration(exposed)} (${percentOf(exposed, time)})`]], "facts-table")]];
    const rows = memberRows(memberDetails, scene, lod).map(({ track: member, last, cells: [label, ...rest] }) => Object.assign([button("link", label, { onclick: () => this.stage.reveal(member, "exposure") }), ...rest], { className: last ? "last" : "" }));
    const head = ["rank", "arrival", "wait", "transfer", "exposed", "overlapped"];
    return [title, [name, table(null, this.#shared(known, memberDetails), "facts-table"), table(head, rows), element("p", "quiet", "Exposed and overlapped time is of the whole call, waiting included."), table(null, this.#facts(index, track), "facts-table")]];
  }

  #shared(known, { transfer, busbw, algbw, seq, group, members }) {
    const ranks = group.size || known.size, shown = members.length;
    return [
      ["transfer", transfer === null ? "unknown: a rank is missing" : duration(transfer)],
      ...(busbw ? [["bandwidth", `busbw ${rate(busbw)} · algbw ${rate(algbw)}`]] : []),
      ["group", [group.description || group.name || known.group || "unnamed", ranks ? `${shown} of ${ranks} ranks shown` : `${shown} ranks shown`].join(" · ")],
      ...(seq >= 0 ? [["sequence", String(seq)]] : []),
      ...(known.dtype ? [["type", known.dtype]] : []),
      ...(known.title && known.kind ? [["kind", known.kind]] : []),
    ].map(([key, text]) => [key, visible(text)]);
  }

  /** Draw a frame around the selection and connect a collective's ranks; the context is in CSS pixels. */
  draw(context, { from, to, width }, { chrome }) {
    if (!this.chosen) return;
    const { lod, stage, chosen } = this, px = (to - from) / width, row = rowRole(chosen.role);
    const members = chosen.memberDetails?.members ?? [chosen];
    const boxes = members.flatMap(({ track, index }) => {
      const box = stage.seenBox(track, row) ?? stage.seenBox(track, "phases");
      const left = (lod.start[index] - from) / px;
      return box?.h ? [{ ...box, left, right: left + Math.max(lod.duration[index] / px, 1), selected: index === chosen.index }] : [];
    });
    drawJoined(context, boxes.sort((a, b) => a.y - b.y), width, chrome);
  }
}

/** Frame boxes { left, right, y, h, selected } and connect each with the next one below. */
function drawJoined(context, boxes, width, { mark, paper }) {
  const within = (x) => Math.max(-8, Math.min(width + 8, x));
  context.save();
  boxes.forEach((a, i) => {
    const b = boxes[i + 1];
    if (!b) return;
    context.beginPath();
    for (const [x, y] of [[a.left, a.y + a.h], [a.right, a.y + a.h], [b.right, b.y], [b.left, b.y]]) context.lineTo(within(x), y);
    context.closePath();
    context.globalAlpha = 0.16;
    context.fillStyle = mark;
    context.fill();
    context.globalAlpha = 0.9;
    context.strokeStyle = mark;
    context.lineWidth = 1.5;
    context.stroke();
  });
  context.globalAlpha = 1;
  for (const { left, right, y, h, selected } of boxes) {
    const begin = within(left), box = { x: begin - 1, y, width: within(right) - begin + 2, height: h };
    frame(context, box, mark, paper, selected ? 3 : 2);
  }
  context.restore();
}
