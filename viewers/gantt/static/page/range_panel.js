/** The panel of a range: its split, kernels, collectives and idle causes. A row shows its intervals; all can be copied. */

import { button, copyText, element, named, sortable } from "../../../base/static/dom.js";
import { classStart } from "../data/calls.js";
import { inRange, plus, splitSum } from "../data/range.js";
import { busyCategories, elapsed, laneOf, stepClock, trackWord, unknownIn, unknownWaits } from "../data/rows.js";
import { collectiveTitle, collectiveWord, duration, integer, isKnown, moment, percent, shortName, spanText, tickText, UNKNOWN, visible } from "../data/text.js";
import { drawHits } from "../interaction/search_bar.js";

const TABS = { split: "Split", kernels: "Kernels", collectives: "Collectives", idle: "Idle causes", calls: "List" };
/** Time after the last move of the view before the figures follow, in ms: those of a million kernels take a while. */
const REST_MS = 150;
/** Collectives that are listed at most. */
const MAX_ROWS = 200;
/** Bars of a histogram at most. */
const MAX_BARS = 40;
/** The columns of the list: what each is sorted by. */
const LIST = { name: "text", rank: "text", start: "at", duration: "ns" };
/** How a column shows and copies its values, and the unit of what is copied; null and undefined are unknown. */
const FORMS = {
  text: { show: String, copy: String, unit: "" },
  count: { show: integer, copy: String, unit: "" },
  at: { show: (ns) => moment(ns, 1e6), copy: (ns) => String(Number((ns / 1e6).toFixed(6))), unit: " (ms)" },
  ns: { show: duration, copy: (ns) => String(Number((ns / 1e6).toFixed(6))), unit: " (ms)" },
  share: { show: percent, copy: (share) => String(Number((100 * share).toFixed(3))), unit: " (%)" },
};

const sum = (values) => values.reduce(plus, 0);
/** Return one figure less another, or its share of a whole; null where one of them is unknown. */
const less = (one, other) => (isKnown(one) && isKnown(other) ? one - other : null);
const shareOf = (part, whole) => (isKnown(part) && isKnown(whole) ? (whole ? part / whole : 0) : null);
/** Compare two collectives [name, …, exposed, waiting, overlapped]: the most exposed first, as their first column of time says. */
const byExposed = (a, b) => b.at(-3) - a.at(-3) || b.at(-1) - a.at(-1);

/** Return a picture of how many intervals are how long, from the `least` to the `longest`. */
function histogram(classes, [least, longest]) {
  const first = classes[0][0], size = Math.ceil((classes.at(-1)[0] + 1 - first) / MAX_BARS), counts = Array(Math.ceil((classes.at(-1)[0] + 1 - first) / size)).fill(0);
  for (const [number, count] of classes) counts[Math.floor((number - first) / size)] += count;
  const edge = (bar) => duration(Math.min(longest, Math.max(least, classStart(first + bar * size)))), most = Math.max(...counts), bars = element("div", "histogram"), ends = element("div", "ends quiet");
  bars.append(...counts.map((count, i) => Object.assign(element("i"), { style: `height:${count && Math.max(3, (100 * count) / most)}%`, title: `${edge(i)} to ${edge(i + 1)}: ${integer(count)}` })));
  Object.assign(bars, { role: "img", ariaLabel: `Durations from ${edge(0)} to ${edge(counts.length)}; most often from ${edge(counts.indexOf(most))} to ${edge(counts.indexOf(most) + 1)}` });
  ends.append(element("span", "", edge(0)), element("span", "", "number of intervals by duration, logarithmic"), element("span", "", edge(counts.length)));
  return [bars, ends];
}

export class RangePanel {
  #timer = 0;
  /** Counts the lists that were asked for: an older one is dropped. */
  #turn = 0;

