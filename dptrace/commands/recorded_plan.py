"""What a recording says about its own training: the memory that its ranks held, next to what the formulas give."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

import msgspec

from dptrace.core.checks import rank_memory
from dptrace.errors import DptraceError
from dptrace.model.collectives import bus_factor
from dptrace.model.gpu_peaks import gpu_named
from dptrace.model.planning.recorded import (
    MeasuredStep,
    RecordedModel,
    RecordedTraining,
    block_activations,
    decoder_split,
    expert_split,
    mean_state,
    measured_scaling,
    perceptron_split,
    step_bounds,
)
from dptrace.model.planning.reports import GPU_COUNTS, whole_bytes
from dptrace.model.training.communication import Link, ccr, level
from dptrace.model.training.layout import HeldActivations, held_activations
from dptrace.model.training.memory import ActivationPlan, StateBytes, end_bytes, model_activation_bytes
from dptrace.model.training.shape import ModelShape, decoder_shape, perceptron
from dptrace.readers.discovery import find
from dptrace.readers.source import Source
from dptrace.readers.storage import open_source
from dptrace.record.options.modes import DATA_PARALLEL, DECODERS, MODELS, REPLICATED, WIDTHS

if TYPE_CHECKING:
    from dptrace.run.run import Run


_NUMBER_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
_HELD = ("parameters_bytes", "gradients_bytes", "optimizer_bytes")
_PEAKS = ("peak_allocated_bytes", "peak_reserved_bytes", "peak_process_bytes")


def recorded_memory(path: str, gpu: str | None = None, gpu_memory: float | None = None) -> dict[str, Any]:
    """Compare the memory of a recording's ranks with the formulas.

    Args:
        path: the run's folder.
        gpu: name of the GPU, to say whether the training fits into it.
        gpu_memory: or its memory in bytes.

    Raises:
        DptraceError: it can't be read, or does not say what it trained.
    """
    sources = find([path])
    if sources.run_file is None:
        with open_source(Source.of(sources.files[0].container)):
            pass
    return compared_memory(sources.metadata, path, gpu, gpu_memory)


def compared_memory(
    info: Mapping[str, Any], path: str, gpu: str | None = None, gpu_memory: float | None = None
) -> dict[str, Any]:
    """Compare what the contents of a run.json say; see :func:`recorded_memory`."""
    parameters = info.get("parameters")
    if not isinstance(parameters, int | float) or parameters <= 0:
        lacks = "its run.json does not say" if info else "no run.json says"
        raise DptraceError(
            f"{path}: {lacks} how many parameters were trained. Record it with dptrace record, or describe the "
            "training: dptrace predict --memory --params 7e9. What a trace says of memory: dptrace analyze --memory."
        )
    options = info["options"] if isinstance(info.get("options"), dict) else {}
    training = _training(info, options)
    shape = trainer_shape(info.get("model"), options)
    state = mean_state(_model(float(parameters), info.get("model"), training.mode, shape, options), training)
    held = held_activations(info)
    if training.mode == "pp":
        activations = _pipeline_activations(info, options, shape, training, held)
    else:
        activations = _activations(info, options, shape, training)
    on_gpu = None if state is None else state.total * (not options.get("cpu_offload"))
    total = None if on_gpu is None else on_gpu + (activations or 0.0)
    capacity = gpu_memory or (gpu_named(gpu).memory_bytes if gpu else None)
    content: dict[str, Any] = {
        "schema": 1,
        "kind": "memory",
        "params": parameters,
        "model_state_bytes": parameters * training.number_bytes * (2 + training.optimizer_numbers),
        "activation_bytes": activations,
        "per_gpu_bytes": total,
        "fits": None if total is None or capacity is None else total <= 0.9 * capacity,
        "strategy": training.mode,
        "gpus": training.ranks,
        "recorded": {"run": path, **_recorded(info, state, activations, total, held)},
        "assumptions": _remarks(training, state, activations),
    }
    rounded: dict[str, Any] = whole_bytes(content)
    return rounded


def _training(info: Mapping[str, Any], options: Mapping[str, Any]) -> RecordedTraining:
    default = MODELS[info["model"]].optimizer if info.get("model") in MODELS else "sgd"
    optimizer = options.get("optimizer") or default
    mode = info.get("mode") or ("ddp" if info.get("ddp") else "script")
    return RecordedTraining(
        mode=mode,
        replicated=mode in REPLICATED,
        ranks=int(info.get("world_size") or 1),
        number_bytes=_NUMBER_BYTES.get(str(options.get("dtype", "float32")), 4),
        optimizer_numbers=2 if optimizer == "adamw" else 0,
        ranks_per_node=options.get("ranks_per_node"),
        tensor=int(options.get("tp") or 2),
        stages=int(options.get("pp") or 2),
        expert=int(options.get("ep") or 1),
    )


def trainer_shape(model: object, options: Mapping[str, Any]) -> ModelShape | None:
    """Return the shape of one of dptrace's decoders; None for other models."""
    size = DECODERS.get(str(model))
    if size is None:
        return None
    shape = decoder_shape(
        size["depth"],
        size["width"],
        heads=size["heads"],
        vocabulary=size["vocabulary"],
        sequence=size["context"],
        experts=int(options.get("experts") or 1),
        top_k=int(options.get("top_k") or 1),
    )
    return msgspec.structs.replace(shape, tied=False)


