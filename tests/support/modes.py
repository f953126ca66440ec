"""Every mode on CPU at its world sizes: many cases in one set of processes, because starting torch takes seconds."""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.forking import run_python
from tests.support.formulas import (
    DECODER_SAMPLES,
    ModelSizes,
    clipped,
    dp_tp,
    half,
    in_pairs,
    int8,
    mesh_3d,
    moe,
    per_parameter,
    powersgd,
    ring,
    searching,
    topk,
    tp,
    tp_decoder,
    tp_sp,
)
from tests.support.recordings import environment, scratch
from tests.support.sharded_formulas import fsdp_kept, fully_sharded, hsdp, mixed, packed, randomk, thresholded, zero2

__all__ = [
    "CASES",
    "CLIPPED",
    "ROUNDING_TOLERANCE",
    "ModeCase",
    "ModelSizes",
    "parameters_of",
    "reference",
    "relative_differences",
    "run_of",
]

COMMON = ("--steps", "2", "--warmup", "2", "--wait", "0", "--optimizer", "sgd", "--lr", "0.1")
ADAMW = ("--optimizer", "adamw", "--lr", "0.001")
"""Instead of SGD: an optimizer with state."""
CLIPPED = ("--clip-grad", "0.05")
GPT_TINY: dict[str, Any] = {"model": "gpt-tiny", "batch_size": DECODER_SAMPLES}
"""A decoder; its samples have 64 tokens each, so a few of them are enough."""
ROUNDING_TOLERANCE = 1e-9
"""Largest difference of two trainings that float64's rounding can cause, relative to the largest number of a tensor.

A sum of n numbers is off by at most n × 1.1e-16. Here a sum has 1,024 terms at most (the inputs of a layer of small),
a step has about 50 sums one after the other (three layers in each of 8 blocks of gpt-tiny, forward and backward), and
there are 4 steps: 2.3e-11. That holds in whatever order a processor's kernels, its threads or
the ranks add. float32 has no such bound: balanced's ReLUs get 5 million numbers, one of them soon lies within rounding
of 0, and the side that it falls on changes a gradient by 1e-3 and more.
"""


@dataclass(frozen=True)
class ModeCase:
    """A mode with options on a number of ranks."""

    mode: str
    ranks: int
    options: tuple[str, ...] = ()
    model: str = "small"
    against: str = "single"
    """The mode that it is compared with, in one process."""
    batch_size: int = 128
    extra_options: tuple[str, ...] = ()
    """Options that the single process takes as well."""
    alone_options: tuple[str, ...] = ()
    """Options that only the single process takes, instead of *options*."""
    expected_traffic: Callable[[ModelSizes], Mapping[str, tuple[int, int | None]]] | None = field(
        default=None, compare=False
    )
    """The traffic of each rank in a step: count and bytes by kind of collective, as the trace counts them; None for
    bytes that depend on the data."""
    loss_tolerance: float | None = None
    """For inexact modes: largest relative difference of the losses from the single process."""

    @property
    def name(self) -> str:
        """Name of the case's folder."""
        return "_".join(
            [self.mode, str(self.ranks), self.model, *(o.strip("-") for o in (*self.extra_options, *self.options))]
        ).replace("/", "-")

    @property
    def is_slow(self) -> bool:
        """Whether it is left to ``make test-all``: only the first modes, as they are on two ranks, are not."""
        plain = not self.options and not self.extra_options and self.ranks == 2
        return not plain or self.mode not in ("naive", "interleaved", "ddp")

    @property
    def batch(self) -> tuple[int, bool, bool, bool]:
        """Key of the cases that run together; those with AdamW and inexact ones run separately."""
        return self.ranks, self.extra_options == ADAMW, self.loss_tolerance is None, self.is_slow

    @property
    def dtype(self) -> str:
        """Number type of the parameters: float64 for exact modes, so that rounding stays far below any mistake."""
        return "float64" if self.loss_tolerance is None else "float32"

    @property
    def arguments(self) -> list[str]:
        """Arguments of the trainer's command line."""
        training = ("--model", self.model, "--dtype", self.dtype, "--batch-size", str(self.batch_size))
        return [*training, *COMMON, *self.extra_options, *self.options]


