"""Whom ``dptrace watch`` names, in trainings of real processes that are slow by plan, and in clean ones.

``python -m benchmarks.watch_plants [MODE …] [--ranks N] [--steps N] [--clean N] [--plants N] [--seed N]`` trains on CPU
with DistributedDataParallel (``ddp``), with accumulated gradients (``accumulation``), with an all-reduce per parameter
(``naive``, ``async``), with FSDP (``fsdp``), as a pipeline of sends and receives (``pipeline``) and with groups of
tensors and data (``mesh``). A plant makes a rank sleep, or compute, in one stage: in every step, in every tenth, in a
third of the run, in another rank each time, or in two ranks at once. It prints each run, and how many were named right.
``--busy N`` lets N other processes compute meanwhile; ``--keep FOLDER`` keeps the files, which ``--score`` reads again.
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
from dptrace.watch.records import STAGES
from dptrace.watch.session import Settings, Watch

_MODES = ("ddp", "accumulation", "naive", "async", "fsdp", "pipeline", "mesh")
_MICRO = 4
_LEAST_MS = {"steady": 2, "tenth": 20, "window": 8, "moving": 8, "two": 5}
"""The shortest plant of each kind; the longest is 60 ms."""


def take(ms: float, computes: bool) -> None:
    """Sleep, or compute for so much CPU time."""
    if not computes:
        time.sleep(ms / 1e3)
        return
    work, began = torch.ones(64, 64), time.thread_time()
    while time.thread_time() - began < ms / 1e3:
        work = work @ work * 1e-3


class Plant:
    """What is slow now, on this rank; *spent* is what that has really taken, in ms, by stage and step."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = {}
        self.computes = False
        self.spent: dict[str, dict[int, float]] = {}
        self.step = 0

    def __call__(self, stage: str) -> None:
        if not self.ms.get(stage):
            return
        began = time.perf_counter()
        take(self.ms[stage], self.computes)
        steps = self.spent.setdefault(stage, {})
        steps[self.step] = steps.get(self.step, 0.0) + (time.perf_counter() - began) * 1e3

    def plan(self, spec: dict[str, Any], step: int, steps: int, rank: int, ranks: int, parts: int) -> None:
        """Say what is slow in a step."""
        inside = {"tenth": step % 10 == 7, "window": steps // 3 <= step < 2 * steps // 3}.get(spec["when"], True)
        moved = random.Random(step).randrange(ranks)
        self.step, self.computes, self.ms = step, spec["computes"], {}
        for one in spec["plants"] if inside else ():
            if rank == (moved if spec["when"] == "moving" else one["rank"]):
                self.ms[one["stage"]] = one["ms"] / (parts if one["stage"] in ("forward", "backward") else 1)


plant = Plant()


class _Layer(torch.autograd.Function):
    """The identity, which takes its time in forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Any, ms: float) -> Any:
        take(ms, plant.computes)
        plant("forward")
        ctx.ms = ms
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        take(1.5 * ctx.ms, plant.computes)
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


def _model(mode: str, ranks: int) -> tuple[Any, Any]:
    """Return the model, and the groups of a mesh: that of the rank's tensors and that of its data."""
    parts = _MICRO if mode in ("accumulation", "pipeline") else 1
    model: Any = _Net(6.0 / parts)
    if mode in ("ddp", "accumulation"):
        model = DistributedDataParallel(model)
    if mode == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (ranks,))
        for module in (model.first, model.last, model):
            fully_shard(module, mesh=mesh)
    if mode != "mesh":
        return model, None
    rank, pairs = dist.get_rank(), range(ranks // 2)
    tensors = [dist.new_group([2 * pair, 2 * pair + 1]) for pair in pairs][rank // 2]
    data = [dist.new_group([*range(side, ranks, 2)]) for side in (0, 1)][rank % 2]
    model.register_forward_hook(lambda module, x, y: dist.all_reduce(y.detach().clone(), group=tensors) and None)
    return model, data


def train(mode: str, spec: dict[str, Any], rank: int, ranks: int, steps: int) -> None:
    parts = _MICRO if mode in ("accumulation", "pipeline") else 1
    model, group = _model(mode, ranks)
    optimizer = _Optimizer(model.parameters(), lr=1e-6)
    batches = iter(DataLoader(_Data(), batch_size=4))
    for step in range(steps):
        plant.plan(spec, step, steps, rank, ranks, parts)
        batch = next(batches)
        if mode == "pipeline":
            _pipeline(model, batch, rank, ranks)
        else:
            for part in range(parts):
                waits = mode != "accumulation" or part == parts - 1
                with nullcontext() if waits else model.no_sync():
                    model(batch).sum().backward()
        if mode in ("naive", "async", "mesh"):
            gradients = [parameter.grad for parameter in model.parameters()]
            works = [dist.all_reduce(one, group=group, async_op=mode == "async") for one in gradients]
            if mode == "async":
                take(2, plant.computes)
                for work in works:
                    work.wait()
        optimizer.step()
        optimizer.zero_grad()
        plant("other")


def _rank(rank: int, ranks: int, mode: str, specs: list[dict[str, Any]], folder: str, steps: int, port: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    for number, spec in enumerate(specs):
        dist.barrier()
        plant.spent.clear()
        watch = Watch(Settings(f"{folder}/{mode}{number}", follows=False)).install()
        train(mode, spec, rank, ranks, steps)
        watch.close(None)
        Path(folder, f"{mode}{number}", f"truth{rank}.json").write_text(json.dumps({"spec": spec, "ms": plant.spent}))
    dist.destroy_process_group()


def _specs(mode: str, clean: int, plants: int, ranks: int, seed: int) -> list[dict[str, Any]]:
    draw = random.Random(f"{mode}{seed}")
    specs: list[dict[str, Any]] = [{"plants": [], "when": "", "computes": number % 3 == 2} for number in range(clean)]
    stages = STAGES[1:4] if mode == "pipeline" else STAGES
    for _ in range(plants):
        when = draw.choice(["steady", "steady", "tenth", "window", "two" if mode == "pipeline" else "moving", "two"])
        chosen = draw.sample(range(ranks), 2 if when == "two" else 1)
        least = _LEAST_MS[when]
        slow = [
            {"rank": rank, "stage": draw.choice(stages), "ms": round(least * (60 / least) ** draw.random(), 1)}
            for rank in chosen
        ]
        specs.append({"plants": slow, "when": when, "computes": draw.random() < 1 / 3})
    return specs


def _score(folder: Path, tally: dict[str, list[bool]]) -> None:
    follower = Follower(folder)
    follower.poll()
    content = follower.summary()
    truths = [json.loads((folder / f"truth{rank}.json").read_text()) for rank in range(content["world_size"])]
    spec, steps = truths[0]["spec"], content["steps"]
    named = [(row["rank"], row["stage"], row["ns_per_step"] / 1e6) for row in content["suspects"]]
    text = ", ".join(f"rank {rank} {stage} {ms:.1f} ms" for rank, stage, ms in named[:4]) or "no rank"
    text += f"; waits for a core {content['core_wait_ns'] / 1e6:.1f} ms"
    text += ", unknown" if content["cannot_tell"] else ""
    begin = f"{folder.name:<15} {content['step_ns']['median'] / 1e6:>6.1f} ms"
    if not spec["plants"]:
        tally.setdefault("clean runs without an alarm", []).append(not named)
        print(f"{begin} clean{', computing' * spec['computes']}: {text}", flush=True)
        return
    moves = spec["when"] == "moving"
    true: dict[tuple[int | None, str], float] = {}
    for rank, truth in enumerate(truths):
        for stage, spent in truth["ms"].items():
            key = None if moves else rank, stage
            true[key] = true.get(key, 0.0) + sum(ms for at, ms in spent.items() if int(at) > 3) / steps
    wanted = sorted(true, key=lambda key: -true[key])
    first = [row[:2] for row in named[: len(wanted)]]
    right = set(first) == set(wanted)
    verdict = "right" if right else "WRONG" if named and named[0][:2] not in wanted else "part" if named else "unknown"
    tally.setdefault("planted rank and stage first", []).append(right)
    tally.setdefault("another first", []).append(verdict == "WRONG")
    if right:
        near = [abs(ms / true[rank, stage] - 1) <= 0.1 for rank, stage, ms in named[: len(wanted)]]
        tally.setdefault("ms within 10 % of the plant, where named", []).append(all(near))
        verdict += "" if all(near) else ", ms off"
        tally.setdefault("no other suspect, where named", []).append(len(named) == len(wanted))
    what = ", ".join(
        f"rank {'-' if rank is None else rank} {stage} {true[rank, stage]:.1f} ms" for rank, stage in wanted
    )
    print(f"{begin} {verdict}: {what} {spec['when']}{', computing' * spec['computes']} -> {text}", flush=True)


def _compute() -> None:
    while True:
        take(1000, True)


def main() -> None:
    """Train, and score."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("modes", nargs="*", metavar="MODE")
    numbers = {"ranks": 4, "steps": 120, "clean": 3, "plants": 9, "seed": 1, "port": 29711, "busy": 0}
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--score", type=Path)
    given = parser.parse_args()
    tally: dict[str, list[bool]] = {}
    if given.score:
        for truth in sorted(given.score.glob("*/truth0.json")):
            _score(truth.parent, tally)
    others = [mp.get_context("spawn").Process(target=_compute, daemon=True) for _ in range(given.busy)]
    for other in others:
        other.start()
    for mode in () if given.score else given.modes or _MODES:
        specs = _specs(mode, given.clean, given.plants, given.ranks, given.seed)
        with nullcontext(str(given.keep)) if given.keep else tempfile.TemporaryDirectory() as folder:
            arguments = given.ranks, mode, specs, folder, given.steps, given.port
            mp.spawn(_rank, arguments, given.ranks)  # type: ignore[no-untyped-call]
            for number in range(len(specs)):
                _score(Path(folder, f"{mode}{number}"), tally)
    for other in others:
        other.terminate()
    for what, found in tally.items():
        print(f"{what}: {sum(found)} of {len(found)}")


if __name__ == "__main__":
    main()
