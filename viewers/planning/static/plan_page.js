/** Sliders for GPUs, batch, rate and links, and the step that follows from them. */

import { element, table } from "../../base/static/dom.js";
import { scaling, step } from "./plan_model.js";

const { plan } = JSON.parse(document.getElementById("plan-data").textContent);
const place = document.getElementById("sliders");
const SVG = document.querySelector("svg").namespaceURI; // of the page's own charts
const COLORS = { compute: "#3475B3", bubble: "#9CA3AF", optimizer: "#AF7F0C", exposed: "#B42814" };
const NAMES = { compute: "computation", bubble: "bubble", optimizer: "optimizer", exposed: "exposed communication" };

const digits = (value) => Number(value.toPrecision(3)).toLocaleString("en-US");
const percent = (value) => `${(100 * value).toFixed(value < 0.0995 ? 1 : 0)} %`;
function time(seconds) {
  const [size, unit] = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]].find(([least]) => seconds >= least * 0.9995) ?? [1e-9, "ns"];
  return `${digits(seconds / size)} ${unit}`;
}

const least = Math.log2(Math.max(1, plan.least_data));
const most = Math.max(least, Math.floor(Math.log2(1024 / plan.model_parallel)));
const power = (value) => Math.log2(value);
const rate = (name, key, from, to) => ({
  name, key, low: power(from), high: power(to), by: 0.05, start: power(plan[key].bytes_per_s / 1e9),
  value: (at) => 2 ** at * 1e9, shown: (at) => `${digits(2 ** at)} GB/s`,
});
const SLIDERS = [
  {
    name: "GPUs", key: "data", low: least, high: most, by: 1, start: Math.round(power(plan.gpus / plan.model_parallel)),
    value: (at) => 2 ** at, shown: (at) => `${(2 ** at * plan.model_parallel).toLocaleString("en-US")}`,
  },
  {
    name: "micro-batches in a step", key: "microBatches", low: 0, high: 9, by: 1, start: power(plan.micro_batches),
    value: (at) => Math.round(2 ** at), shown: (at) => `${Math.round(2 ** at)} × ${plan.micro_batch} samples`,
  },
  {
    name: "share of the peak that computation reaches", key: "share", low: 0.05, high: 1, by: 0.01, start: plan.share,
    value: (at) => at, shown: percent,
  },
  rate("bandwidth within a node", "within", 1, 2000),
  rate("bandwidth between nodes", "between", 0.1, 1000),
];

const now = { overlap: true };
const controls = element("div"), shown = element("div");
shown.setAttribute("aria-live", "polite");
for (const slider of SLIDERS) controls.append(range(slider));
controls.append(checkbox());
place.append(controls, shown);
show();

function range({ name, key, low, high, by, start, value, shown: text }) {
  const label = element("label"), input = element("input"), output = element("output");
  const begin = Math.min(high, Math.max(low, start));
  Object.assign(input, { type: "range", min: low, max: high, step: by === 1 ? 1 : "any" });
  input.value = begin;
  const set = (at) => {
    now[key] = value(at);
    output.textContent = text(at);
    input.setAttribute("aria-valuetext", output.textContent);
  };
  input.addEventListener("input", () => {
    set(Number(input.value));
    show();
  });
  set(begin);
  label.append(element("span", "", name), output, input);
  return label;
}

function checkbox() {
  const label = element("label"), input = element("input");
  Object.assign(input, { type: "checkbox", checked: true });
  input.addEventListener("change", () => {
    now.overlap = input.checked;
    show();
  });
  label.append(element("span", "", "communication runs under forward and backward"), input);
  return label;
}

function show() {
  const found = step(plan, now);
  const parts = Object.keys(NAMES).map((key) => [key, found[key]]);
  const rows = parts.map(([key, seconds]) => [NAMES[key], time(seconds), percent(seconds / found.total)]);
  rows.push(["step", time(found.total), ""], ["samples in a step", found.samples.toLocaleString("en-US"), ""]);
  rows.push(["samples/s", digits(found.samplesPerSecond), ""], ["tokens/s", digits(found.tokensPerSecond), ""]);
  rows.push(["MFU", percent(found.mfu), found.mfu > 0.4 ? "goal > 40 %" : "misses > 40 %"]);
  if (found.overlap !== null) {
    rows.push(["overlap", percent(found.overlap), found.overlap > 0.8 ? "goal > 80 %" : "misses > 80 %"]);
  }
  shown.replaceChildren(bar(parts, found.total), table(null, rows), curve(scaling(plan, now), found.gpus));
}

function bar(parts, total) {
  const row = element("div", "bar");
  for (const [key, seconds] of parts) {
    const part = element("span");
    part.title = `${NAMES[key]} ${time(seconds)}`;
    Object.assign(part.style, { width: `${(100 * seconds) / total}%`, background: COLORS[key] });
    row.append(part);
  }
  return row;
}

function node(tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

/** Draw the efficiency over the GPUs, with a ring at the chosen number. */
function curve(rows, chosen) {
  const picture = node("svg", { viewBox: "0 0 560 190", role: "img", "aria-label": "efficiency by number of GPUs" });
  const [first, last] = [power(rows[0].gpus), Math.max(power(rows.at(-1).gpus), power(rows[0].gpus) + 1)];
  const x = (gpus) => 46 + ((power(gpus) - first) / (last - first)) * 490;
  const y = (efficiency) => 12 + (1 - efficiency) * 146;
  for (const level of [0, 0.5, 1]) {
    picture.append(node("line", { x1: 46, x2: 540, y1: y(level), y2: y(level), stroke: "var(--line)" }));
    picture.append(node("text", { x: 40, y: y(level) + 4, "text-anchor": "end" }, percent(level)));
  }
  const points = rows.map((row) => `${x(row.gpus)},${y(row.efficiency)}`).join(" ");
  picture.append(node("polyline", { points, fill: "none", stroke: COLORS.compute, "stroke-width": 2 }));
  for (const row of rows) {
    const ring = row.gpus === chosen ? 6 : 3;
    picture.append(node("circle", { cx: x(row.gpus), cy: y(row.efficiency), r: ring, fill: COLORS.compute }));
    picture.append(node("text", { x: x(row.gpus), y: 178, "text-anchor": "middle" }, row.gpus.toLocaleString("en-US")));
  }
  return picture;
}