  /** `search` picks and lists intervals; `open` shows one of them, `closed` is called when the panel is gone. */
  constructor({ plot, stage, lod, scene, columns, card, search, button: opener, open, closed, redraw }) {
    Object.assign(this, { plot, stage, lod, scene, columns, card, search, openCall: open, closed, redraw, span: null, tab: "split", row: null, mark: null, hits: null });
    /** How each table is sorted, and the kernel that the list is of { kernel, chosen (its GPUs, or null) }, or null. */
    Object.assign(this, { sortings: { "calls 0": { column: 3, down: true } }, only: null });
    this.filter = Object.assign(element("input"), { type: "search", placeholder: "Name contains", ariaLabel: "List what has this in its name", maxLength: 200, autocomplete: "off", spellcheck: false });
    this.filter.oninput = () => {
      this.only = null;
      this.moved();
    };
    const bar = element("div", "tabs"), copy = button("chip", "Copy", { title: "Copy the tables, to paste them into a spreadsheet or a ticket" });
    copy.onclick = async () => (copy.textContent = (await copyText(this.text)) ? "Copied" : "Not copied");
    this.tabs = Object.entries(TABS).map(([tab, label]) => button("chip", label, { value: tab, onclick: () => this.show({ tab }) }));
    bar.append(...this.tabs, copy);
    Object.assign(this, { opener, copy, root: element("div", "range"), content: element("div") });
    this.root.append(bar, this.filter, this.content);
  }

  get open() {
    return this.card.key === "range";
  }

  toggle() {
    if (this.open) this.card.hide();
    else this.show();
  }

  /** Show a tab, with one of its rows selected. */
  show({ tab = this.tab, row = null } = {}) {
    Object.assign(this, { tab: tab in TABS ? tab : "split", row, byMeasure: this.open && this.byMeasure });
    this.card.show("range", "", [this.root], { close: () => this.#close(), setting: `range,${Object.keys(TABS).indexOf(this.tab)}` });
    this.update();
  }

  /** Show a measured range; with null, what is on the screen again, or nothing if the measurement opened the panel. */
  measured(span) {
    this.span = span;
    if (span && !this.open) {
      this.show();
      this.byMeasure = true;
    } else if (!span && this.byMeasure) this.card.hide("range");
    else this.moved();
  }

  #close() {
    Object.assign(this, { row: null, span: null });
    this.opener.setAttribute("aria-pressed", "false");
    this.#select(null);
    this.closed();
  }

  /** Follow the view, or the measured range, once it rests. */
  moved() {
    clearTimeout(this.#timer);
    if (this.open) this.#timer = setTimeout(() => this.update(), REST_MS);
  }

  /** Show the figures of the range; those of a served page follow when they have arrived. */
  update() {
    if (!this.open) return;
    const shown = this.span ?? this.plot.range, range = { from: Math.max(0, shown.from), to: Math.min(this.scene.end, shown.to) }, { from, to } = range;
    this.opener.setAttribute("aria-pressed", "true");
    for (const one of this.tabs) one.setAttribute("aria-pressed", String(one.value === this.tab));
    this.filter.hidden = this.tab !== "calls";
    this.#turn++;
    if (this.tab === "calls" && to > from) return void this.#list(range, this.#turn).catch((error) => this.#unanswered(error));
    const tables = to > from ? this.#tables(range) : [];
    this.waiting = !tables;
    if (!tables) return void this.#wait();
    this.#fill(range, tables);
    this.#select(this.row);
  }

  /** Say that figures are asked for, and that those below are of another range. */
  #wait() {
    if (this.shownOf) this.card.title.textContent = `Asking the server …; below is ${this.shownOf}`;
    else this.card.title.textContent = "Asking the server …";
  }

  /** A list that a server did not send is asked for again when it answers; a page in one file has no server. */
  #unanswered(error) {
    if (!this.lod.failed) throw error;
    this.waiting = true;
    this.lod.failed(error);
  }

  /** Show no figures of another range where the server does not answer. */
  failed() {
    if (!this.open || !this.waiting) return;
    this.shownOf = "";
    this.card.title.textContent = "The server does not answer";
    this.content.replaceChildren(element("p", "", "The figures of this range are unknown. Move the chart to ask again."));
  }

