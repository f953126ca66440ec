"""Captures that slow steps trigger: whether the cause is named right, and how a watch differs from a profiler.

``python -m benchmarks.watch_captures [MODE] [--captures N] [--keep FOLDER]`` trains two ranks (modes as of
``watch_plants``) in which now and then one rank is slow in one stage for some seconds, until N captures were asked for.
Of each capture it prints whom the watch named, what the analysis of its recording found, and by how much the step, its
stages and its waiting by the watch differ from those that ``dptrace analyze`` says of the same steps.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import tempfile
import time
from collections import defaultdict
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from benchmarks import watch_plants
from dptrace.record import script_profiler
from dptrace.watch.records import STAGES, rank_files, read
from dptrace.watch.session import Settings, Watch
from dptrace.watch.trigger import _DOES

_QUIET_S, _SLOW_S, _MS = 32.0, 13.0, 90.0
"""How long nobody is slow, then one rank is; and by how much in each step."""


def _planted(seconds: float) -> tuple[int, str] | None:
    """Return who is slow at a time since the start."""
    number, inside = divmod(seconds, _QUIET_S + _SLOW_S)
    return (int(number) % 2, STAGES[int(number) % len(STAGES)]) if inside > _QUIET_S else None


class _Timed(watch_plants._Plant):
    """A plant by the time of day, which all ranks share."""

    began = 0.0

    def plan(self, spec: dict[str, Any], step: int, steps: int, rank: int, ranks: int, parts: int) -> None:
        """Say what is slow in a step; raise an error when the time is over."""
        seconds = time.time() - self.began
        over = torch.tensor([seconds > spec["seconds"]], dtype=torch.int32)
        if step % 20 == 0:
            dist.broadcast(over, 0)
            if over.item():
                raise StopIteration
        who = _planted(seconds)
        self.step, self.ms = step, {}
        if who is not None and who[0] == rank:
            self.ms = {who[1]: _MS / (parts if who[1] in ("forward", "backward") else 1)}


def _rank(rank: int, mode: str, folder: str, captures: int, began: float, port: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    watch_plants.plant = _Timed()
    watch_plants.plant.began = began
    script_profiler.install()
    watch = Watch(Settings(folder, captures=captures)).install()
    with suppress(StopIteration):
        watch_plants._train(mode, {"seconds": captures * (_QUIET_S + _SLOW_S)}, rank, 2, 10**9)
    dist.barrier()
    watch.close(None)
    dist.destroy_process_group()


def _score(folder: Path, began: float) -> list[bool]:
    """Print each capture, and return whether it was named right."""
    summary = json.loads((folder / "summary.json").read_text())
    steps, head = read(folder / "rank0000.steps"), rank_files(folder)[0][0]
    right = []
    for capture in summary["captures"]:
        # It was asked for in the first half second after the first slow steps.
        at = steps["end_ns"][np.searchsorted(steps["step"], capture["step"])] - head.clock_ns + head.unix_ns
        rank, stage = _planted(at / 1e9 - began) or (-1, "other")
        named = f"rank {rank} " in capture["why"] and _DOES[stage] in capture["why"]
        right.append(named and capture["state"] == "analyzed" and f"rank {rank}" in capture["finding"])
        print(f"{'right' if right[-1] else 'WRONG'}: rank {rank} {stage} -> {capture['why']}; {capture['finding']}")
    return right


_MARKS = {
    "data": "enumerate(DataLoader)",
    "optimizer": "Optimizer.step#",
    "forward": ".forward",
    "step": "ProfilerStep#",
}
"""By what a name of torch's own marks in a trace begins, or ends, for what the watch measures."""


def _profiled(path: Path) -> dict[str, list[tuple[int, int]]]:
    """Return, for each figure, when its marks in a trace begin and how long they are, in ns since the epoch."""
    with gzip.open(path) as file:
        trace = json.load(file)
    base, found = trace.get("baseTimeNanoseconds", 0), defaultdict(list)
    for event in trace["traceEvents"]:
        for figure, mark in _MARKS.items():
            name = str(event.get("name"))
            if event.get("ph") == "X" and (name.startswith(mark) or (figure == "forward" and name.endswith(mark))):
                found[figure].append((base + round(event["ts"] * 1e3), round(event["dur"] * 1e3)))
    return found


def _errors(folder: Path) -> dict[str, list[tuple[float, float]]]:
    """Return, for each figure, what the watch and the profiler say of each step that both have seen, in ms."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    heads = rank_files(folder)[0]
    for path in sorted(folder.glob("capture*/rank*.json.gz")):
        rank = int(re.findall(r"rank(\d+)", path.name)[0])
        records, marks = read(folder / f"rank{rank:04d}.steps"), _profiled(path)
        begin = records["begin_ns"] - heads[rank].clock_ns + heads[rank].unix_ns
        for step_begin, step_length in marks["step"]:
            at = int(np.abs(begin - step_begin).argmin())
            record = records[at]
            if not record["flags"] & 1:
                continue
            for figure in _MARKS:
                inside = [ns for start, ns in marks[figure] if step_begin <= start < step_begin + step_length]
                own = (
                    record["end_ns"] - record["begin_ns"]
                    if figure == "step"
                    else sum(record[f"{figure}{kind}_ns"] for kind in ("", "_waiting"))
                )
                if inside:
                    found[figure].append((float(own) / 1e6, sum(inside) / 1e6))
    return found


def _print_errors(mode: str, found: dict[str, list[tuple[float, float]]]) -> None:
    for figure, pairs in found.items():
        watched, profiled = np.array(pairs).T
        error = np.abs(watched - profiled)
        share = f"{np.median(error) / np.median(profiled):.1%} of {np.median(profiled):.2f} ms"
        text = f"error median {np.median(error):.3f} ms ({share}), largest {error.max():.3f} ms"
        print(f"{mode:<13} {figure:<10} {len(pairs):>4} steps of ranks: {text}")


def main() -> None:
    """Train, and score."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("mode", nargs="?", default="ddp", metavar="MODE")
    parser.add_argument("--captures", type=int, default=10)
    parser.add_argument("--port", type=int, default=29741)
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    began = time.time() + 5
    with nullcontext(str(given.keep)) if given.keep else tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank, (given.mode, folder, given.captures, began, given.port), 2)  # type: ignore[no-untyped-call]
        Path(folder, "began.json").write_text(json.dumps(began))
        right = _score(Path(folder), began)
        _print_errors(given.mode, _errors(Path(folder)))
    print(f"named right: {sum(right)} of {len(right)}")


if __name__ == "__main__":
    main()
