/** The bar and the figures above the Gantt: of the time in view, inside the steps, from the same exact sums. */

import { element } from "../../base/static/dom.js";
import { insideSteps, laneOf, stepEnd } from "./rows.js";
import { collectiveWord, duration, moment, percent } from "./text.js";

function median(values) {
  const sorted = [...values].sort((a, b) => a - b), half = sorted.length >> 1;
  if (!sorted.length) return 0;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

/**
 * Add up, over all tracks or those that are `chosen`, what of [from, to] lies in their steps, in ns: { wall, parts (by
 * category, idle being the rest), overlapped, steps (durations of the steps in view) }. In full view these are the
 * split's totals.
 */
export function figures(lod, scene, from, to, chosen = null) {
  const { idle, overlapped } = scene.special;
  const sum = { wall: 0, parts: scene.categories.map(() => 0), overlapped: 0, steps: [] };
  scene.tracks.forEach((steps, track) => {
    if (chosen && !chosen.includes(track)) return;
    const { bounds } = steps;
    const begin = Math.max(from, bounds[0]), end = Math.min(to, bounds.at(-1));
    if (end <= begin) return;
    const phases = laneOf(scene, track, "phases"), exposure = laneOf(scene, track, "exposure");
    let busy = 0;
    for (let category = 0; category < overlapped; category++) {
      if (category === idle) continue;
      const time = lod.busy(phases, category, begin, end);
      sum.parts[category] += time;
      busy += time;
    }
    const wall = insideSteps(steps, begin, end);
    sum.wall += wall;
    sum.parts[idle] += wall - busy;
    sum.overlapped += lod.busy(exposure, overlapped, begin, end);
    for (let step = 0; step + 1 < bounds.length; step++)
      if (stepEnd(steps, step) > begin && bounds[step] < end) sum.steps.push(stepEnd(steps, step) - bounds[step]);
  });
  return sum;
}

export class Summary {
  /** `hidden` by category: what the picture leaves out is dim in the bar, which counts it all the same. */
  constructor(root, lod, scene, hidden = []) {
    Object.assign(this, { root, lod, scene, hidden, kinds: null });
  }

  /** A line for the whole picture, or one for each of its groups of tracks, which stand for different runs. */
  update(from, to) {
    const { groups = [{ label: null, tracks: null }] } = this.scene;
    this.root.replaceChildren(...groups.flatMap((group, i) => this.#line(group, this.scene.strips[i]?.names.length, from, to)));
    this.#fit();
    this.dim();
  }

  /** Make the segments of what is hidden dim. */
  dim() {
    for (const segment of this.root.querySelectorAll(".segment")) segment.classList.toggle("off", Boolean(this.hidden[segment.dataset.category]));
  }

  #line({ label, tracks }, steps, from, to) {
    const sum = figures(this.lod, this.scene, from, to, tracks);
    const whole = from <= 0 && to >= this.scene.end;
    const begin = Math.max(from, 0), width = Math.min(to, this.scene.end) - begin;
    const head = element("div", "window");
    const span = whole ? duration(width) : `${duration(width)} from ${moment(begin, width)}`;
    const name = label ?? (whole ? "All steps" : "In this window");
    head.append(element("b", "", name), element("span", "", label && whole ? (steps > 1 ? `${steps} steps` : "the whole step") : span));
    return [head, this.#bar(sum), this.#indicators(sum, tracks, from, to)];
  }

  /** Give each segment the longest text that it holds. */
  #fit() {
    for (const segment of this.root.querySelectorAll(".segment")) {
      for (const text of JSON.parse(segment.dataset.texts)) {
        const span = element("span", "", text);
        segment.replaceChildren(span);
        if (span.offsetWidth + 8 <= segment.clientWidth) break;
      }
    }
  }

  #bar(sum) {
    const bar = element("div", "bar");
    for (const category of this.scene.order) {
      if (category > this.scene.special.overlapped) continue;
      const share = sum.wall ? sum.parts[category] / sum.wall : 0;
      if (share < 0.0005 || category === this.scene.special.overlapped) continue;
      const { label, short } = this.scene.categories[category];
      const segment = element("div", category === this.scene.special.exposed ? "segment hatched" : "segment");
      Object.assign(segment.style, { flexGrow: share, backgroundColor: `var(--c${category})`, color: `var(--i${category})` });
      segment.dataset.category = category;
      segment.dataset.ns = sum.parts[category];
      segment.title = `${label}: ${percent(share)}, ${duration(sum.parts[category])}`;
      segment.dataset.texts = JSON.stringify([`${short} ${percent(share)}`, percent(share), ""]);
      bar.append(segment);
    }
    return bar;
  }

  /** Tell under the pointer, and to screen readers, what each kind of collective has to do with it. */
  #kindsUnder(indicator, chosen, from, to) {
    const kindFigures = this.kinds?.figures(from, to, chosen) ?? [];
    indicator.title = kindFigures.map(({ kind, exposed, overlapped }) => `${collectiveWord({ kind }) || "other"}: ${duration(exposed)} exposed, ${duration(overlapped)} overlapped`).join("\n");
  }

  #indicators(sum, chosen, from, to) {
    const { exposed, idle } = this.scene.special;
    const share = (ns) => (sum.wall ? percent(ns / sum.wall) : "–");
    const communication = sum.overlapped + sum.parts[exposed];
    const many = sum.steps.length;
    const box = element("div", "indicators");
    const add = (key, value, label, ns, alarming) => {
      const one = element("div", alarming ? "indicator alarming" : "indicator");
      one.dataset.key = key;
      one.dataset.ns = ns;
      one.append(element("b", "", value), element("span", "", label));
      box.append(one);
    };
    add("step", many ? duration(median(sum.steps)) : "–", many > 1 ? "median step" : "step", median(sum.steps));
    add("exposed", share(sum.parts[exposed]), "exposed communication", sum.parts[exposed], sum.parts[exposed] > 0.03 * sum.wall);
    add("overlapped", communication ? percent(sum.overlapped / communication) : "–", "of communication overlapped", sum.overlapped);
    this.#kindsUnder(box.lastChild, chosen, from, to);
    add("idle", share(sum.parts[idle]), "idle", sum.parts[idle]);
    return box;
  }
}
