/**
 * The search field: counts the hits, moves from hit to hit, and lists their time per GPU in the visible range; below them,
 * what hosts called, and findings.
 */

import { button, element, table } from "../../../base/static/dom.js";
import { frame } from "../drawing/canvas.js";
import { rowRole, trackWord } from "../data/rows.js";
import { duration, integer, visible } from "../data/text.js";

// Draws the hits of a search: everything else turns grey, each hit is underlined, and the current one is framed.

/** Height and minimum length of the underline in pixels. */
const LINE_HEIGHT = 3, MIN_LINE = 2;
const SEARCHED_ROLES = new Set(["compute", "exposure", "memory"]);

/** Draw the hits over rows { y, h, role, found }; the context is in CSS pixels. */
export function drawHits(context, { from, to, width }, rows, hits, current, { paper, mark }) {
  const view = { from, px: (to - from) / width, width: Math.ceil(width) };
  for (const row of rows) {
    const lane = hits.byLane.get(row.found);
    if (!SEARCHED_ROLES.has(row.role) && !lane) continue;
    const runs = lane?.touched(view) ?? [];
    // Grey of the same lightness: a faded bar or text could not be seen.
    context.globalCompositeOperation = "saturation";
    context.fillStyle = paper;
    let left = 0;
    for (const [begin, end] of [...runs, [view.width, view.width]]) {
      if (begin > left) context.fillRect(left, row.y, begin - left, row.h);
      left = end;
    }
    context.globalCompositeOperation = "source-over";
    context.fillStyle = mark;
    for (const [begin, end] of runs) context.fillRect(begin, row.y + row.h - LINE_HEIGHT, Math.max(end - begin, MIN_LINE), LINE_HEIGHT);
    if (!current || current.lane !== lane?.lane) continue;
    const x = Math.max(-4, (current.start - view.from) / view.px), right = Math.min(width + 4, (current.start + current.duration - view.from) / view.px);
    if (right >= 0 && x <= width) frame(context, { x: x - 1.5, y: row.y + 0.5, width: Math.max(right - x, 1) + 3, height: row.h - 1 }, mark, paper, 3);
  }
}

/** Mark the hits on the minimap's rows. */
function drawMiniHits(context, { from, to, width }, rows, hits, { mark }) {
  const view = { from, px: (to - from) / width, width: Math.ceil(width) };
  context.fillStyle = mark;
  for (const { track, y, h } of rows)
    for (const lane of hits.lanes)
      if (lane.track === track) for (const [begin, end] of lane.touched(view)) context.fillRect(begin, y + h / 2, Math.max(end - begin, MIN_LINE), h / 2);
}

/** Time after the last key press before the search starts, in ms: a search of ten million kernels is slow. */
const SEARCH_DELAY_MS = 90;
/** A hit narrower than this many pixels is zoomed to, until it fills this share of the view. */
const NARROWEST = 6, SHARE = 1 / 12;
/** Share of the view at either edge where a hit counts as out of sight. */
const EDGE_SHARE = 0.06;
const MAX_TRACKS = 16, MAX_CALLS = 8;

/** Add what was found on a track to the sums by name, with the place of the longest call of all. */
function addCalls(sums, track, found) {
  for (const { name, count, time, ...place } of found) {
    const sum = sums.get(name) ?? { count: 0, time: 0, longest: -1 };
    if (place.longest > sum.longest) Object.assign(sum, { track, ...place });
    sums.set(name, Object.assign(sum, { count: sum.count + count, time: sum.time + time }));
  }
}

export class SearchBar {
  #timer = 0;

  constructor({ input, output, searchIndex, plot, navigation, stage, scene, lod, card, host, redraw }) {
    Object.assign(this, { input, output, searchIndex, plot, navigation, stage, scene, lod, card, host, redraw, hits: null, current: null, listed: [], others: 0 });
    // A page of several runs or steps has neither calls of hosts nor findings.
    if (!scene.host) Object.assign(input, { placeholder: "Find a kernel or collective  ( / )", ariaLabel: "Find a kernel or collective" });
    input.addEventListener("input", () => {
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.search(input.value), SEARCH_DELAY_MS);
    });
    input.addEventListener("keydown", (event) => this.#key(event));
  }

  open() {
    this.input.focus();
    this.input.select();
  }

  /** Search for a text; an empty one ends the search. */
  search(text) {
    clearTimeout(this.#timer);
    if (this.input.value !== text) this.input.value = text;
    if ((this.hits?.text ?? "") === text) return;
    this.hits = this.searchIndex.find(text);
    Object.assign(this, { current: null, dismissed: false, listed: [], others: 0 });
    if (!this.hits) this.card.hide("find");
    else this.#list(this.hits);
    this.report();
    this.redraw();
  }

  /** List what else has the text: findings, then what hosts called; a server is asked for those on the screen, one by one. */
  async #list(hits) {
    const text = hits.text.trim().toLowerCase(), { scene } = this, opens = document.querySelectorAll("#findings button");
    const findings = (scene.findings ?? []).map((finding, number) => ({ ...finding, open: () => opens[number].click() })).filter(({ text: said, advice, place }) => place && `${said} ${advice}`.toLowerCase().includes(text));
    this.#offer([], "", findings);
    const shown = [...new Set(this.stage.visible.map(({ track }) => track))], tracks = scene.host?.served ? shown : [...scene.tracks.keys()], sums = new Map();
    if (text) for (const track of tracks) if (hits === this.hits) addCalls(sums, track, await this.host.source.named(track, text));
    const calls = [...sums].sort(([, a], [, b]) => b.time - a.time);
    if (hits === this.hits && calls.length) this.#offer(calls, tracks.length < scene.tracks.length ? "calls of the hosts in view" : "calls of hosts", findings);
  }

