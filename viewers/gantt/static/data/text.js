/** Formats numbers and names for display, like dptrace/core/units.py. */

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

/** Format an integer with thousands separators: "12,345". */
export function integer(value) {
  return value.toLocaleString("en-US");
}

/** Format a duration of 0 or more with three significant digits: "12.6 ms". */
export function duration(ns) {
  const [size, unit] = UNITS.find(([least]) => ns / least >= 0.9995) ?? UNITS[3];
  const value = ns / size, digits = unit === "ns" || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return `${value >= 1000 ? integer(Math.round(value)) : value.toFixed(digits)} ${unit}`;
}

/** Format a point in time with a resolution of a thousandth of the view's width. */
export function moment(ns, width) {
  const [size, unit] = unitFor(Math.max(Math.abs(ns), width));
  const digits = Math.max(0, Math.min(9, Math.ceil(-Math.log10(width / size / 1000))));
  return `${(ns / size).toFixed(digits)} ${unit}`;
}

/** Ratio of a tick's time to the distance of ticks from which all but the first tell how far they are from it. */
const DEEP = 1e4;

/**
 * Format the ticks of an axis in one unit, with enough digits to distinguish neighbours. Deep in a run, the first tick has
 * its time and the others their distance from it: "64.6002 ms", "+200 ns", "+400 ns".
 */
export function tickLabels(ticks) {
  const step = ticks.length > 1 ? Math.abs(ticks[1] - ticks[0]) : 1e6;
  const largest = Math.max(...ticks.map(Math.abs), step);
  if (largest < DEEP * step) return inOneUnit(ticks, step, unitFor(Math.min(largest, step * 1e3)));
  const [first, ...others] = ticks;
  const distances = others.map((tick) => tick - first);
  const unit = unitFor(Math.max(...distances, step));
  return [...inOneUnit([first], step, unitFor(largest)), ...inOneUnit(distances, step, unit).map((label) => `+${label}`)];
}

function inOneUnit(ticks, step, [size, unit]) {
  const digits = Math.max(0, -Math.floor(Math.log10(step / size) + 1e-9));
  return ticks.map((tick) => `${(tick / size).toFixed(digits)} ${unit}`);
}

/** Format a share in percent: one decimal below ten, none above; "< 0.1 %" instead of "0 %" for tiny shares. */
export function percent(share) {
  if (share > 0 && share < 0.0005) return "< 0.1 %";
  return `${(100 * share).toFixed(share && share < 0.0995 ? 1 : 0)} %`;
}

/** Format a part of a whole in percent; a dash if the whole is 0. */
export function percentOf(part, whole) {
  return whole ? percent(part / whole) : "–";
}

/** Format bytes in decimal units: "26.2 MB". */
export function bytes(count) {
  if (count < 999.5) return `${Math.round(count)} B`;
  const [size, unit] = [[1e3, "kB"], [1e6, "MB"]].find(([size]) => count / size < 999.95) ?? [1e9, "GB"];
  return `${(count / size).toFixed(1)} ${unit}`;
}

/** Escape control characters and characters that change the direction of text. */
export function visible(text) {
  return text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
}

/** Remove text in brackets of one kind, also nested. */
function without(text, open, close) {
  let depth = 0, kept = "";
  for (const c of text) {
    if (c === open) depth++;
    else if (c === close) depth = Math.max(0, depth - 1);
    else if (depth === 0) kept += c;
  }
  return kept;
}

/** Wrappers that run the kernel named in a template argument: cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_…>. */
const WRAPPERS = /^(Kernel2?|kernel|device_kernel|kernel_entry)$/;

/** Return the function's name, or for a wrapper the name of its first template argument. */
function functionName(base, plain) {
  const argument = WRAPPERS.test(base) && /<\s*(?:typename |class |struct )?([\w:]+)/.exec(plain.slice(plain.indexOf(base)));
  return (argument && !/^(float|double|int|bool|char|unsigned|long)$/.test(argument[1]) && argument[1].split("::").at(-1)) || base;
}

/**
 * Shorten a kernel's name to its function, with the functor of an elementwise kernel:
 * "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, …>(…)" becomes
 * "elementwise CUDAFunctor_add".
 */