def _model(
    parameters: float, name: object, mode: str, shape: ModelShape | None, options: Mapping[str, Any]
) -> RecordedModel:
    split = experts = 0.0
    if shape is not None:
        split = decoder_split(shape.layers, shape.hidden)
        experts = shape.layers * shape.experts * shape.expert_parameters if mode in ("moe", "4d") else 0.0
    if shape is not None and mode == "4d":
        each, shared = expert_split(shape.hidden), int(options.get("shared_experts") or 0)
        split += shape.layers * (shared - 1) * each
        return RecordedModel(parameters, split, experts, shape.layers * shape.experts * each)
    if name in WIDTHS:
        split = perceptron_split(tuple(WIDTHS[str(name)]))
    elif name == "balanced":
        width = WIDTHS["small"][0]
        split = 8 * (2 * width * width + width)
    return RecordedModel(parameters, split, experts)


def _activations(
    info: Mapping[str, Any], options: Mapping[str, Any], shape: ModelShape | None, training: RecordedTraining
) -> float | None:
    """Return the activations of a rank, for the modes in which it computes whole samples; None where not known."""
    batch = options.get("batch_size")
    divided = training.mode in ("tp", "tp-sp", "dp-tp", "3d", "4d", "moe")
    if not isinstance(batch, int) or divided or options.get("amp"):
        return None
    each = batch / training.ranks / int(options.get("micro_batches") or 1)
    number = 2 if options.get("mixed_precision") else training.number_bytes
    every = _recomputed_every(options)
    if info.get("model") in WIDTHS:
        return each * perceptron(WIDTHS[str(info["model"])]).kept * number
    if info.get("model") == "balanced":
        return block_activations(8, WIDTHS["small"][0], each, number, every)
    if shape is None:
        return None
    plan = _activation_plan(number, every)
    return model_activation_bytes(shape, each, plan) + end_bytes(shape, each, plan)


def _activation_plan(number_bytes: int, every: int) -> ActivationPlan:
    recompute = "full" if every else "none"
    return ActivationPlan(recompute, flash=True, dropout=False, number_bytes=number_bytes, every=every or 1)


def _pipeline_activations(
    info: Mapping[str, Any],
    options: Mapping[str, Any],
    shape: ModelShape | None,
    training: RecordedTraining,
    held: Sequence[HeldActivations],
) -> float | None:
    """Return the activations of the mean rank of a pipeline whose stages are equal; None where not known."""
    batch, parts, expected = options.get("batch_size"), options.get("micro_batches"), [one.expected for one in held]
    if not isinstance(batch, int) or not isinstance(parts, int) or options.get("amp") or not held or None in expected:
        return None
    each, number, every = batch / parts, training.number_bytes, _recomputed_every(options)
    if info.get("model") == "balanced":
        width = WIDTHS["small"][0]
        end = each * width * max(4, number)
        layers = block_activations(8, width, each, number, every) - end
    elif shape is not None:
        plan = _activation_plan(number, every)
        layers, end = model_activation_bytes(shape, each, plan), end_bytes(shape, each, plan)
    else:
        return None
    last = max(held, key=lambda one: one.place)
    stages = sum(one.stages for one in held)
    # Each stage has its share of the layers, and the last one also the loss.
    whole = sum(count or 0 for count in expected) * layers / stages + (last.expected or 0) / last.stages * end
    return whole / len(held)


