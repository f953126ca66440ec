"""Plant delays of known size in trainings on CPUs, and compare what dptrace says with what the steps show.

    python -m benchmarks.plants FOLDER [NAME ...]

Each plant trains in real processes with gloo. Windows of steps with and without the delay alternate in one process, so
that what a step takes without the delay is measured beside the recording; and each delay's start and end are kept, so
that exactly these can be cut from the recording, which is replayed without them. Other processes disturb the windows,
but not what is cut. The table has both, what findings on these ranks gain together, and ``whatif --no-straggler``.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import statistics
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

from benchmarks.plant_pipelines import PIPELINES, pipeline_step
from benchmarks.plant_scores import answer, row, summary
from dptrace.record.gloo import gloo_threads

STEPS, ROUNDS, COMMON_S = 9, 3, 0.01
QUIET_MS = 6.0
"""How far a window's steps may be from the other windows' where no other process needs the cores."""


@dataclass(frozen=True)
class Delay:
    """What one rank does longer than the others."""

    rank: int
    where: str
    """before_forward, forward, before_backward, backward, hook, before_wait, optimizer.

    A pipeline passes forward and backward with each micro-batch."""
    ms: float = 40
    how: str = "sleep"
    """sleep, compute, allocate, collect, or loader: a DataLoader whose samples are each late."""
    when: str = "every"
    """every, fourth: one step in four, once, or the rank moves: alternate, with each step, or halfway."""

    def acts(self, rank: int, ranks: int, step: int) -> bool:
        now = {"alternate": step % ranks, "halfway": (self.rank + step // 5) % ranks}.get(self.when, self.rank)
        return rank == now and {"fourth": step % 4 == 2, "once": step == 5}.get(self.when, True)


@dataclass(frozen=True)
class Plant:
    """A training and its delays."""

    style: str
    ranks: int
    delays: tuple[Delay, ...] = ()


CLEAN = (
    *(("ddp", 2), ("ddp", 4), ("buckets", 3), ("naive", 2), ("naive", 3), ("fsdp", 2), ("fsdp", 3), ("async", 2)),
    *(("tensor", 2), ("mesh", 4), ("chain", 3), ("experts", 3), ("accumulate", 2), ("hook", 2), ("zero1", 2)),
    *(("groups", 4), *((style, 3) for style in PIPELINES), ("by_hand", 4)),
)
"""Trainings without a delay, and their ranks."""
PLANTS = {
    **{f"clean_{style}_{ranks}": Plant(style, ranks) for style, ranks in CLEAN},
    "ddp_2_forward": Plant("ddp", 2, (Delay(1, "forward"),)),
    "ddp_2_before_forward": Plant("ddp", 2, (Delay(1, "before_forward", 80),)),
    "ddp_2_before_backward": Plant("ddp", 2, (Delay(0, "before_backward"),)),
    "ddp_2_backward": Plant("ddp", 2, (Delay(1, "backward", 60),)),
    "ddp_2_small": Plant("ddp", 2, (Delay(1, "before_backward", 12),)),
    "ddp_2_large": Plant("ddp", 2, (Delay(1, "before_backward", 150),)),
    "ddp_2_compute": Plant("ddp", 2, (Delay(1, "forward", how="compute"),)),
    "ddp_2_collect": Plant("ddp", 2, (Delay(1, "before_backward", how="collect"),)),
    "ddp_2_hook": Plant("hook", 2, (Delay(1, "hook", 60),)),
    "ddp_2_loader": Plant("ddp", 2, (Delay(1, "before_forward", 3, "loader"),)),
    "ddp_2_one_step": Plant("ddp", 2, (Delay(1, "forward", 300, when="once"),)),
    "ddp_2_two_places": Plant("ddp", 2, (Delay(1, "before_backward", 80), Delay(1, "forward"))),
    "ddp_2_opposed": Plant("ddp", 2, (Delay(1, "forward"), Delay(0, "backward", 30))),
    "ddp_3_allocate": Plant("ddp", 3, (Delay(2, "optimizer", how="allocate"),)),
    "ddp_3_fourth": Plant("ddp", 3, (Delay(2, "optimizer", 80, when="fourth"),)),
    "ddp_3_alternate": Plant("ddp", 3, (Delay(0, "forward", when="alternate"),)),
    "ddp_3_two": Plant("ddp", 3, (Delay(1, "forward", 100), Delay(2, "forward", 50))),
    "ddp_4_loader": Plant("ddp", 4, (Delay(3, "before_forward", 5, "loader"),)),
    "ddp_8_forward": Plant("ddp", 8, (Delay(5, "forward"),)),
    "zero1_2_forward": Plant("zero1", 2, (Delay(1, "forward", 60),)),
    "accumulate_2_backward": Plant("accumulate", 2, (Delay(1, "before_backward", 60),)),
    "accumulate_3_forward": Plant("accumulate", 3, (Delay(2, "forward"),)),
    "buckets_3_optimizer": Plant("buckets", 3, (Delay(2, "optimizer"),)),
    "buckets_4_pair": Plant("buckets", 4, (Delay(1, "forward"), Delay(3, "forward"))),
    "buckets_4_backward": Plant("buckets", 4, (Delay(1, "backward"),)),
    "buckets_6_forward": Plant("buckets", 6, (Delay(4, "before_forward"),)),
    "naive_2_optimizer": Plant("naive", 2, (Delay(0, "optimizer"),)),
    "naive_2_halfway": Plant("naive", 2, (Delay(0, "forward", when="halfway"),)),
    "naive_3_alternate": Plant("naive", 3, (Delay(0, "before_backward", 60, when="alternate"),)),
    "naive_3_fourth": Plant("naive", 3, (Delay(1, "forward", 100, when="fourth"),)),
    "naive_3_compute": Plant("naive", 3, (Delay(1, "optimizer", how="compute"),)),
    "naive_4_two": Plant("naive", 4, (Delay(1, "forward"), Delay(2, "before_backward", 30))),
    "fsdp_2_forward": Plant("fsdp", 2, (Delay(1, "before_forward"),)),
    "fsdp_2_loader": Plant("fsdp", 2, (Delay(0, "before_forward", 3, "loader"),)),
    "fsdp_3_before_backward": Plant("fsdp", 3, (Delay(0, "before_backward", 60),)),
    "fsdp_4_optimizer": Plant("fsdp", 4, (Delay(2, "optimizer"),)),
    "async_2_backward": Plant("async", 2, (Delay(1, "before_backward"),)),
    "async_3_optimizer": Plant("async", 3, (Delay(0, "optimizer"),)),
    "async_2_between": Plant("async", 2, (Delay(0, "before_wait"),)),
    "async_2_hidden": Plant("async", 2, (Delay(0, "before_wait"), Delay(1, "before_backward"))),
    "tensor_2_forward": Plant("tensor", 2, (Delay(1, "forward"),)),
    "tensor_3_backward": Plant("tensor", 3, (Delay(1, "before_backward"),)),
    "mesh_4_forward": Plant("mesh", 4, (Delay(3, "forward", 60),)),
    "mesh_4_optimizer": Plant("mesh", 4, (Delay(0, "optimizer", 60),)),
    "mesh_4_loader": Plant("mesh", 4, (Delay(2, "before_forward", 4, "loader"),)),
    "mesh_4_two": Plant("mesh", 4, (Delay(1, "forward", 80), Delay(2, "forward"))),
    "chain_3_middle": Plant("chain", 3, (Delay(1, "before_backward", 60),)),
    "chain_4_third": Plant("chain", 4, (Delay(2, "before_backward", 60),)),
    "experts_2_forward": Plant("experts", 2, (Delay(1, "forward"),)),
    "experts_3_compute": Plant("experts", 3, (Delay(2, "forward", 60, "compute"),)),
    "experts_4_loader": Plant("experts", 4, (Delay(2, "before_forward", 5, "loader"),)),
    "stages_4_forward": Plant("stages", 4, (Delay(1, "forward"),)),
    "stages_4_optimizer": Plant("stages", 4, (Delay(2, "optimizer"),)),
    "groups_4_forward": Plant("groups", 4, (Delay(1, "forward"),)),
    "groups_4_optimizer": Plant("groups", 4, (Delay(2, "optimizer"),)),
    "by_hand_2_first": Plant("by_hand", 2, (Delay(0, "forward", 25),)),
    "by_hand_3_middle": Plant("by_hand", 3, (Delay(1, "forward", 30),)),
    "by_hand_3_last_backward": Plant("by_hand", 3, (Delay(2, "backward", 30),)),
    "by_hand_4_third": Plant("by_hand", 4, (Delay(2, "forward", 30),)),
    "by_hand_3_optimizer": Plant("by_hand", 3, (Delay(1, "optimizer", 80),)),
    "in_order_3_middle": Plant("in_order", 3, (Delay(1, "backward", 25),)),
    "with_barrier_3_first": Plant("with_barrier", 3, (Delay(0, "forward", 30),)),
    "gpipe_3_last": Plant("gpipe", 3, (Delay(2, "forward", 30),)),
    "1f1b_3_middle": Plant("1f1b", 3, (Delay(1, "forward", 30),)),
    "1f1b_4_last": Plant("1f1b", 4, (Delay(3, "backward", 25),)),
    "interleaved_2_first": Plant("interleaved", 2, (Delay(0, "forward", 20),)),
    "interleaved_3_middle": Plant("interleaved", 3, (Delay(1, "forward", 20),)),
    "zero_bubble_3_middle": Plant("zero_bubble", 3, (Delay(1, "forward", 20),)),
    "v_3_middle": Plant("v", 3, (Delay(1, "forward", 20),)),
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
        self.spans = list[tuple[int, int]]()
        """When each began and ended, in ns since the epoch."""

    def at(self, where: str, *, loader: bool = False) -> None:
        for delay in self.plant.delays if self.active else ():
            own = delay.where == where and (delay.how == "loader") == loader
            if own and delay.acts(self.rank, self.plant.ranks, self.step):
                began = time.time_ns()
                _DO[delay.how](delay.ms / 1e3)
                self.spans.append((began, time.time_ns()))


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
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


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


class _Pipeline:
    """One rank's stages of a pipeline."""

    def __init__(self, plant: Plant, delays: _Delays) -> None:
        self.delays = delays
        self.step = pipeline_step(plant.style, self._layer, lambda: delays.at("optimizer"))

    def _layer(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), _Between(self.delays), nn.Linear(64, 64))


