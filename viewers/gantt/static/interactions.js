/** What one does on the page beyond moving through time: search, measure, select, link, ask for rows, light and dark. */

import { Card } from "./card.js";
import { element, swatch, table, typing } from "../../base/static/dom.js";
import { ExtraRows } from "./extra_rows.js";
import { SearchBar } from "./search_bar.js";
import { Link, stepNamed } from "./hash.js";
import { CollectiveKinds } from "./collective_kinds.js";
import { Measure } from "./measure.js";
import { CollectiveMembers } from "./collective_members.js";
import { SearchIndex } from "./search.js";
import { Selection } from "./select.js";
import { figures } from "./summary.js";
import { collectiveWord, duration, moment, percent } from "./text.js";

/** Stretches of communication up to which the page may take them apart by kind before anybody asks. */
const LIGHT = 200_000;

const $ = (selector) => document.querySelector(selector);

export class Interactions {
  /** Takes the parts of the page; `redraw` draws the picture and the minimap anew. */
  constructor({ plot, mini, hover, stage, lod, scene, columns, navigation, theme, thumbnailRows, summary, redraw }) {
    Object.assign(this, { plot, mini, hover, stage, lod, scene, navigation, theme, thumbnailRows, redraw, whole: plot.range });
    this.card = new Card($("#card"));
    this.members = new CollectiveMembers(lod, scene, columns);
    this.extraRows = new ExtraRows(stage, lod, scene, columns);
    const stretches = scene.lanes.reduce((sum, { role, count }) => sum + (role === "exposure" ? count : 0), 0);
    Object.assign(this, { summary, columns, light: stretches <= LIGHT });
    this.selection = new Selection({ plot, hover, stage, lod, scene, columns, members: this.members, card: this.card, redraw });
    const searchIndex = new SearchIndex(lod, scene, columns);
    this.searchBar = new SearchBar({ input: $("#find"), output: $("#found"), searchIndex, plot, navigation, stage, scene, lod, card: this.card, redraw });
    this.measure = new Measure(plot, hover, { onSpan: (span) => this.#measured(span), onModeChange: (yes) => press("#measure", yes) });
    this.link = new Link({ show: (asked) => this.#show(asked), pageState: () => this.#pageState() });
    this.#buttons();
    theme.follow((looks) => this.#dress(looks));
    addEventListener("keydown", (event) => this.#key(event));
    this.link.read();
  }

  #dress(looks) {
    for (const one of [this.plot, this.mini]) one.dress(looks.chrome);
    this.hover.dress(looks);
    this.measure.dress(looks);
    press("#theme", looks.name === "dark");
    this.redraw();
  }

  #buttons() {
    const on = (selector, act) => $(selector).addEventListener("click", act);
    on("#measure", () => (this.measure.mode = !this.measure.mode));
    on("#idle", () => this.showIdle());
    on("#streams", () => this.#streams());
    on("#theme", () => {
      this.theme.toggle();
      this.link.moved();
    });
    on("#help", () => $("#keys").showModal());
    on("#keys button", () => $("#keys").close());
  }

  /** Draw over the rows, and over the minimap's. */
  over(context, view) {
    this.searchBar.draw(context, view, this.theme.looks);
    this.selection.draw(context, view, this.theme.looks);
  }

  overMini(context, view) {
    this.searchBar.drawMini(context, view, this.thumbnailRows, this.theme.looks);
  }

  /** The plot was painted: what lies over it follows. */
  painted() {
    this.measure.place();
    this.link.moved();
  }

  /** Made when it is first asked for: the page is there sooner. */
  get kinds() {
    this.summary.kinds ??= new CollectiveKinds(this.lod, this.scene, this.columns);
    return this.summary.kinds;
  }

  /** The view has come to rest, or nearly. */
  moved() {
    if (this.light) this.summary.kinds = this.kinds;
    this.searchBar.report();
  }

  /** The row under the pointer, or the first, stays where it is. */
  showIdle(yes = !this.extraRows.idle) {
    const { stage } = this, { track, role } = this.hover.row ?? stage.visible[0] ?? {}, before = stage.boxOf(track, role);
    document.documentElement.classList.toggle("causes", yes);
    this.extraRows.showIdle(yes);
    const after = stage.boxOf(track, role);
    if (before && after) stage.scrollBy(after.y - before.y);
    press("#idle", yes);
  }

  /** Streams of the GPU under the pointer or of what is selected; of the only or the first one in the frame. */
  #streams() {
    const track = this.hover.row?.track ?? this.selection.chosen?.track ?? this.stage.blocks[0]?.track;
    if (track === undefined) return;
    this.extraRows.showStreams(track);
    press("#streams", this.extraRows.open.size > 0);
  }

  #key(event) {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || typing(event) || $("#keys").open) return;
    const actions = {
      "/": () => this.searchBar.open(),
      "?": () => $("#keys").showModal(),
      m: () => (this.measure.mode = !this.measure.mode),
      i: () => this.showIdle(),
      r: () => this.#streams(),
      escape: () => this.#escape(),
    };
    const action = actions[event.key.toLowerCase()];
    if (!action) return;
    event.preventDefault();
    action();
  }

  /** Take away what came last: a measured band, what is selected, a search. */
  #escape() {
    if (this.measure.span) this.measure.clear();
    else if (this.measure.mode) this.measure.mode = false;
    else if (this.selection.chosen) this.selection.clear();
    else if (this.searchBar.hits) this.searchBar.close();
    else this.card.hide();
  }

  #measured(span) {
    if (!span) return this.card.hide("measure");
    const { from, to } = span, { idle, exposed } = this.scene.special, sum = figures(this.lod, this.scene, from, to);
    const share = (ns) => (sum.wall ? percent(ns / sum.wall) : "–");
    const rows = this.scene.order.flatMap((category) => {
      const ns = sum.parts[category] ?? 0;
      return ns > 0 || category === idle ? [[named(category, this.scene.categories[category].label, category === exposed), duration(ns), share(ns)]] : [];
    });
    rows.push(Object.assign(["together", duration(sum.wall), share(sum.wall)], { className: "total" }));
    const kinds = this.kinds.figures(from, to).map(({ kind, ...time }) => [collectiveWord({ kind }) || "other", duration(time.exposed), duration(time.overlapped)]);
    const many = this.scene.tracks.length, note = element("p", "quiet", `From ${moment(from, to - from)} on${many > 1 ? `, all ${many} GPUs added up` : ""}; what lies outside the steps is not counted.`);
    const nodes = [note, table(["part", "time", "share"], rows), ...(kinds.length ? [table(["communication", "exposed", "overlapped"], kinds)] : [])];
    this.card.show("measure", duration(to - from), nodes, { close: () => this.measure.clear() });
  }

  /** Show what an address asks for; what is not there is left as it is. */
  #show({ t, step, rank, find, theme }) {
    if (theme) this.theme.mode = theme;
    const found = step && stepNamed(this.scene.strips, step);
    if (found) this.navigation.step(found.step, found.strip);
    if (t) this.navigation[found ? "within" : "show"](t.from, t.to);
    const track = this.scene.tracks.findIndex(({ label }) => new RegExp(`\\brank ${Number(rank)}\\b`).test(label));
    if (rank !== undefined && track >= 0) this.stage.reveal(track);
    this.rank = track >= 0 ? rank : undefined;
    if (find) this.searchBar.search(find);
  }

  #pageState() {
    const { from, to } = this.plot.range, whole = from === this.whole.from && to === this.whole.to;
    const { label } = this.selection.chosen ? this.scene.tracks[this.selection.chosen.track] : {};
    return {
      t: whole ? null : { from, to },
      step: this.navigation.stepShown(),
      rank: label ? /rank (\d+)/.exec(label)?.[1] : this.rank,
      find: this.searchBar.hits?.text,
      theme: this.theme.mode === "auto" ? null : this.theme.mode,
    };
  }
}

function press(selector, yes) {
  $(selector).setAttribute("aria-pressed", String(yes));
}

function named(category, label, hatched) {
  const node = element("span");
  node.append(swatch(category, hatched), label);
  return node;
}
