/**
 * The view: what the page shows, as settings by name. One table says how each is read from the page, shown, and spelled; the
 * address, the browser's history, bookmarks and saved pages all hold the text that writeView() writes. Addresses and files
 * come from strangers: a setting that is not spelled as its form says, or does not exist in this run, is ignored.
 */

import { typing } from "../../../base/static/dom.js";
import { chosenSteps } from "../data/compared.js";
import { rankNames, ranksOf, ranksText, stepNamed } from "../data/rows.js";

/** Maximum length of a setting, and of a whole view, in characters. */
const MAX_SETTING = 4000, MAX_VIEW = 20_000;
const TEXT = /^[^]{1,200}$/, YES = /^1$/, RANKS = /^(none|\d[\d.,-]*)$/;
const TIMES = /^(-?\d{1,16}(?:\.\d{1,9})?),(-?\d{1,16}(?:\.\d{1,9})?)$/;
/** Width of a view in ns below which its times have decimals. */
const FINE_NS = 1e4;
/** How long a view rests before it is written, in ms. */
const SETTLED_MS = 400;

const rankAt = ({ scene }, name) => rankNames(scene).indexOf(name);

/** What a panel shows, by the first word of its setting. */
const PANELS = {
  ...Object.fromEntries(["compute", "collectives", "memory"].map((role) => [role, (page, rank, position, start) => page.selection.restore(role, rankAt(page, rank), Number(position), Number(start))])),
  gap: (page, rank, time) => page.host.panel.chooseGap(rankAt(page, rank), Number(time)),
  host: (page, rank, ...call) => page.host.panel.restore(rankAt(page, rank), ...call.map(Number)),
  path: (page, piece) => page.path.choose(Number(piece)),
  range: (page, tab) => page.range.show({ tab: page.range.tabs[tab]?.value }),
};

/** Return a setting that lists the GPUs in a set; `toggle(page, track)` adds one to it or removes it. */
function rankSet(setOf, toggle) {
  return {
    form: RANKS,
    late: true,
    read: (page) => setOf(page).size && ranksText(page.scene, [...setOf(page)].sort((a, b) => a - b)),
    async show(page, value = "") {
      const wanted = new Set(ranksOf(page.scene, value));
      for (const track of page.scene.tracks.keys()) if (setOf(page).has(track) !== wanted.has(track)) await toggle(page, track);
    },
  };
}

/**
 * The settings in the order in which they are shown: the form of their text, how to read it (nothing at its default) and how
 * to show it. Those that are `late` wait for the rows; a change of one that `walks` is a new entry of the history.
 */
