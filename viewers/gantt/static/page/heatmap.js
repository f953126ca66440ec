/** Heatmap of all steps of all GPUs, for runs of many GPUs: slow and waiting GPUs stand out. */

import { button, element } from "../../../base/static/dom.js";
import { FONT_FAMILY } from "../../../base/static/theme.js";
import { laneOf, stepEnd, unknownIn } from "../data/rows.js";
import { duration, percent, visible } from "../data/text.js";

/** The measures: label, formatter, colors from the smallest to the largest value. */
const MEASURES = {
  time: { label: "step time", text: duration, light: ["#EAF0F8", "#7FA3D4", "#12295A"], dark: ["#1C2B45", "#3F73B8", "#DCE9FB"] },
  exposed: { label: "exposed share", text: percent, light: ["#FBEDEA", "#EE8A7D", "#8E1208"], dark: ["#3A1E1B", "#C2402F", "#FFDDD7"] },
};
/** The color scale spans at least this share of the smallest value, so that small differences stay small. */
const MIN_SPAN = 0.1;
/**
 * In pixels: maximum height of the map, least width and maximum height of a cell, cell size from which cells have a gap, height of the labels below,
 * minimum distance of these, and height of a label at the left.
 */
const MAX_HEIGHT = 150, LEAST_CELL = 3, CELL = 16, GAP_FROM = 5, AXIS_HEIGHT = 16, LABEL_DISTANCE = 76, SIDE_HEIGHT = 12;

function exposedTime(lod, scene, lane, from, to) {
  const { exposed, waiting } = scene.special;
  return lod.busy(lane, exposed, from, to) + (waiting === undefined ? 0 : lod.busy(lane, waiting, from, to));
}

/** Return the values of a measure by GPU and step: `at(track, step)`, NaN where a GPU lacks the step or it is unknown. */
export function heatOf(lod, scene, measure) {
  const steps = Math.max(...scene.tracks.map(({ steps: names }) => names.length));
  const values = new Float64Array(scene.tracks.length * steps).fill(NaN);
  let least = Infinity, most = -Infinity;
  scene.tracks.forEach((track, t) => {
    const phases = laneOf(scene, t, "phases");
    for (let step = 0; step < track.steps.length; step++) {
      const from = track.bounds[step], to = stepEnd(track, step), wall = to - from;
      if (measure === "exposed" && unknownIn(track, from, to)[scene.special.exposed]) continue;
      const exposed = () => lod.exposedPerStep?.[t][step] ?? exposedTime(lod, scene, phases, from, to);
      const value = measure === "time" ? wall : wall ? exposed() / wall : 0;
      values[t * steps + step] = value;
      least = Math.min(least, value);
      most = Math.max(most, value);
    }
  });
  const known = values.filter((value) => !Number.isNaN(value)).sort(), middle = known[known.length >> 1];
  return { tracks: scene.tracks.length, steps, least, most, middle, at: (track, step) => values[track * steps + step] };
}

/** GPUs above which a cell is a node, where nodes are known. */
const BY_NODE = 64;

/** Return the nodes of many GPUs, each with its `name` and `tracks`; null for few GPUs, or where none shares its node with another. */
export function nodesOf({ tracks, orders = [] }) {
  const order = tracks.length > BY_NODE && orders.find(({ label }) => label === "by node"), nodes = new Map();
  for (const track of order ? order.tracks : []) {
    const name = order.groups[track];
    nodes.set(name, [...(nodes.get(name) ?? []), track]);
  }
  return nodes.size && nodes.size < tracks.length ? Array.from(nodes, ([name, own]) => ({ name, tracks: own })) : null;
}

/** Return a heatmap of nodes: `track(node, step)` is the GPU whose value is farthest from the middle of all, `at(node, step)` its value. */
export function byNode(heat, nodes) {
  const track = (node, step) => {
    const away = (one) => Math.abs(heat.at(one, step) - heat.middle), known = nodes[node].tracks.filter((one) => !Number.isNaN(heat.at(one, step)));
    return known.reduce((found, one) => (away(one) > away(found) ? one : found), known[0] ?? nodes[node].tracks[0]);
  };
  return { ...heat, tracks: nodes.length, track, at: (node, step) => heat.at(track(node, step), step) };
}

/**
 * Bin the cells to at most `width` × `height`, the longer dimension across. A bin shows its value farthest from the middle
 * of all: the rank that others wait for has the least exposed communication.
 */
