"""The trainers: each records, and each ends with the parameters of a training on one GPU."""

from __future__ import annotations

import ast
import gzip
import json
import math
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dptrace
from dptrace.analysis.per_gpu.device import expert_loads
from dptrace.analysis.per_gpu.split import FIGURES
from dptrace.commands.recorded_plan import compared_memory
from dptrace.model.training.layout import held_activations
from dptrace.record.options.modes import MODES, trainer
from dptrace.timeline.model import Action, Kind, Phase
from tests.support.modes import (
    ADAMW,
    CASES,
    CLIPPED,
    GPT_TINY,
    ROUNDING_TOLERANCE,
    ModeCase,
    ModelSizes,
    parameters_of,
    reference,
    relative_differences,
    run_of,
)
from tests.support.recordings import STEPS, WAIT, WARMUP, recorded

torch = pytest.importorskip("torch")

from dptrace.record import World, parse_options  # noqa: E402
from dptrace.trainers.parts.optimizer_wrapper import OptimizerWrapper  # noqa: E402
from dptrace.trainers.parts.task import build_task  # noqa: E402

pytestmark = pytest.mark.limit(400)  # the first test of a number of ranks trains all cases on it

FOUR = ("single", "naive", "interleaved", "ddp")


def each_of(cases: Iterable[ModeCase]) -> pytest.MarkDecorator:
    """Parametrize by cases."""
    return pytest.mark.parametrize(
        "case",
        [pytest.param(case, marks=[pytest.mark.slow] if case.is_slow else []) for case in cases],
        ids=lambda case: case.name,
    )


each_case = each_of(CASES)


def test_every_mode_is_tried_at_several_world_sizes() -> None:
    """The table of cases contains every mode."""
    assert set(MODES) - {"single"} == {case.mode for case in CASES}


def test_modes_and_files_are_the_same() -> None:
    """Every mode has a trainer, and every trainer belongs to a mode."""
    files = set(trainer("single").parent.glob("*.py"))

    assert files - {trainer("single").with_name("__init__.py")} == {trainer(mode) for mode in MODES}


def test_every_trainer_takes_its_own_options() -> None:
    """A trainer passes its own mode when it reads its command line; a copied line would give it other options."""
    for mode in MODES:
        tree = ast.parse(trainer(mode).read_text(encoding="utf-8"))
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        named = [ast.literal_eval(c.args[1]) for c in calls if getattr(c.func, "id", "") == "main"]
        assert [mode] == named


def test_no_trainer_hides_a_module_of_the_standard_library() -> None:
    """torchrun puts the trainer's folder first on the path: a trace.py in it would break torch's imports."""
    names = {path.stem for path in trainer("single").parent.glob("*.py")}

    assert not names & set(sys.stdlib_module_names)


@pytest.mark.slow
@pytest.mark.spawn
@pytest.mark.parametrize("mode", FOUR)
def test_each_of_the_first_modes_records_a_trace_for_each_rank(mode: str) -> None:
    """The traces contain the recorded steps, the phase marks, and with several ranks communication."""
    ranks = 1 if mode == "single" else 2
    run = recorded(mode, ranks)

    files = {path.name for path in run.iterdir() if path.suffix != ".log"}
    assert {"run.json", *(f"rank{rank}.pt.trace.json.gz" for rank in range(ranks))} == files
    for rank in range(ranks):
        names = [event["name"] for event in _events(run / f"rank{rank}.pt.trace.json.gz")]
        steps = [name for name in names if name.startswith("ProfilerStep")]
        assert [f"ProfilerStep#{WAIT + WARMUP + step}" for step in range(STEPS)] == steps
        for phase in ("forward", "backward", "optimizer"):
            assert STEPS == names.count(f"dptrace::{phase}")
        assert (ranks > 1) == ("gloo:all_reduce" in names)


