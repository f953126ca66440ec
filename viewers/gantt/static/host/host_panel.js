/** What the host did, on request: the panel of a call or an idle gap, and the arrows from launches to kernels. */

import { element, swatch, table } from "../../../base/static/dom.js";
import { drawArrows } from "../drawing/arrows.js";
import { laneAt } from "../stage/extra_rows.js";
import { collectiveName } from "../data/collective_labels.js";
import { endOf, gapAt } from "./gap.js";
import { CALLS } from "./host_calls.js";
import { callFacts, labelAt, launchFacts } from "./host_facts.js";
import { HostRows } from "./host_rows.js";
import { trackName } from "../data/rows.js";
import { duration, moment, percentOf, shortName, visible } from "../data/text.js";

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
const line = (text, className = "") => element("div", className, text);
const ROWS = { collectives: "exposure" };

export class HostPanel {
  constructor({ plot, hover, stage, lod, scene, columns, card, rows, source, redraw }) {
    Object.assign(this, { plot, hover, stage, lod, scene, columns, card, rows, source, redraw, chosen: null, launch: null });
    this.kinds = scene.host?.kinds ?? [];
    plot.events.addEventListener("click", () => this.#click());
  }

  /** Select what is under the pointer, if it is a call of the host or idle time. */
  async #click() {
    const { row, pointer } = this.hover, point = pointer && this.hover.time(pointer);
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
      line(`${duration(lod.duration[index])} · starts ${moment(lod.start[index], point.pixel * point.width)}`),
      line(`${this.kinds[calls.kind[index]].label} · thread ${visible(data.threads[thread])}`),
      ...(within && within !== calls.nameOf(index) ? [line(visible(`in ${within}`), "dim")] : []),
      ...note,
    ];
  }

  /** Select a call of a GPU's host: show its facts, and arrows to what it launched. */
  async choose(track, data, index) {
    const { calls, launches } = data, { lod } = calls, { thread, flame } = calls.levelOf(index), { from, to } = this.plot.range;
    const end = lod.start[index] + Math.max(lod.duration[index], 1);
    const all = flame === CALLS && launches ? launches.launchedIn(thread, lod.start[index], end, MAX_ARROWS + 1) : [];
    const places = all.filter(({ lane }) => !this.#isItself(lane));
    this.chosen = { track, calls, data, index, arrows: [] };
    const { chosen } = this, launched = await this.lod.hold(places);
    if (this.chosen !== chosen) return;
    chosen.arrows = launched.slice(0, MAX_ARROWS).map((kernel, i) => ({ kernel, ...launches.of(places[i]) }));
    const facts = callFacts(data, index, { range: to - from, kinds: this.kinds });
    const what = launched.length > MAX_ARROWS ? `more than ${MAX_ARROWS} intervals` : launched.map((kernel) => this.#nameOf(kernel)).join("\n") || "nothing";
    if (flame === CALLS) facts.push(["launched", launches ? what : "not on this page"]);
    this.card.show("host", visible(calls.nameOf(index)), [table(null, [["GPU", trackName(this.scene.tracks[track])], ...facts], "facts-table")], { close: () => this.clear() });
    this.redraw();
  }

  #nameOf(index) {
    const role = this.scene.lanes[laneAt(this.lod, index)].role, name = this.columns.name[index];
    return visible(role === "collectives" ? collectiveName(this.scene.collectives[name]) : shortName(this.scene.names[name]));
  }

  /** Select the idle gap of a GPU at a time: its causes, what the host did meanwhile, and what ended it. */
  async chooseGap(track, time) {
    const gap = await gapAt(this.lod, this.scene, track, time);
    if (!gap) return;
    this.chosen = { track, gap, arrows: [] };
    const data = this.rows.source.has(track) ? await this.rows.reveal(track) : null;
    const next = endOf(this.lod, this.scene, gap), launch = next < 0 ? null : data?.launches?.of(this.lod.placeOf(next));
    const around = data && (await this.source.callsAt(track, launch?.start ?? null));
    if (this.chosen?.gap !== gap) return;
    Object.assign(this.chosen, { data, arrows: isKnown(launch) && !this.#isItself(laneAt(this.lod, next)) ? [{ kernel: next, ...launch }] : [] });
    this.card.show("host", `Idle ${duration(gap.to - gap.from)} · ${this.scene.tracks[track].label}`, this.#gapNodes(gap, data, next, launch, around), { close: () => this.clear() });
    this.redraw();
  }

  #gapNodes(gap, data, next, launch, around) {
    const { from, to, causes } = gap, whole = to - from, share = (ns) => percentOf(ns, whole);
    const named = (category) => {
      const node = element("span"), look = this.scene.categories[category];
      node.append(swatch(category, look), look.label);
      return node;
    };
    const nodes = [table(["cause", "time", "share"], causes.map(({ category, ns }) => [named(category), duration(ns), share(ns)]))];
    if (!data) return [...nodes, element("p", "quiet", "What the host did on this GPU is not on this page; --serve, or --ranks, shows it.")];
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
    return [["ended by", this.#nameOf(next)], ...when, ...launchFacts(data, launch, to).filter(([key]) => ["operator", "called in"].includes(key))];
  }

  /** Whether the intervals of a lane are operators on a CPU, which nothing launched but they themselves. */
  #isItself(lane) {
    const { track, role } = this.scene.lanes[lane];
    return role === "compute" && this.scene.tracks[track].label.endsWith("CPU");
  }

  /** Add to the panel of an interval what launched it: returns facts, and draws the arrow. */
  async factsOf(track, index) {
    if (!this.source.has(track)) return [];
    const data = await this.rows.reveal(track), memory = this.scene.lanes[laneAt(this.lod, index)].role === "memory";
    if (!data?.calls) return [["launch", "not recorded"]];
    const launch = data.launches?.of(this.lod.placeOf(index)), itself = this.#isItself(laneAt(this.lod, index));
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
    if (chosen?.calls) this.#frame(context, this.rows.boxOf(chosen.track, chosen.calls, chosen.index), chosen.calls.lod, chosen.index, x, chrome);
    if (chosen?.gap) this.#shade(context, chosen.gap, x, chrome);
    const { track, data, arrows } = chosen ?? launch ?? { arrows: [] };
    drawArrows(context, arrows.flatMap((arrow) => this.#arrow(track, data.calls, arrow, x)), chrome);
  }

  #frame(context, box, lod, index, x, { mark, paper }) {
    if (!box) return;
    const left = Math.max(-8, x(lod.start[index])), right = Math.min(context.canvas.width + 8, x(lod.start[index] + lod.duration[index]));
    for (const [color, width] of [[paper, 5], [mark, 2.5]]) {
      Object.assign(context, { strokeStyle: color, lineWidth: width });
      context.strokeRect(left - 1, box.y, Math.max(right - left, 1) + 2, box.h - 1);
    }
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
    const role = this.scene.lanes[laneAt(this.lod, kernel)].role, box = this.stage.seenBox(track, ROWS[role] ?? role) ?? this.stage.seenBox(track, "phases");
    const call = start === null || thread === null || !calls ? -1 : calls.launchAt(thread, start);
    const host = start === null || thread === null ? null : this.rows.levelBox(track, thread, CALLS, call < 0 ? Infinity : calls.levelOf(call).depth);
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
