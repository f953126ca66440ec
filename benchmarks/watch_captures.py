"""Captures that slow steps trigger: whether the cause is named right, and how a watch differs from a profiler.

``python -m benchmarks.watch_captures [MODE …] [--captures N] [--keep FOLDER]`` trains two ranks N times (modes as of
``watch_plants``), of which from step 61 on one is slow, in another stage each time, until that is captured. It prints
whom the watch named, what the analysis of the recording found, and by how much the step, its stages and its waiting by
the watch differ from those that ``dptrace analyze`` says of the same steps.
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
from dptrace.watch.records import PROFILED, rank_files, read
from dptrace.watch.session import Settings, Watch
from dptrace.watch.trigger import DOES
from dptrace.watch.verdict import SUMMARY_FILE

_QUIET, _LONGEST_S, _MS = 60, 40.0, 60.0
"""Steps in which nobody is slow, how long one rank is then at most, and by how much in each step."""
_CASES = (("data", False), ("forward", False), ("backward", True), ("other", False), ("forward", True))
"""The stage that is slow, and whether it computes meanwhile; else it sleeps."""


class _UntilCaptured(watch_plants.Plant):
    """One rank is slow in one stage after some quiet steps, until a capture is recorded."""

    until = 0.0

    def plan(self, spec: dict[str, Any], step: int, steps: int, rank: int, ranks: int, parts: int) -> None:
        """Say what is slow in a step; raise an error when it is over."""
        if step == _QUIET:
            self.until = time.monotonic() + _LONGEST_S
        if step % 20 == 0:
            captured = Path(spec["folder"], "capture1", "run.json").exists()
            over = torch.tensor([captured or (step > _QUIET and time.monotonic() > self.until)], dtype=torch.int32)
            dist.broadcast(over, 0)
            if over.item():
                raise StopIteration
        self.step, self.computes, self.ms = step, spec["computes"], {}
        if step >= _QUIET and rank == spec["rank"]:
            stage = spec["stage"]
            self.ms = {stage: _MS / (parts if stage in ("forward", "backward") else 1)}


def _spec(number: int, folder: str) -> dict[str, Any]:
    stage, computes = _CASES[number % len(_CASES)]
    return {"rank": number % 2, "stage": stage, "computes": computes, "folder": f"{folder}/{number}"}


def _rank(rank: int, mode: str, folder: str, captures: int, port: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    watch_plants.plant = _UntilCaptured()
    script_profiler.install()
    for number in range(captures):
        spec = _spec(number, folder)
        watch = Watch(Settings(spec["folder"], captures=1, quiet=True)).install()
        with suppress(StopIteration):
            watch_plants.train(mode, spec, rank, 2, 10**9)
        watch.close(None)
        until = time.monotonic() + 120
        while rank == 0 and not _captured(Path(spec["folder"])) and time.monotonic() < until:
            time.sleep(0.5)
        dist.barrier()
    dist.destroy_process_group()


def _captured(folder: Path) -> dict[str, Any] | None:
    """Return the capture of a training once it is analyzed."""
    with suppress(OSError, ValueError):
        for capture in json.loads((folder / SUMMARY_FILE).read_text())["captures"]:
            if capture["state"] == "analyzed":
                return dict(capture)
    return None


def _score(spec: dict[str, Any]) -> list[bool]:
    """Print a capture, and return whether the watch and the analysis named it right."""
    rank, stage, capture = spec["rank"], spec["stage"], _captured(Path(spec["folder"])) or {}
    why, finding = capture.get("why", "nothing captured"), capture.get("finding", "")
    named = f"waits for rank {rank}: " in finding or finding.startswith(f"Rank {rank} takes longer than the others: ")
    right = [f"rank {rank} " in why and DOES[stage] in why, named]
    what = f"rank {rank} {stage}{', computing' * spec['computes']}"
    print(f"{what}: {' '.join(('WRONG', 'right')[one] for one in right)} -> {why}; {finding}", flush=True)
    return right


_MARKS = {
    "data": "enumerate(DataLoader)",
    "optimizer": "Optimizer.step#",
    "forward": ".forward",
    "backward": "autograd::engine::evaluate_function",
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


def _errors(folder: Path, mode: str) -> dict[str, list[tuple[float, float]]]:
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
            if not record["flags"] & PROFILED:
                continue
            for figure in _MARKS:
                inside = [ns for start, ns in marks[figure] if step_begin <= start < step_begin + step_length]
                # DistributedDataParallel waits for other ranks after the last function of backward.
                is_own = figure == "backward" and mode in ("ddp", "accumulation")
                names = [f"{figure}_ns"] if is_own else [f"{figure}_ns", f"{figure}_waiting_ns"]
                length = record["end_ns"] - record["begin_ns"]
                own = length if figure == "step" else sum(record[name] for name in names)
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
    parser.add_argument("modes", nargs="*", default=["ddp"], metavar="MODE")
    parser.add_argument("--captures", type=int, default=10)
    parser.add_argument("--port", type=int, default=29741)
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    right = []
    for mode in given.modes:
        with nullcontext(str(given.keep / mode)) if given.keep else tempfile.TemporaryDirectory() as folder:
            mp.spawn(_rank, (mode, folder, given.captures, given.port), 2)  # type: ignore[no-untyped-call]
            specs = [_spec(number, folder) for number in range(given.captures)]
            right += [_score(spec) for spec in specs]
            errors: dict[str, list[tuple[float, float]]] = defaultdict(list)
            for spec in specs:
                for figure, pairs in _errors(Path(spec["folder"]), mode).items():
                    errors[figure] += pairs
            _print_errors(mode, errors)
    watch, analysis = (sum(one) for one in zip(*right, strict=True))
    print(f"named right by the watch: {watch} of {len(right)}; by the analysis: {analysis}")


if __name__ == "__main__":
    main()
