/**
 * The step of dptrace.model.training.step, computed again in the page when a slider moves.
 *
 * `plan` is what dptrace.model.planning.predict_report returns; `now` is {data, microBatches, share, within, between, overlap}:
 * data-parallel GPUs, micro-batches of a step, share of the peak, and bandwidths in bytes/s.
 */

const ranksPerNode = (stride, size, perNode) => Math.max(1, Math.min(size, Math.floor(perNode / stride)));

/** Return the time of one collective over the links within and between nodes. */
export function collectiveSeconds(plan, now, kind, bytes, ranks, stride) {
  if (ranks === 1) return 0;
  const local = ranksPerNode(stride, ranks, plan.gpus_per_node);
  const nodes = Math.ceil(ranks / local);
  const [near, far] = [plan.within.alpha_s, plan.between.alpha_s];
  if (kind === "send_recv") return local > 1 ? near + bytes / now.within : far + bytes / now.between;
  if (kind === "all_to_all") {
    const within = (local - 1) * near + (bytes * (local - 1)) / ranks / now.within;
    return Math.max(within, (ranks - local) * (far + bytes / ranks / now.between));
  }
  const times = kind === "all_reduce" ? 2 : 1;
  const inside = times * ((local - 1) * near + ((local - 1) / local) * (bytes / now.within));
  const hops = kind === "all_reduce" ? Math.ceil(Math.log2(nodes)) : nodes - 1;
  return inside + times * (hops * far + (((nodes - 1) / nodes) * bytes) / local / now.between);
}

function messages(plan, now) {
  return plan.traffic.map((one) => {
    const ranks = one.divisor ? Math.round(now.data / one.divisor) : one.ranks;
    const call = collectiveSeconds(plan, now, one.kind, one.bytes, ranks, one.stride);
    const calls = one.calls * (one.every_micro_batch ? now.microBatches : 1);
    return { ...one, call, calls, seconds: ranks > 1 ? call * calls : 0 };
  });
}

const sum = (list) => list.reduce((total, one) => total + one.seconds, 0);

function notHidden(now, found, phases) {
  let exposed = 0, least = 0;
  for (const [phase, seconds] of phases) {
    const under = found.filter((one) => one.hides === phase && one.seconds);
    const every = sum(under.filter((one) => one.every_micro_batch));
    const once = sum(under.filter((one) => !one.every_micro_batch));
    const hidden = Math.min(every, seconds);
    const room = Math.min(seconds - hidden, seconds / now.microBatches);
    exposed += every - hidden + Math.max(once - room, 0);
    least += under.reduce((total, one) => total + endSeconds(now, one), 0);
  }
  return Math.max(exposed, least);
}

function endSeconds(now, one) {
  if (one.what === "parameters (backward)") return 0;
  return one.call * (one.every_micro_batch ? now.microBatches : 1);
}

/** Return the parts of a step in seconds, its throughput and its MFU. */
export function step(plan, now) {
  const rate = plan.peak_flops * now.share;
  const compute = (plan.flops * now.microBatches) / rate;
  const forward = (plan.forward_flops * now.microBatches) / rate;
  const found = messages(plan, now);
  const communication = sum(found);
  const blocking = sum(found.filter((one) => !one.hides));
  const updates = sum(found.filter((one) => one.what === "updated parameters"));
  const bubble = ((compute + blocking - updates) * (plan.stages - 1)) / (plan.bubble_parts * now.microBatches);
  const hiding = [["forward", forward], ["backward", compute - forward]];
  const exposed = now.overlap ? blocking + notHidden(now, found, hiding) : communication;
  const optimizer = plan.optimizer.fixed_s + plan.optimizer.shared_s / now.data;
  const total = compute + bubble + optimizer + exposed;
  const gpus = now.data * plan.model_parallel;
  const samples = now.data * plan.micro_batch * now.microBatches;
  return {
    compute, bubble, optimizer, communication, exposed, total, gpus, samples,
    samplesPerSecond: samples / total,
    tokensPerSecond: (samples * plan.sequence) / total,
    mfu: (plan.model_flops * now.microBatches) / (plan.peak_flops * total),
    overlap: communication ? 1 - exposed / communication : null,
  };
}

/** Return efficiency by GPUs: throughput of a GPU relative to the fewest, with a fixed batch for each of them. */
export function scaling(plan, now) {
  const rows = [];
  for (let data = Math.max(1, plan.least_data); data * plan.model_parallel <= 1024; data *= 2) {
    const found = step(plan, { ...now, data });
    rows.push({ gpus: found.gpus, rate: found.samplesPerSecond / found.gpus });
  }
  return rows.map((row) => ({ gpus: row.gpus, efficiency: row.rate / rows[0].rate }));
}
