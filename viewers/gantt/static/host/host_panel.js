/** What the host did, on request: the panel of a call or an idle gap, and the arrows from launches to kernels. */

import { element, line, named, table } from "../../../base/static/dom.js";
import { frame } from "../drawing/canvas.js";
import { laneOf, rankNames, RECORDED, rowRole, startFacts, stepClock, trackName } from "../data/rows.js";
import { bytes, duration, percentOf, tickText, visible } from "../data/text.js";
import { CALLS, detailsAt, Flame, HostRows, KIND, LABELS, PYTHON } from "./host_rows.js";
import { HostSource } from "./host_source.js";

// An idle gap of a GPU: its causes, what the host did in it, and what ended it.

/** Idle intervals of one gap at most, one per cause in turn. */
const MAX_PIECES = 400;

/** Return the idle time of a track around a time, joined across causes: { track, from, to, causes: [{ category, ns }] }, or null. */
export async function gapAt(lod, scene, track, time) {
  const lane = laneOf(scene, track, "idle"), index = lane < 0 ? -1 : await lod.find(lane, time);
  if (index < 0) return null;
  const piece = (i) => ({ from: lod.start[i], to: lod.start[i] + lod.duration[i], category: lod.category[i] });
  const pieces = [piece(index)], { position: own } = lod.placeOf(index), { count } = scene.lanes[lane];
  for (const step of [-1, 1])
    for (let position = own + step; position >= 0 && position < count && pieces.length < MAX_PIECES; position += step) {
      const [next] = await lod.hold([{ lane, position }]), found = piece(next);
      if (step < 0 ? found.to !== pieces[0].from : found.from !== pieces.at(-1).to) break;
      pieces[step < 0 ? "unshift" : "push"](found);
    }
  const ns = new Map();
  for (const { from, to, category } of pieces) ns.set(category, (ns.get(category) ?? 0) + to - from);
  const causes = [...ns].map(([category, total]) => ({ category, ns: total })).sort((a, b) => b.ns - a.ns);
  return { track, from: pieces[0].from, to: pieces.at(-1).to, causes };
}

/** Return the index of the interval that begins where a gap ends, or -1. */
export async function endOf(lod, scene, { track, to }) {
  for (const role of RECORDED) {
    const lane = laneOf(scene, track, role), next = lane < 0 ? -1 : await lod.find(lane, to);
    if (next >= 0 && lod.start[next] === to) return next;
  }
  return -1;
}

// The words of the panel: what launched a kernel, what a call of the host is, what the host did in a gap.

/** What is not in the trace; what this page leaves out; what the host's rows of any page leave out, with its thread. */
export const NOT_RECORDED = "not recorded";
const UNREAD = "left out: its file could not be read a second time";
const LEFT_OUT = "left out of this page; --serve shows it", NO_ROWS = "left out of pages; dptrace kernels --by operator lists it";
/** Calls of a path, and frames of a stack, that are listed. */
const MAX_PATH = 12, MAX_STACK = 20;

/** Escape what a text has besides its lines. */
const lines = (text) => text.split("\n").map(visible).join("\n");
const or = (text, otherwise = NOT_RECORDED) => text || otherwise;

/** Say how long a launch waited to start; a kernel can start before its launch returns. */
function queueDelay(ns) {
  return ns < 0 ? `none: it started ${duration(-ns)} before the launch returned` : `${duration(ns)} from the end of the launch to the start`;
}

/** Return the names of a call and of those around it, the outermost first. */
function pathOf(calls, index) {
  const path = [index, ...calls.around(index)].toReversed().map((one) => calls.nameOf(one));
  return path.length > MAX_PATH ? [...path.slice(0, 2), `… ${path.length - MAX_PATH} more …`, ...path.slice(2 - MAX_PATH)] : path;
}

/** Return the innermost annotation or module around a time, the step's mark excepted; "" without one. */
function labelAt(calls, thread, time) {
  const label = calls.at(thread, LABELS, time);
  const names = label < 0 ? [] : [label, ...calls.around(label)].map((one) => calls.nameOf(one));
  const found = names.find((name) => !name.startsWith("ProfilerStep#"));
  // The first thread waits in its annotation while autograd's runs.
  return found ?? (thread > 0 ? labelAt(calls, 0, time) : "");
}

/** Return the lines of the Python stack at a time, innermost first: those of an event's own record, else the functions around it. */
function stackAt(calls, thread, time, recorded) {
  if (recorded) return recorded.split("\n").slice(0, MAX_STACK);
  const innermost = calls.at(thread, PYTHON, time);
  return innermost < 0 ? [] : [innermost, ...calls.around(innermost)].map((one) => calls.nameOf(one)).slice(0, MAX_STACK);
}