@pytest.mark.spawn
@pytest.mark.parametrize("mode", ["naive", "interleaved"])
def test_each_gradient_s_all_reduce_bears_its_parameter_s_name(mode: str) -> None:
    """In every step and on every rank: that of interleaved is launched by a hook of autograd, on its thread."""
    run = recorded(mode, 2)
    events = _events(run / "rank0.pt.trace.json.gz")
    parameters = {name for event in events if (name := event["name"]).startswith("DP::all_reduce (")}

    assert {"DP::all_reduce (0.weight)", "DP::all_reduce (0.bias)"} <= parameters
    for timeline in dptrace.open(run).timelines:
        assert sorted(parameters) * STEPS == sorted_by_step([what.label for what in timeline.collectives])


def sorted_by_step(labels: list[str]) -> list[str]:
    """Sort the labels of each step, which are equally many."""
    each = len(labels) // STEPS
    return [label for step in range(STEPS) for label in sorted(labels[each * step : each * (step + 1)])]


def _events(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path) as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    return sorted(events, key=lambda event: float(event["ts"]))


def _numbers(case: ModeCase) -> ModelSizes:
    saved = np.load(parameters_of(reference(case)))
    shapes = tuple(array.shape for array in saved.values())
    sizes = tuple(np.dtype(case.dtype).itemsize * math.prod(shape) for shape in shapes)
    return ModelSizes(sizes, case.ranks, shapes, tuple(saved.files))


@pytest.mark.slow
@pytest.mark.spawn
@each_of(case for case in CASES if case.loss_tolerance is None)
def test_a_mode_ends_with_the_parameters_of_a_single_process(case: ModeCase) -> None:
    """Parallelism changes how the gradient of the batch is computed, not its value."""
    single, parallel = (np.load(parameters_of(run)) for run in (reference(case), run_of(case, with_others=True)))

    differences = relative_differences(parallel, single)
    assert {} == {name: value for name, value in differences.items() if not value <= ROUNDING_TOLERANCE}


@pytest.mark.slow
@pytest.mark.spawn
@pytest.mark.parametrize(
    ("last_weights", "min_difference"),
    [
        ((1 / 4, 1 / 4, 1 / 4, 1 / 4), 0),
        ((1 / 4, 1 / 4, 1 / 4, 0), 1e-5),
        ((1 / 3, 1 / 3, 1 / 3, 0), 1e-5),
        ((1 / 4, 1 / 4, 1 / 4, 1 / 2), 1e-5),
        ((1 / 2, 1 / 2, 1 / 2, 1 / 2), 1e-5),
        ((1.001 / 4, 1.001 / 4, 1.001 / 4, 1.001 / 4), 1e-8),
    ],
    ids=["correct", "left out", "averaged over the others", "counted twice", "wrong divisor", "off by a thousandth"],
)
def test_the_comparison_with_a_single_process_sees_a_mistake(
    last_weights: tuple[float, ...], min_difference: float
) -> None:
    """A wrong weight of a micro-batch in the last of four steps shows in every tensor, far beyond rounding."""
    case = ModeCase("single", 1)
    options = parse_options("", "single", case.arguments)
    task = build_task(options, World(0, 1, torch.device("cpu")))
    optimizer, steps = OptimizerWrapper(task.model, options), options.total_steps
    for step, (x, y) in enumerate(task.batches(steps)):
        weights = last_weights if step == steps - 1 else (1 / 4,) * 4
        for weight, micro_x, micro_y in zip(weights, x.chunk(4), y.chunk(4), strict=True):
            optimizer.backward(weight * task.loss(task.model(micro_x), micro_y))
        optimizer.step()
    trained = {name: parameter.detach().numpy() for name, parameter in task.model.named_parameters()}

    differences = relative_differences(trained, np.load(parameters_of(reference(case)))).values()
    assert min(differences) > min_difference if min_difference else max(differences) <= ROUNDING_TOLERANCE


@pytest.mark.spawn
@each_case
def test_the_loss_is_that_of_the_whole_batch(case: ModeCase) -> None:
    """The mean losses over ranks equal those of a single process; compressed modes come close."""
    single, parallel = (
        json.loads((run / "run.json").read_text())["losses"]
        for run in (reference(case), run_of(case, with_others=True))
    )

    assert len(single) == len(parallel) == 4
    assert pytest.approx(single, rel=case.loss_tolerance or ROUNDING_TOLERANCE) == parallel


