"""Fuzz the reader: damage trace files, and check that only a DptraceError is raised.

Run it for longer with ``python -m tests.support.fuzz --minutes 60``, or ``--count 20000``. Each finding is printed with
its seed and number, which reproduce the file:
``python -m tests.support.fuzz --seed S --first N --count 1 --keep .``
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import dptrace
import dptrace.readers.stream
from dptrace.errors import SeveralRanksError
from dptrace.readers.kineto.reader import read_trace
from dptrace.readers.trace import Trace
from tests.support.damage import damaged, mutated_document
from tests.support.fuzz_formats import archived, damaged_packets, framed, perfetto_files
from tests.support.kineto_files import KinetoFile, training_step
from tests.support.real_traces import real_files
from tests.support.silent_damage import check_silence

LIMIT_S = 20
"""Seconds that a file of a few hundred kilobytes may take to read, with room for a busy machine."""
_OURS = Path(__file__).resolve().parents[2] / "traces"
_LARGEST = 60_000
"""Maximum compressed bytes of a recording to damage: a larger one costs more and finds no more."""


def made_by_hand() -> Iterator[bytes]:
    """Yield small files of every kind that the reader knows."""
    file = KinetoFile(rank=1, world_size=2)
    for k in range(4):
        training_step(file, k, 100 * k)
    yield file.text().encode()
    file = KinetoFile(rank=None, base=False)
    for device in (0, 1):
        training_step(file, device, 5 + 100 * device).kernel("far", 30, 60, 20, device=device, stream=9)
    for k in range(6):
        file.event("kernel", f"graph {k}", 70 + 3 * k, 74 + 3 * k, stream=7, device=0, correlation=5)
    yield file.event("cuda_runtime", "cudaGraphLaunch", 60, 62, correlation=5).text().encode()
    file = KinetoFile(rank=None)
    for category in ("Operator", "Runtime", "Kernel", "Memcpy", "Memset"):
        file.event(category, category, 1, 9, tid="24572", stream=7, device=0, correlation=3)
    yield json.dumps(file.events).encode()
    yield "\n".join(json.dumps(event) for event in file.events).encode()


def recordings() -> Iterator[bytes]:
    """Yield small recorded traces: the project's, and the shared ones where available."""
    for path in sorted([*_OURS.rglob("*.json.gz"), *real_files()]):
        if path.stat().st_size < _LARGEST:
            yield gzip.decompress(path.read_bytes())


@dataclass(frozen=True)
class Finding:
    """A file that broke something."""

    seed: int
    number: int
    kind: str
    error: str
    data: bytes
    name: str


@dataclass(frozen=True)
class FuzzInput:
    """A damaged file, and what is known about it."""

    kind: str
    data: bytes
    sure: int
    """Number of its events known to be undamaged."""
    name: str = "rank0.json"
    before: bytes | None = None
    """The JSON text before the bytes were damaged."""


_CATEGORIES = ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "kernel", "gpu_memcpy", "gpu_memset")


def _listed(events: Any) -> list[Any]:
    return events if isinstance(events, list) else []


def _is_sure(event: Any) -> bool:
    """Return whether an event must not be lost silently."""
    if not isinstance(event, dict) or event.get("ph") != "X" or event.get("cat") not in _CATEGORIES:
        return False
    times = (event.get("ts"), event.get("dur"))
    return all(isinstance(time, (int, float)) and type(time) is not bool and 0 <= time < 2**50 for time in times)