def _recomputed_every(options: Mapping[str, Any]) -> int:
    """Return of how many blocks the activations of one are recomputed; 0 for none."""
    every = options.get("checkpoint_activations_every")
    return every if isinstance(every, int) and every > 0 else int(bool(options.get("checkpoint_activations")))


def _recorded(
    info: Mapping[str, Any],
    state: StateBytes | None,
    activations: float | None,
    total: float | None,
    held: Sequence[HeldActivations],
) -> dict[str, Any]:
    """Return what was measured: the means of the ranks, beside what was expected."""
    measured = {key: _mean(rank_memory(info, key)) for key in (*_HELD, *_PEAKS)}
    expected = [None] * 3 if state is None else [state.parameters, state.gradients, state.optimizer]
    rows = [(key.removesuffix("_bytes"), value, measured[key]) for key, value in zip(_HELD, expected, strict=True)]
    activation_bytes = _mean([one.bytes for one in held if one.bytes is not None])
    if activations is not None or activation_bytes is not None:
        rows.append(("activations", activations, activation_bytes))
    rows.append(("peak of the GPU's memory", total, measured["peak_allocated_bytes"]))
    in_flight = [{"rank": one.rank, **one.to_dict()} for one in held]
    return {
        "compared": [dict(zip(("what", "expected_bytes", "measured_bytes"), row, strict=True)) for row in rows],
        **({"in_flight": in_flight} if held else {}),
        **{key: measured[key] for key in _PEAKS},
    }


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _remarks(training: RecordedTraining, state: StateBytes | None, activations: float | None) -> list[str]:
    remarks = []
    if state is None:
        remarks.append(f"How {training.mode!r} divides a model is not known, so nothing is expected of a rank.")
    if activations is None:
        remarks.append(
            "Activations are computed for dptrace's MLPs and decoders, without split layers, unequal stages or --amp."
        )
    return remarks


# A recording's point on the communication roofline: what it computes and sends in a step, and how fast.


def roofline_point(run: Run, step: MeasuredStep) -> dict[str, Any] | None:
    """Return the point; None where the FLOPs of a step or the bytes of its collectives are not known.

    The link is the one that the recording itself shows: bytes that a rank sends over the time of its collectives
    without waiting. Without a known GPU, its peak is the rate at which the recording computes.
    """
    flops, peak = _flops(run, step)
    sent = _sent_bytes(run, step.ranks)
    if flops is None or not sent or not step.communication_s or not step.compute_s:
        return None
    peak = peak or flops / step.compute_s
    link = Link("as recorded", 0.0, sent / step.communication_s)
    samples = step.samples / step.ranks or 1.0

    def at(link: Link, sent: float) -> dict[str, Any]:
        found = msgspec.to_builtins(level(link, peak, ccr(flops, sent), samples))
        found.pop("crossover_bytes")
        return {"sent_bytes": sent, **found}

    point = at(link, sent)
    levels = [at(*one) for one in _links(run, step.ranks)]
    return {
        "flops": flops,
        "peak_flops": peak,
        "achieved_flops_per_s": flops / step.step_s,
        **point,
        "levels": levels if len(levels) > 1 else [point],
        "steps": _steps(run, flops),
    }


def _steps(run: Run, flops: float) -> list[dict[str, Any]]:
    """Return how fast a rank computes in each step, in the mean over the ranks."""
    walls = run.steps().groupby("step", sort=False)["wall_ns"].mean()
    return [{"step": str(name), "flops_per_s": flops / (wall / 1e9)} for name, wall in walls.items() if wall > 0]


def _links(run: Run, ranks: int) -> list[tuple[Link, float]]:
    """Return the links that the run's groups use, with the bytes that a rank sends over each in a step.

    Groups of as many ranks, equally far apart, are taken for one level: those of all nodes, or those across nodes.
    """
    frame, steps = run.matched_collectives(), len(run.steps())
    frame = frame[frame["complete"] & frame["bytes"].notna() & (frame["transfer_ns"] > 0)]
    members = {group.name: group.ranks for group in run.cross_rank.matches.groups}
    sent: defaultdict[str, float] = defaultdict(float)
    seconds: defaultdict[str, float] = defaultdict(float)
    for (kind, group), rows in frame.groupby(["kind", "group"]):
        name, count = _level_name(members.get(str(group), ()), ranks)
        factor = bus_factor(str(kind), count)
        if not math.isnan(factor):
            sent[name] += float(rows["bytes"].sum()) * factor
            seconds[name] += float(rows["transfer_ns"].sum()) / 1e9
    return [(Link(name, 0.0, size / seconds[name]), size / steps) for name, size in sent.items() if size and steps]


