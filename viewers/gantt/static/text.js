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

/** Functions that only run what a template argument names: cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_…>. */
const SHELLS = /^(Kernel2?|kernel|device_kernel|kernel_entry)$/;

/** The function's own name, or that of the first argument of a shell. */
function functionName(base, plain) {
  const argument = SHELLS.test(base) && /<\s*(?:typename |class |struct )?([\w:]+)/.exec(plain.slice(plain.indexOf(base)));
  return (argument && !/^(float|double|int|bool|char|unsigned|long)$/.test(argument[1]) && argument[1].split("::").at(-1)) || base;
}

/**
 * The part of a kernel's name that tells it from others: its function, and the functor that an elementwise kernel
 * is a shell for: "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, …>(…)"
 * is "elementwise CUDAFunctor_add".
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

/** Shorten in the middle to so many characters: kernel families share their beginning, variants differ at the end. */
export function truncateMiddle(text, characters) {
  if (text.length <= characters) return text;
  if (characters < 8) return "";
  const head = Math.ceil((characters - 1) * 0.55);
  return `${text.slice(0, head)}…${text.slice(text.length - (characters - 1 - head))}`;
}

/** Bytes a second: "12.3 GB/s". */
export function rate(bytesPerSecond) {
  return `${bytes(Math.round(bytesPerSecond))}/s`;
}

/** What a collective does, as NCCL and all tables write it: "all_reduce"; nothing where that is not known. */
export function collectiveWord({ kind }) {
  return kind && kind !== "other" ? kind : "";
}

const WAYS = { fprop: "fprop", fwd: "fprop", dgrad: "dgrad", bwd: "dgrad", wgrad: "wgrad", wrw: "wgrad" };
/** Kernel families, and what their names say: the first that fits tells. */
const FAMILIES = [
  [/(\w+?)Backward\d*$/, ([, op]) => `${op.toLowerCase()} backward`],
  [/^triton_\w+?_fused_(\w+?)(?:_\d+)?$/, ([, ops]) => `fused ${ops.replace(/^_+|_+$/g, "")}`],
  [/flash_?(?:attn_?)?(fwd|bwd|forward|backward)|fmha\w*?_?(fwd|bwd|forward|backward)/i, ([, a, b]) => `flash attention ${(a ?? b).replace("forward", "fwd").replace("backward", "bwd")}`],
  [/(fprop|dgrad|wgrad)|igemm_(fwd|bwd|wrw)|conv_?(fwd|bwd)/i, ([, ...ways]) => `conv ${WAYS[ways.find(Boolean).toLowerCase()]}`],
  [/gemm|^Cijk_|^nvjet_/i, () => "gemm"],
  [/gemv/i, () => "gemv"],
  [/batch_?norm|(?:^|::)bn_(?:fw|bw)/i, () => "batch norm"],
  [/layer_?norm|rms_?norm/i, () => "layer norm"],
  [/softmax/i, () => "softmax"],
  [/embedding/i, () => "embedding"],
  [/adam/i, () => "adam"],
];
const TYPES_OF_NUMBERS = /(?<![a-z])(bf16|fp16|f16|tf32|fp32|f32|f64|fp8|e4m3|s8|i8|half|bfloat16)(?![a-z\d])/i;
const BACKWARDS = /backward|_bw|_bwd|grad(?!_)/i;

/** Of a functor, its verb: "CUDAFunctor_add" and "MulFunctor" are "add" and "mul". */
function verb(functor) {
  return functor
    .replace(/^(CUDAFunctor|Functor)_?/, "")
    .replace(/_?(Functor|Ops?|Math)$/, "")
    .replace(/([a-z])([A-Z])/g, "$1 $2")
    .replaceAll("_", " ")
    .toLowerCase()
    .trim();
}

/**
 * What a kernel is for, in a word or three: "gemm bf16 128x128", "elementwise add", "softmax backward"; its short name
 * where that is all that can be told.
 */
export function shortOperator(name) {
  const short = shortName(name);
  const shell = /^(elementwise|multi_tensor_apply|reduce)\w* (\w+)$/.exec(short);
  if (shell) return `${shell[1].replace("multi_tensor_apply", "foreach")} ${verb(shell[2])}`.trim();
  const family = FAMILIES.map(([pattern, describe]) => [pattern.exec(short) ?? (pattern.source === "adam" ? pattern.exec(name) : null), describe]).find(([match]) => match);
  if (!family) return short;
  const word = family[1](family[0]), parts = [word];
  // In mangled names single letters stand for types, and any letters beside digits look like one.
  if (/^(gemm|conv)/.test(word) && !short.startsWith("_Z")) parts.push(TYPES_OF_NUMBERS.exec(short)?.[1].toLowerCase(), /(?<!\d)\d{2,3}x\d{2,3}(?:x\d{1,3})?(?!\d)/.exec(short)?.[0]);
  else if (!/^gemm|^conv|fwd|bwd|^fused|backward/.test(word) && BACKWARDS.test(short)) parts.push("backward");
  return parts.filter(Boolean).join(" ");
}