export function bins(heat, width, height) {
  const transposed = heat.steps > heat.tracks;
  const [along, other] = transposed ? [heat.steps, heat.tracks] : [heat.tracks, heat.steps];
  const across = Math.min(along, width), down = Math.min(other, height), apart = (value) => (heat.middle === undefined ? value : Math.abs(value - heat.middle));
  const values = new Float64Array(across * down).fill(NaN);
  for (let i = 0; i < along; i++)
    for (let j = 0; j < other; j++) {
      const value = transposed ? heat.at(j, i) : heat.at(i, j), bin = Math.floor((j * down) / other) * across + Math.floor((i * across) / along);
      if (!(apart(value) <= apart(values[bin]))) values[bin] = Number.isNaN(value) ? values[bin] : value;
    }
  return { transposed, along, other, across, down, values };
}

/** Return the name of a step by its place, or, where GPUs have others there, as runs that are compared do, the place. */
export function nameOfStep({ tracks }, place) {
  const names = new Set(tracks.flatMap(({ steps }) => steps.slice(place, place + 1)));
  return names.size > 1 ? `${place + 1} of each` : visible([...names].join());
}

/** Interpolate between three colors by a share from 0 to 1. */
export function shade(colors, share) {
  const place = Math.max(0, Math.min(0.999999, share)) * (colors.length - 1), index = Math.floor(place), part = place - index;
  const channel = (color, i) => parseInt(color.slice(1 + 2 * i, 3 + 2 * i), 16);
  const mixed = [0, 1, 2].map((i) => Math.round(channel(colors[index], i) * (1 - part) + channel(colors[index + 1], i) * part));
  return `rgb(${mixed.join()})`;
}

export class Heatmap {
  measure = "time";
  #heats = {};
  #cursor = null;

