/**
 * Everything that the page uses of Bokeh beyond its public models: a plot's canvases and frame, and its paint signal. Adapt
 * this file when a new Bokeh release changes one of these.
 */

function need(value, what) {
  if (value === undefined || value === null) throw new Error(`Bokeh ${globalThis.Bokeh?.version} has no ${what}`);
  return value;
}

/** A figure of Bokeh, for a plot to join. */
class BokehFigure {
  constructor(view) {
    const canvas = need(view?.canvas_view, "canvas view");
    Object.assign(this, { view, primary: need(canvas.primary?.el, "primary layer") });
    // No key is handled in the plot: it is no stop of the tab key, and a focus outline after a click would mislead.
    for (const layer of [view.el, canvas.el, need(canvas.events_el, "events layer")]) {
      layer.style.outline = "none";
      if (layer.tabIndex >= 0) layer.tabIndex = -1;
    }
    // They hold nothing that a screen reader reads.
    for (const layer of this.primary.getRootNode().querySelectorAll("canvas")) layer.setAttribute("aria-hidden", "true");
  }

  frame() {
    const { left, top, width, height } = need(this.view.frame?.bbox, "frame");
    return { left, top, width, height };
  }

  /** Take over a range, which Bokeh's tools change then. */
  show({ from, to }) {
    this.view.model.x_range.setv({ start: from, end: to });
  }

  /** Set the range that its tools cannot leave. */
  bound({ from, to }) {
    this.view.model.x_range.setv({ bounds: [from, to] });
  }

  /** Call `moved` with the range that a tool of Bokeh has set, and `painted` when the frame may have another place. */
  follow(moved, painted) {
    const { x_range: shown } = this.view.model;
    shown.change.connect(() => moved({ from: shown.start, to: shown.end }));
    need(this.view.repainted?.connect, "repainted signal").call(this.view.repainted, painted);
  }

  /** Set the frame's margins and height in pixels; if they are others, Bokeh repeats its layout and repaints. */
  arrange({ left, right, top, height }) {
    this.view.model.setv({ min_border_left: left, min_border_right: right, min_border_top: top, frame_height: height });
  }
}

/** Run Bokeh's script, which the page holds as text: it takes long, and the first picture is drawn without it. Return that text. */
export async function startBokeh() {
  if (document.readyState === "loading") await new Promise((done) => addEventListener("DOMContentLoaded", done, { once: true }));
  const text = document.getElementById("bokeh"), script = document.createElement("script");
  script.textContent = text.textContent;
  text.replaceWith(script);
  return text;
}

/** Embed a Bokeh document, and join plots with its figures by their names. */
export async function embed(item, plots) {
  const views = await need(globalThis.Bokeh?.embed?.embed_item, "embed_item")(item);
  const [root] = need(views.roots, "views");
  const models = need(root.model.document, "document");
  const figures = Object.keys(plots).map((name) => [plots[name], new BokehFigure(views.find_one(models.get_model_by_name(name)))]);
  for (const [plot, bokeh] of figures) plot.join(bokeh);
}