class _Training:
    """One rank's training: a step, and what waits for the gradients."""

    def __init__(self, plant: Plant, delays: _Delays) -> None:
        self.delays, self.style = delays, plant.style
        self.groups = (
            [dist.new_group([one, one + 1]) for one in range(plant.ranks - 1)] if plant.style == "chain" else []
        )
        self.group, tensor = None, None
        if plant.style in ("groups", "stages", "mesh"):
            pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
            self.group = tensor = pairs[delays.rank // 2]
        if plant.style == "mesh":
            across = [dist.new_group([0, 2]), dist.new_group([1, 3])]
            self.group = across[delays.rank % 2]
        summed = _Apply(lambda x: _Summed.apply(x, tensor))
        between = {"tensor": summed, "mesh": summed, "experts": _Apply(_Exchanged.apply)}.get(plant.style)
        layers = [nn.Linear(64, 240), nn.ReLU(), nn.Linear(240, 240), *([between] if between else [])]
        layers += [_Between(delays), nn.Linear(240, 240), nn.ReLU(), nn.Linear(240, 64)]
        net = nn.Sequential(*layers)
        self.model: nn.Module = net
        self.pending: list[Any] = []
        if plant.style in ("ddp", "buckets", "hook", "accumulate", "zero1"):
            self.model = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.1 if plant.style == "buckets" else 25)
        if plant.style == "hook":
            hooked: Any = self.model
            hooked.register_comm_hook(None, self._hook)
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
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        if plant.style == "zero1":
            from torch.distributed.optim import ZeroRedundancyOptimizer

            self.optimizer = ZeroRedundancyOptimizer(net.parameters(), optimizer_class=torch.optim.SGD, lr=1e-3)
        self.batches = iter(torch.utils.data.DataLoader(_Batches(delays), batch_size=8 * plant.ranks))

    def _hook(self, state: object, bucket: Any) -> Any:
        self.delays.at("hook")
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda done: done.value()[0])

    def step(self) -> None:
        if self.style == "accumulate":
            replicas: Any = self.model
            with replicas.no_sync():
                self.model(next(self.batches)).square().mean().backward()
        self.delays.at("before_forward")
        batch = next(self.batches)
        if self.style == "stages" and self.delays.rank >= 2:
            dist.recv(batch, self.delays.rank - 2)
        output = self.model(batch)
        if self.style == "stages" and self.delays.rank < 2:
            dist.send(output.detach(), self.delays.rank + 2)
        loss = output.square().mean()
        if self.style != "accumulate":
            self.optimizer.zero_grad()
        self.delays.at("before_backward")
        loss.backward()
        gradients = [p.grad.view(-1) for p in self.model.parameters() if p.grad is not None]
        if self.style in ("naive", "groups", "stages", "tensor", "mesh", "experts"):
            dist.all_reduce(torch.cat(gradients), group=self.group)
        for first, group in enumerate(self.groups):
            if self.delays.rank in (first, first + 1):
                dist.all_reduce(torch.cat(gradients), group=group)
        self.delays.at("before_wait")
        for work in self.pending:
            work.wait()
        self.pending.clear()
        self.delays.at("optimizer")
        self.optimizer.step()
        if self.style == "accumulate":
            self.optimizer.zero_grad()