  /** `choose(track, step)` is called for the cell that is clicked, `changed` when another measure is shown. */
  constructor(root, lod, scene, choose, changed) {
    Object.assign(this, { root, lod, scene, choose, changed });
    this.canvas = root.querySelector("canvas");
    this.statusText = root.querySelector("[role=status]");
    this.buttons = Object.entries(MEASURES).map(([key, { label }]) => button("chip", label, { onclick: () => this.show(key) }));
    root.querySelector(".measures").append(...this.buttons);
    this.canvas.addEventListener("mousemove", (event) => this.#point(this.#cell(event)));
    this.canvas.addEventListener("mouseleave", () => this.#point(null));
    this.canvas.addEventListener("click", (event) => this.#choose(this.#cell(event)));
    this.canvas.addEventListener("keydown", (event) => this.#key(event));
    this.canvas.addEventListener("blur", () => this.#point(null));
    this.theme = "light";
    this.nodes = nodesOf(scene);
    if (this.nodes) root.querySelector("b").textContent = "Steps by node";
    root.hidden = false;
  }

  /** Switch to the colors of a theme, "light" or "dark". */
  paint(theme) {
    this.theme = theme;
    this.draw();
  }

  /** Show a measure, "time" or "exposed". */
  async show(measure) {
    await this.lod.loadSteps?.();
    this.measure = measure;
    this.draw();
    this.changed();
  }

  get heat() {
    return (this.#heats[this.measure] ??= this.#heatOf(this.measure));
  }

  #heatOf(measure) {
    const heat = heatOf(this.lod, this.scene, measure);
    return this.nodes ? byNode(heat, this.nodes) : heat;
  }

  /** Name a GPU or node in as many words as there is room for. */
  #name(place, words) {
    return this.nodes ? this.nodes[place].name.slice(-24) : this.scene.tracks[place].label.split(" · ").slice(0, words).join(" ");
  }

  draw() {
    const scale = Math.min(2, devicePixelRatio || 1), width = this.canvas.clientWidth;
    const { heat } = this, binned = bins(heat, Math.floor(width / LEAST_CELL), MAX_HEIGHT), measure = MEASURES[this.measure];
    this.box = { ...binned, width, cellWidth: width / binned.across, cellHeight: Math.min(CELL, MAX_HEIGHT / binned.down) };
    const height = Math.ceil(this.box.cellHeight * binned.down);
    this.canvas.style.height = `${height + AXIS_HEIGHT}px`;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round((height + AXIS_HEIGHT) * scale);
    const context = this.canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    this.#cells(context, measure[this.theme]);
    this.#columnLabels(context, height);
    this.#sides();
    this.#scale(measure);
    Object.keys(MEASURES).forEach((key, i) => this.buttons[i].setAttribute("aria-pressed", String(key === this.measure)));
    this.#point(this.#cursor);
  }

  #cells(context, colors) {
    const { across, down, values, cellWidth, cellHeight } = this.box, { least } = this.heat, span = this.#span;
    for (let y = 0; y < down; y++)
      for (let x = 0; x < across; x++) {
        const value = values[y * across + x];
        if (Number.isNaN(value)) continue;
        context.fillStyle = shade(colors, (value - least) / span);
        context.fillRect(x * cellWidth, y * cellHeight, cellWidth - (cellWidth > GAP_FROM ? 1 : 0), cellHeight - (cellHeight > GAP_FROM ? 1 : 0));
      }
    if (!this.#cursor) return;
    const { x, y } = this.#cursor;
    context.strokeStyle = getComputedStyle(this.canvas).color;
    context.lineWidth = 2;
    context.strokeRect(x * cellWidth - 1, y * cellHeight - 1, Math.max(cellWidth, 3) + 1, cellHeight + 1);
  }

  /** Difference of the values at the two ends of the color scale. */
  get #span() {
    const { least, most } = this.heat;
    return Math.max(most - least, this.measure === "time" ? MIN_SPAN * least : MIN_SPAN) || 1;
  }

  /** Label the color scale. */
  #scale({ text, ...themes }) {
    const [from, colors, to] = this.root.querySelector(".scale").children;
    from.textContent = text(this.heat.least);
    to.textContent = text(this.heat.least + this.#span);
    colors.style.background = `linear-gradient(90deg, ${themes[this.theme].join(", ")})`;
  }

  /** Label the rows of cells as far as there is room: steps, or GPUs if the map is transposed. */
  #sides() {
    const { other, transposed, down, cellHeight } = this.box, each = (cellHeight * down) / other, every = Math.ceil(SIDE_HEIGHT / each);
    const names = Array.from({ length: Math.ceil(other / every) }, (_, i) => {
      const name = element("span", "", transposed ? this.#name(i * every, 1) : nameOfStep(this.scene, i * every).slice(-24));
      name.style.top = `${i * every * each + Math.max(0, each - SIDE_HEIGHT) / 2}px`;
      return name;
    });
    this.root.querySelector(".sides").replaceChildren(...names);
  }

  /** Label the columns of cells. */
  #columnLabels(context, top) {
    const { along, width, transposed } = this.box;
    const every = [1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128, 200, 256, 500, 1000, 5000].find((n) => (width * n) / along >= LABEL_DISTANCE) ?? 10_000;
    context.fillStyle = getComputedStyle(this.canvas).color;
    context.font = `${getComputedStyle(this.canvas).fontSize} ${FONT_FAMILY}`;
    context.textBaseline = "bottom";
    for (let i = 0; i < along; i += every) {
      const text = transposed ? nameOfStep(this.scene, i).slice(-12) : this.#name(i, this.scene.groups ? 2 : 1);
      if ((i * width) / along + context.measureText(text).width <= width) context.fillText(text, (i * width) / along, top + AXIS_HEIGHT);
    }
  }

  /** Return the bin under the pointer with its worst cell, or null. */
  #cell(event) {
    const { left, top } = this.canvas.getBoundingClientRect(), { cellWidth, cellHeight, across, down } = this.box;
    const x = Math.floor((event.clientX - left) / cellWidth), y = Math.floor((event.clientY - top) / cellHeight);
    return x >= 0 && y >= 0 && x < across && y < down ? this.#worst(x, y) : null;
  }

  /** Return the cell that a bin shows: { x, y, track, step }. */
  #worst(x, y) {
    const { along, other, across, down, transposed } = this.box;
    let found = null, most = -Infinity;
    const { middle } = this.heat;
    for (let i = Math.ceil((x * along) / across); Math.floor((i * across) / along) === x && i < along; i++)
      for (let j = Math.ceil((y * other) / down); Math.floor((j * down) / other) === y && j < other; j++) {
        const [track, step] = transposed ? [j, i] : [i, j], away = Math.abs(this.heat.at(track, step) - middle);
        if (away > most) [found, most] = [{ x, y, track: this.heat.track?.(track, step) ?? track, step }, away];
      }
    return found;
  }

  #point(cell) {
    const { text } = MEASURES[this.measure];
    const moved = cell?.x !== this.#cursor?.x || cell?.y !== this.#cursor?.y;
    this.#cursor = cell;
    if (moved) this.draw();
    else if (!cell) this.statusText.textContent = "Click a cell to show its step below.";
    else {
      const { label, steps } = this.scene.tracks[cell.track];
      const node = this.nodes?.find(({ tracks }) => tracks.includes(cell.track)), value = this.heat.at(node ? this.nodes.indexOf(node) : cell.track, cell.step);
      this.statusText.textContent = `${node ? `${visible(node.name)} · ` : ""}${label} · ${visible(steps[cell.step])} · ${text(value)}`;
    }
  }

  #choose(cell) {
    if (cell) this.choose(cell.track, cell.step);
  }

  /** Arrow keys move between cells, Enter selects. */
  #key(event) {
    const { x, y } = this.#cursor ?? { x: -1, y: 0 }, { across, down } = this.box;
    const [right, below] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] ?? [0, 0];
    if (right || below) this.#point(this.#worst(Math.max(0, Math.min(across - 1, x + right)), Math.max(0, Math.min(down - 1, y + below))));
    else if (event.key === "Enter") this.#choose(this.#cursor);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