  /** List the intervals of the range that have the text in their name, or that are of one kernel; and how long all are. */
  async #list(range, turn) {
    const { scene, lod, only } = this, { column, down } = this.sortings["calls 0"], text = only ? "" : this.filter.value.trim();
    const { total, classes, extremes, places } = await this.search.calls({ ...range, ...only, text, by: Object.keys(LIST)[column], down }), indices = await lod.hold(places);
    if (turn !== this.#turn || !this.open) return;
    this.reasons = {};
    const rows = indices.map((index) => {
      const { track, role } = scene.lanes[lod.laneAt(index)], number = this.columns.name[index], full = role === "collectives" ? collectiveTitle(scene.collectives[number]) : scene.names[number];
      return { values: [visible(shortName(full)), scene.tracks[track].label, lod.start[index], lod.duration[index]], title: visible(full), links: { 0: () => this.openCall(index) } };
    });
    const intervals = `${integer(total)} interval${total === 1 ? "" : "s"}`, count = rows.length === total ? `${intervals}.` : rows.length ? `The first ${rows.length} of ${intervals} in this order.` : `${intervals} are too many to list: zoom in.`;
    this.#fill(range, [{ columns: Object.entries(LIST), rows, resort: () => this.update() }], [...(classes.length ? histogram(classes, extremes) : []), element("p", "quiet", count)]);
    this.#select(null);
  }