def _ddp(numbers: ModelSizes) -> dict[str, tuple[int, int]]:
    # 11.7 MB with DDP's own buckets: the first of 1 MiB and the rest in one.
    return {"all_reduce": (2, numbers.total)}


def _zero1(numbers: ModelSizes) -> dict[str, tuple[int, int]]:
    """ddp's all-reduces, and from each rank a broadcast of its parameters (Rajbhandari et al. 2020, P_os)."""
    return _ddp(numbers) | {"broadcast": (numbers.ranks, numbers.total)}


def _compressed(ranks: int, how: str, *options: str, **expected: Any) -> ModeCase:
    # At this learning rate three steps lower the loss by 3 %, so that a close loss is not a coincidence.
    about: dict[str, Any] = {"model": "gpt-tiny", "batch_size": 8, "extra_options": ("--lr", "0.5")}
    return ModeCase("ddp", ranks, ("--compress", how, *options), **about, **expected)


_TENTH = ("--topk-ratio", "0.1", "--bucket-cap-mb", "64")


def _in_a_bucket(how: str, *options: str, **expected: Any) -> ModeCase:
    return ModeCase("ddp", 2, ("--compress", how, *options, "--bucket-cap-mb", "64"), loss_tolerance=0.01, **expected)


def _passed_on(*widths: int) -> Callable[[ModelSizes], dict[str, tuple[int, int]]]:
    """At each boundary between stages the activations of every sample forward, their gradients back (4 messages).

    Twice batch x width numbers for each boundary; stages are assigned to the ranks in turn.
    """

    def expected_traffic(numbers: ModelSizes) -> dict[str, tuple[int, int]]:
        touched = [w for i, w in enumerate(widths) if numbers.rank in (i % numbers.ranks, (i + 1) % numbers.ranks)]
        moved = (4 * len(touched), 128 * numbers.element * sum(touched))
        return {"send": moved, "recv": moved}

    return expected_traffic


def _pipeline(ranks: int, schedule: str, *options: str, **about: Any) -> ModeCase:
    return ModeCase("pp", ranks, ("--schedule", schedule, "--micro-batches", "4", *options), **about)


def _3d_of(ranks: int, tensor: int, replicas: int) -> ModeCase:
    # Clipped, so that the ranks of a column and of a row agree on one norm.
    options = ("--pp", "2", "--tp", str(tensor), "--micro-batches", "4")
    return ModeCase(
        "3d", ranks, options, "balanced", extra_options=CLIPPED, expected_traffic=clipped(mesh_3d(tensor, replicas))
    )


_LIMITED = ("--capacity-factor", "1.1", "--shared-experts", "1", "--experts", "4")
"""A capacity that drops tokens, and an expert for all of them."""


def _4d(against: str, *options: str) -> ModeCase:
    # A single process of the same mode has the same micro-batches; moe has none.
    micro_batches = ("--micro-batches", "1" if against == "moe" else "2")
    alone = ("--tp", "1", "--pp", "1", *micro_batches, *CLIPPED) if against == "4d" else ()
    return ModeCase(
        "4d", 4, (*options, *micro_batches), **GPT_TINY, against=against, extra_options=_LIMITED, alone_options=alone
    )


