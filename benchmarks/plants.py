"""Plant delays of known size in trainings on CPUs, and compare what dptrace says with what the steps show.

    python -m benchmarks.plants FOLDER [NAME ...]

Each plant trains in real processes with gloo. Windows of steps with and without the delay alternate in one process, so
that the truth, what a step takes without the delay, is measured beside the recording. The table has the truth, what
``whatif --no-straggler`` saves, and what findings on stragglers gain together, with the first one's ranks, ms a step.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.profiler import ProfilerActivity, profile, schedule

import dptrace
from dptrace.analysis.findings.evidence import Straggler
from dptrace.record.gloo import gloo_threads
from dptrace.replay.findings import findings_of

STEPS, ROUNDS, COMMON_S = 9, 3, 0.01
QUIET_MS = 6.0
"""How far a window's steps may be from the other windows' where no other process needs the cores."""


@dataclass(frozen=True)
class Delay:
    """What one rank does longer than the others."""

    rank: int
    where: str
    """before_forward, forward, before_backward, backward, before_wait, optimizer."""
    ms: float = 40
    how: str = "sleep"
    """sleep, compute, allocate, collect, or loader: a DataLoader whose samples are each late."""
    when: str = "every"
    """every, fourth: one step in four, or alternate: the ranks take turns."""

    def acts(self, rank: int, ranks: int, step: int) -> bool:
        mine = rank == (step % ranks if self.when == "alternate" else self.rank)
        return mine and (self.when != "fourth" or step % 4 == 2)


@dataclass(frozen=True)
class Plant:
    """A training and its delays."""

    style: str
    ranks: int
    delays: tuple[Delay, ...] = ()


PLANTS = {
    "clean_ddp_2": Plant("ddp", 2),
    "clean_buckets_3": Plant("buckets", 3),
    "clean_tp_2": Plant("tensor", 2),
    "ddp_2_forward": Plant("ddp", 2, (Delay(1, "forward"),)),
    "ddp_2_before_backward": Plant("ddp", 2, (Delay(0, "before_backward"),)),
    "ddp_2_small": Plant("ddp", 2, (Delay(1, "before_backward", 12),)),
    "ddp_2_large": Plant("ddp", 2, (Delay(1, "before_backward", 150),)),
    "ddp_2_compute": Plant("ddp", 2, (Delay(1, "forward", how="compute"),)),
    "ddp_2_collect": Plant("ddp", 2, (Delay(1, "before_backward", how="collect"),)),
    "ddp_3_allocate": Plant("ddp", 3, (Delay(2, "optimizer", how="allocate"),)),
    "ddp_3_fourth": Plant("ddp", 3, (Delay(2, "optimizer", 80, when="fourth"),)),
    "ddp_3_alternate": Plant("ddp", 3, (Delay(0, "forward", when="alternate"),)),
    "ddp_4_loader": Plant("ddp", 4, (Delay(3, "before_forward", 5, "loader"),)),
    "ddp_8_forward": Plant("ddp", 8, (Delay(5, "forward"),)),
    "buckets_3_optimizer": Plant("buckets", 3, (Delay(2, "optimizer"),)),
    "buckets_4_pair": Plant("buckets", 4, (Delay(1, "forward"), Delay(3, "forward"))),
    "buckets_4_backward": Plant("buckets", 4, (Delay(1, "backward"),)),
    "buckets_6_forward": Plant("buckets", 6, (Delay(4, "before_forward"),)),
    "naive_2_optimizer": Plant("naive", 2, (Delay(0, "optimizer"),)),
    "ddp_2_opposed": Plant("ddp", 2, (Delay(1, "forward"), Delay(0, "backward", 30))),
    "naive_4_two": Plant("naive", 4, (Delay(1, "forward"), Delay(2, "before_backward", 30))),
    "naive_3_compute": Plant("naive", 3, (Delay(1, "optimizer", how="compute"),)),
    "fsdp_2_forward": Plant("fsdp", 2, (Delay(1, "before_forward"),)),
    "fsdp_4_optimizer": Plant("fsdp", 4, (Delay(2, "optimizer"),)),
    "async_2_backward": Plant("async", 2, (Delay(1, "before_backward"),)),
    "async_3_optimizer": Plant("async", 3, (Delay(0, "optimizer"),)),
    "async_2_between": Plant("async", 2, (Delay(0, "before_wait"),)),
    "async_2_hidden": Plant("async", 2, (Delay(0, "before_wait"), Delay(1, "before_backward"))),
    "tensor_2_forward": Plant("tensor", 2, (Delay(1, "forward"),)),
    "tensor_3_backward": Plant("tensor", 3, (Delay(1, "before_backward"),)),
    "experts_2_forward": Plant("experts", 2, (Delay(1, "forward"),)),
    "experts_4_loader": Plant("experts", 4, (Delay(2, "before_forward", 5, "loader"),)),
    "stages_4_forward": Plant("stages", 4, (Delay(1, "forward"),)),
    "stages_4_optimizer": Plant("stages", 4, (Delay(2, "optimizer"),)),
    "groups_4_forward": Plant("groups", 4, (Delay(1, "forward"),)),
    "groups_4_optimizer": Plant("groups", 4, (Delay(2, "optimizer"),)),
}


def _compute(seconds: float) -> None:
    matrix, until = torch.randn(64, 64), time.perf_counter() + seconds
    while time.perf_counter() < until:
        matrix = torch.tanh(matrix @ matrix)


def _allocate(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        torch.zeros(4_000_000)


def _collect(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        gc.collect()


_DO: dict[str, Callable[[float], None]] = {
    "sleep": time.sleep,
    "loader": time.sleep,
    "compute": _compute,
    "allocate": _allocate,
    "collect": _collect,
}


class _Delays:
    """The delays of one rank; switched on and off from window to window."""

    def __init__(self, plant: Plant, rank: int) -> None:
        self.plant, self.rank, self.active, self.step = plant, rank, False, 0

    def at(self, where: str, *, loader: bool = False) -> None:
        for delay in self.plant.delays if self.active else ():
            own = delay.where == where and (delay.how == "loader") == loader
            if own and delay.acts(self.rank, self.plant.ranks, self.step):
                _DO[delay.how](delay.ms / 1e3)


class _Between(nn.Module):
    """A layer that hosts delays, and work that all ranks have: sleeping, so that cores don't matter."""

    def __init__(self, delays: _Delays) -> None:
        super().__init__()
        self.delays = delays

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(COMMON_S)
        self.delays.at("forward")
        if x.requires_grad:
            x.register_hook(self._backward)
        return x

    def _backward(self, grad: torch.Tensor) -> None:
        time.sleep(COMMON_S)
        self.delays.at("backward")


