"""Every mode on CPU, each at its world sizes: many in one set of processes, since starting torch costs seconds.

``python -m tests.modes [MODE ...]`` runs them and prints the table; the tests look at the same runs.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.recordings import environment, scratch

__all__ = ["CASES", "Case", "Numbers", "parameters_of", "reference", "run_of"]

COMMON = ("--steps", "2", "--warmup", "2", "--wait", "2", "--batch-size", "128", "--optimizer", "sgd", "--lr", "0.1")


@dataclass(frozen=True)
class Numbers:
    """What a formula for the bytes of a step may ask."""

    parameter_bytes: tuple[int, ...]
    """Of each parameter tensor of the whole model."""
    ranks: int

    @property
    def total(self) -> int:
        """Add them up."""
        return sum(self.parameter_bytes)


@dataclass(frozen=True)
class Case:
    """A mode, with options, on some ranks."""

    mode: str
    ranks: int
    options: tuple[str, ...] = ()
    model: str = "small"
    also: tuple[str, ...] = ()
    """Options that the single process takes too: what it is to be equal to."""
    moves: Callable[[Numbers], dict[str, tuple[int, int]]] | None = field(default=None, compare=False)
    """What each rank moves in a step: by kind of collective, how often and how many bytes, as the trace counts them."""
    apart: float = 1e-4
    """How far from the single process's the parameters may be, relative to the largest of a tensor."""
    loss_apart: float | None = None
    """For modes that are not exact: how far, as a share, the last loss may be from the single process's."""

    @property
    def name(self) -> str:
        """Name the case's folder."""
        return "_".join(
            [self.mode, str(self.ranks), self.model, *(o.strip("-") for o in (*self.also, *self.options))]
        ).replace("/", "-")

    @property
    def arguments(self) -> list[str]:
        """Give the trainer's command line."""
        return ["--model", self.model, *COMMON, *self.also, *self.options]


def _ddp(numbers: Numbers) -> dict[str, tuple[int, int]]:
    # 5.9 MB with DDP's own buckets: the first of 1 MiB and the rest in one.
    return {"all_reduce": (2, numbers.total)}


def _per_parameter(numbers: Numbers) -> dict[str, tuple[int, int]]:
    return {"all_reduce": (len(numbers.parameter_bytes), numbers.total)}


CASES: tuple[Case, ...] = (
    Case("naive", 2, moves=_per_parameter),
    Case("naive", 4, moves=_per_parameter),
    Case("interleaved", 2, moves=_per_parameter),
    Case("interleaved", 4, moves=_per_parameter),
    Case("ddp", 2, moves=_ddp),
    Case("ddp", 4, moves=_ddp),
    Case("ddp", 2, model="gpt-tiny", also=("--checkpoint-activations",)),
    Case("naive", 2, model="gpt-tiny", also=("--clip-grad", "0.5")),
    Case("interleaved", 2, ("--amp", "bf16"), model="gpt-tiny", loss_apart=0.01),
    Case("naive", 2, ("--amp", "fp16"), loss_apart=0.01),
)
"""Every mode beside single, which all are compared with."""


@cache
def run_of(case: Case) -> Path:
    """Record a case, together with all others on as many ranks, and give its run folder."""
    folder = scratch() / "modes" / case.name
    if not folder.exists():
        _launch([one for one in CASES if one.ranks == case.ranks] if case in CASES else [case], case.ranks)
    return folder


@cache
def reference(case: Case) -> Path:
    """Train a case's model on one process, in the same way, and give its run folder."""
    alone = _alone(case)
    folder = scratch() / "modes" / alone.name
    if not folder.exists():
        _launch(list(dict.fromkeys(map(_alone, (*CASES, case)))), 1)
    return folder


def _alone(case: Case) -> Case:
    return Case("single", 1, model=case.model, also=case.also)


def parameters_of(run: Path) -> Path:
    """Give the file of the parameters after the last step of a run."""
    return run.with_name(f"{run.name}.npz")


def _launch(cases: Sequence[Case], ranks: int) -> None:
    """Run cases one after the other in one set of processes.

    Raises:
        AssertionError: one failed; its traceback is the message.
    """
    work = [(case.name, case.mode, case.arguments) for case in cases]
    root = scratch() / "modes"
    root.mkdir(exist_ok=True)
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m"]
    command = [*start, "tests.modes", "--worker", json.dumps(work), str(root)]
    here = Path(__file__).resolve().parents[1]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=600, env=environment())
    assert done.returncode == 0, done.stderr[-6000:]


def _work(cases: list[tuple[str, str, list[str]]], root: Path) -> None:
    """Be one rank: train each case, where torchrun started this process."""
    from dptrace.record import parse_options, process_group
    from dptrace.record.modes import trainer

    with process_group() as world:
        for name, mode, arguments in cases:
            out, saved = str(root / name), str(root / f"{name}.npz")
            options = parse_options("", mode, [*arguments, "--out", out, "--save-parameters", saved, "--force"])
            try:
                importlib.import_module(f"dptrace.trainers.{trainer(mode).stem}").train(options, world)
            except BaseException:
                print(f"case {name} on rank {world.rank}", file=sys.stderr)
                traceback.print_exc()
                raise


def row(case: Case) -> dict[str, Any]:
    """Give what is known of a case after its run: a row of the table."""
    import numpy as np

    import dptrace

    run = dptrace.open(run_of(case))
    mine, single = np.load(parameters_of(run_of(case))), np.load(parameters_of(reference(case)))
    apart = max(float(np.abs(mine[k] - single[k]).max() / (np.abs(single[k]).max() or 1)) for k in single.files)
    losses = [json.loads((r / "run.json").read_text())["losses"] for r in (run_of(case), reference(case))]
    comm = run.splits[0].comm
    moved = {kind: (int(c.count[-1]), int(c.bytes[-1])) for kind, c in comm.items()}
    return {"case": case, "apart": apart, "loss": losses[0][-1], "single": losses[1][-1], "moved": moved, "run": run}


def _print(modes: list[str]) -> None:
    global CASES
    CASES = tuple(case for case in CASES if not modes or case.mode in modes)
    for case in CASES:
        found = row(case)
        moved = ", ".join(f"{count} {kind} {size:,} B" for kind, (count, size) in found["moved"].items())
        totals = found["run"].splits[0].total()
        wall = sum(v for k, v in totals.items() if k not in ("wall_ns", "overlapped_comm_ns"))
        print(
            f"{case.name:44} parameters {found['apart']:.1e} loss {found['loss']:.5f}/{found['single']:.5f} "
            f"sum {wall - totals['wall_ns']} ns  {moved}"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        _work(json.loads(sys.argv[2]), Path(sys.argv[3]))
    else:
        _print(sys.argv[1:])