CASES: tuple[ModeCase, ...] = (
    ModeCase("naive", 2, expected_traffic=per_parameter),
    ModeCase("interleaved", 2, expected_traffic=per_parameter),
    ModeCase("ddp", 2, expected_traffic=_ddp),
    ModeCase("ddp", 2, **GPT_TINY, extra_options=("--checkpoint-activations",)),
    ModeCase("naive", 2, **GPT_TINY, extra_options=("--clip-grad", "0.05")),
    ModeCase("interleaved", 2, ("--amp", "bf16"), loss_tolerance=0.01),
    ModeCase("naive", 2, ("--amp", "fp16"), loss_tolerance=0.01),
    ModeCase("async-after", 4, expected_traffic=per_parameter),
    ModeCase("accumulate", 2, ("--micro-batches", "2"), expected_traffic=_ddp),
    ModeCase("ring", 4, expected_traffic=ring),
    ModeCase("hierarchical", 4, ("--ranks-per-node", "2"), expected_traffic=in_pairs),
    ModeCase("ddp", 2, ("--static-graph", "--gradient-as-bucket-view"), expected_traffic=_ddp),
    ModeCase("ddp", 2, ("--find-unused-parameters",), expected_traffic=searching),
    _compressed(2, "fp16", expected_traffic=half, loss_tolerance=1e-4),
    _compressed(4, "int8", expected_traffic=int8, loss_tolerance=1e-4),
    _compressed(4, "topk", *_TENTH, expected_traffic=topk, loss_tolerance=0.005),
    _compressed(2, "powersgd", expected_traffic=powersgd(2), loss_tolerance=0.015),
    ModeCase("accumulate", 2, ("--compress", "int8", "--amp", "fp16"), loss_tolerance=0.01),
    _in_a_bucket("int4", expected_traffic=packed(4)),
    _in_a_bucket("qsgd", "--qsgd-levels", "1", expected_traffic=packed(2)),
    _in_a_bucket("randomk", "--randomk-ratio", "0.1", expected_traffic=randomk),
    _in_a_bucket("threshold", expected_traffic=thresholded),
    _pipeline(2, "naive", expected_traffic=_passed_on(1024)),
    *(
        _pipeline(4, schedule, expected_traffic=_passed_on(1024, 512, 256))
        for schedule in ("gpipe", "1f1b", "zero-bubble")
    ),
    _pipeline(4, "interleaved", model="balanced", expected_traffic=_passed_on(*[784] * 7)),
    _pipeline(2, "1f1b", **GPT_TINY, extra_options=("--clip-grad", "0.05")),
    _pipeline(2, "gpipe", "--amp", "fp16", loss_tolerance=0.01),
    *(
        ModeCase(mode, 4, extra_options=ADAMW, expected_traffic=traffic)
        for mode, traffic in (("ddp", _ddp), ("zero1", _zero1), ("zero2", zero2), ("fsdp", fully_sharded))
    ),
    ModeCase("fsdp", 2, expected_traffic=fully_sharded),
    ModeCase("hsdp", 4, ("--ranks-per-node", "2"), expected_traffic=hsdp),
    ModeCase("fsdp", 2, ("--prefetch", "explicit", "--reshard-after-forward", "no"), expected_traffic=fsdp_kept),
    ModeCase("fsdp", 2, ("--prefetch", "none"), expected_traffic=fully_sharded),
    ModeCase("zero2", 2, **GPT_TINY, extra_options=CLIPPED),
    ModeCase("fsdp", 2, ("--checkpoint-activations-every", "2"), **GPT_TINY, extra_options=CLIPPED),
    *(ModeCase(mode, 2, ("--amp", "fp16"), loss_tolerance=0.01) for mode in ("zero2", "fsdp")),
    ModeCase("fsdp", 2, ("--mixed-precision", "bf16"), loss_tolerance=0.01, expected_traffic=mixed(2, 2)),
    ModeCase(
        "fsdp",
        2,
        ("--mixed-precision", "fp16", "--reduce-dtype", "fp32"),
        loss_tolerance=0.01,
        expected_traffic=mixed(2, 4, scaled=True),
    ),
    ModeCase("moe", 4, ("--experts", "8", "--top-k", "2"), **GPT_TINY, against="moe", expected_traffic=moe),
    ModeCase("moe", 2, ("--dtype", "bfloat16"), **GPT_TINY, against="moe", loss_tolerance=0.01),
    ModeCase("moe", 2, **GPT_TINY, against="moe", extra_options=_LIMITED),
    ModeCase("tp", 2, expected_traffic=tp),
    ModeCase("tp", 2, **GPT_TINY, extra_options=CLIPPED, expected_traffic=clipped(tp_decoder)),
    ModeCase("tp", 4, ("--amp", "fp16"), loss_tolerance=0.01),
    ModeCase("tp-sp", 2, **GPT_TINY, extra_options=CLIPPED, expected_traffic=clipped(tp_sp)),
    ModeCase("dp-tp", 4, ("--tp", "2"), extra_options=CLIPPED, expected_traffic=clipped(dp_tp)),
    _3d_of(4, tensor=2, replicas=1),
    _3d_of(4, tensor=1, replicas=2),
    _4d("moe", "--tp", "2", "--pp", "1"),
    _4d("4d", "--tp", "1", "--pp", "2", "--ep", "1", *CLIPPED),
)
"""Every mode except single, with which all are compared."""


