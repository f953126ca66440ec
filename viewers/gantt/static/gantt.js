/** The Gantt page: reads its islands, wires Bokeh's frame to our raster, and says when it is ready. */

import { Interactions } from "./interactions.js";
import { embed } from "./bokeh_adapter.js";
import { categoryButtons } from "./badges.js";
import { columnsOf, keepServerAlive } from "./columns.js";
import { TimeSaved } from "./time_saved.js";
import { Heatmap } from "./heatmap.js";
import { Hover } from "./hover.js";
import { Labels } from "./labels.js";
import { Lod } from "./lod.js";
import { miniRows } from "./minimap.js";
import { RowNames } from "./names.js";
import { Navigation } from "./navigation.js";
import { Picture } from "./picture.js";
import { PrintView } from "./printed.js";
import { Raster } from "./raster.js";
import { Scrolling } from "./scrolling.js";
import { Stage } from "./stage.js";
import { Summary } from "./summary.js";
import { Theme, patternsOf } from "../../base/static/theme.js";
import { tickLabels } from "./text.js";

/** Milliseconds between two updates of the figures while the view moves; the last follows as soon as it rests. */
const REST = 60;
/** Milliseconds for which a GPU that was asked for is framed. */
const MARKED = 1800;
/** Pixels of a window below which it is narrow, and what then is left of the frame; of a tick's label at least. */
const NARROW = 700, NARROW_LEFT = 92, TICK = 78;
/** A window whose pixels are small for their number, and the letters there: see gantt.css. */
const LARGE = { query: "(min-width: 2400px) and (min-height: 1300px)", letters: 15 };
/** Pixels: the least that is shown of the rows, what stays free below them, and for how few no scrollbar pays. */
const FRAME = { least: 300, below: 14, spare: 60 };

const $ = (selector) => document.querySelector(selector);
const island = (id) => JSON.parse(document.getElementById(id).textContent);