const SETTINGS = {
  t: {
    form: TIMES,
    walks: true,
    read({ plot, whole, findings }) {
      const { from, to } = plot.range, rounded = (time) => (to - from < FINE_NS ? Number(time.toFixed(2)) : Math.round(time));
      // Without times, a finding is shown where it is.
      return from === whole.from && to === whole.to && findings.open < 0 ? null : `${rounded(from)},${rounded(to)}`;
    },
    show({ scene, navigation }, value = "", { step, finding }) {
      const [, from, to] = TIMES.exec(value)?.map(Number) ?? [], target = step && stepNamed(scene.strips, step);
      if (target) navigation.step(target.step, target.strip);
      if (to > from) navigation[target ? "within" : "show"](from, to);
      else if (!target && !finding) navigation.all();
    },
  },
  compare: { form: /^\d{1,12}(,\d{1,12}){1,7}$/, walks: true, read: ({ scene }) => scene.compared?.keys.join() },
  step: { form: TEXT, walks: true, read: ({ navigation }) => navigation.stepShown() },
  rank: { form: /^\d{1,6}$/ },
  find: { form: TEXT, read: ({ searchBar }) => searchBar.hits?.text, show: ({ searchBar }, value = "") => searchBar.search(value) },
  // A view without a theme keeps that of the page.
  theme: { form: /^(light|dark)$/, read: ({ theme }) => theme.mode !== "auto" && theme.mode, show: ({ theme }, value) => value && (theme.mode = value) },
  order: { form: TEXT, read: ({ order }) => order.state.order, show: ({ order }, _, view) => order.show(view) },
  few: { form: YES, read: ({ order }) => order.state.few },
  pin: { form: /^\d{1,6}(\.\d{1,3})?(,\d{1,6}(\.\d{1,3})?){0,63}$/, read: ({ order }) => order.state.pin },
  open: {
    form: RANKS,
    read({ scene, stage: { collapsed, opened } }) {
      const open = [...scene.tracks.keys()].filter((track) => !collapsed[track]);
      return String(open) !== String(opened) && ranksText(scene, open);
    },
    show({ scene, stage }, value) {
      const open = value ? ranksOf(scene, value) : stage.opened, wanted = new Set(open);
      if (stage.collapsed.some((folded, track) => Boolean(folded) === wanted.has(track))) stage.collapseBut(open);
    },
  },
  idle: { form: YES, read: ({ extraRows }) => extraRows.idle && "1", show: (page, value) => page.extraRows.idle === Boolean(value) || page.showIdle(Boolean(value)) },
  off: { form: TEXT, read: ({ scene, hidden }) => scene.categories.filter((_, category) => hidden[category]).map(({ label }) => label).join(), show: ({ hide }, value = "") => hide(value.split(",")) },
  heat: { form: /^exposed$/, late: true, read: ({ heat }) => heat && heat.measure !== "time" && heat.measure, show: ({ heat }, value = "time") => heat && heat.measure !== value && heat.show(value) },
  host: { form: /^((off|fold|open|line):[\d.,-]{1,2000};?){1,4}$/, late: true, read: ({ host }) => host.rows.states, show: ({ host }, value) => host.rows.restore(value) },
  memory: rankSet(({ memory }) => memory.tall, ({ memory }, track) => memory.toggle(track)),
  streams: rankSet(({ extraRows }) => extraRows.open, (page, track) => page.showStreams(track)),
  path: { form: YES, late: true, read: ({ path }) => path.dimmed && "1", show: ({ path }, value) => path.dimmed === Boolean(value) || path.dim(Boolean(value)) },
  finding: { form: /^\d{1,3}$/, late: true, walks: true, read: ({ findings }) => findings.open >= 0 && String(findings.open + 1), show: ({ findings }, value = "0", { t }) => findings.restore(Number(value) - 1, !t) },
  panel: {
    form: new RegExp(`^(${Object.keys(PANELS).join("|")})(,-?\\d{1,16}(\\.\\d{1,9})?){1,6}$`),
    late: true,
    walks: true,
    read: ({ card }) => card.setting,
    show(page, value, { finding, t }) {
      const [kind, ...numbers] = value?.split(",") ?? [], { card } = page;
      if (card.setting === (value ?? "") || (!value && finding && !t)) return null;
      if (card.setting) card.hide();
      return value && PANELS[kind](page, ...numbers);
    },
  },
  measure: {
    form: TIMES,
    late: true,
    walks: true,
    read: ({ measure: { span } }) => span && `${span.from},${span.to}`,
    show({ measure }, value) {
      const [from, to] = value?.split(",").map(Number) ?? [];
      if (to > from) measure.show({ from, to });
      else measure.clear();
    },
  },
  row: { form: TEXT, late: true, walks: true, read: ({ range }) => range.open && range.row, show: ({ range }, value = null) => range.open && range.row !== value && range.show({ row: value }) },
  top: {
    form: /^\d{1,6}(\.\d{1,3})?,-?\d{1,6}$/,
    late: true,
    read({ scene, stage: { scroll, blocks } }) {
      const first = scroll > 0 && blocks.find(({ held }) => !held);
      return first && `${rankNames(scene)[first.track]},${scroll - first.top}`;
    },
    show(page, value = "", { rank, finding, t, panel = "" }) {
      const [name, beyond] = value.split(","), { stage } = page, at = stage.blockOf.get(rankAt(page, name));
      if (at) return stage.scrollTo(at.top + Number(beyond));
      if (finding && !t) return;
      stage.scrollTo(0);
      // In a lower window, what is shown can be out of sight.
      const track = rankAt(page, rank ?? /^(?!path|range)\w+,([\d.]+)/.exec(panel)?.[1]);
      if (track >= 0) stage.reveal(track);
    },
  },
};
const WALKING = Object.keys(SETTINGS).filter((key) => SETTINGS[key].walks);