  /** List calls and findings. */
  #offer(calls, where, findings) {
    this.others = calls.reduce((sum, [, { count }]) => sum + count, findings.length);
    const rows = calls.slice(0, MAX_CALLS).map(([name, call]) => [button("link", visible(name), { onclick: () => this.#show(call) }), integer(call.count), duration(call.time)]);
    const found = rows.length ? [table([calls.length > MAX_CALLS ? `${MAX_CALLS} of ${calls.length} ${where}` : where, "count", "time"], rows)] : [];
    this.listed = [...found, ...findings.map(({ text: said, open }) => button("link", said, { onclick: open }))];
    // A view that is restored has a panel of its own.
    if (this.others) this.report(document.activeElement === this.input);
  }

  /** Show the longest call of a name. */
  async #show({ track, thread, flame, depth, start, longest }) {
    this.bring({ start, duration: longest });
    await this.host.restore(track, thread, flame, depth, start);
    this.stage.center(track);
  }

  close() {
    this.input.blur();
    this.search("");
  }

  #key(event) {
    if (event.key === "Escape") this.close();
    else if (event.key === "Enter") {
      this.search(this.input.value);
      this.go(event.shiftKey ? -1 : 1);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Go to the next hit, or with -1 to the previous one; start with the first hit in view. */
  async go(direction) {
    if (!this.hits?.count) return this.hits && this.card.body.querySelector(".link")?.click();
    const { from, to } = this.plot.range;
    const start = this.current ?? (direction > 0 ? { start: from, index: -1 } : { start: to, index: Infinity });
    const { hits } = this, hit = await hits.next(start, direction);
    if (!hit || hits !== this.hits) return;
    this.current = { ...hit, duration: this.lod.duration[hit.index] };
    this.stage.reveal(hit.track, rowRole(hit.role));
    this.bring(this.current);
    this.report(true);
    this.redraw();
  }

  /** Move or zoom the view until a hit is visible. */
  bring({ start, duration: ns }) {
    const { from, to } = this.plot.range, width = to - from, { width: pixels } = this.plot.frame();
    if ((ns / width) * pixels < NARROWEST) {
      const wide = ns / SHARE, middle = start + ns / 2;
      this.navigation.show(middle - wide / 2, middle + wide / 2);
    } else if (start + ns < from + EDGE_SHARE * width || start > to - EDGE_SHARE * width) {
      this.navigation.show(start + ns / 2 - width / 2, start + ns / 2 + width / 2);
    }
  }

  /** Show the number of hits; with `force`, or when no other card is open, also their time in the visible range. */
  report(force = false) {
    const { hits, current } = this;
    const none = this.scene.host ? "nothing found" : "no kernel found";
    this.output.textContent = !hits || hits.count === null ? "" : !hits.count ? (this.others ? `${integer(this.others)} found` : none) : current ? `${integer(hits.ordinal(current))} of ${integer(hits.count)}` : `${integer(hits.count)} found`;
    const absent = hits?.count === 0 && !this.others && !this.scene.host;
    if (!(hits?.count || this.others || absent) || this.dismissed || (!force && this.card.key !== null && this.card.key !== "find")) return;
    const { from, to } = this.plot.range, tracks = hits.perTrack(from, to);
    const rows = tracks.slice(0, MAX_TRACKS).map(({ track, count, time }) => [this.scene.tracks[track].label, integer(count), duration(time)]);
    const total = tracks.reduce((sum, { count, time }) => ({ count: sum.count + count, time: sum.time + time }), { count: 0, time: 0 });
    if (tracks.length > 1) rows.push(Object.assign([tracks.length > MAX_TRACKS ? `all ${tracks.length} ${trackWord(this.scene)}` : "total", integer(total.count), duration(total.time)], { className: "total" }));
    const note = element("p", "quiet", `In the visible ${duration(to - from)}. Enter: next hit; Shift+Enter: previous hit.`);
    this.card.show("find", `“${visible(hits.text)}”`, [...(hits.count ? [table(["rank", "in view", "time"], rows), note] : []), ...(absent ? [element("p", "", "Nothing found. Calls of hosts, annotations and findings are not on a page that compares.")] : []), ...this.listed], { close: () => (this.dismissed = true) });
  }

  draw(context, view, { chrome }) {
    if (this.hits) drawHits(context, view, this.stage.visible, this.hits, this.current, chrome);
  }

  drawMini(context, view, rows, { chrome }) {
    if (this.hits) drawMiniHits(context, view, rows, this.hits, chrome);
  }
}
