"""Whom ``dptrace watch`` names, in trainings of real processes that are slow by plan, and in clean ones.

``python -m benchmarks.watch_plants [MODE …] [--ranks N] [--steps N] [--clean N] [--plants N] [--seed N]`` trains on CPU
with DistributedDataParallel (``ddp``), with accumulated gradients (``accumulation``), with an all-reduce per parameter
(``naive``) and as a pipeline of sends and receives (``pipeline``). A plant makes one rank sleep, or compute, in one
stage: in every step, in every tenth, in a third of the run. It prints each run, and how many were named right.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from dptrace.watch.follow import Follower
from dptrace.watch.session import Settings, Watch

_MODES = ("ddp", "accumulation", "naive", "pipeline")
_STAGES = ("data", "forward", "backward", "optimizer", "other")
_MICRO = 4


class _Plant:
    """What is slow now, on this rank; *spent* is what that has really taken, in ms."""

    def __init__(self) -> None:
        self.stage, self.ms, self.computes = "", 0.0, False
        self.spent: dict[int, float] = {}
        self.step = 0

    def __call__(self, stage: str) -> None:
        if stage != self.stage or not self.ms:
            return
        began = time.perf_counter()
        if self.computes:
            work = torch.ones(64, 64)
            while time.perf_counter() - began < self.ms / 1e3:
                work = work @ work * 1e-3
        else:
            time.sleep(self.ms / 1e3)
        self.spent[self.step] = self.spent.get(self.step, 0.0) + (time.perf_counter() - began) * 1e3


plant = _Plant()


class _Layer(torch.autograd.Function):
    """The identity, which takes its time in forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Any, ms: float) -> Any:
        time.sleep(ms / 1e3)
        plant("forward")
        ctx.ms = ms
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        time.sleep(1.5 * ctx.ms / 1e3)
        plant("backward")
        return gradient, None


class _Net(nn.Module):
    def __init__(self, ms: float) -> None:
        super().__init__()
        self.first, self.last, self.ms = nn.Linear(64, 64), nn.Linear(64, 64), ms

    def forward(self, x: Any) -> Any:
        return self.last(_Layer.apply(torch.relu(self.first(x)), self.ms))  # type: ignore[no-untyped-call]


class _Data(Dataset[Any]):
    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> Any:
        if index % 4 == 0:
            time.sleep(0.001)
            plant("data")
        return torch.zeros(64)