def _level_name(members: Sequence[int], ranks: int) -> tuple[str, int]:
    """Return what groups like this one are called, and their number of ranks."""
    if len(members) in (0, ranks):
        return f"all {ranks} ranks", ranks
    apart = members[1] - members[0] if len(members) > 1 else 1
    return f"{len(members)} ranks" + (f", {apart} apart" if apart > 1 else " next to each other"), len(members)


def _flops(run: Run, step: MeasuredStep) -> tuple[float | None, float | None]:
    """Return the FLOPs of a rank's step and its GPU's peak: as recorded, else of a model of dptrace's own."""
    found = run.efficiency
    counted = [one.model_flops for one in found.steps if one.model_flops]
    peak = found.peak_tflops and found.peak_tflops * 1e12
    if counted:
        return sum(counted) / len(counted), peak
    parameters, model = run.metadata.get("parameters"), MODELS.get(str(run.metadata.get("model")))
    if not isinstance(parameters, int) or model is None or not model.tp_units or not step.samples:
        return None, peak
    # 6 FLOPs for each parameter and sample, or token of a decoder.
    return 6.0 * parameters * step.samples / step.ranks * max(1, model.context), peak


def _sent_bytes(run: Run, ranks: int) -> float:
    """Return what a rank sends in a step, in the mean."""
    frame = run.collectives().fillna({"group_size": 0})  # of all ranks, where it is not known
    steps = len(run.steps())
    total = 0.0
    sizes = frame.groupby(["kind", "group_size"], as_index=False)["bytes"].sum()
    for kind, group, size in zip(sizes["kind"], sizes["group_size"], sizes["bytes"], strict=True):
        factor = bus_factor(str(kind), int(group) if group > 1 else ranks)
        total += 0.0 if math.isnan(factor) else float(size) * factor
    return total / steps if steps else 0.0


# The mean step of a recording, predicted for other numbers of ranks.


_ASSUMED = (
    "Computation, and what is neither computation nor communication, are those of the recording; communication among N "
    "ranks grows with (N-1)/N, over links like those measured."
)


def predict_recording(run: Run, path: str) -> dict[str, Any]:
    """Predict a recorded data-parallel training on 1 to 1,024 ranks.

    Raises:
        DptraceError: the recording splits layers, stages or experts over its ranks, or has one rank only.
    """
    mode = run.metadata.get("mode")
    if mode is not None and mode not in DATA_PARALLEL:
        raise DptraceError(
            f"{path}: {mode!r} can't be predicted from its recording, only data-parallel trainings can. Describe it: "
            "dptrace predict --params 7e9 --strategy 3d."
        )
    step = _mean_step(run)
    if step.ranks < 2 or not step.communication_s:
        raise DptraceError(f"{path}: shows no communication between ranks; record a run on two ranks or more.")
    bounds = step_bounds(step.compute_s, step.communication_s, step.rest_s)
    return {
        "schema": 1,
        "kind": "predict",
        "recorded": path,
        "gpus": step.ranks,
        "samples": step.samples or None,
        **{name: getattr(step, name) for name in ("step_s", "compute_s", "communication_s", "exposed_s", "rest_s")},
        "serial_step_s": bounds.serial_s,
        "ideal_step_s": bounds.overlapped_s,
        "roofline": roofline_point(run, step),
        "scaling": measured_scaling(step, GPU_COUNTS),
        "assumptions": [_ASSUMED, *run.notes],
    }


def _mean_step(run: Run) -> MeasuredStep:
    run.need("What other numbers of ranks take is", "exposed_comm_ns", "overlapped_comm_ns")
    frame = run.steps()
    ranks = max(run.world_size, int(frame["rank"].nunique()))
    means = frame.mean(numeric_only=True) / 1e9
    waiting = float(frame["exposed_wait_ns"].fillna(0).mean()) / 1e9
    compute = float(means["compute_ns"])
    exposed = float(means["exposed_comm_ns"]) - waiting
    batch = (run.metadata.get("options") or {}).get("batch_size")
    return MeasuredStep(
        ranks=ranks,
        compute_s=compute,
        communication_s=exposed + float(means["overlapped_comm_ns"]),
        exposed_s=exposed,
        rest_s=float(means["wall_ns"]) - compute - exposed,
        samples=float(batch) if isinstance(batch, int) else 0.0,
    )
