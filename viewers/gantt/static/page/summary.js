/** The bar and the figures above the chart: exact sums over the visible time inside the steps. */

import { button, element } from "../../../base/static/dom.js";
import { FONT_FAMILY } from "../../../base/static/theme.js";
import { plus, splitSum, trackSplit } from "../data/range.js";
import { busyCategories, elapsed, stepClock, stepEnd, unknownWaits } from "../data/rows.js";
import { duration, isKnown, percent, percentOf, spanText } from "../data/text.js";
import { widthsIn } from "../drawing/canvas.js";

// The legend: a button per category that hides or shows it.

/**
 * Fill `root` with the buttons of all categories but the idle causes, and `causes` with those; `hidden` by category,
 * `redraw` is called after a change. Returns a function that hides the categories with some labels, and shows the others.
 */
export function categoryButtons(root, causes, scene, hidden, redraw) {
  const chips = new Map();
  for (const category of scene.order) {
    if (!scene.used.includes(category)) continue;
    const { label, pattern = "" } = scene.categories[category], cause = scene.special.causes?.indexOf(category) ?? -1;
    const chip = button(cause >= 0 ? "chip cause" : "chip", "", { title: "click to hide or show" }), color = element("i", pattern);
    const press = () => chip.setAttribute("aria-pressed", String(!hidden[category]));
    color.style.backgroundColor = `var(--c${category})`;
    chip.append(color, category === scene.special.memory ? "Memory" : label);
    chip.onclick = () => {
      hidden[category] ^= 1;
      press();
      redraw();
    };
    chips.set(category, chip);
    press();
    // The idle causes have a row of their own; their buttons are shown and hidden with it.
    (cause >= 0 ? causes : root).append(chip);
  }
  return (labels) => {
    for (const [category, chip] of chips) if (Boolean(hidden[category]) !== labels.includes(scene.categories[category].label)) chip.click();
  };
}

/** Share of the steps from which a figure of communication is drawn in the color of alarm. */
const ALARMING = 0.03;
/** What a segment keeps free beside its text, in pixels. */
const MARGIN = 14;

/**
 * Sum the time of [from, to] inside the steps over all tracks or the `chosen` ones, in ns: { wall, parts (by category;
 * idle is the rest), overlapped, steps (their number in view), step (the mean of them and of the tracks) }. In full view
 * these are the split's totals, and the mean step is that of dptrace analyze.
 * Those of a served page are null until they have arrived.
 */
export function figures(lod, scene, from, to, chosen = null) {
  const served = lod.sums?.(from, to);
  if (lod.sums && !served) return null;
  const tracks = [...scene.tracks.keys()].filter((track) => !chosen || chosen.includes(track));
  const splits = served ? [served] : tracks.map((track) => trackSplit(lod, scene, track, from, to));
  const steps = tracks.map((track) => stepsIn(scene.tracks[track], from, to)), lengths = steps.flat();
  const step = lengths.reduce((sum, length) => sum + length, 0) / Math.max(1, lengths.length);
  return { ...splitSum(scene, tracks, splits, from, to), steps: Math.max(0, ...steps.map(({ length }) => length)), step };
}

/** Return the durations of a track's steps that touch a range. */
function stepsIn(track, from, to) {
  const found = [];
  for (let step = 0; step + 1 < track.bounds.length; step++) if (stepEnd(track, step) > from && track.bounds[step] < to) found.push(stepEnd(track, step) - track.bounds[step]);
  return found;
}

export class Summary {
  /** `hidden` by category: the bar dims categories that the chart hides, but counts them. */
  constructor(root, lod, scene, hidden = []) {
    Object.assign(this, { root, lod, scene, hidden, waits: false });
  }