/** Return the settings of a view's text, "#t=FROM,TO&step=4&find=gemm"; times are in ns since the first step. */
export function readView(text) {
  if (typeof text !== "string" || text.length > MAX_VIEW) return {};
  const given = new URLSearchParams(text.replace(/^#/, "")), known = Object.keys(SETTINGS).map((key) => [key, given.get(key) ?? ""]);
  return Object.fromEntries(known.filter(([key, value]) => value.length <= MAX_SETTING && SETTINGS[key].form.test(value)));
}

/** Write the text that readView() reads; "" where all settings have their defaults. */
export function writeView(view) {
  const parts = new URLSearchParams(Object.entries(view).map(([key, value]) => [key, value || ""])), valid = readView(String(parts));
  const text = Object.entries(valid).map(([key, value]) => `${key}=${encodeURIComponent(value).replace(/%(2C|3A|3B)/g, decodeURIComponent)}`).join("&");
  return text && `#${text}`;
}

/** Keeps the address, the browser's history and the page in step: an entry for each view that has settled. */
export class ViewHistory {
  /** The texts of the known entries; the number of the current one, and of the last; the text that is written or shown. */
  #entries = [];
  #at = history.state?.at ?? 0;
  #last = this.#at;
  #written = null;
  /** What each entry keeps besides its view. */
  #kept = {};
  /** Whether the browser's history has the entries, too: a frame in a notebook may not change it. */
  #mirrored = true;
  #timer = 0;
  /** Counts the views that were shown: a newer one ends one that still waits for its rows. */
  #turn = 0;
  #showing = true;
  #start = () => {};

  /** Takes the parts of the page, whose rows are complete when begin() is called. */
  constructor(page) {
    this.page = page;
    this.begun = new Promise((start) => (this.#start = start));
    this.shown = location.hash ? this.show(location.hash) : this.begun.then(() => this.#settle());
    for (const change of ["popstate", "hashchange"]) addEventListener(change, () => this.#navigated());
    addEventListener("keydown", (event) => this.#key(event));
  }

  /** Show what waits for the rows; resolves when the page shows its address. */
  begin() {
    this.#start();
    return this.shown;
  }

  /** The text of what the page shows. */
  get text() {
    return writeView(Object.fromEntries(Object.entries(SETTINGS).map(([key, { read }]) => [key, read?.(this.page)])));
  }

  /** Show the view of a text; as a new entry, if it `enters`. */
  async show(text, enters = false) {
    const turn = ++this.#turn, view = readView(text);
    this.#showing = true;
    // A page is made of all steps, or of some to compare: for others, it is loaded again.
    if (chosenSteps(this.page.scene, view.compare).join() !== (this.page.scene.compared?.keys ?? []).join()) return this.#reload(text);
    for (const [key, { late, show }] of Object.entries(SETTINGS)) {
      if (late) await this.begun;
      if (turn !== this.#turn) return;
      const done = show?.(this.page, view[key], view);
      if (late) await done;
    }
    if (turn === this.#turn) this.#settle(enters);
  }

  /** Load the page again with the view of a text, as a new entry if it is not that of the address. */
  #reload(text) {
    if (location.hash !== text) {
      this.#at = this.#last = this.#at + 1;
      this.#written = text;
      this.#put("pushState");
    }
    location.reload();
  }

  /** The page shows what its address says, as far as it can. */
  #settle(enters = false) {
    this.#showing = false;
    this.write(enters);
    this.keep({});
  }

  /** Go to the view of a text, as a new entry. */
  go(text) {
    this.write();
    return this.show(text, true);
  }

  /** Keep something with the current entry, and with those that follow: it outlasts a reload. */
  keep(kept) {
    Object.assign(this.#kept, kept);
    if (!this.#showing) this.#put("replaceState");
  }

  #put(how) {
    try {
      history[how]({ at: this.#at, ...this.#kept }, "", this.#written || location.pathname + location.search);
    } catch {
      this.#mirrored = false;
    }
  }

  /** Called when the page has changed: writes the address once it rests. */
  moved() {
    clearTimeout(this.#timer);
    if (!this.#showing) this.#timer = setTimeout(() => this.write(), SETTLED_MS);
  }

  /** Write the address now; a view at another place is a new entry, unless `walks` is false. */
  write(walks = true) {
    clearTimeout(this.#timer);
    const { text } = this, before = readView(this.#written), now = readView(text);
    if (this.#showing || text === this.#written) return;
    const enters = walks && this.#written !== null && WALKING.some((key) => before[key] !== now[key]);
    if (enters) this.#last = ++this.#at;
    this.#entries[this.#at] = this.#written = text;
    this.#put(enters ? "pushState" : "replaceState");
  }

  /** Walk to the view before, with -1, or to the one after. */
  walk(by) {
    this.write();
    const to = this.#at + by;
    if (to < 0 || to > this.#last) return;
    this.#at = to;
    if (this.#mirrored) history.go(by);
    else this.show((this.#written = this.#entries[to]));
  }

  /** Show the address, which is that of another entry or has been typed. */
  #navigated() {
    if (location.hash === this.#written) return;
    this.#at = history.state?.at ?? (this.#last = this.#at + 1);
    this.#last = Math.max(this.#last, this.#at);
    this.#written = location.hash;
    this.show(location.hash);
  }

  #key(event) {
    if (!(event.ctrlKey || event.metaKey) || event.altKey || event.key.toLowerCase() !== "z" || typing(event)) return;
    event.preventDefault();
    this.walk(event.shiftKey ? 1 : -1);
  }
}
