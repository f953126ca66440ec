/** Entry point of the Gantt page: reads its JSON islands, connects Bokeh's frame to the raster, and sets `data-ready`. */

import { drawGrid, drawTimes, drawWindow } from "./drawing/axis.js";
import { LoadedPage } from "./page/bookmarks.js";
import { Interactions } from "./page/interactions.js";
import { embed, startBokeh } from "./drawing/bokeh_adapter.js";
import { categoryButtons, Summary } from "./page/summary.js";
import { columnsOf, keepServerAlive } from "./data/columns.js";
import { compareSteps } from "./data/compared.js";
import { TimeSaved } from "./drawing/time_saved.js";
import { Findings } from "./page/findings.js";
import { Heatmap } from "./page/heatmap.js";
import { Hover } from "./interaction/hover.js";
import { Labels } from "./drawing/labels.js";
import { Lod } from "./data/lod.js";
import { miniRows, trackWord } from "./data/rows.js";
import { RowNames } from "./stage/names.js";
import { Navigation } from "./interaction/navigation.js";
import { oncePerFrame, Picture, Plot, RIGHT, shown } from "./drawing/picture.js";
import { Overview, WholeView } from "./served/overview.js";
import { PrintView } from "./saving/printed.js";
import { Raster } from "./drawing/raster.js";
import { RowOrder } from "./stage/row_order.js";
import { readView } from "./interaction/view.js";
import { SavedView } from "./saving/saved_view.js";
import { Scrolling } from "./stage/scrolling.js";
import { ServedLod } from "./served/served_lod.js";
import { Stage } from "./stage/stage.js";
import { Theme, patternsOf } from "../../base/static/theme.js";
import { duration, integer, learnShortNames } from "./data/text.js";

const ENDED = "The server has ended: what is not on the screen cannot be shown. Run dptrace view again.";
/** Minimum time between two updates of the figures while the view moves, in ms. */
const UPDATE_MS = 100;
/** How long Bokeh, which takes a while to start, waits for the exact picture of a served page, in ms. */
const PATIENCE_MS = 400;
/** How long the GPU of a clicked heatmap cell stays framed, in ms. */
const MARKED_MS = 1800;
/** In pixels: window width below which a window is narrow, and the margins then. */
const NARROW = 700, NARROW_LEFT = 104, NARROW_RIGHT = 20;
/** Window sizes from which the page uses a larger font, and its size in pixels; gantt.css has the same queries. */
const LARGE = [["(min-width: 3200px) and (min-height: 1700px)", 20], ["(min-width: 2400px) and (min-height: 1300px)", 15]];
/** Width below which the panel is below the chart; gantt.css has the same query. */
const BELOW = "(max-width: 999px)";
/** In pixels: minimum height of the rows, margin below them, and the overflow up to which no scrollbar is shown. */
const FRAME = { least: 300, below: 14, spare: 60 };
/** The same in a frame of another page, which has to hold all of it. */
const EMBEDDED = { least: 120, below: 14, spare: 0 };

const $ = (selector) => document.querySelector(selector);
const island = (id) => JSON.parse(document.getElementById(id).textContent);

/** Return a function that calls `callback` with the latest arguments, at most once per `interval` ms. */
function throttle(interval, callback) {
  let latest = null, next = 0;
  const run = () => {
    const values = latest;
    [latest, next] = [null, performance.now() + interval];
    callback(...values);
  };
  return (...values) => {
    if (!latest) setTimeout(run, Math.max(0, next - performance.now()));
    latest = values;
  };
}

/** Show how many intervals are in view. */
function showCount(lod, scene, rows, from, to) {
  if (scene.merged) return ($("#view").textContent = `intervals up to ${duration(scene.merged)} merged`);
  let count = lod.sums?.(from, to)?.count ?? 0;
  if (!lod.sums) for (const row of rows) if (row.found >= 0 && row.role !== "phases" && !row.extra) count += lod.count(row.found, from, to);
  const onCpu = scene.tracks.filter(({ label }) => label.endsWith("CPU")).length;
  const what = !onCpu ? "kernels and copies" : onCpu < scene.tracks.length ? "kernels, copies and operators" : "operators and collectives";
  $("#view").textContent = `${integer(count)} ${what} in view`;
}

