"""Files of a watch as ranks would write them, from a simulated training whose truth is known."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dptrace.watch.records import (
    BACKWARD,
    CALL,
    CALL_TYPE,
    COLLECTIVE,
    DATA,
    FORMAT,
    FORWARD,
    GROUP,
    HEADER,
    OPTIMIZER,
    OTHER,
    RECEIVE,
    SEND,
    STAGES,
    STEP,
    STEP_TYPE,
    rank_path,
)

MS = 1_000_000
USUAL_MS = {DATA: 2.0, FORWARD: 9.0, BACKWARD: 14.0, OPTIMIZER: 2.0, OTHER: 0.6}


@dataclass(frozen=True)
class Plant:
    """A delay: *rank* None moves over all ranks; *when* is steady, tenth, or a range of steps."""

    rank: int | None
    stage: str
    ms: float
    when: str | tuple[int, int] = "steady"

    def hits(self, rank: int, step: int, chosen: int) -> bool:
        """Return whether it delays a rank in a step."""
        if self.when == "tenth" and step % 10 != 7:
            return False
        if isinstance(self.when, tuple) and not self.when[0] <= step < self.when[1]:
            return False
        return rank == (chosen if self.rank is None else self.rank)


class Rank:
    """One simulated rank: its clock, and what it writes."""

    def __init__(self, number: int, shift: Callable[[int], int]) -> None:
        self.number, self.time, self._shift = number, 1_000_000_000, shift
        self.own, self.blocked = [0] * 5, [0] * 5
        self.steps, self.calls = bytearray(), bytearray()
        self.step, self.begin = 0, self.time
        self.flags = 0
        self._before = [0] * 5, [0] * 5

    def works(self, stage: int, ms: float) -> None:
        """Spend own time."""
        self.time += int(ms * MS)
        self.own[stage] += int(ms * MS)

    def call(self, kind: int, stage: int, group: int, sequence: int, peer: int, times: tuple[int, int, int]) -> None:
        """Write a call whose waiting began and ended at the last two times."""
        self.calls += CALL.pack(
            kind, stage, group, self.step, sequence, peer, *(self._shift(time) for time in times), *self.own
        )

    def waits(self, stage: int, until: int) -> None:
        """Be blocked until a time."""
        self.blocked[stage] += max(0, until - self.time)
        self.time = max(self.time, until)

    def end_step(self) -> None:
        """Write the step."""
        own, blocked = (
            [after - before for after, before in zip(now, then, strict=True)]
            for now, then in zip((self.own, self.blocked), self._before, strict=True)
        )
        times = self._shift(self.begin), self._shift(self.time)
        self.steps += STEP.pack(self.step, self.flags, *times, *own, *blocked, 1 << 30, 8)
        self._before, self.begin = ([*self.own], [*self.blocked]), self.time
        self.step += 1


class Job:
    """A simulated job; :meth:`run` trains, :meth:`write` writes the files."""

    def __init__(
        self,
        mode: str,
        ranks: int,
        plants: Sequence[Plant] = (),
        seed: int = 0,
        hosts: int = 1,
        noise: float = 0.03,
        usual: dict[int, float] | None = None,
    ) -> None:
        self.mode, self.plants, self.hosts, self._noise = mode, plants, hosts, noise
        self._usual = usual or USUAL_MS
        self._random = np.random.default_rng(seed)
        per_host = max(1, ranks // hosts)
        self.host = [min(hosts - 1, number // per_host) for number in range(ranks)]
        self.ranks = [Rank(number, self._clock(self.host[number])) for number in range(ranks)]
        self.truth_ms = [0.0] * len(plants)
        """Planted ms in all steps, of each plant."""
        self._sequence: dict[Any, int] = {}
        self._members = self._groups()
        self._announce()

    @staticmethod
    def _clock(host: int) -> Callable[[int], int]:
        # Other machines' clocks are far off and drift.
        return lambda time: time + host * 1_234_567_890_123 + int(time * 2e-5 * host)

    def _groups(self) -> dict[int, list[int]]:
        size = len(self.ranks)
        if self.mode == "tensor-data":
            return {11: [0, 1], 12: [2, 3], 21: [0, 2], 22: [1, 3]}
        return {1: list(range(size))}

    def _announce(self) -> None:
        for group, members in self._members.items():
            for place, rank in enumerate(members):
                self.ranks[rank].call(GROUP, OTHER, group, len(members), place, (0, 0, 0))

    def run(self, steps: int) -> Job:
        """Make steps."""
        for step in range(steps):
            chosen = int(self._random.integers(len(self.ranks)))
            extra = np.zeros((len(self.ranks), 5))
            for number, plant in enumerate(self.plants):
                for rank in range(len(self.ranks)):
                    if plant.hits(rank, step, chosen):
                        extra[rank, STAGES.index(plant.stage)] += plant.ms
                        self.truth_ms[number] += plant.ms
            getattr(self, f"_{self.mode.replace('-', '_')}")(extra)
            for simulated in self.ranks:
                simulated.end_step()
        return self

    def _work(self, stage: int, extra: Any, parts: int = 1, last: bool = True) -> None:
        for rank in self.ranks:
            usual = self._usual[stage] / parts * float(np.exp(self._random.normal(0, self._noise)))
            rank.works(stage, usual + (extra[rank.number, stage] if last else 0))

    def _meet(self, group: int, stage: int, transfer_ms: float = 0.3) -> None:
        members = [self.ranks[rank] for rank in self._members[group]]
        sequence = self._sequence[group] = self._sequence.get(group, 0) + 1
        end = max(rank.time for rank in members) + int(transfer_ms * MS)
        for rank in members:
            arrival = rank.time
            rank.waits(stage, end + int(abs(self._random.normal(0, 5_000))))
            rank.call(COLLECTIVE, stage, group, sequence, -1, (arrival, arrival, rank.time))

    def _ddp(self, extra: Any) -> None:
        for stage in (DATA, FORWARD, BACKWARD):
            self._work(stage, extra)
        self._meet(1, BACKWARD)
        self._work(OPTIMIZER, extra)
        self._work(OTHER, extra)

    def _naive(self, extra: Any) -> None:
        for stage in (DATA, FORWARD, BACKWARD):
            self._work(stage, extra)
        for _ in range(4):
            self._meet(1, OTHER)
        self._work(OPTIMIZER, extra)
        self._work(OTHER, extra)

    def _sharded(self, extra: Any) -> None:
        self._work(DATA, extra)
        for stage in (FORWARD, BACKWARD):
            for layer in range(4):
                self._meet(1, stage)
                self._work(stage, extra, 4, layer == 2)
        self._meet(1, BACKWARD)
        self._work(OPTIMIZER, extra)
        self._work(OTHER, extra)

    def _asynchronous(self, extra: Any) -> None:
        for stage in (DATA, FORWARD, BACKWARD):
            self._work(stage, extra)
        calls = []
        for _ in range(4):
            sequence = self._sequence[1] = self._sequence.get(1, 0) + 1
            calls.append((sequence, [(rank.time, [*rank.own]) for rank in self.ranks]))
            self._work(OTHER, np.zeros_like(extra), 40)
        for sequence, issued in calls:
            end = max(time for time, _ in issued) + int(0.3 * MS)
            for rank, (arrival, own) in zip(self.ranks, issued, strict=True):
                waits, now, rank.own = rank.time, rank.own, own
                rank.call(COLLECTIVE, OTHER, 1, sequence, -1, (arrival, waits, max(waits, end)))
                rank.own = now
                rank.waits(OTHER, end)
        self._work(OPTIMIZER, extra)
        self._work(OTHER, extra)

    def _tensor_data(self, extra: Any) -> None:
        self._work(DATA, extra)
        for layer in range(2):
            self._work(FORWARD, extra, 2, layer == 0)
            self._meet(11, FORWARD)
            self._meet(12, FORWARD)
        self._work(BACKWARD, extra)
        for group in (21, 22):
            self._meet(group, OTHER)
        self._work(OPTIMIZER, extra)
        self._work(OTHER, extra)

    def _pipeline(self, extra: Any) -> None:
        """Forward and backward of one micro-batch through all ranks, by sends and receives."""
        self._work(DATA, extra)
        for stage, order in ((FORWARD, self.ranks), (BACKWARD, self.ranks[::-1])):
            ready = 0
            for number, rank in enumerate(order):
                if number:
                    arrival = rank.time
                    rank.waits(OTHER, ready)
                    rank.call(RECEIVE, OTHER, 1, rank.step + 1, order[number - 1].number, (arrival, arrival, rank.time))
                usual = self._usual[stage] * float(np.exp(self._random.normal(0, self._noise)))
                rank.works(stage, usual + extra[rank.number, stage])
                ready = rank.time
                if number + 1 < len(order):
                    rank.call(SEND, OTHER, 1, rank.step + 1, order[number + 1].number, (ready, ready, ready))
        self._work(OPTIMIZER, extra)
        self._work(OTHER, extra)

    def write(self, folder: Path) -> Path:
        """Write the files of all ranks."""
        folder.mkdir(parents=True, exist_ok=True)
        for rank in self.ranks:
            host = self.host[rank.number]
            head = {"format": FORMAT, "rank": rank.number, "world_size": len(self.ranks), "started": 0, "process": 0}
            clock = self._clock(host)(0)
            head |= {"host": f"host{host}", "unix_ns": 1, "clock_ns": clock + host * 3_000_000}
            for kind, records, dtype in (("steps", rank.steps, STEP_TYPE), ("calls", rank.calls, CALL_TYPE)):
                text = json.dumps(head | {"record": dtype.descr}).encode().ljust(HEADER - 1) + b"\n"
                rank_path(folder, rank.number, kind).write_bytes(text + records)
            rank_path(folder, rank.number, "ended").touch()
        return folder


def summarized(folder: Path) -> dict[str, Any]:
    """Return what a watch says of files."""
    from dptrace.watch.follow import Follower

    follower = Follower(folder)
    follower.poll()
    return follower.summary()