  /** Show one line for all tracks, or one for each run of a comparison. */
  update(from, to) {
    const { groups = [{ label: null, tracks: null }], special: { waiting } } = this.scene;
    const sums = groups.map(({ tracks }) => figures(this.lod, this.scene, from, to, tracks));
    // The figures of a served page follow; those shown stay until then.
    if (sums.includes(null)) return;
    // Both runs of a comparison have the same columns.
    this.waits = sums.some(({ parts }) => parts[waiting]);
    this.root.replaceChildren(...groups.flatMap((group, i) => this.#line(group, sums[i], this.scene.strips[i]?.names.length, from, to)));
    this.#fit();
    this.dim();
  }

  /** Dim the segments of hidden categories. */
  dim() {
    for (const segment of this.root.querySelectorAll(".segment")) segment.classList.toggle("off", Boolean(this.hidden[segment.dataset.category]));
  }

  #line({ label, tracks }, sum, steps, from, to) {
    const whole = from <= 0 && to >= this.scene.end;
    const begin = Math.max(from, 0), width = Math.min(to, this.scene.end) - begin;
    const head = element("div", "window");
    const span = whole ? duration(elapsed(this.scene, begin, begin + width)) : spanText(begin, begin + width, stepClock(this.scene));
    const name = label ?? (whole ? "All steps" : "In this window");
    head.append(element("b", "", name), element("span", "", label && whole ? (steps > 1 ? `${steps} steps` : "the whole step") : span));
    return [head, this.#bar(sum), this.#indicators(sum, unknownWaits(this.scene, from, to, tracks ?? undefined))];
  }

  /** Set each segment's text to the longest one that fits; all are measured first, since each change costs a layout. */
  #fit() {
    const segments = [...this.root.querySelectorAll(".segment")], rooms = segments.map(({ clientWidth }) => clientWidth - MARGIN);
    const widthOf = segments.length ? widthsIn(`${getComputedStyle(segments[0]).fontSize} ${FONT_FAMILY}`) : null;
    segments.forEach((segment, i) => segment.append(element("span", "", JSON.parse(segment.dataset.texts).find((text) => !text || widthOf(text) <= rooms[i]))));
  }

  #bar(sum) {
    const bar = element("div", "bar"), drawn = busyCategories(this.scene);
    for (const category of this.scene.order) {
      if (category !== this.scene.special.idle && !drawn.includes(category)) continue;
      const share = sum.wall ? (sum.parts[category] ?? 0) / sum.wall : 0;
      if (share < 0.0005) continue;
      const { label, short, pattern } = this.scene.categories[category];
      const segment = element("div", pattern ? `segment ${pattern}` : "segment");
      Object.assign(segment.style, { flexGrow: share, backgroundColor: `var(--c${category})`, color: `var(--i${category})` });
      segment.dataset.category = category;
      segment.dataset.ns = sum.parts[category];
      segment.title = `${label}: ${percent(share)}, ${duration(sum.parts[category])}`;
      segment.dataset.texts = JSON.stringify([`${short} ${percent(share)}`, percent(share), ""]);
      bar.append(segment);
    }
    return bar;
  }

  #indicators(sum, unknown) {
    const { exposed, waiting, idle } = this.scene.special;
    const waited = sum.parts[waiting] ?? 0, whole = plus(sum.parts[exposed], waited), communication = plus(sum.overlapped, whole);
    const why = sum.why[waiting] ?? unknown;
    const box = element("div", "indicators");
    const add = (key, value, label, ns, alarming) => {
      const indicator = element("div", alarming ? "indicator alarming" : "indicator");
      Object.assign(indicator.dataset, isKnown(ns) ? { key, ns } : { key });
      indicator.append(element("b", "", value), element("span", "", label));
      box.append(indicator);
    };
    add("step", sum.steps ? duration(sum.step) : "–", sum.steps > 1 ? "mean step" : "step", sum.step);
    const transfer = sum.parts[exposed], known = communication && isKnown(sum.parts[waiting]) && (waited || !unknown), alarming = (ns) => ns > ALARMING * sum.wall;
    add("exposed", percentOf(transfer, sum.wall), known ? `exposed transfer${why ? ", at most" : ""}` : "exposed communication", transfer, alarming(transfer));
    if (known && this.waits) add("waiting", percentOf(waited, sum.wall), `waiting for other ranks${why ? ", at least" : ""}`, waited, alarming(waited));
    else if (why && whole) add("waiting", "?", "waiting unknown", null);
    if (why && whole) box.lastChild.title = `Waiting is not known for all collectives: ${why}.`;
    add("overlapped", percentOf(sum.overlapped, communication), "of communication overlapped", sum.overlapped);
    add("idle", percentOf(sum.parts[idle], sum.wall), this.scene.idleBound ? `idle, ${this.scene.idleBound}` : "idle", sum.parts[idle]);
    for (const [key, category] of Object.entries({ exposed, overlapped: this.scene.special.overlapped, idle }))
      if (sum.why[category]) box.querySelector(`[data-key=${key}]`).title = `Unknown, because ${sum.why[category]}.`;
    return box;
  }
}