class _Optimizer(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        plant("optimizer")
        return super().step()


def _pipeline(model: Any, batch: Any, rank: int, ranks: int) -> None:
    done = []
    for _ in range(_MICRO):
        x = batch if rank == 0 else torch.empty(4, 64)
        if rank:
            dist.recv(x, rank - 1)
            x.requires_grad_()
        done.append((x, model(x)))
        if rank < ranks - 1:
            dist.send(done[-1][1].detach(), rank + 1)
    for x, y in done:
        gradient = torch.ones(4, 64)
        if rank < ranks - 1:
            dist.recv(gradient, rank + 1)
        y.backward(gradient)
        if rank:
            dist.send(x.grad, rank - 1)


def _train(mode: str, spec: dict[str, Any], rank: int, ranks: int, steps: int) -> None:
    parts = _MICRO if mode in ("accumulation", "pipeline") else 1
    model: Any = _Net(6.0 / parts)
    if mode in ("ddp", "accumulation"):
        model = DistributedDataParallel(model)
    optimizer = _Optimizer(model.parameters(), lr=1e-6)
    batches = iter(DataLoader(_Data(), batch_size=4))
    for step in range(steps):
        when = spec["when"]
        inside = steps // 3 <= step < 2 * steps // 3
        now = {"steady": True, "tenth": step % 10 == 7, "window": inside}[when]
        plant.step, plant.stage = step, spec["stage"]
        plant.ms = spec["ms"] / (parts if spec["stage"] in ("forward", "backward") else 1) if now else 0.0
        plant.ms, plant.computes = plant.ms if rank == spec["rank"] else 0.0, spec["computes"]
        batch = next(batches)
        if mode == "pipeline":
            _pipeline(model, batch, rank, ranks)
        else:
            for part in range(parts):
                waits = mode != "accumulation" or part == parts - 1
                with nullcontext() if waits else model.no_sync():
                    model(batch).sum().backward()
        if mode == "naive":
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        plant("other")


def _rank(rank: int, ranks: int, mode: str, specs: list[dict[str, Any]], folder: str, steps: int, port: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    for number, spec in enumerate(specs):
        dist.barrier()
        plant.spent.clear()
        watch = Watch(Settings(f"{folder}/{number}", follows=False)).install()
        _train(mode, spec, rank, ranks, steps)
        watch.close(None)
        if rank == spec["rank"]:
            Path(folder, f"{number}.json").write_text(json.dumps(plant.spent))
    dist.destroy_process_group()


def _specs(mode: str, clean: int, plants: int, ranks: int, seed: int) -> list[dict[str, Any]]:
    draw = random.Random(f"{mode}{seed}")
    specs: list[dict[str, Any]] = [{"rank": 0, "stage": "", "ms": 0.0, "when": "steady", "computes": False}] * clean
    for _ in range(plants):
        when = draw.choice(["steady", "steady", "tenth", "window"])
        stage = draw.choice(_STAGES[1:4] if mode == "pipeline" else _STAGES)
        ms = round(draw.uniform({"steady": 5, "tenth": 30, "window": 12}[when], 60), 1)
        rank, computes = draw.randrange(ranks), draw.random() < 1 / 3
        specs.append({"rank": rank, "stage": stage, "ms": ms, "when": when, "computes": computes})
    return specs


def _score(mode: str, spec: dict[str, Any], folder: Path, number: int, tally: dict[str, list[bool]]) -> None:
    follower = Follower(folder / str(number))
    follower.poll()
    content = follower.summary()
    named = [(row["rank"], row["stage"], row["ns_per_step"] / 1e6) for row in content["suspects"]]
    text = ", ".join(f"rank {rank} {stage} {ms:.1f} ms" for rank, stage, ms in named[:3]) or "no rank"
    text += f"; waits for a core {max(follower.totals.core_wait) / content['steps'] / 1e6:.1f} ms"
    step = f"{content['step_ns']['median'] / 1e6:.1f} ms"
    if not spec["ms"]:
        tally.setdefault("clean runs without an alarm", []).append(not named)
        print(f"{mode:<13} {step:>9} clean: {text}", flush=True)
        return
    spent = json.loads((folder / f"{number}.json").read_text())
    true = sum(ms for at, ms in spent.items() if int(at) > 3) / content["steps"]
    right = bool(named) and named[0][:2] == (spec["rank"], spec["stage"])
    tally.setdefault("planted rank and stage first", []).append(right)
    tally.setdefault("ms within 10 % of the plant", []).append(right and abs(named[0][2] / true - 1) <= 0.1)
    what = f"rank {spec['rank']} {spec['stage']} {true:.1f} ms {spec['when']}{', computing' * spec['computes']}"
    print(f"{mode:<13} {step:>9} {'right' if right else 'WRONG'}: {what} -> {text}", flush=True)


def main() -> None:
    """Train, and score."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("modes", nargs="*", metavar="MODE")
    for name, default in (("ranks", 4), ("steps", 150), ("clean", 3), ("plants", 6), ("seed", 1), ("port", 29711)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    tally: dict[str, list[bool]] = {}
    for mode in given.modes or _MODES:
        specs = _specs(mode, given.clean, given.plants, given.ranks, given.seed)
        with tempfile.TemporaryDirectory() as folder:
            arguments = given.ranks, mode, specs, folder, given.steps, given.port
            mp.spawn(_rank, arguments, given.ranks)  # type: ignore[no-untyped-call]
            for number, spec in enumerate(specs):
                _score(mode, spec, Path(folder), number, tally)
    for what, found in tally.items():
        print(f"{what}: {sum(found)} of {len(found)}")


if __name__ == "__main__":
    main()
