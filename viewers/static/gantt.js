/** The Gantt page: reads its islands, wires Bokeh's frame to our raster, and says when it is ready. */

import { Acts } from "./acts.js";
import { embed } from "./bokeh_adapter.js";
import { chips } from "./chips.js";
import { columnsOf, stayOpen } from "./columns.js";
import { Freed } from "./freed.js";
import { Heat } from "./heat.js";
import { Hover } from "./hover.js";
import { Labels } from "./labels.js";
import { Lod } from "./lod.js";
import { miniRows } from "./minimap.js";
import { Names } from "./names.js";
import { Navigation } from "./navigation.js";
import { Picture } from "./picture.js";
import { Raster } from "./raster.js";
import { Scrolling } from "./scrolling.js";
import { Stage } from "./stage.js";
import { Summary } from "./summary.js";
import { Theme, patternsOf } from "./theme.js";
import { tickLabels } from "./words.js";

/** Milliseconds between two updates of the figures while the view moves; the last follows as soon as it rests. */
const REST = 60;
/** Pixels: the least that is shown of the rows, what stays free below them, and for how few no scrollbar pays. */
const FRAME = { least: 300, below: 14, spare: 60 };

const $ = (selector) => document.querySelector(selector);
const island = (id) => JSON.parse(document.getElementById(id).textContent);

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

function status(lod, scene, rows, from, to) {
  let count = 0;
  for (const row of rows) if (row.found >= 0 && row.role !== "phases" && !row.extra) count += lod.count(row.found, from, to);
  const what = scene.cpu ? "operators and collectives" : "kernels and copies";
  $("#view").textContent = `${count.toLocaleString("en-US")} ${what} in view`;
}

/** Give the rows the height that the window has for them, and lay names and scrollbar beside them. */
function fitted(main, stage, names, scrolling) {
  const figure = $("#figure");
  let laid = "";
  const beside = () => {
    const frame = main.within(figure), now = Object.values(frame).join();
    if (now === laid) return;
    laid = now;
    names.place(frame);
    scrolling.place(frame);
  };
  const fit = () => {
    const top = main.within(document.documentElement).top, { whole } = stage.scene.layout;
    // On a page that goes on below, all rows stand, and the page scrolls.
    const room = whole ? stage.height : Math.max(FRAME.least, innerHeight - top - FRAME.below);
    const frame = stage.height <= room + FRAME.spare ? stage.height : Math.round(room);
    main.resize(frame);
    stage.resize(frame);
  };
  return { beside, fit };
}

/** A map of all steps, which leads to a GPU's step in the rows below. */
function heatOver(lod, scene, stage, navigation) {
  return new Heat($("#heat"), lod, scene, (track, step) => {
    navigation.step(step, scene.strips.findIndex(({ tracks }) => tracks.includes(track)));
    stage.collapse(track, false);
    stage.reveal(track);
  });
}

async function start() {
  const scene = island("scene"), timing = { begun: performance.now() };
  stayOpen(scene);
  const [columns, { main, mini }] = await Promise.all([columnsOf(scene), embed(island("plot"), tickLabels)]);
  timing.decoded = performance.now();
  const lod = new Lod(columns), stage = new Stage(scene);
  timing.indexed = performance.now();
  const hidden = new Uint8Array(scene.categories.length);
  const palette = { colors: scene.categories.map(({ color }) => color), order: scene.order, patterns: patternsOf(scene), ...scene.special };
  const labels = new Labels(lod, scene, stage, columns), summary = new Summary($("#summary"), lod, scene), freed = new Freed(scene, stage);
  const hover = new Hover(main, lod, scene, stage, columns), names = new Names($("#names"), stage, scene);
  const scrolling = new Scrolling(main, stage, $("#rows-scroll"), $("#names"));
  const { beside, fit } = fitted(main, stage, names, scrolling);
  const follow = paced(REST, (from, to) => {
    status(lod, scene, stage.rows, from, to);
    acts?.moved();
    summary.update(from, to);
  });
  let acts = null;
  const picture = new Picture(main, new Raster(lod, stage.rows, palette), hidden, {
    rows: () => stage.visible,
    height: () => stage.frame,
    bands: () => stage.blocks.filter((block) => block.shaded),
    over: (context, view) => {
      labels.draw(context, view);
      freed.draw(context, view);
      acts?.over(context, view);
    },
    after: (from, to) => {
      beside();
      hover.place();
      acts?.painted();
      follow(from, to);
    },
  });
  const thumbs = miniRows(scene, stage.rows, mini.frame().height);
  const minimap = new Picture(mini, new Raster(lod, thumbs, palette), hidden, {
    rows: () => thumbs,
    height: () => mini.frame().height,
    over: (context, view) => acts?.overMini(context, view),
  });
  const theme = new Theme(scene);
  theme.follow((looks) => {
    labels.looks = freed.looks = looks;
    const { chrome } = looks, colors = looks.categories.map(({ color }) => color);
    for (const one of [picture, minimap]) one.raster.paint(colors, chrome.baseline, chrome.paper);
  });
  chips($("#chips"), scene, hidden, () => [picture, minimap].forEach((one) => one.draw(true)));
  const navigation = new Navigation(main, scene, hover, main.range);
  stage.changed = () => {
    fit();
    names.update();
    scrolling.update();
    picture.draw(true);
  };
  const heat = scene.layout.collapsed ? heatOver(lod, scene, stage, navigation) : null;
  if (heat) theme.follow(({ name }) => heat.paint(name));
  addEventListener("resize", () => {
    heat?.draw();
    stage.changed();
  });
  const redraw = () => [picture, minimap].forEach((one) => one.draw(true));
  acts = new Acts({ plot: main, mini, hover, stage, lod, scene, columns, navigation, theme, thumbs, summary, redraw });
  // The first axis was labelled before its formatter was ours.
  main.repaint();
  stage.changed();
  minimap.draw();
  timing.drawn = performance.now();
  // For tests and benchmarks.
  const exact = () => picture.exact() && minimap.exact();
  globalThis.dptrace = { lod, scene, rows: stage.rows, columns, main, mini, stage, names, picture, minimap, navigation, heat, hover, labels, summary, theme, acts, timing, exact };
  requestAnimationFrame(() => setTimeout(() => (document.documentElement.dataset.ready = "1")));
}

start().catch((error) => {
  const problem = $("#problem");
  problem.textContent = `This page could not draw its picture: ${error.message}. "dptrace view RUN --text" draws it in a terminal.`;
  problem.hidden = false;
  console.error(error);
});