@cache
def run_of(case: ModeCase, with_others: bool = False) -> Path:
    """Record a case, *with_others* together with all others on as many ranks, and return its run folder."""
    folder = scratch() / "modes" / case.name
    if not folder.exists():
        others = [one for one in CASES if one.batch == case.batch] if with_others and case in CASES else [case]
        _launch(others, case.ranks)
    return folder


@cache
def reference(case: ModeCase) -> Path:
    """Train a case's model in one process in the same way, and return the run folder."""
    alone = _alone(case)
    folder = scratch() / "modes" / alone.name
    if not folder.exists():
        fellows = [one for one in CASES if one.batch[1:] == case.batch[1:]]
        _launch(list(dict.fromkeys(map(_alone, (*fellows, case)))), 1)
    return folder


def _alone(case: ModeCase) -> ModeCase:
    return ModeCase(case.against, 1, case.alone_options, case.model, "single", case.batch_size, case.extra_options)


def parameters_of(run: Path) -> Path:
    """Return the file with the parameters after the last step of a run."""
    return run.with_name(f"{run.name}.npz")


def relative_differences(mine: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, float]:
    """Compare the parameters of one model: each tensor's largest difference, relative to its largest number.

    Raises:
        AssertionError: they differ in their names or shapes.
    """
    import numpy as np

    assert sorted(mine) == sorted(other)
    assert {name: np.shape(mine[name]) for name in mine} == {name: np.shape(other[name]) for name in other}
    return {name: float(np.abs(mine[name] - other[name]).max() / (np.abs(other[name]).max() or 1)) for name in other}


def _launch(cases: Sequence[ModeCase], ranks: int) -> None:
    """Run cases one after the other in one set of processes.

    Raises:
        AssertionError: a case failed; the message is its traceback.
    """
    work = [(case.name, case.mode, case.arguments) for case in cases]
    root = scratch() / "modes"
    root.mkdir(exist_ok=True)
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m"]
    command = [*start, "tests.support.modes", json.dumps(work), str(root)]
    done = run_python(*command, cwd=Path(__file__).resolve().parents[2], env=environment())
    assert done.returncode == 0, done.stderr[-6000:]


def _work(cases: list[tuple[str, str, list[str]]], root: Path) -> None:
    """Train each case as one rank, in a process that torchrun started."""
    from dptrace.record import parse_options, process_group
    from dptrace.record.options.modes import trainer
    from dptrace.record.options.validation import check_ranks
    from dptrace.trainers.parts import models

    models.Images = cache(models.Images)  # type: ignore[misc, assignment]  # the cases train on the same ones
    with process_group() as world:
        for name, mode, arguments in cases:
            out, saved = str(root / name), str(root / f"{name}.npz")
            options = parse_options("", mode, [*arguments, "--out", out, "--save-parameters", saved, "--force"])
            check_ranks(mode, vars(options), world.size)
            try:
                importlib.import_module(f"dptrace.trainers.{trainer(mode).stem}").train(options, world)
            except BaseException:
                print(f"case {name} on rank {world.rank}", file=sys.stderr)
                traceback.print_exc()
                raise


if __name__ == "__main__":
    _work(json.loads(sys.argv[1]), Path(sys.argv[2]))
