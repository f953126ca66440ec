/** Numbers and names as people read them. */

const UNITS = [
  [1e9, "s"],
  [1e6, "ms"],
  [1e3, "µs"],
  [1, "ns"],
];

function unitFor(ns) {
  return UNITS.find(([size]) => Math.abs(ns) >= size) ?? UNITS[3];
}

/** A duration with three significant digits: "12.6 ms". */
export function duration(ns) {
  const [size, unit] = unitFor(ns);
  const value = ns / size;
  const digits = unit === "ns" || Math.abs(value) >= 99.95 ? 0 : Math.abs(value) >= 9.995 ? 1 : 2;
  return `${value.toFixed(digits)} ${unit}`;
}

/** A point in time, in the unit that the view's width calls for, to a thousandth of that width. */
export function moment(ns, width) {
  const [size, unit] = unitFor(Math.max(Math.abs(ns), width));
  const digits = Math.max(0, Math.min(9, Math.ceil(-Math.log10(width / size / 1000))));
  return `${(ns / size).toFixed(digits)} ${unit}`;
}

/** Labels for an axis' ticks, all in one unit, with the digits that tell neighbours apart. */
export function tickLabels(ticks) {
  const step = ticks.length > 1 ? Math.abs(ticks[1] - ticks[0]) : 1e6;
  const largest = Math.max(...ticks.map(Math.abs), step);
  const [size, unit] = unitFor(Math.min(largest, step * 1e3));
  const digits = Math.max(0, -Math.floor(Math.log10(step / size) + 1e-9));
  return ticks.map((tick) => `${(tick / size).toFixed(digits)} ${unit}`);
}

/** A share as per cent: one digit below ten, none above; never "0 %" for what is more than nothing. */
export function percent(share) {
  if (share > 0 && share < 0.0005) return "< 0.1 %";
  return `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;
}

/** Bytes in decimal units: "26.2 MB". */
export function bytes(count) {
  const [size, unit] = [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]].find(([least]) => count >= least) ?? [1, "B"];
  const value = count / size;
  return `${size === 1 ? value : value.toPrecision(3)} ${unit}`;
}

/** Show control characters, and those that turn the direction of text, as escapes. */
export function visible(text) {
  return text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
}

/** Leave out what stands in brackets of one kind, nested or not. */
function without(text, open, close) {
  let depth = 0, kept = "";
  for (const c of text) {
    if (c === open) depth++;
    else if (c === close) depth = Math.max(0, depth - 1);
    else if (depth === 0) kept += c;
  }
  return kept;
}

/**
 * The part of a kernel's name that tells it from others: its function, and the functor that an elementwise kernel
 * is a shell for: "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, …>(…)"
 * is "elementwise CUDAFunctor_add".
 */
export function shortName(name) {
  const plain = name.replaceAll("(anonymous namespace)::", "").replace(/^void /, "");
  const called = without(without(plain, "<", ">"), "(", ")").trim();
  const base = called.split("::").at(-1) || plain;
  if (!/elementwise_kernel|multi_tensor_apply_kernel|reduce_kernel/.test(base)) return base;
  const functor = /(\w*(?:[Ff]unctor|Ops?)(?:_\w+)?)\s*[<,>(]/.exec(plain.slice(plain.indexOf(base) + base.length));
  const shell = base.replace(/^(vectorized|unrolled)_/, "").replace(/_kernel(_impl)?$/, "");
  return functor ? `${shell} ${functor[1]}` : base;
}

/** Shorten in the middle to so many characters: kernel families share their beginning, variants differ at the end. */
export function middle(text, characters) {
  if (text.length <= characters) return text;
  if (characters < 8) return "";
  const head = Math.ceil((characters - 1) * 0.55);
  return `${text.slice(0, head)}…${text.slice(text.length - (characters - 1 - head))}`;
}
