/** The words of the panel: what launched a kernel, what a call of the host is, what the host did in a gap. */

import { CALLS, LABELS, PYTHON, detailsAt } from "./host_calls.js";
import { bytes, duration, moment, visible } from "../data/text.js";

export const NOT_RECORDED = "not recorded";
/** Calls of a path, and frames of a stack, that are listed. */
const MAX_PATH = 12, MAX_STACK = 20;

/** Escape what a text has besides its lines. */
const lines = (text) => text.split("\n").map(visible).join("\n");
const or = (text, otherwise = NOT_RECORDED) => text || otherwise;

/** Return a duration with its sign: a kernel can start before its launch returns. */
export function signed(ns) {
  return ns < 0 ? `−${duration(-ns)}` : duration(ns);
}

/** Return the names of a call and of those around it, the outermost first. */
export function pathOf(calls, index) {
  const path = [index, ...calls.around(index)].toReversed().map((one) => calls.nameOf(one));
  return path.length > MAX_PATH ? [...path.slice(0, 2), `… ${path.length - MAX_PATH} more …`, ...path.slice(2 - MAX_PATH)] : path;
}

/** Return the innermost annotation or module around a time, the step's mark excepted; "" without one. */
export function labelAt(calls, thread, time) {
  const label = calls.at(thread, LABELS, time);
  const names = label < 0 ? [] : [label, ...calls.around(label)].map((one) => calls.nameOf(one));
  const found = names.find((name) => !name.startsWith("ProfilerStep#"));
  // The first thread waits in its annotation while autograd's runs.
  return found ?? (thread > 0 ? labelAt(calls, 0, time) : "");
}

/** Return the lines of the Python stack at a time, innermost first: those of an event's own record, else the functions around it. */
export function stackAt(calls, thread, time, recorded) {
  if (recorded) return recorded.split("\n").slice(0, MAX_STACK);
  const innermost = calls.at(thread, PYTHON, time);
  return innermost < 0 ? [] : [innermost, ...calls.around(innermost)].map((one) => calls.nameOf(one)).slice(0, MAX_STACK);
}

/** Return the innermost operator at or around a call, or -1. */
export function operatorOf(calls, index) {
  return [index, ...calls.around(index)].find((one) => !/^(cuda|hip|cu)[A-Z]/.test(calls.nameOf(one))) ?? -1;
}

/** Return the facts of what launched an interval that starts at a time: pairs of a name and a text. */
export function launchFacts({ calls, launches, launchDetails }, launch, start, memory = false) {
  if (!launch || !calls) return [["launch", launches ? NOT_RECORDED : "not on this page"]];
  const call = launch.start === null || launch.thread === null ? -1 : calls.launchAt(launch.thread, launch.start);
  const operator = call < 0 ? -1 : operatorOf(calls, call), found = operator < 0 ? detailsAt() : detailsAt(calls.details, calls.detail[operator]);
  const own = launch.detail === null ? detailsAt() : detailsAt(launchDetails, launch.detail);
  const absent = call < 0 && launch.start !== null && calls.leftOut ? "left out of this page" : NOT_RECORDED;
  const facts = [
    ["operator", or(operator < 0 ? "" : calls.nameOf(operator), absent)],
    ["shapes", or(found.shapes, absent)],
    ["dtype", or(found.dtypes, absent)],
    ["called in", or(call < 0 ? "" : labelAt(calls, launch.thread, launch.start), absent)],
    ["launched by", or(call < 0 ? "" : calls.nameOf(call), absent)],
    ["queue delay", launch.end === null ? NOT_RECORDED : `${signed(start - launch.end)} from the end of the launch to the start`],
    ["correlation", launch.correlation === null || launch.correlation < 0 ? NOT_RECORDED : String(launch.correlation)],
    ...(memory ? [["size", own.bytes < 0 ? NOT_RECORDED : bytes(own.bytes)]] : [["grid", or(own.grid)], ["block", or(own.block)]]),
  ];
  const stack = call < 0 ? [] : stackAt(calls, launch.thread, launch.start, found.stack);
  return [...facts, ["stack", or(stack.join("\n"))]].map(([key, text]) => [key, lines(text)]);
}

/** Return the facts of a host's call. */
export function callFacts({ calls, threads }, index, { range, kinds }) {
  const { lod } = calls, { thread, flame } = calls.levelOf(index), details = detailsAt(calls.details, calls.detail[index]);
  const inner = lod.duration[index] - insideOf(calls, index);
  const facts = [
    ["kind", kinds[calls.kind[index]].label.toLowerCase()],
    ["thread", threads[thread]],
    ["start", moment(lod.start[index], Math.min(range, 1e6))],
    ["duration", duration(lod.duration[index])],
    ["itself", `${duration(inner)} outside the calls in it`],
    ...(flame === CALLS ? [["shapes", or(details.shapes)], ["dtype", or(details.dtypes)]] : []),
    ["called in", or(flame === CALLS ? labelAt(calls, thread, lod.start[index]) : "", "no annotation")],
    ["path", pathOf(calls, index).join(" › ")],
    ["stack", or(stackAt(calls, thread, lod.start[index], details.stack).join("\n"))],
  ];
  return facts.filter(([key]) => flame === CALLS || key !== "called in").map(([key, text]) => [key, lines(text)]);
}

/** Return the ns of a call that the calls directly in it cover. */
function insideOf(calls, index) {
  const { lod } = calls, { thread, flame, depth } = calls.levelOf(index);
  const lane = calls.lanesOf(thread, flame).find((one) => calls.levels[one].depth === depth + 1);
  if (lane === undefined) return 0;
  const from = lod.start[index], to = from + lod.duration[index];
  return calls.kinds().reduce((sum, kind) => sum + lod.busy(lane, kind, from, to), 0);
}