class Fuzzer:
    """Damaged files by number: the same seed, number and recordings make the same file."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.texts = [*made_by_hand(), *recordings()]
        self.documents = [
            json.loads(text) for text in self.texts if text.lstrip()[:1] == b"{" and b"traceEvents" in text
        ]
        # The smallest recordings: Perfetto's library writes slowly.
        self.perfetto = list(perfetto_files(sorted(self.documents, key=lambda document: len(str(document)))[:4]))
        self.binaries = [framed(packets) for packets in self.perfetto]
        self.results: Counter[str] = Counter()

    def make(self, number: int) -> FuzzInput:
        """Return one damaged file."""
        rng = random.Random(self.seed * 1_000_003 + number)
        case = self._perfetto(rng) if rng.random() < 0.25 else self._json(rng)
        return self._in_archive(rng, case) if rng.random() < 0.2 else case

    def _perfetto(self, rng: random.Random) -> FuzzInput:
        """Return a damaged Perfetto trace."""
        data = damaged_packets(rng, rng.choice(self.perfetto), self.binaries)
        if rng.random() < 0.3:
            data = damaged(rng, data, self.binaries)
        if rng.random() < 0.3:
            data = gzip.compress(data, 1, mtime=0)
        return FuzzInput("perfetto", data, 0, "rank0.pftrace")

    def _in_archive(self, rng: random.Random, case: FuzzInput) -> FuzzInput:
        """Put a damaged trace into an archive, which may be damaged, too."""
        suffix, data = archived(rng, case.name, case.data)
        if rng.random() < 0.6:
            # The directory is at the end of a zip archive, and spread over a tar archive.
            cut = rng.choice((0, max(0, len(data) - 400))) if suffix == ".zip" else 0
            data = data[:cut] + damaged(rng, data[cut:], [data])
        return FuzzInput("archive", data, 0, f"rank0{suffix}")

    def _json(self, rng: random.Random) -> FuzzInput:
        """Return a damaged JSON trace."""
        kind, sure, before = "bytes", 0, rng.choice(self.texts)
        if rng.random() < 0.5:
            document, before = mutated_document(rng, rng.choice(self.documents))
            kind, sure = "structure", sum(map(_is_sure, _listed(document["traceEvents"])))
        data = before
        if kind == "bytes" or rng.random() < 0.1:
            data, sure = damaged(rng, before, self.texts), 0
        if rng.random() < 0.25:
            data = gzip.compress(data, 1, mtime=0)
            if rng.random() < 0.6:
                kind, data, sure = "gzip", damaged(rng, data, [data]), 0
        return FuzzInput(kind, data, sure, before=before)

    def run(self, numbers: Iterator[int], until: float = float("inf")) -> Iterator[Finding]:
        """Make and read one file after the other; yield those that broke something."""
        with tempfile.TemporaryDirectory() as folder:
            for number in numbers:
                if time.monotonic() > until:
                    return
                case = self.make(number)
                path = Path(folder, case.name)
                path.write_bytes(case.data)
                small = (700, 20_000) if len(case.data) < 1 << 20 else ()
                dptrace.readers.stream.CHUNK = random.Random(number).choice((*small, 4 << 20))
                try:
                    self.results[_within(LIMIT_S, partial(_outcome, path, case))] += 1
                except Exception:
                    self.results["finding"] += 1
                    yield Finding(self.seed, number, case.kind, traceback.format_exc(), case.data, case.name)


def _outcome(path: Path, case: FuzzInput) -> str:
    outcome = examine(path, case.sure)
    if outcome == "read" and case.before is not None:
        check_silence(path, case.before)
    return outcome


def examine(path: Path, sure: int = 0) -> str:
    """Read a file, and check its figures as JSON and as a table.

    Args:
        sure: how many events must be read, or reported as left out.

    Returns:
        The outcome: ``read``, ``read with damage``, or ``refused``.
    """
    try:
        run = dptrace.open(path, cache=False, jobs=1)
    except dptrace.DptraceError as error:
        assert str(path) in str(error) or path.name in str(error), f"names no file: {error}"
        return "refused"
    if sure:
        with suppress(SeveralRanksError):  # it is read rank by rank
            check_loss(read_trace(path), sure)
    document = run.to_dict()
    json.dumps(document, allow_nan=False)
    for rank in document["ranks"]:
        for step in rank["steps"]:
            check_step(step)
        for collective in rank["collectives"]:
            if collective["exposed_ns"] is None:
                continue
            assert collective["exposed_ns"] >= 0
            assert collective["overlapped_ns"] >= 0
            length = collective["end_ns"] - collective["start_ns"]
            assert length == collective["exposed_ns"] + collective["overlapped_ns"]
    assert len(run.steps()) == sum(len(rank["steps"]) for rank in document["ranks"])
    assert all(isinstance(note, str) and note for note in run.notes)
    return "read with damage" if any(re.search(r"rank0\.\w+: ", note) for note in run.notes) else "read"


_PARTS = ("forward_ns", "backward_ns", "optimizer_ns", "other_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns")


def check_step(step: dict[str, Any]) -> None:
    """Check that a step's figures are a partition: nothing negative, and the parts sum to the wall time, if known."""
    known = {name: ns for name, ns in step.items() if name.endswith("_ns") and ns is not None}
    assert all(ns >= 0 for ns in known.values()), step
    parts = [known[part] for part in _PARTS if part in known]
    assert step["wall_ns"] == sum(parts) if len(parts) == len(_PARTS) else step["wall_ns"] >= sum(parts), step
    for kind in step["comm"].values():
        assert min(value for value in kind.values() if value is not None) >= 0, step


def check_loss(trace: Trace, sure: int) -> None:
    """Check that the events read and those reported as left out are all events of the file."""
    left_out = [
        int(n.replace(",", ""))
        for note in map(str, trace.damage)
        for n in re.findall(r"([\d,]+) events? left out", note)
    ]
    assert len(trace) + sum(left_out) >= sure or trace.cut, f"{len(trace)} of {sure} events, reported: {trace.damage}"


def _within(seconds: int, function: Callable[[], str]) -> str:
    """Call a function, with a time limit where the system has SIGALRM."""

    def ring(signal_number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"took longer than {seconds} s")

    if not hasattr(signal, "SIGALRM"):
        return function()
    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        return function()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def main() -> int:
    """Run the fuzzer from the command line; print the findings."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--count", type=int, default=None)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for the files that broke something")
    chosen = parser.parse_args()
    if chosen.count is None and chosen.minutes == float("inf"):
        parser.error("set --minutes or --count")
    fuzzer, found = Fuzzer(chosen.seed), 0
    last = chosen.first + chosen.count if chosen.count is not None else sys.maxsize
    begin = time.monotonic()
    for finding in fuzzer.run(iter(range(chosen.first, last)), begin + 60 * chosen.minutes):
        found += 1
        print(f"seed {finding.seed}, number {finding.number}, {finding.kind}:\n{finding.error}", flush=True)
        if chosen.keep is not None:
            (chosen.keep / f"fuzz-{finding.seed}-{finding.number}-{finding.name}").write_bytes(finding.data)
    print(f"{sum(fuzzer.results.values()):,} files in {time.monotonic() - begin:.0f} s: {dict(fuzzer.results)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
