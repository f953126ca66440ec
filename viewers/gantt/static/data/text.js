/** Formats numbers and names for display, like dptrace/core/units.py. */

/** What a figure reads that the data do not hold: null or undefined, never 0. */
export const UNKNOWN = "unknown";

/** Whether a figure is known. */
export function isKnown(value) {
  return value !== null && value !== undefined;
}

const UNITS = [
  [1e9, "s"],
  [1e6, "ms"],
  [1e3, "µs"],
  [1, "ns"],
];

/** Return the largest unit of at most a time. */
function unitFor(ns) {
  return UNITS.find(([size]) => Math.abs(ns) >= size) ?? UNITS[3];
}

const INTEGERS = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** Format an integer with thousands separators: "12,345". */
export function integer(value) {
  return isKnown(value) ? INTEGERS.format(value) : UNKNOWN;
}

/** Format a duration of 0 or more with three significant digits: "12.6 ms". */
export function duration(ns) {
  if (!isKnown(ns)) return UNKNOWN;
  const [size, unit] = UNITS.find(([least]) => ns / least >= 0.9995) ?? UNITS[3];
  const value = ns / size, digits = unit === "ns" || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return `${value >= 1000 ? integer(Math.round(value)) : value.toFixed(digits)} ${unit}`;
}

/** Format a point in time with a resolution of a thousandth of the view's width. */
export function moment(ns, width) {
  const [size, unit] = unitFor(Math.max(Math.abs(ns), width));
  const digits = Math.max(0, Math.min(9, Math.ceil(-Math.log10(width / size / 1000))));
  return `${grouped(ns / size, digits)} ${unit}`;
}

/** Write a number with so many decimals, and with thousands separators. */
function grouped(value, digits) {
  return value.toFixed(digits).replace(/\d+/, (whole) => whole.replace(/\B(?=(\d{3})+$)/g, ","));
}

/** Width of a view in ns below which times are in ns since their step began. */
const FINE_VIEW = 1e4;

/** Whether the times of a view of some width are in ns since their step began. */
export function isFine(width) {
  return width < FINE_VIEW;
}

/**
 * Format the ticks of an axis in one unit, with enough digits to distinguish neighbours; in a view of little
 * width in ns since their step began, which `inStep(time)` returns.
 */
export function tickLabels(ticks, width, inStep) {
  const step = ticks.length > 1 ? Math.abs(ticks[1] - ticks[0]) : 1e6;
  if (isFine(width)) return ticks.map((tick) => `${integer(inStep(tick))} ns`);
  return inOneUnit(ticks, step, unitFor(Math.min(Math.max(...ticks.map(Math.abs), step), step * 1e3)));
}

/** Format a point in time like the ticks of a view of some width. */
export function tickText(ns, width, inStep) {
  return isFine(width) ? `${integer(inStep(ns))} ns into the step` : moment(ns, width);
}

/** Format a range of time: "12.6 ms from 1.2345 s". */
export function spanText(from, to, inStep) {
  return `${duration(to - from)} from ${tickText(from, to - from, inStep)}`;
}

function inOneUnit(ticks, step, [size, unit]) {
  const digits = Math.max(0, -Math.floor(Math.log10(step / size) + 1e-9));
  return ticks.map((tick) => `${grouped(tick / size, digits)} ${unit}`);
}

/** Format a share in percent: one decimal below ten, none above; "< 0.1 %" instead of "0 %" for tiny shares. */
export function percent(share) {
  if (!isKnown(share)) return UNKNOWN;
  if (share > 0 && share < 0.0005) return "< 0.1 %";
  return `${(100 * share).toFixed(share && share < 0.0995 ? 1 : 0)} %`;
}

/** Format a part of a whole in percent; a dash if the whole is 0. */
export function percentOf(part, whole) {
  if (!isKnown(part) || !isKnown(whole)) return UNKNOWN;
  return whole ? percent(part / whole) : "–";
}

/** Format bytes in decimal units: "26.2 MB". */
export function bytes(count) {
  if (!isKnown(count)) return UNKNOWN;
  if (count < 999.5) return `${Math.round(count)} B`;
  const [size, unit] = [[1e3, "kB"], [1e6, "MB"]].find(([size]) => count / size < 999.95) ?? [1e9, "GB"];
  return `${(count / size).toFixed(1)} ${unit}`;
}

/** Escape control characters and characters that change the direction of text. */
export function visible(text) {
  return text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
}

const SHORT_NAMES = new Map();

/** Learn the short names of kernels: tables in the terminal, JSON and pages have the same. */
export function learnShortNames(names, shorts) {
  for (const [id, short] of Object.entries(shorts)) SHORT_NAMES.set(names[id], short);
}

/** Return a kernel's short name, "vectorized_elementwise_kernel(FillFunctor<float>)"; the name itself if it is short. */
export function shortName(name) {
  return SHORT_NAMES.get(name) ?? name;
}

/** Return the texts that name a kernel where there is little room, best first: its short name, and what is special in it. */
export function kernelTexts(name) {
  const short = visible(shortName(name)), special = /^\w+\((.+)\)/.exec(short);
  return special ? [short, special[1]] : [short];
}

/** Truncate a text in the middle: kernel families share their beginning, variants differ at the end. */
export function truncateMiddle(text, characters) {
  if (text.length <= characters) return text;
  if (characters < 8) return "";
  // By characters: half of an emoji is none.
  const letters = Array.from(text), head = Math.ceil((characters - 1) * 0.55);
  return letters.length <= characters ? text : `${letters.slice(0, head).join("")}…${letters.slice(letters.length - (characters - 1 - head)).join("")}`;
}

/** Format a rate: "12.3 GB/s". */
export function rate(bytesPerSecond) {
  return isKnown(bytesPerSecond) ? `${bytes(Math.round(bytesPerSecond))}/s` : UNKNOWN;
}

/** Return the kind of a collective, such as "all_reduce"; "" if unknown. */
export function collectiveWord({ kind }) {
  return kind && kind !== "other" ? kind : "";
}

// Texts of collectives: what one is called, and what a wait in it is for.

/** Return what a collective is called: by bucket, layer or peer where that is known ("AR bucket 0"), else by its kind. */
export function collectiveName(known) {
  return known.title || collectiveWord(known) || (known.short ?? known.name);
}

/** Return a collective's name with its size, if that is known: "AR bucket 0 · 26.2 MB". */
export function collectiveTitle(known) {
  const name = visible(collectiveName(known));
  return known.bytes ? `${name} · ${bytes(known.bytes)}` : name;
}

/** Return the candidate labels of a collective, best first; empty where the trace tells nothing but its kernel. */
export function collectiveTexts(known) {
  return known.title || collectiveWord(known) ? [...new Set([collectiveTitle(known), visible(collectiveName(known))])] : [];
}

/** Return the rank that a wait is for, in words; `rank` is -1 where no rank stands out. */
export function waitedFor(rank) {
  return `waiting for ${rank < 0 ? "other ranks" : `rank ${rank}`}`;
}

/** Return the candidate labels of a wait, best first; `ns` is null where compute interrupts it. */
export function waitTexts(rank, ns) {
  const whom = waitedFor(rank);
  return ns === null ? [whom, "waiting"] : [`${whom} · ${duration(ns)}`, `waiting · ${duration(ns)}`, "waiting"];
}
