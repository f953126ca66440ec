/** A drawing context that writes SVG: what the page draws with of a canvas's context, and the rows of a raster as shapes. */

import { shapesOf } from "./vector_rows.js";

/** The patterns of raster.js as tiles: their size, and the path of what is dark. */
const TILES = {
  hatch: [7, "M-1 1L1 -1M-1 8L8 -1M6 8L8 6"],
  back: [7, "M-1 -1L8 8M-1 6L1 8M6 -1L8 1"],
  dots: [5, "M0 0h2v2h-2z"],
  bars: [4, "M0.5 0V4"],
  rails: [4, "M0 0.5H4"],
};
/** Properties that save and restore keep. */
const STATE = ["fillStyle", "strokeStyle", "lineWidth", "lineJoin", "globalAlpha", "globalCompositeOperation", "font", "textAlign", "textBaseline", "dash", "matrix", "clips"];
const ANCHOR = { left: "start", start: "start", center: "middle", right: "end", end: "end" };

const number = (value) => String(Math.round(value * 100) / 100 + 0);
const escaped = (text) => String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);

export class SvgContext {
  #out = [];
  #defs = [];
  #patterns = new Map();
  #saved = [];
  #path = [];
  #measure;

  /** `measure` is a canvas's context; `patterns` are the names of patterns by color, `paper` is the background. */
  constructor({ width, height, paper, measure, patterns = new Map() }) {
    Object.assign(this, { canvas: { width, height }, paper, patterns });
    Object.assign(this, { fillStyle: "#000000", strokeStyle: "#000000", lineWidth: 1, lineJoin: "miter", globalAlpha: 1, globalCompositeOperation: "source-over" });
    Object.assign(this, { font: "12px sans-serif", textAlign: "start", textBaseline: "alphabetic", dash: [], matrix: [1, 0, 0, 1, 0, 0], clips: 0 });
    this.#measure = measure;
    this.#out.push(`<rect width="${number(width)}" height="${number(height)}" fill="${paper}"/>`);
  }

  /** Return the file. */
  finish(title) {
    const { width, height } = this.canvas, close = "</g>".repeat(this.clips);
    return [
      `<svg xmlns="http://www.w3.org/2000/svg" width="${number(width)}" height="${number(height)}" viewBox="0 0 ${number(width)} ${number(height)}">`,
      `<title>${escaped(title)}</title>`,
      `<defs>${this.#defs.join("")}</defs>`,
      ...this.#out,
      `${close}</svg>\n`,
    ].join("\n");
  }

  save() {
    this.#saved.push(STATE.map((key) => this[key]));
  }

  restore() {
    const state = this.#saved.pop(), { clips } = this;
    if (!state) return;
    STATE.forEach((key, i) => (this[key] = state[i]));
    for (let open = this.clips; open < clips; open++) this.#out.push("</g>");
  }