  /** List the calls of one kernel, on all GPUs or `chosen` ones. */
  #callsOf(kernel, chosen) {
    this.only = chosen ? { kernel, chosen } : { kernel };
    this.filter.value = visible(shortName(this.scene.names[kernel])).slice(0, 200);
    this.show({ tab: "calls" });
  }

  /** Show the longest call of a kernel in the range. */
  async #longest(kernel, { from, to }, chosen) {
    const { places: [place] } = await this.search.calls({ from, to, kernel, ...(chosen && { chosen }), by: "duration", down: true });
    if (place) this.openCall((await this.lod.hold([place]))[0]);
  }

  #fill({ from, to }, tables, above = []) {
    const { scene } = this, many = this.#whose(), clock = stepClock(scene), begin = tickText(from, to - from, clock), span = spanText(from, to, clock);
    const notes = [`From ${begin}${many}; time outside the steps is not counted.`];
    if (this.tab === "calls") notes.splice(0, 1, "Kernels, collectives and copies in this range; their starts are on the axis.");
    if (this.tab === "kernels") notes.push("Kernels that run at once count each.");
    for (const [label, reason] of Object.entries(this.reasons)) notes.push(`${label}: ${UNKNOWN}, because ${reason}.`);
    if (scene.merged) notes.push(`This page merges intervals up to ${duration(scene.merged)}: kernels of that length are one row, and figures are exact to it. A page with --serve has each.`);
    Object.assign(this, { tables, text: [`${document.querySelector("h1")?.textContent ?? ""}: ${span}`, ...tables.map(copied)].join("\n\n") });
    this.shownOf = span;
    this.card.title.textContent = `${this.span ? "Selected" : "In view"}: ${duration(elapsed(scene, from, to))}`;
    this.copy.textContent = "Copy";
    const shown = tables.filter(({ rows }) => rows.length).map((one, place) => this.#shown(one, place));
    this.content.replaceChildren(element("p", "quiet", notes.join(" ")), ...above, ...(shown.length ? shown : [element("p", "", "Nothing in this range.")]));
  }

  /** Say what sums are over: all GPUs, or those of each run or step that the page compares. */
  #whose() {
    const { groups, tracks } = this.scene, sizes = groups?.map((group) => group.tracks.length) ?? [tracks.length], [count] = sizes;
    const gpus = sizes.some((size) => size !== count) ? `all ${trackWord(this.scene)}` : count > 1 ? `all ${count} ${trackWord(this.scene)}` : "";
    return groups ? `; ${gpus && `sum over ${gpus} of `}each ${this.#unit()}${gpus ? "" : " on its own"}` : gpus && `; sum over ${gpus}`;
  }

  /** Return what the page compares: steps of a run have no letter. */
  #unit() {
    return this.scene.groups.some(({ label }) => label.includes(" · ")) ? "run" : "step";
  }

  /** Return the runs or steps that are compared: { name, tracks }; a page of one run has one, of all GPUs, without a name. */
  #groups() {
    const { groups = [{ label: "", tracks: null }] } = this.scene;
    return groups.map(({ label, tracks }) => ({ name: label.split(" · ")[0], tracks }));
  }

  /** Add the column of runs or steps, where several are compared, after the first one. */
  #table(columns, rows) {
    const several = Boolean(this.scene.groups), insert = (values, value) => values.toSpliced(1, 0, value);
    const moved = (links = {}) => Object.fromEntries(Object.entries(links).map(([i, act]) => [Number(i) + 1, act]));
    return several ? { columns: insert(columns, [this.#unit(), "text"]), rows: rows.map((row) => ({ ...row, values: insert(row.values, row.group), links: moved(row.links) })) } : { columns, rows };
  }

  #shown({ columns, rows, resort }, place) {
    const kept = columns.map(([, , copyOnly], i) => (copyOnly ? -1 : i)).filter((i) => i >= 0);
    const text = (value, i) => (value === "" ? "" : isKnown(value) ? FORMS[columns[i][1]].show(value) : UNKNOWN);
    const body = rows.map((row) => {
      const { values, category, mark, links = {}, title = values[0], className = "" } = row;
      const cells = kept.map((i) => text(values[i], i)), id = idOf(place, row);
      if (category !== undefined) cells[0] = named(category, { ...this.scene.categories[category], label: values[0] });
      if (mark) {
        const [content] = cells;
        cells[0] = button("link", "", { title, value: id, onclick: () => this.#select(this.row === id ? null : id, true) });
        cells[0].append(content);
      }
      for (const [i, onclick] of Object.entries(links)) cells[i] = button("link", cells[i], { title, onclick });
      return { cells, className, values: kept.map((i) => values[i]), last: className !== "" };
    });
    return sortable(kept.map((i) => columns[i][0]), body, (this.sortings[`${this.tab} ${place}`] ??= {}), resort);
  }

  /** Select a row by its place, or none: its intervals are highlighted; those of a GPU are brought on the screen if it is `new`. */
  #select(id, isNew = false) {
    this.row = id;
    const all = id === null ? [] : this.tables.filter(({ rows }) => rows.length).flatMap(({ rows }, place) => rows.map((row) => ({ ...row, id: idOf(place, row) })));
    const mark = all.find((row) => row.id === id)?.mark ?? null, key = JSON.stringify(mark);
    for (const one of this.content.querySelectorAll(".link")) one.setAttribute("aria-pressed", String(one.value === id));
    if (key === JSON.stringify(this.mark)) return;
    this.mark = mark;
    this.hits = mark?.roles ? this.search.pick(mark) : null;
    this.stage.marked = mark?.track ?? -1;
    if (isNew && mark?.track !== undefined) this.stage.center(mark.track);
    this.redraw();
  }

  /** Highlight the selected row's intervals; those that have no row of their own, in that of the phases. */
  draw(context, view, { chrome }) {
    if (!this.hits) return;
    const { scene, stage } = this, [role] = this.mark.roles;
    const rows = stage.visible.map((row) => {
      const lane = laneOf(scene, row.track, role), own = row.lane === lane || (row.role === "phases" && (role === "idle" || stage.collapsed[row.track]));
      return own ? { ...row, found: lane } : row;
    });
    drawHits(context, view, rows, this.hits, null, chrome);
  }

  /** Return the tables of the tab [{ columns, rows: [{ values, mark, … }] }], or null until the server has answered. */
  #tables(range) {
    this.reasons = {};
    const { lod, scene, columns } = this, { from, to } = range, ask = (what, chosen) => inRange(lod, scene, columns, what, from, to, chosen);
    if (this.tab === "split" || this.tab === "idle") {
      const found = ask("split");
      return found ? (this.tab === "idle" ? this.#idle(found, range) : this.#split(found, range)) : null;
    }
    const parts = this.#groups().map(({ name, tracks }) => ({ name, tracks, found: ask(this.tab, tracks) }));
    if (!parts[0].found) return null;
    return this.tab === "kernels" ? this.#kernels(parts, range) : this.#collectives(parts, range);
  }

  /** Sum the splits of some GPUs, and note why figures are unknown. */
  #sumOf(splits, tracks, { from, to }) {
    const { scene } = this, found = splitSum(scene, tracks, tracks.map((track) => splits[track]), from, to);
    for (const [category, reason] of Object.entries(found.why)) this.reasons[scene.categories[category].label] = reason;
    return found;
  }

  #split(splits, range) {
    const { scene } = this, { idle, causes, waiting } = scene.special, busy = busyCategories(scene), waits = busy.includes(waiting);
    const all = [...scene.tracks.keys()], groups = scene.groups ?? [{ label: "time", tracks: all }];
    const sums = groups.map(({ tracks }) => this.#sumOf(splits, tracks, range)), one = sums.length === 1;
    const mark = (category) => ({ roles: [category === idle ? "idle" : "phases"], field: "category", keys: category === idle ? causes : [category] });
    // Exposed is all of it, as below: transfer, and waiting where that is known.
    const known = sums.every(({ parts: ns }) => isKnown(ns[waiting])) && !unknownWaits(scene, range.from, range.to);
    const labelOf = (category) => (known && category === scene.special.exposed ? "Exposed transfer" : scene.categories[category].label);
    const part = (label, get, more) => ({ values: [label, ...sums.map(get), ...(one ? [shareOf(get(sums[0]), sums[0].wall)] : [])], ...more });
    const parts = scene.order.filter((category) => category === idle || (busy.includes(category) && sums.some((found) => found.parts[category] !== 0)));
    const rows = parts.map((category) => part(labelOf(category), ({ parts: ns }) => ns[category], { category, mark: mark(category) }));
    const ranks = all.map((track) => this.#rank(scene.tracks[track].label, this.#sumOf(splits, [track], range), { track }));
    const copies = [...busy.map(labelOf), "total"].map((label) => [label, "ns", true]);
    return [
      { columns: [["part", "text"], ...groups.map(({ label }) => [label.split(" · ")[0], "ns"]), ...(one ? [["share", "share"]] : [])], rows: [...rows, part("total", ({ wall }) => wall, { className: "total" })] },
      { columns: [["rank", "text"], ...["compute", "exposed comm.", ...(waits ? ["of it waiting"] : []), "overlapped", "idle"].map((label) => [label, "ns"]), ...copies], rows: one && all.length > 1 ? [...ranks, { ...this.#rank("all", sums[0]), className: "total" }] : ranks },
    ];
  }

  #rank(label, { wall, parts, overlapped }, mark) {
    const { exposed, waiting, idle, memory } = this.scene.special, busy = busyCategories(this.scene), hidden = plus(parts[exposed], parts[waiting] ?? 0);
    return { values: [label, [parts[idle], hidden, parts[memory]].reduce(less, wall), hidden, ...(busy.includes(waiting) ? [parts[waiting]] : []), overlapped, parts[idle], ...busy.map((category) => parts[category]), wall], mark };
  }

  /** `parts` are the kernels of each group { name, tracks, found }. */
  #kernels(parts, range) {
    const columns = [["kernel", "text"], ["count", "count"], ["time", "ns"], ["share", "share"], ["mean", "ns"], ["max", "ns"], ["full name", "text", true]];
    return [this.#table(columns, parts.flatMap((part) => this.#kernelRows(part, range)))];
  }

  #kernelRows({ name: group, tracks, found: { rows, others, total } }, range) {
    const name = (id) => visible(this.scene.names[id]), rest = (place) => less(total[place], sum(rows.map((row) => row[place + 1])));
    const row = (label, count, ns, more) => ({ group, values: [label, count, ns, shareOf(ns, total[1]), count ? ns / count : null, more.max ?? "", more.full ?? ""], ...more });
    const links = (id) => (this.scene.merged ? {} : { 1: () => this.#callsOf(id, tracks), 5: () => this.#longest(id, range, tracks) });
    const mark = (id) => ({ roles: ["compute", "memory"], field: "name", keys: [id], ...(tracks && { chosen: tracks }) });
    const listed = rows.map(([id, count, ns, max]) => row(visible(shortName(this.scene.names[id])), count, ns, { max, full: name(id), title: name(id), links: links(id), mark: mark(id) }));
    if (others) listed.push(row(`${integer(others)} more`, rest(0), rest(1), { className: "rest" }));
    if (listed.length) listed.push(row("total", ...total, { className: "total" }));
    return listed;
  }

  /** Return why waits of a range are unknown, and note it; "" where all are known. */
  #unknownWaits({ from, to }) {
    const { scene } = this, { waiting } = scene.special;
    const found = [unknownWaits(scene, from, to), ...scene.tracks.map((track) => unknownIn(track, from, to)[waiting])].find(Boolean) ?? "";
    if (found) this.reasons[scene.categories[waiting].label] = found;
    return found;
  }

  /** `parts` are the collectives of each group { name, tracks, found }. */
  #collectives(parts, range) {
    const unknown = this.#unknownWaits(range), times = ["exposed comm.", "of it waiting", "overlapped"].map((label) => [label, "ns"]);
    const rows = parts.map((part) => this.#collectiveRows(part, unknown));
    return [
      this.#table([["kind", "text"], ...times], rows.flatMap(({ kinds }) => kinds)),
      this.#table([["collective", "text"], ["calls", "count"], ...times], rows.flatMap(({ listed }) => listed)),
    ];
  }

  #collectiveRows({ name: group, tracks, found: { rows, kinds } }, unknown) {
    const { scene } = this, entries = new Map();
    const time = (exposed, waiting, overlapped) => [exposed, exposed && unknown && !waiting ? null : waiting, overlapped];
    const mark = (keys) => ({ roles: ["collectives"], field: "name", keys, ...(tracks && { chosen: tracks }) });
    for (const [id, ...figures] of rows) {
      const label = collectiveTitle(scene.collectives[id]);
      const { ids, sums } = entries.get(label) ?? { ids: [], sums: [0, 0, 0, 0] };
      entries.set(label, { ids: [...ids, id], sums: sums.map((value, i) => plus(value, figures[i])) });
    }
    const ofKind = (kind) => rows.map(([id]) => id).filter((id) => (scene.collectives[id].kind || "other") === kind);
    const listed = [...entries].sort(([, a], [, b]) => byExposed(a.sums, b.sums)).slice(0, MAX_ROWS);
    return {
      kinds: kinds.sort(byExposed).map(([kind, ...ns]) => ({ group, values: [visible(collectiveWord({ kind }) || "other"), ...time(...ns)], mark: mark(ofKind(kind)) })),
      listed: listed.map(([label, { ids, sums: [calls, ...ns] }]) => ({ group, values: [label, calls, ...time(...ns)], mark: mark(ids) })),
    };
  }

  #idle(splits, range) {
    const { scene } = this, { idle, causes } = scene.special, all = [...scene.tracks.keys()], several = Boolean(scene.groups);
    const groups = this.#groups().map(({ name, tracks }) => ({ name, sum: this.#sumOf(splits, tracks ?? all, range) }));
    const mark = (category) => ({ roles: ["idle"], field: "category", keys: [category] }), label = (category) => scene.categories[category].label;
    const most = (category) => Math.max(...groups.map(({ sum: { parts } }) => parts[category] ?? 0));
    const found = causes.filter((category) => groups.some(({ sum: { parts } }) => parts[category] !== 0)).sort((a, b) => most(b) - most(a));
    const figures = (category) => groups.flatMap(({ sum: { wall, parts } }) => [parts[category], shareOf(parts[category], wall)]);
    const rows = found.map((category) => ({ values: [label(category), ...figures(category)], category, mark: mark(category) }));
    const columns = groups.flatMap(({ name }) => [[several ? name : "time", "ns"], ["share", "share"]]);
    const ranks = all.map((track) => ({ track, ...this.#sumOf(splits, [track], range) }));
    return [
      { columns: [["cause", "text"], ...columns], rows: [...rows, { values: ["total", ...figures(idle)], className: "total" }] },
      { columns: [["rank", "text"], ["idle", "ns"], ["share", "share"], ...found.map((category) => [label(category), "ns", true])], rows: ranks.map(({ track, wall: own, parts: ns }) => ({ values: [scene.tracks[track].label, ns[idle], shareOf(ns[idle], own), ...found.map((category) => ns[category])], mark: { track } })) },
    ];
  }
}

/** Return the identifier of a row in the table at a place. */
function idOf(place, { values, group }) {
  return [place, ...(group ? [group] : []), values[0]].join(":");
}

/** Return a table as lines of values between tabs, which spreadsheets and tickets take; times are in ms, unknown ones say so. */
function copied({ columns, rows }) {
  const lines = rows.map(({ values }) => values.map((value, i) => (value === "" ? "" : !isKnown(value) ? UNKNOWN : FORMS[columns[i][1]].copy(value))));
  return [columns.map(([label, form]) => label + FORMS[form].unit), ...lines].map((cells) => cells.join("\t")).join("\n");
}