/** Return the innermost operator at or around a call, or -1. */
function operatorOf(calls, index) {
  return [index, ...calls.around(index)].find((one) => !/^(cuda|hip|cu)[A-Z]/.test(calls.nameOf(one))) ?? -1;
}

/** Return the facts of what launched an interval that starts at a time: pairs of a name and a text. */
export function launchFacts({ calls, launches, launchDetails }, launch, start, memory = false) {
  if (!launch || !calls) return [["launch", launches ? NOT_RECORDED : LEFT_OUT]];
  const call = launch.start === null || launch.thread === null ? -1 : calls.launchAt(launch.thread, launch.start);
  const operator = call < 0 ? -1 : operatorOf(calls, call), found = operator < 0 ? detailsAt() : detailsAt(calls.details, calls.detail[operator]);
  const own = launch.detail === null ? detailsAt() : detailsAt(launchDetails, launch.detail);
  const absent = call >= 0 || launch.start === null ? NOT_RECORDED : launch.thread === null ? NO_ROWS : LEFT_OUT;
  const facts = [
    ["operator", or(operator < 0 ? "" : calls.nameOf(operator), absent)],
    ["shapes", or(found.shapes, absent)],
    ["dtype", or(found.dtypes, absent)],
    ["called in", or(call < 0 ? "" : labelAt(calls, launch.thread, launch.start), absent)],
    ["launched by", or(call < 0 ? "" : calls.nameOf(call), absent)],
    ["queue delay", launch.end === null ? NOT_RECORDED : queueDelay(start - launch.end)],
    ["correlation", launch.correlation === null || launch.correlation < 0 ? NOT_RECORDED : String(launch.correlation)],
    ...(memory ? [["size", own.bytes < 0 ? NOT_RECORDED : bytes(own.bytes)]] : [["grid", or(own.grid)], ["block", or(own.block)]]),
  ];
  const stack = call < 0 ? [] : stackAt(calls, launch.thread, launch.start, found.stack);
  return [...facts, ["stack", or(stack.join("\n"), absent)]].map(([key, text]) => [key, lines(text)]);
}

/** Return the facts of a host's call. */
export function callFacts({ calls, threads }, index, { start, kinds }) {
  const { lod } = calls, { thread, flame } = calls.levelOf(index), details = detailsAt(calls.details, calls.detail[index]);
  const inner = lod.duration[index] - insideOf(calls, index);
  const facts = [
    ["kind", kinds[calls.kind[index]].label.toLowerCase()],
    ["thread", threads[thread]],
    ...start,
    ["duration", duration(lod.duration[index])],
    ["itself", `${duration(inner)} outside the calls in it`],
    ...(flame === CALLS ? [["shapes", or(details.shapes)], ["dtype", or(details.dtypes)]] : []),
    ["called in", or(flame === CALLS ? labelAt(calls, thread, lod.start[index]) : "", "no annotation")],
    ["path", pathOf(calls, index).join(" › ")],
    ["stack", or(stackAt(calls, thread, lod.start[index], details.stack).join("\n"))],
  ];
  return facts.filter(([key]) => flame === CALLS || key !== "called in").map(([key, text]) => [key, lines(text)]);
}

/** Return the ns of a call that the calls directly in it cover. */
function insideOf(calls, index) {
  const { lod } = calls, { thread, flame, depth } = calls.levelOf(index);
  const lane = calls.lanesOf(thread, flame).find((one) => calls.levels[one].depth === depth + 1);
  if (lane === undefined) return 0;
  const from = lod.start[index], to = from + lod.duration[index];
  return Object.values(KIND).reduce((sum, kind) => sum + lod.busy(lane, kind, from, to), 0);
}

// Draws arrows from launches on the host to the intervals on the device.

/** Length of an arrow's head, and distance from which a curve bends at most, in pixels. */
const HEAD = 7, BEND = 60;

/** Draw arrows { from: { x, y }, to: { x, y } }; points outside the frame are cut at its edges by the canvas. */
function drawArrows(context, arrows, { mark, paper }) {
  context.save();
  context.lineJoin = "round";
  for (const arrow of arrows) {
    for (const [color, width] of [[paper, 4.5], [mark, 2]]) {
      context.strokeStyle = context.fillStyle = color;
      context.lineWidth = width;
      curve(context, arrow);
    }
    head(context, arrow);
    context.beginPath();
    context.arc(arrow.from.x, arrow.from.y, 3, 0, 2 * Math.PI);
    context.fill();
  }
  context.restore();
}

