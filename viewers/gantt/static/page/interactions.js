/** User actions other than navigation: search, measure, select, link, rows on demand, light and dark theme. */

import { Bookmarks } from "./bookmarks.js";
import { Card } from "../interaction/card.js";
import { copyText, typing } from "../../../base/static/dom.js";
import { CriticalPathView } from "../critical_path/critical_path_view.js";
import { Cursor } from "../interaction/cursor.js";
import { ExtraRows } from "../stage/extra_rows.js";
import { SearchBar } from "../interaction/search_bar.js";
import { CollectiveMembers } from "../data/collectives.js";
import { MemoryRows } from "../memory/memory_rows.js";
import { Measure } from "../interaction/measure.js";
import { HostView } from "../host/host_panel.js";
import { rowRole } from "../data/rows.js";
import { SearchIndex } from "../data/search.js";
import { ServedSearch } from "../served/served_search.js";
import { Selection } from "../interaction/select.js";
import { RangePanel } from "./range_panel.js";
import { Steps } from "./steps.js";
import { ViewHistory } from "../interaction/view.js";

/** How long the button says that the link is copied, in ms. */
const COPIED_MS = 1600;
/** Buttons of the toolbar, and the key that does the same. */
const KEY_OF = { tables: "t", compare: "x", measure: "m", idle: "i", streams: "r", path: "k", save: "e", link: "l", marks: "b", help: "?" };

const $ = (selector) => document.querySelector(selector);

