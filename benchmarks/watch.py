"""What ``dptrace watch`` costs a rank: CPU time per step and per collective, with its hooks and without, in turns.

``python -m benchmarks.watch [PAIRS]``, 40 by default; it takes about a minute. Each block of steps runs once with the
hooks and once without, in alternating order, and CPU time of the thread that trains is compared: wall time
on a machine that others use is noise. ``python -m benchmarks.watch --memory [STEPS]`` lets two ranks and a reader live
through a million steps of a simulated clock, and says how much memory they take. ``--kill [TIMES]`` kills a training
at as many random moments, and counts the whole records that its file has.
"""

from __future__ import annotations

import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_BLOCK = 50
"""Steps of a block."""


def _pairs(watch: Any, step: Callable[[], object], pairs: int, per_block: int) -> tuple[list[float], list[float]]:
    """Return µs of CPU time per call of *step* in blocks without the watch, and in as many with it."""
    took: dict[bool, list[float]] = {True: [], False: []}
    for number in range(pairs):
        for on in (number % 2 == 0, number % 2 == 1):
            if on:
                watch.on = True
                watch.start()
            for _ in range(30):
                step()
            began = time.thread_time_ns()
            for _ in range(per_block):
                step()
            took[on].append((time.thread_time_ns() - began) / per_block / 1e3)
            if on:
                watch.stop()
    return took[False], took[True]


def _least(values: list[float]) -> float:
    """Return the first decile: what a block takes while other processes leave the core's caches alone."""
    return sorted(values)[len(values) // 10]


def _cases(watch: Any) -> Iterator[tuple[str, Callable[[], object], int]]:
    """Yield what is measured: its name, a call of it, and how many calls make a block."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, Dataset

    class Numbers(Dataset[int]):
        def __len__(self) -> int:
            return 10**8

        def __getitem__(self, index: int) -> int:
            return index

    class _Idle(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            pass

    batches = iter(DataLoader(Numbers(), batch_size=1))
    net = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(10)])
    data, flag = torch.randn(2, 8), torch.zeros(8)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)

    def train(model: Callable[[Any], Any]) -> Callable[[], None]:
        def step() -> None:
            next(batches)
            model(data).sum().backward()
            optimizer.step()

        return step

    yield "step: data, forward, backward, optimizer", train(net), _BLOCK
    yield "the same with DDP, in a group of one", train(DistributedDataParallel(net)), _BLOCK
    loss, identity, idle = next(net.parameters()).sum(), torch.nn.Identity(), _Idle(net.parameters())
    for name, alone in (
        ("data", lambda: next(batches)),
        ("forward", lambda: identity(data)),
        ("backward", lambda: loss.backward(retain_graph=True)),
        ("optimizer, with the end of a step", idle.step),
        ("end of a step", lambda: watch.end_step("optimizer")),
    ):
        yield f"alone: {name}", alone, 5 * _BLOCK
    yield "all_reduce", lambda: dist.all_reduce(flag), 5 * _BLOCK
    yield "all_reduce, asynchronous, and wait", lambda: dist.all_reduce(flag, async_op=True).wait(), 5 * _BLOCK


def overhead(pairs: int) -> None:
    """Print what the watch adds to steps and collectives."""
    import torch
    import torch.distributed as dist

    from dptrace.watch import hooks
    from dptrace.watch.session import Settings, Watch

    torch.set_num_threads(1)
    hooks.LEARNED_AFTER = 20  # each block begins to watch anew
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        watch = Watch(Settings(folder, follows=False)).install()
        watch.stop()
        print(f"{'µs of CPU time':<44}{'without':>9}{'watch adds: median':>20}{'first decile':>14}")
        for name, step, calls in _cases(watch):
            without, watched = _pairs(watch, step, pairs, calls)
            added = statistics.median(b - a for a, b in zip(without, watched, strict=True))
            least = _least(watched) - _least(without)
            print(f"{name:<44}{statistics.median(without):>9.1f}{added:>20.2f}{least:>14.2f}")
        watch.close(None)
        dist.destroy_process_group()


def memory(steps: int) -> None:
    """Print the memory of two ranks with steps of 100 ms by a clock that is not the real one, and of their reader."""
    from dptrace.watch import hooks, session
    from dptrace.watch.follow import Follower
    from dptrace.watch.records import COLLECTIVE, GROUP

    clock = [0]

    def now() -> int:
        clock[0] += 10_000
        return clock[0]

    hooks.now = session.now = now
    with tempfile.TemporaryDirectory() as folder:
        ranks = [session.Watch(session.Settings(folder, follows=False)) for _ in range(2)]
        follower = Follower(Path(folder))
        print(f"{'steps':>10}{'MiB':>8}")
        for number in range(1, steps + 1):
            for rank, watch in enumerate(ranks):
                if number == 1:
                    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
                    watch.on = True
                    watch.calls += hooks.CALL.pack(GROUP, 4, 7, 0, 2, rank, *[0] * 8)
                for stage in range(4):
                    around = watch.enter(stage)
                    clock[0] += 12_000_000
                    watch.leave(around)
                times = [clock[0]] * 3
                watch.calls += hooks.CALL.pack(COLLECTIVE, 2, 7, watch.step, number, -1, *times, *watch.own)
                watch.end_step("optimizer")
            if number % 1000 == 0:
                follower.poll()
            if number % (steps // 10) == 0:
                print(f"{number:>10,}{_resident():>8.1f}", flush=True)
        for watch in ranks:
            watch.close(None)


def _resident() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


_ENDLESS = """
import sys, time, torch
from dptrace.watch.session import Settings, Watch
parameter = torch.ones(2, requires_grad=True)
optimizer = torch.optim.SGD([parameter], lr=1e-6)
watch = Watch(Settings(sys.argv[1], follows=False)).install()
while True:
    parameter.sum().backward()
    optimizer.step()
    print(watch.step, time.monotonic_ns(), flush=True)
"""


def kill(times: int) -> None:
    """Kill a watched training with SIGKILL after 0.3 to 1.5 s, and print what its file has of the steps it made."""
    from dptrace.watch.records import Tail

    draw, whole = random.Random(1), 0
    for number in range(times):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-c", _ENDLESS, folder]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as training:
                assert training.stdout is not None
                training.stdout.readline()
                time.sleep(draw.uniform(0.3, 1.5))
                training.kill()
                made = [tuple(map(int, line.split())) for line in training.stdout if line.endswith("\n")]
            tail = Tail(Path(folder, "rank0000.steps"))
            steps = tail.read(1 << 30)["step"].tolist()
            # All but those of the last tenth of a second must be there, and at most the one that was too long for it.
            due = max((step for step, at in made if at < made[-1][1] - 100_000_000), default=1)
            kept = not tail.problem and steps == list(range(1, len(steps) + 1)) and len(steps) >= due - 1
            whole += kept
            print(f"{number + 1:>3}: {len(steps):,} whole records, {'kept' if kept else 'LOST'}", flush=True)
    print(f"every whole record kept: {whole} of {times}")


def main() -> None:
    """Measure what the command line asks for."""
    words = sys.argv[1:]
    if words[:1] == ["--memory"]:
        memory(int(words[1]) if words[1:] else 1_000_000)
    elif words[:1] == ["--kill"]:
        kill(int(words[1]) if words[1:] else 20)
    else:
        overhead(int(words[0]) if words else 40)


if __name__ == "__main__":
    main()
