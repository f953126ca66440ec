/**
 * Everything that the page uses of Bokeh beyond its public models: a plot's canvases and frame, its paint signal, and
 * axis labels without eval. Adapt this file when a new Bokeh release changes one of these.
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
    // They hold axes and tools only, which a screen reader passes over.
    for (const layer of this.primary.getRootNode().querySelectorAll("canvas")) layer.setAttribute("aria-hidden", "true");
    // Bokeh writes and reads a style sheet of each part in each paint, and clears the layer over the plot: none has anything here.
    for (const part of need(view.computed_renderer_views, "renderers")) {
      part.update_position = () => {};
      for (const visual of part.visuals) visual._get_css_value = () => "";
    }
    view.request_repaint = () => view.request_paint(...view.computed_renderer_views.slice(0, 1));
  }

  frame() {
    const { left, top, width, height } = need(this.view.frame?.bbox, "frame");
    return { left, top, width, height };
  }

  get range() {
    const { start, end } = this.view.model.x_range;
    return { from: start, to: end };
  }

  /** Show another range; Bokeh repaints and calls the onPaint callback. */
  show({ from, to }) {
    this.view.model.x_range.setv({ start: from, end: to });
  }

  onPaint(draw) {
    need(this.view.repainted?.connect, "repainted signal").call(this.view.repainted, draw);
  }

  repaint() {
    this.view.invalidate_painters();
    this.view.request_repaint();
  }

  /** Set the frame's height in pixels; Bokeh repeats its layout and repaints. */
  resize(height) {
    const { model } = this.view;
    if (model.frame_height !== height) model.setv({ frame_height: height });
  }

  /** Set the margins left and right of the frame, the approximate number of ticks, and their font size in pixels. */
  arrange(left, ticks, fontSize, right) {
    const { model } = this.view;
    if (model.min_border_left !== left || model.min_border_right !== right) model.setv({ min_border_left: left, min_border_right: right });
    for (const axis of model.above) {
      if (!axis.ticker) continue;
      axis.ticker.setv({ desired_num_ticks: ticks });
      axis.setv({ major_label_text_font_size: `${fontSize}px` });
    }
  }

  /** Draw axes, grid, outline and the minimap's window in a theme's colors. */
  dress({ quiet, line, grid, text, paper, ["strong-line"]: strong }) {
    const { model } = this.view;
    model.setv({ outline_line_color: line });
    for (const part of [...model.above, ...model.below, ...model.left, ...model.right, ...model.center]) {
      if ("major_label_text_color" in part) part.setv({ major_label_text_color: quiet, axis_line_color: line, major_tick_line_color: strong });
      else if ("grid_line_color" in part) part.setv({ grid_line_color: grid });
    }
    for (const { overlay } of model.toolbar.tools) if (overlay && "fill_alpha" in overlay) overlay.setv({ fill_color: paper, line_color: text });
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
export async function embed(item, formatTicks, plots) {
  const views = await need(globalThis.Bokeh?.embed?.embed_item, "embed_item")(item);
  const [root] = need(views.roots, "views");
  const models = need(root.model.document, "document");
  // A CustomJSTickFormatter uses eval, which the page's security policy forbids.
  const { x_range: shown } = models.get_model_by_name("main");
  models.get_model_by_name("time").doFormat = (ticks) => formatTicks(ticks, shown.end - shown.start);
  const figures = Object.keys(plots).map((name) => [plots[name], new BokehFigure(views.find_one(models.get_model_by_name(name)))]);
  for (const [plot, bokeh] of figures) plot.join(bokeh);
}