/** A curve that leaves the launch and reaches the kernel vertically, since both rows are horizontal. */
function curve(context, { from, to }) {
  const bend = Math.sign(to.y - from.y) * Math.min(BEND, Math.abs(to.y - from.y) / 2);
  context.beginPath();
  context.moveTo(from.x, from.y);
  context.bezierCurveTo(from.x, from.y + bend, to.x, to.y - bend, to.x, to.y);
  context.stroke();
}

function head(context, { from, to }) {
  const back = to.y > from.y ? -HEAD : HEAD;
  context.beginPath();
  context.moveTo(to.x, to.y);
  context.lineTo(to.x - HEAD * 0.6, to.y + back);
  context.lineTo(to.x + HEAD * 0.6, to.y + back);
  context.closePath();
  context.fill();
}

/** Arrows of one call, things that the host did in a gap, and calls in it that are listed at most. */
const MAX_ARROWS = 40, MAX_SPENT = 8, MAX_CALLS = 5;
/** Share of a gap from which a thing that the host did is listed. */
const LEAST = 0.005;
/** Distance from the pointer, in pixels, within which a narrow call is still found. */
const SLACK = 2;

/** Whether it is known when something was launched. */
const isKnown = (launch) => Boolean(launch) && launch.start !== null;
/** Facts of what launched an interval that also hold for an operator on a CPU. */
const OF_OPERATOR = ["shapes", "dtype", "called in", "stack"];

export class HostPanel {
  constructor({ plot, hover, stage, lod, scene, card, rows, source, redraw }) {
    Object.assign(this, { plot, hover, stage, lod, scene, card, rows, source, redraw, chosen: null, launch: null });
    this.kinds = scene.host?.kinds ?? [];
    plot.events.addEventListener("click", () => this.#click());
  }

  /** Select what is under the pointer, if it is a call of the host or idle time. */
  async #click() {
    const { row, point } = this.hover;
    if (!row || !point || this.hover.quiet || this.hover.stage.stripAt(point.y)) return;
    if (row.host) {
      const index = this.callAt(row, point);
      if (index >= 0) this.choose(row.track, row.host.data, index);
    } else if (["phases", "idle"].includes(row.role) && (this.hover.index < 0 || row.role === "idle")) await this.chooseGap(row.track, point.time);
  }

  /** Return the call of a row at a point, or -1. */
  callAt(row, point) {
    return HostRows.callAt(row, point, SLACK * point.pixel);
  }

  /** Return the lines of a tooltip over a host's row, or null. */
  tip(row, point) {
    const index = this.callAt(row, point), { calls, data, thread } = row.host;
    const note = calls.leftOut ? [line(`${calls.leftOut.toLocaleString("en-US")} calls shorter than ${duration(calls.shortest)} are left out`, "dim")] : [];
    if (index < 0) return note.length ? note : null;
    const { lod } = calls, within = labelAt(calls, thread, lod.start[index]);
    return [
      line(visible(calls.nameOf(index)), "head"),
      line(`${duration(lod.duration[index])} · starts ${tickText(lod.start[index], point.pixel * point.width, stepClock(this.scene, row.track))}`),
      line(`${this.kinds[calls.kind[index]].label} · thread ${visible(data.threads[thread])}`),
      ...(within && within !== calls.nameOf(index) ? [line(visible(`in ${within}`), "dim")] : []),
      ...note,
    ];
  }

  /** Select the call of a view that starts at a time, if this run has it. */
  async restore(track, thread, flame, depth, start) {
    if (!this.source.hasCalls(track)) return;
    const data = await this.rows.reveal(track), calls = await this.source.callsAt(track, start);
    const lane = calls ? calls.levels.findIndex((level) => level.thread === thread && level.flame === flame && level.depth === depth) : -1;
    const index = lane < 0 ? -1 : calls.lod.near(lane, start, 0);
    if (index >= 0 && calls.lod.start[index] === start) await this.choose(track, { ...data, calls }, index);
  }