@pytest.mark.spawn
@each_case
def test_the_split_of_every_mode_adds_up(case: ModeCase) -> None:
    """On every rank the parts of every step sum to its wall time, and forward and backward are positive."""
    run = dptrace.open(run_of(case, with_others=True))

    assert case.ranks == len(run.splits)
    parts = [figure for figure in FIGURES if figure not in ("wall_ns", "overlapped_comm_ns")]
    for split in run.splits:
        assert 2 == len(split.names)
        np.testing.assert_array_equal(np.sum([split.figures[part] for part in parts], axis=0), split.figures["wall_ns"])
        assert (split.figures["forward_ns"] > 0).all()
        assert (split.figures["backward_ns"] > 0).all()


@pytest.mark.spawn
@each_of(case for case in CASES if case.expected_traffic)
def test_every_mode_moves_the_bytes_of_its_formula(case: ModeCase) -> None:
    """Kinds, counts and bytes of a step's collectives follow the formula of the mode."""
    assert case.expected_traffic is not None
    numbers = _numbers(case)

    for split in dptrace.open(run_of(case, with_others=True)).splits:
        expected = case.expected_traffic(replace(numbers, rank=split.rank))
        moved = {kind: (int(comm.count[-1]), int(comm.bytes[-1])) for kind, comm in split.comm.items()}
        known = {
            kind: (count, moved.get(kind, (0, 0))[1] if size is None else size)
            for kind, (count, size) in expected.items()
        }
        assert known == {kind: both for kind, both in moved.items() if both[0]}


@pytest.mark.slow
@pytest.mark.spawn
def test_forward_that_is_done_again_is_distinguished_from_backward_proper() -> None:
    """Recomputing checkpointed blocks takes part of backward; without checkpointing there is none."""
    checkpointed = ModeCase("ddp", 2, **GPT_TINY, extra_options=("--checkpoint-activations",))
    second = ModeCase("fsdp", 2, ("--checkpoint-activations-every", "2"), **GPT_TINY, extra_options=CLIPPED)
    plain = ModeCase("ddp", 2)
    assert {checkpointed, second, plain} <= set(CASES)

    for device in dptrace.open(run_of(checkpointed)).devices:
        backward = device.split.figures["backward_ns"]
        assert ((device.recompute_ns > 0.1 * backward) & (device.recompute_ns < 0.9 * backward)).all()
    for device in dptrace.open(run_of(second)).devices:
        backward = device.split.figures["backward_ns"]
        assert ((device.recompute_ns > 0.05 * backward) & (device.recompute_ns < 0.6 * backward)).all()
    assert not any(device.recompute_ns.any() for device in dptrace.open(run_of(plain)).devices)


@pytest.mark.slow
@pytest.mark.spawn
def test_accumulation_shows_a_forward_and_a_backward_for_each_micro_batch() -> None:
    """On every rank and in every step they alternate, with one update after the last."""
    phases = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
    for timeline in dptrace.open(run_of(ModeCase("accumulate", 2, ("--micro-batches", "2")))).timelines:
        for step in range(2):
            shown = (timeline.kind == Kind.COMPUTE) & (timeline.step == step) & np.isin(timeline.phase, phases)
            turns = timeline.phase[shown][np.argsort(timeline.start_ns[shown], kind="stable")]
            changes = turns[np.concatenate(([True], turns[1:] != turns[:-1]))]
            assert [*(Phase.FORWARD, Phase.BACKWARD) * 2, Phase.OPTIMIZER] == changes.tolist()


@pytest.mark.spawn
@each_of(case for case in CASES if case.mode == "pp")
def test_a_pipeline_holds_as_many_micro_batches_as_its_schedule_says(case: ModeCase) -> None:
    """On every rank, as PipeDream's and GPipe's papers say; the bytes are positive."""
    held = held_activations(json.loads((run_of(case, with_others=True) / "run.json").read_text()))

    assert case.ranks == len(held)
    assert [one.expected for one in held] == [one.micro_batches for one in held]
    assert all(one.bytes for one in held)