/** Return functions that fit the rows to the window. */
function fitLayout(main, mini, stage, labels) {
  const { whole, left } = stage.scene.layout, FIT = stage.scene.embedded ? EMBEDDED : FRAME;
  const panel = () => (matchMedia(BELOW).matches ? $("#card").offsetHeight : 0);
  const free = () => Math.max(FIT.least, innerHeight - main.within(document.documentElement).top - FIT.below - $("#causes").offsetHeight - panel());
  /** Adapt margin, font and row height to the window's size. */
  const resized = () => {
    const narrow = innerWidth < NARROW, letters = LARGE.find(([query]) => matchMedia(query).matches)?.[1] ?? 12;
    const margin = narrow ? Math.min(left, NARROW_LEFT) : Math.round((left * letters) / 12);
    labels.pixels = letters;
    stage.zoom = letters / 12;
    document.body.style.setProperty("--left", `${margin}px`);
    for (const plot of [main, mini]) plot.arrange({ left: margin, right: narrow ? NARROW_RIGHT : RIGHT, letters });
    if (!whole) stage.grow(free());
  };
  const fit = () => {
    // In a report the page scrolls, so all rows are shown.
    const room = whole ? stage.height : free();
    const frame = stage.height <= room + FIT.spare ? stage.height : Math.round(room);
    main.arrange({ height: frame });
    stage.resize(frame);
  };
  return { fit, resized };
}

/** Call `changed` when what is above the chart has become taller or shorter: texts wrap, notes unfold. */
function followHeights(changed) {
  const above = [...document.querySelectorAll("header, #summary, #findings, #notes, #chips")];
  const sum = () => above.reduce((height, { offsetHeight }) => height + offsetHeight, 0);
  let before = sum();
  const observer = new ResizeObserver(() => {
    const now = sum();
    if (now === before || document.documentElement.classList.contains("printing")) return;
    before = now;
    changed();
  });
  for (const node of above) observer.observe(node);
}

/** Create the heatmap of all steps; a click on a cell shows that step of that GPU in the rows below. */
function heatmapOver(lod, scene, stage, navigation, changed) {
  let marked = 0;
  return new Heatmap($("#heat"), lod, scene, (track, step) => {
    navigation.step(step, scene.strips.findIndex(({ tracks }) => tracks.includes(track)));
    stage.center(track);
    clearTimeout(marked);
    marked = setTimeout(() => {
      stage.marked = -1;
      stage.changed();
    }, MARKED_MS);
  }, changed);
}

/** Draw a frame around the GPU whose heatmap cell was clicked; the context is in CSS pixels. */
function frameMarked(context, { width }, { blocks, marked }, { chrome }) {
  const block = blocks.find(({ track }) => track === marked);
  if (!block) return;
  context.strokeStyle = chrome.mark;
  context.lineWidth = 3;
  context.strokeRect(1.5, block.y - 2.5, width - 3, block.h + 5);
}

/** Name the canvases for a screen reader, which finds the same figures in the text above the chart. */
function describeCanvases(scene, main, mini) {
  const { tracks, strips } = scene, steps = strips.reduce((most, { names }) => Math.max(most, names.length), 0);
  const counts = `${integer(tracks.length)} ${trackWord(scene, tracks.length)} and ${integer(steps)} step${steps === 1 ? "" : "s"}`;
  const ariaLabel = `Gantt chart of ${counts}; its figures are in the text above`;
  Object.assign(main.canvas, { role: "img", ariaLabel });
  Object.assign(mini.canvas, { role: "img", ariaLabel: "Overview of the whole run, with a window around the part that is shown" });
}

/** Keep clicks on buttons that nothing listens to yet; returns a function that does them. */
function keepClicks() {
  const clicked = [], keep = (event) => {
    const pressed = event.target.closest("button");
    if (!pressed) return;
    event.stopImmediatePropagation();
    clicked.push(pressed);
  };
  document.addEventListener("click", keep, true);
  document.body.style.cursor = "progress";
  return () => {
    document.removeEventListener("click", keep, true);
    document.body.style.cursor = "";
    for (const one of clicked) one.click();
  };
}