  /** Select a call of a GPU's host: show its facts, and arrows to what it launched. */
  async choose(track, data, index) {
    const { calls, launches } = data, { lod } = calls, { thread, flame, depth } = calls.levelOf(index);
    const end = lod.start[index] + Math.max(lod.duration[index], 1);
    const all = flame === CALLS && launches ? launches.launchedIn(thread, lod.start[index], end, MAX_ARROWS + 1) : [];
    const places = all.filter(({ lane }) => !this.#isItself(lane));
    this.chosen = { track, calls, data, index, arrows: [] };
    const { chosen } = this, launched = await this.lod.hold(places);
    if (this.chosen !== chosen) return;
    chosen.arrows = launched.slice(0, MAX_ARROWS).map((kernel, i) => ({ kernel, ...launches.of(places[i]) }));
    const facts = callFacts(data, index, { start: startFacts(this.scene, track, calls.lod.start[index]), kinds: this.kinds });
    const what = launched.length > MAX_ARROWS ? `more than ${MAX_ARROWS} intervals` : launched.map((kernel) => visible(this.hover.titleOf({}, kernel))).join("\n") || "nothing";
    if (flame === CALLS) facts.push(["launched", launches ? what : LEFT_OUT]);
    this.card.show("host", visible(calls.nameOf(index)), [table(null, [["rank", trackName(this.scene.tracks[track])], ...facts], "facts-table")], {
      close: () => this.clear(),
      setting: ["host", rankNames(this.scene)[track], thread, flame, depth, lod.start[index]].join(),
    });
    this.redraw();
  }

  /** Select the idle gap of a GPU at a time: its causes, what the host did meanwhile, and what ended it. */
  async chooseGap(track, time) {
    const gap = await gapAt(this.lod, this.scene, track, time);
    if (!gap) return;
    this.chosen = { track, gap, arrows: [] };
    const data = this.rows.source.has(track) ? await this.rows.reveal(track) : null;
    const next = await endOf(this.lod, this.scene, gap), launch = next < 0 ? null : data?.launches?.of(this.lod.placeOf(next));
    const around = data && (await this.source.callsAt(track, launch?.start ?? null));
    if (this.chosen?.gap !== gap) return;
    Object.assign(this.chosen, { data, arrows: isKnown(launch) && !this.#isItself(this.lod.laneAt(next)) ? [{ kernel: next, ...launch }] : [] });
    this.card.show("host", `Idle ${duration(gap.to - gap.from)} · ${this.scene.tracks[track].label}`, this.#gapNodes(gap, data, next, launch, around), { close: () => this.clear(), setting: ["gap", rankNames(this.scene)[track], gap.from].join() });
    this.redraw();
  }

  #gapNodes(gap, data, next, launch, around) {
    const { from, to, causes } = gap, whole = to - from, share = (ns) => percentOf(ns, whole);
    const nodes = [table(["cause", "time", "share"], causes.map(({ category, ns }) => [named(category, this.scene.categories[category]), duration(ns), share(ns)]))];
    if (!data) return [...nodes, element("p", "quiet", "What the host did on this rank is not on this page; --serve, or --ranks, shows it.")];
    const spent = data.activity.spent(from, to).filter(({ ns }, i) => i === 0 || ns >= LEAST * whole).slice(0, MAX_SPENT);
    const text = ({ word, what, where }) => [visible(what || (word === "operator" ? "many short operators" : word)), what ? word : "", where ? `in ${visible(where)}` : ""].filter(Boolean).join(" · ");
    nodes.push(table(["the host meanwhile", "time", "share"], spent.map((one) => [text(one), duration(one.ns), share(one.ns)]), "figures texts"));
    const calls = data.calls ? longest(data.calls, from, to) : [];
    if (calls.length) nodes.push(table(["longest calls in it", "time", "thread"], calls.map(({ index, ns, thread }) => [visible(data.calls.nameOf(index)), duration(ns), data.threads[thread]]), "figures texts"));
    if (next >= 0) nodes.push(table(null, this.#ended(gap, { ...data, calls: around }, next, launch), "facts-table"));
    return nodes;
  }

  #ended({ from, to }, data, next, launch) {
    const before = isKnown(launch) && launch.start < to ? `, ${duration(to - launch.start)} before its end` : "";
    const when = !isKnown(launch) ? [] : [["launched", launch.start < from ? `${duration(from - launch.start)} before the gap` : `${duration(launch.start - from)} into the gap${before}`]];
    return [["ended by", visible(this.hover.titleOf({}, next))], ...when, ...launchFacts(data, launch, to).filter(([key]) => ["operator", "called in"].includes(key))];
  }

  /** Whether the intervals of a lane are operators on a CPU, which nothing launched but they themselves. */
  #isItself(lane) {
    const { track, role } = this.scene.lanes[lane];
    return role === "compute" && this.scene.tracks[track].label.endsWith("CPU");
  }

  /** Add to the panel of an interval what launched it: returns facts, and draws the arrow. */
  async factsOf(track, index) {
    if (!this.source.has(track)) return [];
    const data = await this.rows.reveal(track), memory = this.scene.lanes[this.lod.laneAt(index)].role === "memory";
    if (!data?.calls) return [["launch", data?.unread ? UNREAD : NOT_RECORDED]];
    const launch = data.launches?.of(this.lod.placeOf(index)), itself = this.#isItself(this.lod.laneAt(index));
    this.launch = isKnown(launch) && !itself ? { track, data, arrows: [{ kernel: index, ...launch }] } : null;
    const calls = await this.source.callsAt(track, launch?.start ?? null);
    const facts = launchFacts({ ...data, calls }, launch, this.lod.start[index], memory);
    return itself ? facts.filter(([key]) => OF_OPERATOR.includes(key)) : facts;
  }

  clear() {
    if (!this.chosen) return;
    this.chosen = null;
    this.card.hide("host");
    this.redraw();
  }

  /** Draw the selection and the arrows; the context is in CSS pixels. */
  draw(context, view, { chrome }) {
    const { chosen, launch } = this, x = (time) => ((time - view.from) / (view.to - view.from)) * view.width;
    if (chosen?.calls) this.#frame(context, this.rows.boxOf(chosen.track, chosen.calls.levelOf(chosen.index)), chosen.calls.lod, chosen.index, x, chrome);
    if (chosen?.gap) this.#shade(context, chosen.gap, x, chrome);
    const { track, data, arrows } = chosen ?? launch ?? { arrows: [] };
    drawArrows(context, arrows.flatMap((arrow) => this.#arrow(track, data.calls, arrow, x)), chrome);
  }

  #frame(context, box, lod, index, x, { mark, paper }) {
    if (!box) return;
    const left = Math.max(-8, x(lod.start[index])), right = Math.min(context.canvas.width + 8, x(lod.start[index] + lod.duration[index]));
    frame(context, { x: left - 1, y: box.y, width: Math.max(right - left, 1) + 2, height: box.h - 1 }, mark, paper, 2.5, 2.5);
  }

  /** Mark a gap over all rows of its GPU. */
  #shade(context, { track, from, to }, x, { mark }) {
    const block = this.stage.blocks.find((one) => one.track === track);
    if (!block) return;
    const left = x(from), width = Math.max(x(to) - left, 1);
    context.save();
    Object.assign(context, { fillStyle: mark, strokeStyle: mark, globalAlpha: 0.1, lineWidth: 2 });
    context.fillRect(left, block.y, width, block.h);
    context.globalAlpha = 0.9;
    context.strokeRect(left, block.y, width, block.h);
    context.restore();
  }

  /** Return the arrow to an interval, as a list; empty if a row of it is not on the screen. */
  #arrow(track, calls, { kernel, start, thread }, x) {
    const role = this.scene.lanes[this.lod.laneAt(kernel)].role, box = this.stage.seenBox(track, rowRole(role)) ?? this.stage.seenBox(track, "phases");
    const call = start === null || thread === null || !calls ? -1 : calls.launchAt(thread, start);
    const host = start === null || thread === null ? null : this.rows.boxOf(track, { thread, flame: CALLS, depth: call < 0 ? Infinity : calls.levelOf(call).depth });
    if (!box?.h || !host) return [];
    return [{ from: { x: x(start), y: host.y + host.h / 2 }, to: { x: x(this.lod.start[kernel]), y: host.y > box.y ? box.y + box.h : box.y } }];
  }
}

/** Return the longest calls that begin in [from, to), with the time that they take of it. */
function longest(calls, from, to) {
  const { lod, levels } = calls, found = [];
  levels.forEach(({ thread, flame, depth }, lane) => {
    if (flame !== CALLS || depth > 0) return;
    lod.eachLong(lane, from, to, 0, (index) => {
      found.push({ index, thread, ns: Math.min(to, lod.start[index] + lod.duration[index]) - Math.max(from, lod.start[index]) });
    });
  });
  return found.sort((a, b) => b.ns - a.ns).slice(0, MAX_CALLS);
}

/** The host's part of the page: its rows, their drawing, their panel and their button. */
export class HostView {
  constructor({ plot, hover, stage, lod, scene, card, redraw, button }) {
    const source = new HostSource(scene), failed = (error) => {
      button.title = error.message;
      console.error(error);
    };
    this.rows = new HostRows({ stage, scene, source, changed: () => button.setAttribute("aria-pressed", String(this.rows.shown)), failed });
    this.panel = new HostPanel({ plot, hover, stage, lod, scene, card, rows: this.rows, source, redraw });
    this.flame = new Flame(scene.host?.kinds ?? []);
    hover.hostTip = (row, point) => this.panel.tip(row, point);
    button.hidden = !this.rows.tracks.length;
    button.addEventListener("click", () => this.rows.showAll());
  }
}