class _Summed(torch.autograd.Function):
    """The sum over ranks of a layer's parts, as tensor parallelism has it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


class _Exchanged(torch.autograd.Function):
    """Tokens sent to the ranks that have their experts, and their gradients back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return _Exchanged.forward(ctx, grad)


class _Apply(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


class _Batches(torch.utils.data.IterableDataset[torch.Tensor]):
    def __init__(self, delays: _Delays) -> None:
        self.delays = delays

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            self.delays.at("before_forward", loader=True)
            yield torch.randn(64)


class _Training:
    """One rank's training: a step, and what waits for the gradients."""

    def __init__(self, plant: Plant, delays: _Delays) -> None:
        self.delays, self.style = delays, plant.style
        between = {"tensor": _Apply(_Summed.apply), "experts": _Apply(_Exchanged.apply)}.get(plant.style)
        layers = [nn.Linear(64, 240), nn.ReLU(), nn.Linear(240, 240), *([between] if between else [])]
        layers += [_Between(delays), nn.Linear(240, 240), nn.ReLU(), nn.Linear(240, 64)]
        net = nn.Sequential(*layers)
        self.model: nn.Module = net
        self.pending: list[Any] = []
        self.group = None
        if plant.style in ("ddp", "buckets"):
            self.model = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=25 if plant.style == "ddp" else 0.1)
        elif plant.style == "fsdp":
            from torch.distributed.fsdp import fully_shard

            mesh = dist.device_mesh.init_device_mesh("cpu", (plant.ranks,))
            for layer in (net[2], net[4]):
                fully_shard(layer, mesh=mesh)
            fully_shard(net, mesh=mesh)
        elif plant.style == "async":
            for parameter in net.parameters():
                parameter.register_post_accumulate_grad_hook(
                    lambda own: self.pending.append(dist.all_reduce(own.grad, async_op=True))
                )
        elif plant.style in ("groups", "stages"):
            pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
            self.group = pairs[delays.rank // 2]
        self.optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        self.batches = iter(torch.utils.data.DataLoader(_Batches(delays), batch_size=8 * plant.ranks))

    def step(self) -> None:
        self.delays.at("before_forward")
        batch = next(self.batches)
        if self.style == "stages" and self.delays.rank >= 2:
            dist.recv(batch, self.delays.rank - 2)
        output = self.model(batch)
        if self.style == "stages" and self.delays.rank < 2:
            dist.send(output.detach(), self.delays.rank + 2)
        loss = output.square().mean()
        self.optimizer.zero_grad()
        self.delays.at("before_backward")
        loss.backward()
        if self.style in ("naive", "groups", "stages", "tensor", "experts"):
            gradients = [p.grad.view(-1) for p in self.model.parameters() if p.grad is not None]
            dist.all_reduce(torch.cat(gradients), group=self.group)
        self.delays.at("before_wait")
        for work in self.pending:
            work.wait()
        self.pending.clear()
        self.delays.at("optimizer")
        self.optimizer.step()


def _window(training: _Training, active: bool, out: Path | None) -> float:
    """Profile some steps, and return what one takes in ms, without the first."""
    training.delays.active = active
    times = []
    own = schedule(wait=0, warmup=1, active=STEPS, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=own) as profiler:
        for number in range(STEPS + 1):
            training.delays.step = number
            if number == STEPS:
                # As the recorder does: a trace names no group for gloo's work.
                profiler.add_metadata_json("gloo_threads", json.dumps(gloo_threads()))
            training.step()
            if number == STEPS:
                times.append(time.perf_counter())
            profiler.step()
            if number < STEPS:
                times.append(time.perf_counter())
    if out:
        profiler.export_chrome_trace(str(out))
    dist.barrier()
    return 1e3 * (times[-1] - times[1]) / (len(times) - 2)


def _windows(training: _Training, out: Path) -> dict[str, list[float]]:
    """Return what steps of windows with and without the delays take in ms, and write the trace of one with them."""
    taken: dict[str, list[float]] = {"with": [], "without": []}
    for turn in range(ROUNDS):
        for name in taken:
            taken[name].append(_window(training, name == "with", out if name == "with" and turn == 1 else None))
    return taken


def _work(rank: int, plant: Plant, folder: Path, store: str, attempts: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=plant.ranks)
    delays = _Delays(plant, rank)
    training = _Training(plant, delays)
    for _ in range(3):
        training.step()
    best = math.inf
    for _ in range(attempts):
        taken, everyone = _windows(training, folder / f"rank{rank}.new"), list[Any]([None] * plant.ranks)
        dist.all_gather_object(everyone, taken)
        mean = {
            name: statistics.median(statistics.mean(one[name][turn] for one in everyone) for turn in range(ROUNDS))
            for name in taken
        }
        off = max(abs(took - mean[name]) for one in everyone for name in taken for took in one[name])
        if off < best:  # on all ranks alike
            best = off
            (folder / f"rank{rank}.new").replace(folder / f"rank{rank}.pt.trace.json")
            truth = {"step_ms": mean["with"], "saved_ms": mean["with"] - mean["without"], "off_ms": off}
            if rank == 0:
                (folder / "truth.json").write_text(json.dumps(truth), encoding="utf-8")
        if off < QUIET_MS:
            break
    (folder / f"rank{rank}.new").unlink(missing_ok=True)
    dist.barrier()
    # Ending Python would at times abort in the destructors of gloo's threads.
    os._exit(0)


def record(plant: Plant, folder: Path, attempts: int = 1) -> None:
    """Train, and write each rank's trace and ``truth.json`` to a folder.

    Args:
        attempts: how often at most, until no window is disturbed by other processes; the least disturbed one is kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as own:
        spawn(_work, (plant, folder, f"{own}/store", attempts), plant.ranks)


def answer(folder: Path) -> dict[str, Any]:
    """Return what dptrace says of a recorded plant beside the truth, in ms a step."""
    truth = json.loads((folder / "truth.json").read_text(encoding="utf-8"))
    run = dptrace.open(folder, cache=False)
    found = [finding for finding in findings_of(run) if finding.kind == "straggler" and finding.has_gain]
    gains = [finding.figure[0] for finding in found]
    first = next(iter(found), None)
    return {
        "step": truth["step_ms"],
        "truth": truth["saved_ms"],
        "off": truth["off_ms"],
        "saved": run.whatif(no_straggler=True).step_gain_ns / 1e6,
        "found": sum(gains) / 1e6,
        "ranks": first.about(Straggler).ranks if first else [],
        "cause": first.about(Straggler).cause if first else "",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=list(PLANTS), metavar="NAME")
    options = parser.parse_args()
    print("| plant | step | truth | no straggler | findings | ranks | cause | within 10 % or 1 ms |")
    print("|---|---|---|---|---|---|---|---|")
    for name in options.names:
        folder = options.folder / name
        if not (folder / "truth.json").exists():
            record(PLANTS[name], folder)
        said = answer(folder)
        near = max(abs(said[key] - said["truth"]) for key in ("saved", "found")) <= max(1.0, 0.1 * said["truth"])
        figures = " | ".join(f"{said[key]:.1f}" for key in ("step", "truth", "saved", "found"))
        print(f"| {name} | {figures} | {said['ranks']} | {said['cause']} | {'yes' if near else 'no'} |")
        sys.stdout.flush()


if __name__ == "__main__":
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")
    main()