@pytest.mark.spawn
@each_of(case for case in CASES if case.mode in ("3d", "4d", "dp-tp", "hsdp", "hierarchical"))
def test_each_rank_of_a_mesh_knows_where_it_stands(case: ModeCase) -> None:
    """run.json has different coordinates for all ranks, and the analysis takes them."""
    path = run_of(case, with_others=True)
    places = [entry["coordinates"] for entry in json.loads((path / "run.json").read_text())["ranks"]]

    assert case.ranks == len({tuple(place.items()) for place in places})
    assert places == [entry["coordinates"] for entry in dptrace.open(path).to_dict()["ranks"]]


@pytest.mark.spawn
@each_of(case for case in CASES if case.expected_traffic and case.mode == "3d" and "1" in case.options)
def test_a_mesh_sends_gradients_while_its_last_backward_goes_on(case: ModeCase) -> None:
    """In each step the first gradient is sent off in the last micro-batch's backward, and none before."""
    for timeline in dptrace.open(run_of(case, with_others=True)).timelines:
        labels = [one.label.startswith("DP::all_reduce (") for one in timeline.collectives]
        gradients = np.isin(timeline.collective, np.flatnonzero(labels))
        for step in range(2):
            backward = timeline.actions.take((timeline.actions.step == step) & (timeline.actions.kind == Action.B))
            first = timeline.launch_ns[gradients & (timeline.step == step)].min()
            last = int(np.argmax(backward.micro_batch))
            assert backward.end_ns[last - 1] <= first < backward.end_ns[last]


@pytest.mark.spawn
@each_of(case for case in CASES if "--capacity-factor" in case.extra_options)
def test_the_same_tokens_are_dropped_on_any_number_of_ranks(case: ModeCase) -> None:
    """Some are, and each layer's load and dropped share equal those of a single process."""
    parallel, single = (
        expert_loads(json.loads((run / "run.json").read_text()))
        for run in (run_of(case, with_others=True), reference(case))
    )

    assert single == parallel
    assert all(load.dropped for load in parallel)


# What others read of these runs is tested here, in the process that has them: bytes held, groups, names.


def _one_of_each_mode() -> list[ModeCase]:
    cases = {case.mode: case for case in reversed(CASES) if case.ranks == 2}
    four = {case.mode: case for case in CASES if case.ranks == 4 and case.mode not in cases}
    sharded = [case for case in CASES if case.extra_options == ADAMW]
    return list(dict.fromkeys((*cases.values(), *four.values(), *sharded)))


@pytest.mark.slow
@pytest.mark.spawn
@pytest.mark.parametrize("case", _one_of_each_mode(), ids=lambda case: case.name)
def test_each_mode_holds_what_the_formulas_say(case: ModeCase) -> None:
    """Parameters, gradients and optimizer state of the mean rank, as torch counts them: within 5 %."""
    folder = run_of(case, with_others=True)
    info = json.loads((folder / "run.json").read_text()) | {"mode": case.mode}  # the launcher adds it otherwise
    rows = compared_memory(info, str(folder))["recorded"]["compared"][:3]

    for row in rows:
        assert pytest.approx(row["expected_bytes"], rel=0.05) == row["measured_bytes"], row["what"]


RANKS = 4
HELD = ("parameters_bytes", "gradients_bytes", "optimizer_bytes")


def _sharded(mode: str) -> ModeCase:
    return next(case for case in CASES if (case.mode, case.extra_options, case.ranks) == (mode, ADAMW, RANKS))


def _held(mode: str) -> list[list[int]]:
    ranks = json.loads((run_of(_sharded(mode), with_others=True) / "run.json").read_text())["ranks"]
    return [[rank["memory"][kind] for kind in HELD] for rank in ranks]


def _shapes() -> list[tuple[int, ...]]:
    arrays = np.load(parameters_of(reference(_sharded("ddp"))))
    return [arrays[name].shape for name in arrays.files]


def _padded(count: int) -> int:
    return math.ceil(count / RANKS)