export class Interactions {
  /** Takes the parts of the page; `redraw` redraws the chart and the minimap. */
  constructor({ plot, mini, hover, stage, lod, scene, columns, navigation, theme, thumbnailRows, hidden, hide, order, heat, loaded, save, redraw }) {
    Object.assign(this, { plot, mini, hover, stage, lod, scene, navigation, theme, thumbnailRows, redraw, hidden, hide, order, heat, save, whole: plot.range });
    this.card = new Card($("#card"));
    this.members = new CollectiveMembers(lod, scene, columns);
    this.extraRows = new ExtraRows(stage, lod, scene, columns);
    this.host = new HostView({ plot, hover, stage, lod, scene, card: this.card, redraw, button: $("#host") });
    this.memory = new MemoryRows({ stage, scene });
    this.path = new CriticalPathView({ scene, lod, stage, plot, hover, card: this.card, navigation, redraw, button: $("#path") });
    this.selection = new Selection({ plot, hover, stage, lod, scene, columns, members: this.members, card: this.card, host: this.host.panel, path: this.path, redraw });
    this.cursor = new Cursor({ root: $("#figure"), says: $("#cursor"), plot, hover, stage, lod, navigation, selection: this.selection, host: this.host.panel, redraw });
    const searchIndex = scene.served ? new ServedSearch(lod) : new SearchIndex(lod, scene, columns);
    this.searchBar = new SearchBar({ input: $("#find"), output: $("#found"), searchIndex, plot, navigation, stage, scene, lod, card: this.card, host: this.host.panel, redraw });
    searchIndex.changed = () => {
      this.searchBar.report();
      redraw();
    };
    this.range = new RangePanel({ plot, stage, lod, scene, columns, card: this.card, search: searchIndex, button: $("#tables"), open: (index) => this.#open(index), closed: () => this.measure.clear(), redraw });
    this.steps = new Steps({ scene, card: this.card, button: $("#compare"), go: (text) => this.views.go(text) });
    this.measure = new Measure(plot, hover, { onSpan: (span) => this.range.measured(span), onModeChange: (yes) => press("#measure", yes) });
    for (const [id, key] of Object.entries(KEY_OF)) $(`#${id}`).addEventListener("click", () => this.#acts[key]());
    $("#link").hidden = Boolean(scene.embedded);
    $("#keys button").addEventListener("click", () => $("#keys").close());
    $("#theme").addEventListener("click", () => {
      theme.toggle();
      this.views.moved();
    });
    theme.follow((looks) => this.#dress(looks));
    addEventListener("keydown", (event) => this.#key(event));
    this.views = new ViewHistory(this);
    this.bookmarks = new Bookmarks({ root: $("#bookmarks"), opener: $("#marks"), views: this.views, loaded });
  }

  #dress(looks) {
    this.hover.dress(looks);
    this.host.flame.dress(looks);
    this.measure.dress(looks);
    press("#theme", looks.name === "dark");
    this.redraw();
  }

  /** Show a call that a list leads to, and its details. */
  async #open(index) {
    const { scene, lod, stage, searchBar } = this, { track, role } = scene.lanes[lod.laneAt(index)];
    stage.reveal(track, rowRole(role));
    searchBar.bring({ start: lod.start[index], duration: lod.duration[index] });
    await this.selection.choose(index, track);
  }

  /** Draw rows that the raster does not. */
  under(context, view) {
    this.host.flame.draw(context, view, this.stage.visible, 12 * this.stage.zoom);
    this.memory.draw(context, view, this.stage.visible, this.theme.looks);
  }

  /** Draw over the rows. */
  over(context, view) {
    this.path.draw(context, view, this.theme.looks);
    this.searchBar.draw(context, view, this.theme.looks);
    this.range.draw(context, view, this.theme.looks);
    this.selection.draw(context, view, this.theme.looks);
    this.host.panel.draw(context, view, this.theme.looks);
    this.cursor.draw(context, view, this.theme.looks);
  }

  /** Draw over the minimap's rows. */
  overMini(context, view) {
    this.searchBar.drawMini(context, view, this.thumbnailRows, this.theme.looks);
  }

  /** Called after the plot was painted: moves what lies over it. */
  painted() {
    this.measure.place();
    this.views?.moved();
  }

  /** Called when the view has moved, throttled. */
  moved() {
    this.searchBar.report();
    this.host.rows.moved(this.plot.range);
    if (!this.measure.span) this.range.moved();
  }

  /** Called when the server has answered: shows what waited for it. */
  answered() {
    if (this.range.waiting) this.range.update();
  }

  /** Show or hide the idle rows; the row under the pointer, or the first one, keeps its place on the screen. */
  showIdle(yes = !this.extraRows.idle) {
    const { stage } = this, { track, role } = this.hover.row ?? stage.visible[0] ?? {}, before = stage.boxOf(track, role);
    document.documentElement.classList.toggle("causes", yes);
    this.extraRows.showIdle(yes);
    const after = stage.boxOf(track, role);
    if (before && after) stage.scrollBy(after.y - before.y);
    press("#idle", yes);
  }

  /** Return the GPU under the pointer, else that of the keyboard, of the selection, or the first in the frame. */
  #pointedTrack() {
    return this.hover.row?.track ?? this.cursor.row?.track ?? this.selection.chosen?.track ?? this.stage.blocks[0]?.track;
  }

  /** Show or hide the streams of the GPU under the pointer, else of the selected one, else of the first in the frame. */
  async showStreams(track = this.#pointedTrack()) {
    if (track === undefined) return;
    const done = this.extraRows.showStreams(track);
    press("#streams", this.extraRows.open.size > 0);
    await done;
  }

  /** What each key does, with Shift or without. */
  #acts = {
    "/": () => this.searchBar.open(),
    "?": () => $("#keys").showModal(),
    t: () => this.range.toggle(),
    x: () => this.steps.toggle(),
    m: () => (this.measure.mode = !this.measure.mode),
    i: () => this.showIdle(),
    r: () => this.showStreams(),
    c: () => this.stage.blocks.length && this.host.rows.show(this.#pointedTrack()),
    k: (shift) => (shift ? this.path.open() : this.path.dim()),
    p: () => this.order.pin(this.#pointedTrack()),
    e: () => this.save(),
    l: () => this.scene.embedded || this.copyLink(),
    b: () => this.bookmarks.toggle(),
    escape: () => this.#escape(),
  };

  #key(event) {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || typing(event) || $("#keys").open) return;
    const act = this.#acts[event.key.toLowerCase()];
    if (!act) return;
    event.preventDefault();
    act(event.shiftKey);
  }

  /** Copy the address of what the page shows, and say so; where the browser does not copy, it shows the address. */
  async copyLink() {
    this.views.write();
    const { href } = location, opener = $("#link");
    if (!(await copyText(href))) return void prompt("The link to what the page shows:", href);
    opener.textContent = "Copied";
    clearTimeout(this.copied);
    this.copied = setTimeout(() => (opener.textContent = "Copy link"), COPIED_MS);
  }

  /** Close a measurement, else the selection, else the search, else the card. */
  #escape() {
    if (this.measure.span) this.measure.clear();
    else if (this.measure.mode) this.measure.mode = false;
    else if (this.selection.chosen) this.selection.clear();
    else if (this.searchBar.hits) this.searchBar.close();
    else this.card.hide();
  }
}

function press(selector, yes) {
  $(selector).setAttribute("aria-pressed", String(yes));
}