def _window(training: _Training | _Pipeline, active: bool, out: Path | None) -> float:
    """Profile some steps, and return what one takes in ms, without the first."""
    training.delays.active = active
    times = []
    own = schedule(wait=0, warmup=1, active=STEPS, repeat=1)
    # Shapes name the peers of messages.
    with profile(activities=[ProfilerActivity.CPU], schedule=own, record_shapes=True) as profiler:
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


def _windows(training: _Training | _Pipeline, out: Path) -> tuple[dict[str, list[float]], list[tuple[int, int]]]:
    """Return what steps of windows with and without the delays take in ms, and the delays of one, which is written."""
    taken: dict[str, list[float]] = {"with": [], "without": []}
    spans = list[tuple[int, int]]()
    for turn in range(ROUNDS):
        for name in taken:
            is_kept = name == "with" and turn == 1
            training.delays.spans.clear()
            taken[name].append(_window(training, name == "with", out if is_kept else None))
            spans = [*training.delays.spans] if is_kept else spans
    return taken, spans


def _work(rank: int, plant: Plant, folder: Path, store: str, attempts: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=plant.ranks)
    delays = _Delays(plant, rank)
    training = (_Pipeline if plant.style in PIPELINES else _Training)(plant, delays)
    for _ in range(3):
        training.step()
    best = math.inf
    for _ in range(attempts):
        gathered = list[Any]([None] * plant.ranks)
        dist.all_gather_object(gathered, _windows(training, folder / f"rank{rank}.new"))
        everyone = [taken for taken, _ in gathered]
        mean = {
            name: statistics.median(statistics.mean(one[name][turn] for one in everyone) for turn in range(ROUNDS))
            for name in everyone[0]
        }
        off = max(abs(took - mean[name]) for one in everyone for name, every in one.items() for took in every)
        if off < best:  # on all ranks alike
            best = off
            (folder / f"rank{rank}.new").replace(folder / f"rank{rank}.pt.trace.json")
            truth = {"step_ms": mean["with"], "saved_ms": mean["with"] - mean["without"], "off_ms": off}
            truth |= {"how": next((delay.how for delay in plant.delays), "")}
            truth |= {"spans": {str(number): spans for number, (_, spans) in enumerate(gathered) if spans}}
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=list(PLANTS), metavar="NAME")
    options = parser.parse_args()
    print("| plant | late | step | windows | exact | findings | no straggler | size | rank | place |")
    print("|---|---|--:|--:|--:|--:|--:|---|---|---|")
    every = {}
    for name in options.names:
        folder = options.folder / name
        if not (folder / "truth.json").exists():
            record(PLANTS[name], folder)
        every[name] = answer(folder)
        print(row(name, every[name]), flush=True)
    print(summary(every))


if __name__ == "__main__":
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")
    main()