export function shortName(name) {
  const plain = name.replaceAll("(anonymous namespace)::", "").replace(/^void /, "");
  const called = without(without(plain, "<", ">"), "(", ")").trim();
  const base = functionName(called.split("::").at(-1), plain) || plain;
  if (!/elementwise_kernel|multi_tensor_apply_kernel|reduce_kernel/.test(base)) return base;
  const functor = /(\w*(?:[Ff]unctor|Ops?)(?:_\w+)?)\s*[<,>(]/.exec(plain.slice(plain.indexOf(base) + base.length));
  const shell = base.replace(/^(vectorized|unrolled)_/, "").replace(/_kernel(_impl)?$/, "");
  return functor ? `${shell} ${functor[1]}` : base;
}

/** Truncate a text in the middle: kernel families share their beginning, variants differ at the end. */
export function truncateMiddle(text, characters) {
  if (text.length <= characters) return text;
  if (characters < 8) return "";
  const head = Math.ceil((characters - 1) * 0.55);
  return `${text.slice(0, head)}…${text.slice(text.length - (characters - 1 - head))}`;
}

/** Format a rate: "12.3 GB/s". */
export function rate(bytesPerSecond) {
  return `${bytes(Math.round(bytesPerSecond))}/s`;
}

/** Return the kind of a collective, such as "all_reduce"; "" if unknown. */
export function collectiveWord({ kind }) {
  return kind && kind !== "other" ? kind : "";
}

const CONV_PASSES = { fprop: "fprop", fwd: "fprop", dgrad: "dgrad", bwd: "dgrad", wgrad: "wgrad", wrw: "wgrad" };
/** Kernel families: pattern of the name, and how to describe a match; the first match counts. */
const FAMILIES = [
  [/(\w+?)Backward\d*$/, ([, op]) => `${op.toLowerCase()} backward`],
  [/^triton_\w+?_fused_(\w+?)(?:_\d+)?$/, ([, ops]) => `fused ${ops.replace(/^_+|_+$/g, "")}`],
  [/flash_?(?:attn_?)?(fwd|bwd|forward|backward)|fmha\w*?_?(fwd|bwd|forward|backward)/i, ([, a, b]) => `flash attention ${(a ?? b).replace("forward", "fwd").replace("backward", "bwd")}`],
  [/(fprop|dgrad|wgrad)|igemm_(fwd|bwd|wrw)|conv_?(fwd|bwd)/i, ([, ...passes]) => `conv ${CONV_PASSES[passes.find(Boolean).toLowerCase()]}`],
  [/gemm|^Cijk_|^nvjet_/i, () => "gemm"],
  [/gemv/i, () => "gemv"],
  [/batch_?norm|(?:^|::)bn_(?:fw|bw)/i, () => "batch norm"],
  [/layer_?norm|rms_?norm/i, () => "layer norm"],
  [/softmax/i, () => "softmax"],
  [/embedding/i, () => "embedding"],
  [/adam/i, () => "adam"],
];
const NUMBER_TYPE = /(?<![a-z])(bf16|fp16|f16|tf32|fp32|f32|f64|fp8|e4m3|s8|i8|half|bfloat16)(?![a-z\d])/i;
const BACKWARD = /backward|_bw|_bwd|grad(?!_)/i;

/** Return the operation of a functor: "add" for "CUDAFunctor_add", "mul" for "MulFunctor". */
function operation(functor) {
  return functor
    .replace(/^(CUDAFunctor|Functor)_?/, "")
    .replace(/_?(Functor|Ops?|Math)$/, "")
    .replace(/([a-z])([A-Z])/g, "$1 $2")
    .replaceAll("_", " ")
    .toLowerCase()
    .trim();
}

/**
 * Describe a kernel in one to three words: "gemm bf16 128x128", "elementwise add", "softmax backward"; its short name
 * if the family is unknown.
 */
export function shortOperator(name) {
  const short = shortName(name);
  const shell = /^(elementwise|multi_tensor_apply|reduce)\w* (\w+)$/.exec(short);
  if (shell) return `${shell[1].replace("multi_tensor_apply", "foreach")} ${operation(shell[2])}`.trim();
  const family = FAMILIES.map(([pattern, describe]) => [pattern.exec(short) ?? (pattern.source === "adam" ? pattern.exec(name) : null), describe]).find(([match]) => match);
  if (!family) return short;
  const word = family[1](family[0]), parts = [word];
  // Mangled names contain letters and digits that look like number types and tile sizes.
  if (/^(gemm|conv)/.test(word) && !short.startsWith("_Z")) parts.push(NUMBER_TYPE.exec(short)?.[1].toLowerCase(), /(?<!\d)\d{2,3}x\d{2,3}(?:x\d{1,3})?(?!\d)/.exec(short)?.[0]);
  else if (!/^gemm|^conv|fwd|bwd|^fused|backward/.test(word) && BACKWARD.test(short)) parts.push("backward");
  return parts.filter(Boolean).join(" ");
}