/** Call `act` with the latest arguments, at most once in so many milliseconds. */
function throttle(interval, act) {
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

function status(lod, scene, rows, from, to) {
  let count = 0;
  for (const row of rows) if (row.found >= 0 && row.role !== "phases" && !row.extra) count += lod.count(row.found, from, to);
  const onCpu = scene.tracks.filter(({ label }) => label.endsWith("CPU")).length;
  const what = !onCpu ? "kernels and copies" : onCpu < scene.tracks.length ? "kernels, copies and operators" : "operators and collectives";
  $("#view").textContent = `${count.toLocaleString("en-US")} ${what} in view`;
}

/** Give the rows the height that the window has for them, and lay names and scrollbar beside them. */
function fitLayout(main, mini, stage, names, scrolling, labels) {
  const figure = $("#figure");
  let laid = "";
  const beside = () => {
    const frame = main.within(figure), now = Object.values(frame).join();
    if (now === laid) return;
    laid = now;
    names.place(frame);
    scrolling.place(frame);
  };
  const { whole, left } = stage.scene.layout;
  const free = () => Math.max(FRAME.least, innerHeight - main.within(document.documentElement).top - FRAME.below - $("#causes").offsetHeight);
  /** To a window of another size: a narrow one has room for a word beside the rows, a high one for higher rows. */
  const resized = () => {
    const large = matchMedia(LARGE.query).matches, letters = large ? LARGE.letters : 12;
    const beside = innerWidth < NARROW ? Math.min(left, NARROW_LEFT) : Math.round((left * letters) / 12);
    labels.resize(letters);
    document.body.style.setProperty("--left", `${beside}px`);
    for (const plot of [main, mini]) plot.arrange(beside, Math.max(2, Math.min(9, Math.floor((innerWidth - beside) / TICK))), letters);
    if (!whole) stage.grow(free());
  };
  const fit = () => {
    // On a page that goes on below, all rows stand, and the page scrolls.
    const room = whole ? stage.height : free();
    const frame = stage.height <= room + FRAME.spare ? stage.height : Math.round(room);
    main.resize(frame);
    stage.resize(frame);
  };
  return { beside, fit, resized };
}

/** A map of all steps, which leads to a GPU's step in the rows below. */
function heatmapOver(lod, scene, stage, navigation) {
  let marked = 0;
  return new Heatmap($("#heat"), lod, scene, (track, step) => {
    navigation.step(step, scene.strips.findIndex(({ tracks }) => tracks.includes(track)));
    stage.center(track);
    clearTimeout(marked);
    marked = setTimeout(() => {
      stage.marked = -1;
      stage.changed();
    }, MARKED);
  });
}

/** Frame the GPU that was just asked for, on a context in CSS pixels. */
function frameMarked(context, { width }, { blocks, marked }, { chrome }) {
  const block = blocks.find(({ track }) => track === marked);
  if (!block) return;
  context.strokeStyle = chrome.mark;
  context.lineWidth = 3;
  context.strokeRect(1.5, block.y - 2.5, width - 3, block.h + 5);
}

async function start() {
  const scene = island("scene"), timing = { begun: performance.now() };
  keepServerAlive(scene);
  const [columns, { main, mini }] = await Promise.all([columnsOf(scene), embed(island("plot"), tickLabels)]);
  timing.decoded = performance.now();
  const lod = new Lod(columns), stage = new Stage(scene);
  timing.indexed = performance.now();
  const hidden = new Uint8Array(scene.categories.length);
  const palette = { colors: scene.categories.map(({ color }) => color), order: scene.order, patterns: patternsOf(scene), ...scene.special };
  const labels = new Labels(lod, scene, stage, columns), summary = new Summary($("#summary"), lod, scene, hidden), timeSaved = new TimeSaved(scene, stage);
  const hover = new Hover(main, lod, scene, stage, columns), names = new RowNames($("#names"), stage, scene);
  const scrolling = new Scrolling(main, stage, $("#rows-scroll"), $("#names"));
  const { beside, fit, resized } = fitLayout(main, mini, stage, names, scrolling, labels);
  const follow = throttle(REST, (from, to) => {
    status(lod, scene, stage.rows, from, to);
    interactions?.moved();
    summary.update(from, to);
  });
  let interactions = null;
  const picture = new Picture(main, new Raster(lod, stage.rows, palette), hidden, {
    rows: () => stage.visible,
    height: () => stage.frame,
    bands: () => stage.blocks.filter((block) => block.shaded),
    over: (context, view) => {
      labels.draw(context, view);
      timeSaved.draw(context, view);
      frameMarked(context, view, stage, labels.looks);
      interactions?.over(context, view);
    },
    after: (from, to) => {
      beside();
      hover.place();
      interactions?.painted();
      follow(from, to);
    },
  });
  const thumbnailRows = miniRows(scene, stage.rows, mini.frame().height);
  const minimap = new Picture(mini, new Raster(lod, thumbnailRows, palette), hidden, {
    rows: () => thumbnailRows,
    height: () => mini.frame().height,
    over: (context, view) => interactions?.overMini(context, view),
  });
  const theme = new Theme(scene);
  theme.follow((looks) => {
    labels.looks = timeSaved.looks = looks;
    const { chrome } = looks, colors = looks.categories.map(({ color }) => color);
    for (const one of [picture, minimap]) one.raster.paint(colors, chrome.baseline, chrome.paper);
  });
  categoryButtons($("#chips"), $("#causes"), scene, hidden, () => {
    [picture, minimap].forEach((one) => one.draw(true));
    summary.dim();
  });
  const navigation = new Navigation(main, scene, hover, main.range);
  stage.changed = () => {
    fit();
    names.update();
    scrolling.update();
    picture.draw(true);
  };
  resized();
  const heat = scene.layout.collapsed ? heatmapOver(lod, scene, stage, navigation) : null;
  if (heat) theme.follow(({ name }) => heat.paint(name));
  addEventListener("resize", () => {
    resized();
    heat?.draw();
    stage.changed();
  });
  const redraw = () => [picture, minimap].forEach((one) => one.draw(true));
  interactions = new Interactions({ plot: main, mini, hover, stage, lod, scene, columns, navigation, theme, thumbnailRows, summary, redraw });
  const printed = new PrintView($("#sheets"), { picture, stage, scene, plot: main, theme });
  // The first axis was labelled before its formatter was ours.
  main.repaint();
  resized();
  stage.changed();
  minimap.draw();
  timing.drawn = performance.now();
  // For tests and benchmarks.
  const exact = () => picture.exact() && minimap.exact();
  globalThis.dptrace = { lod, scene, rows: stage.rows, columns, main, mini, stage, names, picture, minimap, navigation, heat, hover, labels, summary, theme, printed, interactions, timing, exact };
  requestAnimationFrame(() => setTimeout(() => (document.documentElement.dataset.ready = "1")));
}

start().catch((error) => {
  const problem = $("#problem");
  problem.textContent = `This page could not draw its picture: ${error.message}. "dptrace view RUN --text" draws it in a terminal.`;
  problem.hidden = false;
  console.error(error);
});
