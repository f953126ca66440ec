/** What the host did at each instant, by the analysis of idle causes: pieces of time with one label each. */

import { above } from "../data/lod.js";
import { unpack } from "../data/columns.js";

/** The causes of analysis' HostCause, in words. */
const WORDS = ["nothing recorded", "data loading", "allocator call", "synchronization", "operator", "Python", "blocked while the GPU waited in a collective"];

export class HostActivity {
  static async of({ labels, delta, label, end }) {
    const start = Float64Array.from(await unpack(delta));
    for (let i = 1; i < start.length; i++) start[i] += start[i - 1];
    return new HostActivity({ labels, start, label: await unpack(label), end });
  }

  constructor(fields) {
    Object.assign(this, fields);
  }

  /** Return { word, what, where, ns } for each label in [from, to], most time first; they add up to the whole time. */
  spent(from, to) {
    const { start, label, end, labels } = this, ns = new Map();
    let rest = to - from;
    for (let i = Math.max(0, above(start, 0, start.length, from) - 1); i < start.length && start[i] < to; i++) {
      const time = Math.min(to, start[i + 1] ?? end) - Math.max(from, start[i]);
      if (time <= 0) continue;
      rest -= time;
      ns.set(label[i], (ns.get(label[i]) ?? 0) + time);
    }
    const found = [...ns].map(([i, time]) => ({ word: WORDS[labels[i][0]] ?? "", what: labels[i][1], where: labels[i][2], ns: time }));
    if (rest > 0) {
      const nothing = found.find(({ word, what }) => word === WORDS[0] && !what);
      if (nothing) nothing.ns += rest;
      else found.push({ word: WORDS[0], what: "", where: "", ns: rest });
    }
    return found.sort((a, b) => b.ns - a.ns);
  }
}