def _expected(mode: str) -> list[list[int]]:
    """Return what each rank holds by the formulas of ZeRO (Rajbhandari et al. 2020), in float64 with AdamW.

    With n ranks and P bytes: P + P + 2 P; the optimizer's share is 1/n in zero1, that of the gradients too in zero2,
    and that of the parameters too in fsdp. 4 bytes count the steps of each tensor that AdamW updates.
    """
    sizes = [math.prod(shape) for shape in _shapes()]
    total = sum(sizes)
    blocks = [sum(pair) for pair in zip(sizes[::2], sizes[1::2], strict=True)]
    if mode == "ddp":
        return [[8 * total, 8 * total, 16 * total + 4 * len(sizes)]] * RANKS
    if mode == "zero1":
        shards: list[list[int]] = [[] for _ in range(RANKS)]
        for size in sorted(sizes, reverse=True):
            min(shards, key=sum).append(size)
        return [[8 * total, 8 * total, 16 * sum(shard) + 4 * len(shard)] for shard in shards]
    if mode == "zero2":
        part = sum(map(_padded, blocks))
        return [[8 * RANKS * part, 8 * part, 16 * part + 4 * len(blocks)]] * RANKS
    # fully_shard splits the first dimension; the last rank's parameters may be padded, but not its state.
    parts = [[_rows(shape[0], rank) * math.prod(shape[1:]) for shape in _shapes()] for rank in range(RANKS)]
    padded = sum(_padded(shape[0]) * math.prod(shape[1:]) for shape in _shapes())
    return [[8 * padded, 8 * padded, 16 * sum(part) + 4 * len(part)] for part in parts]


def _rows(rows: int, rank: int) -> int:
    return max(min(_padded(rows), rows - rank * _padded(rows)), 0)


@pytest.mark.slow
@pytest.mark.spawn
@pytest.mark.parametrize("mode", ["ddp", "zero1", "zero2", "fsdp"])
def test_each_mode_holds_what_its_formula_says(mode: str) -> None:
    """Exactly, on each of four ranks."""
    assert _expected(mode) == _held(mode)


@pytest.mark.slow
@pytest.mark.spawn
def test_the_pairs_of_a_real_run_are_separated() -> None:
    """Gradients are reduced within pairs, and across pairs by their leaders; the group of all ranks is idle."""
    case = next(case for case in CASES if (case.mode, case.ranks) == ("hierarchical", 4))
    together = dptrace.open(run_of(case, with_others=True)).cross_rank
    matches = together.matches
    found = {
        (str(kind), matches.groups[group].ranks, int(size), bool(complete))
        for kind, group, size, complete in zip(matches.kind, matches.group, matches.size, matches.complete, strict=True)
    }

    pairs = {(kind, pair, 2, True) for kind in ("reduce", "broadcast") for pair in ((0, 1), (2, 3))}
    assert pairs | {("all_reduce", (0, 2), 2, True)} == found
    assert len(together.notes) == 1
    assert "one machine" in together.notes[0]


@pytest.mark.slow
@pytest.mark.spawn
@pytest.mark.parametrize("prefetch", [(), ("--prefetch", "none")], ids=["default", "none"])
def test_each_block_of_a_sharded_model_is_named(prefetch: tuple[str, ...]) -> None:
    """In a recorded run, each block is gathered in forward and again in backward, where its gradients are scattered."""
    case = next(case for case in CASES if (case.mode, case.ranks, case.options) == ("fsdp", 2, prefetch))
    (timeline, _) = dptrace.open(run_of(case, with_others=True)).timelines
    layers = ("0", "2", "4", "6")
    gathers = [f"FSDP::all_gather ({layer})" for layer in layers]
    reductions = [f"FSDP::post_backward_reduce ({layer})" for layer in layers]

    for step in range(2):
        found: dict[tuple[str, int], list[str]] = {}
        for row in np.flatnonzero((timeline.step == step) & (timeline.collective >= 0)).tolist():
            one = timeline.collectives[timeline.collective[row]]
            found.setdefault((one.kind, int(timeline.phase[row])), []).append(one.label)
        assert found == {
            ("all_gather", Phase.FORWARD): gathers,
            ("all_gather", Phase.BACKWARD): gathers[::-1],
            ("reduce_scatter", Phase.BACKWARD): reductions[::-1],
        }