async function start() {
  const whole = island("scene"), timing = { begun: performance.now() }, loaded = new LoadedPage(whole);
  learnShortNames(whole.names, whole.shorts);
  keepServerAlive(whole, (yes) => (yes ? showProblem(ENDED) : $("#problem").textContent === ENDED && ($("#problem").hidden = true)));
  const release = keepClicks();
  const { scene, columns: own } = compareSteps(whole, whole.served ? null : await columnsOf(whole), readView(location.hash).compare);
  const stage = new Stage(scene), served = scene.served ? new ServedLod(scene) : null;
  served?.begin(stage.visible);
  if (scene.compared) $("#findings")?.remove();
  timing.decoded = performance.now();
  const lod = served ?? new Lod(own), columns = own ?? lod.known, overview = own ? lod : new Overview(lod);
  timing.indexed = performance.now();
  const { first } = scene, figure = $("#figure"), mini = new Plot(figure, first, first.mini), main = new Plot(figure, first, first.mini, first.mini);
  const hidden = new Uint8Array(scene.categories.length);
  const palette = { colors: scene.categories.map(({ color }) => color), order: scene.order, patterns: patternsOf(scene), ...scene.special };
  const labels = new Labels(lod, scene, stage, columns), summary = new Summary($("#summary"), lod, scene, hidden), timeSaved = new TimeSaved(scene, stage);
  const theme = new Theme(scene), names = new RowNames($("#names"), stage, scene);
  let placed = false, interactions = null;
  /** Draw again, once everything has its place. */
  const redraw = () => placed && [picture, minimap].forEach((canvas) => canvas.draw(true));
  const hide = categoryButtons($("#chips"), $("#causes"), scene, hidden, () => {
    redraw();
    summary.dim();
  });
  describeCanvases(scene, main, mini);
  const hover = new Hover(main, lod, scene, stage, columns);
  const scrolling = new Scrolling(main, stage, $("#rows-scroll"), $("#names"), scene.zoomKey);
  const { fit, resized } = fitLayout(main, mini, stage, labels);
  const update = (from, to) => {
    showCount(lod, scene, stage.rows, from, to);
    interactions.moved();
    summary.update(from, to);
  };
  const follow = throttle(UPDATE_MS, update);
  const wholeView = new WholeView({ lod, plot: main, stage, redraw });
  const picture = new Picture(main, new Raster(lod, stage.rows, palette), hidden, {
    // The host's rows, those of memory and of a critical path are drawn over the others.
    rows: () => stage.visible.filter(({ host, memory, path }) => !host && !memory && !path),
    height: () => stage.frame,
    bands: () => stage.blocks.filter((block) => block.shaded),
    over: (context, view) => stage.inParts(({ top, bottom }) => {
      context.save();
      context.beginPath();
      context.rect(0, top, view.width, bottom - top);
      context.clip();
      interactions.under(context, view);
      labels.draw(context, view);
      timeSaved.draw(context, view);
      frameMarked(context, view, stage, labels.looks);
      interactions.over(context, view);
      context.restore();
    }),
    under: (context, view) => drawGrid(context, view, view.height, labels.looks.chrome, labels.pixels),
    beside: (from, to, scale) => {
      const { pixels, looks: { chrome } } = labels;
      main.drawBeside((context, { width, right }) => drawTimes(context, scene, { from, to, left: 0, width, right }, chrome, pixels), pixels + 12, 0, scale);
      mini.drawBeside((context, box) => drawWindow(context, mini.range, { from, to }, box, chrome), 1, first.mini + 1, scale);
    },
    placed: () => [names, scrolling].forEach((side) => side.place(main.within(figure))),
    after: (from, to) => {
      if (labels.steps.follow({ from, to })) names.update();
      hover.place();
      interactions.painted();
      follow(from, to);
      wholeView.look({ from, to, width: main.canvas.width, rows: stage.visible });
    },
  });
  const thumbnailRows = miniRows(scene, stage.rows, first.mini);
  const minimap = new Picture(mini, new Raster(overview, thumbnailRows, palette), hidden, {
    rows: () => thumbnailRows,
    height: () => first.mini,
    over: (context, view) => interactions.overMini(context, view),
  });
  theme.follow((looks) => {
    labels.looks = timeSaved.looks = looks;
    const { chrome } = looks, colors = looks.categories.map(({ color }) => color);
    for (const canvas of [picture, minimap]) canvas.raster.paint(colors, chrome.baseline, chrome.paper);
  });
  const navigation = new Navigation(main, scene, hover, main.range);
  const changed = () => {
    fit();
    names.update();
    scrolling.update();
    picture.draw(true);
  };
  const heat = scene.layout.collapsed && !scene.compared ? heatmapOver(lod, scene, stage, navigation, () => interactions?.views.moved()) : null;
  if (heat) theme.follow(({ name }) => heat.paint(name));
  const refit = () => {
    resized();
    stage.changed();
  };
  const order = new RowOrder({ order: $("#order"), which: $("#which"), stage, scene, changed: refit });
  names.pin = (track) => order.pin(track);
  const saved = new SavedView({ plot: main, picture, stage, scene, theme, labels, hidden, whole: wholeView, measure: () => interactions.measure });
  const save = () => saved.save().catch((error) => showProblem(`The picture could not be saved: ${error.message}.`, error));
  interactions = new Interactions({ plot: main, mini, hover, stage, lod, scene, columns, navigation, theme, thumbnailRows, hidden, hide, order, heat, loaded, save, redraw });
  interactions.card.changed = () => {
    hover.rest();
    // Beside the chart, the panel takes no height.
    if (!matchMedia(BELOW).matches) return;
    refit();
    $("#card").scrollIntoView({ block: "nearest" });
  };
  const findings = (interactions.findings = new Findings($("#findings"), { scene, lod, stage, navigation, interactions, resized: refit }));
  const printView = new PrintView($("#sheets"), { picture, stage, scene, plot: main, theme, whole: wholeView });
  // Used by tests and benchmarks.
  const exact = () => picture.exact() && minimap.exact() && (!served || lod.settled);
  globalThis.dptrace = { lod, scene, rows: stage.rows, columns, main, mini, stage, names, picture, minimap, navigation, heat, hover, labels, summary, theme, printView, interactions, findings, order, saved, timing, exact };
  const complete = new Promise((done) => {
    if (own) return done();
    overview.changed = () => minimap.draw(true);
    lod.failed = (error) => {
      interactions.range.failed();
      showProblem(`The server does not answer: ${error.message}. Is dptrace still running? Move the chart to ask again.`, error);
    };
    lod.changed = oncePerFrame(() => {
      $("#problem").hidden = true;
      hover.follow(true);
      picture.draw(true);
      interactions.answered();
      timing.first ??= performance.now();
      if (!lod.loaded) return;
      timing.loaded ??= performance.now();
      timing.bytes ??= lod.connection.bytes;
      done();
    });
  });
  // The figures come first, since they take height above the chart.
  update(main.range.from, main.range.to);
  resized();
  fit();
  [placed, stage.changed] = [true, changed];
  stage.changed();
  minimap.draw();
  release();
  if (own || lod.some) timing.first = performance.now();
  addEventListener("resize", () => {
    heat?.draw();
    refit();
  });
  followHeights(refit);
  await shown();
  // Rows that come one by one are drawn together.
  stage.changed = () => {};
  await interactions.path.begin();
  await interactions.memory.begin();
  await interactions.host.rows.begin();
  stage.changed = changed;
  refit();
  const begun = interactions.views.begin();
  await Promise.race([complete, new Promise((done) => setTimeout(done, PATIENCE_MS))]);
  await shown();
  loaded.complete(await startBokeh());
  await embed(island("plot"), { main, mini });
  refit();
  timing.drawn = performance.now();
  await Promise.all([complete, begun]);
  requestAnimationFrame(() => setTimeout(() => (document.documentElement.dataset.ready = "1")));
}

function showProblem(text, error) {
  const problem = $("#problem");
  problem.textContent = text;
  problem.hidden = false;
  if (error) console.error(error);
}

start().catch((error) => {
  document.body.style.cursor = "";
  showProblem(`The chart could not be drawn: ${error.message}. Run "dptrace view RUN --text" to draw it in the terminal.`, error);
});
