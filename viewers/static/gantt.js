/** The Gantt page: reads its islands, wires Bokeh's frame to our raster, and says when it is ready. */

import { embed } from "./bokeh_adapter.js";
import { columnsOf } from "./columns.js";
import { Hover } from "./hover.js";
import { Labels } from "./labels.js";
import { Lod } from "./lod.js";
import { Navigation } from "./navigation.js";
import { Raster } from "./raster.js";
import { rowsOf } from "./rows.js";
import { Summary } from "./summary.js";
import { tickLabels } from "./words.js";

/** Sharper than two device pixels to one is not seen, and costs time. */
const SHARPEST = 2;
/** Milliseconds between two updates of the figures while the view moves; the last follows as soon as it rests. */
const REST = 60;

const $ = (selector) => document.querySelector(selector);
const island = (id) => JSON.parse(document.getElementById(id).textContent);

/** A canvas of a plot, its raster, and what is drawn upon it. */
class Picture {
  #drawn = "";

  constructor(plot, raster, hidden, height, { over = () => {}, after = () => {} } = {}) {
    Object.assign(this, { plot, raster, hidden, height, over, after });
    this.context = plot.canvas.getContext("2d");
    plot.onPaint(() => this.draw());
  }

  /** Draw unless what is drawn already is still right. */
  draw(anew = false) {
    const frame = this.plot.align(), { from, to } = this.plot.range;
    const scale = Math.min(SHARPEST, devicePixelRatio || 1);
    const width = Math.max(1, Math.round(frame.width * scale)), height = Math.round(this.height * scale);
    const wanted = [from, to, width, height].join();
    if (wanted !== this.#drawn || anew) {
      this.#drawn = wanted;
      const image = this.raster.draw({ from, to, width, height, scale, hidden: this.hidden });
      if (this.plot.canvas.width !== width) this.plot.canvas.width = width;
      if (this.plot.canvas.height !== height) this.plot.canvas.height = height;
      this.context.putImageData(new ImageData(new Uint8ClampedArray(image.buffer), width, height), 0, 0);
      this.context.setTransform(scale, 0, 0, scale, 0, 0);
      this.over(this.context, { from, to, width: width / scale, hidden: this.hidden });
      this.context.setTransform(1, 0, 0, 1, 0, 0);
    }
    this.after(from, to);
  }

  /** Tell whether the canvas lies over the frame and shows its range. */
  exact() {
    const { from, to } = this.plot.range;
    return this.plot.aligned() && this.#drawn.startsWith(`${from},${to},`);
  }
}

/** Call `act` with the latest arguments, at most once in so many milliseconds. */
function paced(interval, act) {
  let waiting = null, next = 0;
  return (...values) => {
    const planned = waiting !== null;
    waiting = values;
    if (planned) return;
    const run = () => {
      next = performance.now() + interval;
      const latest = waiting;
      waiting = null;
      act(...latest);
    };
    setTimeout(run, Math.max(0, next - performance.now()));
  };
}

function chips(scene, hidden, redraw) {
  for (const category of scene.order) {
    if (!scene.used.includes(category)) continue;
    const { label, color } = scene.categories[category];
    const chip = document.createElement("button"), swatch = document.createElement("i");
    chip.type = "button";
    chip.className = "chip";
    chip.setAttribute("aria-pressed", "true");
    chip.title = "click to hide or show";
    swatch.style.backgroundColor = color;
    swatch.className = category === scene.special.exposed ? "hatched" : "";
    chip.append(swatch, category === scene.special.memory ? "Memory" : label);
    chip.addEventListener("click", () => {
      hidden[category] ^= 1;
      chip.setAttribute("aria-pressed", String(!hidden[category]));
      redraw();
    });
    $("#chips").append(chip);
  }
}

/** One row per GPU, its phases only. */
function miniRows(scene, rows, height) {
  const each = (height - 2) / scene.tracks.length;
  const phases = rows.filter((row) => row.role === "phases");
  return phases.map((row, i) => ({ ...row, y: 1 + i * each, h: each - (each > 4 ? 1 : 0), separated: -1 }));
}

function status(lod, scene, rows, from, to) {
  let count = 0;
  for (const row of rows) if (row.found >= 0 && row.role !== "phases") count += lod.count(row.found, from, to);
  const what = scene.cpu ? "operators and collectives" : "kernels and copies";
  $("#view").textContent = `${count.toLocaleString("en-US")} ${what} in view`;
}

async function start() {
  const scene = island("scene"), timing = { begun: performance.now() };
  const [columns, { main, mini }] = await Promise.all([columnsOf(scene), embed(island("plot"), tickLabels)]);
  timing.decoded = performance.now();
  const lod = new Lod(columns), rows = rowsOf(scene);
  timing.indexed = performance.now();
  const hidden = new Uint8Array(scene.categories.length);
  const palette = { colors: scene.categories.map(({ color }) => color), order: scene.order, ...scene.special };
  const labels = new Labels(lod, scene, rows, columns), summary = new Summary($("#summary"), lod, scene);
  const hover = new Hover(main, lod, scene, rows, columns);
  const bounds = main.range;
  const follow = paced(REST, (from, to) => {
    status(lod, scene, rows, from, to);
    summary.update(from, to);
  });
  const picture = new Picture(main, new Raster(lod, rows, palette), hidden, scene.layout.height, {
    over: (context, view) => labels.draw(context, view),
    after: (from, to) => {
      hover.place();
      follow(from, to);
    },
  });
  const height = mini.frame().height;
  const minimap = new Picture(mini, new Raster(lod, miniRows(scene, rows, height), palette), hidden, height);
  chips(scene, hidden, () => [picture, minimap].forEach((one) => one.draw(true)));
  const navigation = new Navigation(main, scene, hover, bounds);
  // The first axis was labelled before its formatter was ours.
  main.repaint();
  picture.draw();
  minimap.draw();
  timing.drawn = performance.now();
  // For tests and benchmarks.
  globalThis.dptrace = { lod, scene, rows, columns, main, navigation, timing, exact: () => picture.exact() && minimap.exact() };
  requestAnimationFrame(() => setTimeout(() => (document.documentElement.dataset.ready = "1")));
}

start().catch((error) => {
  const problem = $("#problem");
  problem.textContent = `This page could not draw its picture: ${error.message}. "dptrace view RUN --text" draws it in a terminal.`;
  problem.hidden = false;
  console.error(error);
});