  #multiply([a, b, c, d, e, f]) {
    const [A, B, C, D, E, F] = this.matrix;
    this.matrix = [A * a + C * b, B * a + D * b, A * c + C * d, B * c + D * d, A * e + C * f + E, B * e + D * f + F];
  }

  translate(x, y) {
    this.#multiply([1, 0, 0, 1, x, y]);
  }

  rotate(angle) {
    this.#multiply([Math.cos(angle), Math.sin(angle), -Math.sin(angle), Math.cos(angle), 0, 0]);
  }

  setLineDash(dash) {
    this.dash = dash;
  }

  measureText(text) {
    this.#measure.font = this.font;
    return this.#measure.measureText(text);
  }

  beginPath() {
    this.#path = [];
  }

  closePath() {
    this.#path.push("Z");
  }

  moveTo(x, y) {
    this.#path.push(`M${number(x)} ${number(y)}`);
  }

  lineTo(x, y) {
    // The first point of a path is moved to, as on a canvas.
    this.#path.push(`${this.#path.length ? "L" : "M"}${number(x)} ${number(y)}`);
  }

  bezierCurveTo(...points) {
    this.#path.push(`C${points.map(number).join(" ")}`);
  }

  rect(x, y, w, h) {
    this.#path.push(`M${number(x)} ${number(y)}h${number(w)}v${number(h)}h${number(-w)}Z`);
  }

  roundRect(x, y, w, h, r) {
    const R = number(r), arc = (dx, dy) => `a${R} ${R} 0 0 1 ${number(dx)} ${number(dy)}`;
    this.#path.push(`M${number(x + r)} ${number(y)}h${number(w - 2 * r)}${arc(r, r)}v${number(h - 2 * r)}${arc(-r, r)}h${number(2 * r - w)}${arc(-r, -r)}v${number(2 * r - h)}${arc(r, -r)}Z`);
  }

  /** Draw a full circle; the page draws no other arcs. */
  arc(x, y, r) {
    const R = number(r);
    this.#path.push(`M${number(x - r)} ${number(y)}a${R} ${R} 0 1 0 ${number(2 * r)} 0a${R} ${R} 0 1 0 ${number(-2 * r)} 0Z`);
  }

  clip() {
    const id = `clip${this.#defs.length}`;
    this.#defs.push(`<clipPath id="${id}"><path d="${this.#path.join("")}"${this.#placed}/></clipPath>`);
    this.#out.push(`<g clip-path="url(#${id})">`);
    this.clips++;
  }

  get #placed() {
    return this.matrix.join() === "1,0,0,1,0,0" ? "" : ` transform="matrix(${this.matrix.map(number).join(" ")})"`;
  }

  /** The attributes of what is drawn: opacity, blending and place. */
  get #common() {
    const opacity = this.globalAlpha < 1 ? ` opacity="${number(this.globalAlpha)}"` : "";
    const blend = this.globalCompositeOperation === "source-over" ? "" : ` style="mix-blend-mode:${this.globalCompositeOperation}"`;
    return opacity + blend + this.#placed;
  }

  get #stroke() {
    const dash = this.dash.length ? ` stroke-dasharray="${this.dash.join(" ")}"` : "";
    return ` fill="none" stroke="${this.strokeStyle}" stroke-width="${number(this.lineWidth)}" stroke-linejoin="${this.lineJoin}"${dash}`;
  }

  fill() {
    this.#draw(this.#path.join(""), ` fill="${this.fillStyle}"`);
  }

  stroke() {
    this.#draw(this.#path.join(""), this.#stroke);
  }

  #draw(path, attributes) {
    if (path) this.#out.push(`<path d="${path}"${attributes}${this.#common}/>`);
  }

  #box(x, y, w, h, attributes) {
    this.#draw(`M${number(x)} ${number(y)}h${number(w)}v${number(h)}h${number(-w)}Z`, attributes);
  }

  fillRect(x, y, w, h) {
    if (w > 0 && h > 0) this.#box(x, y, w, h, ` fill="${this.fillStyle}"`);
  }

  strokeRect(x, y, w, h) {
    this.#box(x, y, w, h, this.#stroke);
  }

  clearRect(x, y, w, h) {
    this.#box(x, y, w, h, ` fill="${this.paper}"`);
  }

  fillText(text, x, y) {
    const [, weight = "", size] = /(bold|\d{3})?\s*([\d.]+)px/.exec(this.font) ?? [], family = this.font.replace(/^.*?px\s*/, "");
    // Editors and converters ignore dominant-baseline more often than not.
    const baseline = this.textBaseline === "middle" ? y + 0.35 * Number(size) : y;
    const bold = weight ? ` font-weight="${weight}"` : "", anchor = ANCHOR[this.textAlign];
    const attributes = `font-family="${escaped(family)}" font-size="${size}"${bold}${anchor === "start" ? "" : ` text-anchor="${anchor}"`}`;
    this.#out.push(`<text x="${number(x)}" y="${number(baseline)}" fill="${this.fillStyle}" xml:space="preserve" ${attributes}${this.#common}>${escaped(text)}</text>`);
  }

  /** Draw the rows of a raster; returns how many rectangles that takes. */
  drawRows(raster, rows, view) {
    let count = 0;
    for (const [color, { path, boxes }] of shapesOf(raster, rows, view)) {
      count += boxes;
      const opacity = color.length > 7 ? ` fill-opacity="${number(parseInt(color.slice(7), 16) / 255)}"` : "";
      this.#draw(path, ` fill="${this.filled(color.slice(0, 7))}"${opacity}`);
    }
    return count;
  }

  /** Return the fill of a color: itself, or with its pattern. */
  filled(color) {
    const name = this.patterns.get(color.toUpperCase());
    if (!name) return color;
    const id = `${name}-${color.slice(1)}`;
    if (!this.#patterns.has(id)) {
      const [size, path] = TILES[name], dark = name === "dots" ? ' fill="#000" fill-opacity="0.28"' : ' fill="none" stroke="#000" stroke-opacity="0.28"';
      this.#patterns.set(id, true);
      this.#defs.push(`<pattern id="${id}" width="${size}" height="${size}" patternUnits="userSpaceOnUse"><rect width="${size}" height="${size}" fill="${color}"/><path d="${path}"${dark}/></pattern>`);
    }
    return `url(#${id})`;
  }
}
