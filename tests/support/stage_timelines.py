"""Timelines of pipeline stages with 1F1B, computed from durations: the events of StragglerAnalysis."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

GATHER, REDUCE, OPTIMIZE, MESSAGE = 5_000, 20_000, 7_000, 400

Duration = Callable[[str, int, int, int, int], float]
"""µs of compute, by "forward" or "backward", stage, data-parallel rank, step and micro-batch."""


def stage_events(compute: Duration, stages: int, replicas: int, batches: int, steps: int) -> list[dict[str, Any]]:
    """Return the events of a job; messages meet at their two ends, and both ends wait for them."""
    events: list[dict[str, Any]] = []
    for replica in range(replicas):
        events.append({"name": "process_name", "ph": "M", "pid": replica, "args": {"name": f"DP rank [{replica}]"}})
        for stage in range(stages):
            name = {"name": f"PP rank {stage}, TP rank 0, compute"}
            events.append({"name": "thread_name", "ph": "M", "pid": replica, "tid": stage, "args": name})
    begin = 1000.0
    for step in range(steps):
        jobs = [_Replica(_of(compute, replica, step), stages, batches) for replica in range(replicas)]
        found = [job.operations() for job in jobs]
        for stage in range(stages):
            done = [job.ready(stage, 2 * batches) for job in jobs]
            last = max(done) + REDUCE
            for own, start in zip(found, done, strict=True):
                own.append(("grads-reduce-scatter", 0, stage, start, last))
                own.append(("optimizer", 0, stage, last, last + OPTIMIZE))
        for replica, own in enumerate(found):
            for kind, number, stage, start, end in own:
                args = {"step": step, "model_chunk": 0, "mb_id": number, "seq_id": number}
                times = {"ts": begin + start, "dur": end - start, "args": args}
                events.append({"name": kind, "cat": kind, "ph": "X", "pid": replica, "tid": stage, **times})
        begin += 1000 + max(end for own in found for *_, end in own)
    return events


def _of(compute: Duration, replica: int, step: int) -> Callable[[str, int, int], float]:
    return lambda way, stage, number: compute(way, stage, replica, step, number)


def write_stages(path: Path, compute: Duration, stages: int, replicas: int, batches: int = 6, steps: int = 3) -> Path:
    """Write such a file, gzipped."""
    path.write_bytes(gzip.compress(json.dumps(stage_events(compute, stages, replicas, batches, steps)).encode()))
    return path


class _Replica:
    """The computations of a replica, one after the other on each stage, and the messages in the slots between them."""

    def __init__(self, compute: Callable[[str, int, int], float], stages: int, batches: int) -> None:
        self.compute, self.stages = compute, stages
        self.order = [_order(min(stages - stage - 1, batches), batches) for stage in range(stages)]
        self.known: dict[tuple[int, int], float] = {}

    def slot(self, stage: int, place: int) -> float:
        """Return when a stage has computed all before a place in its order."""
        if not place:
            return GATHER
        if (stage, place) not in self.known:
            before = self.order[stage][place - 1]
            self.known[stage, place] = self.ready(stage, place - 1) + self.compute(before[0], stage, before[1])
        return self.known[stage, place]

    def ready(self, stage: int, place: int) -> float:
        """Return when all messages of a slot have been sent."""
        order = self.order[stage]
        messages = [(*order[place - 1], stage, True)] if place else []
        messages += [(*order[place], stage, False)] if place < len(order) else []
        return max(self.slot(stage, place), *(self.message(*message) for message in messages))

    def begin(self, way: str, number: int, stage: int, is_send: bool) -> float:
        """Return when one end of a message begins."""
        return self.slot(stage, self.order[stage].index((way, number)) + is_send)

    def message(self, way: str, number: int, stage: int, is_send: bool) -> float:
        """Return when a message has arrived; 0 where the stage has none to exchange."""
        other = stage + (1 if (way == "forward") == is_send else -1)
        if not 0 <= other < self.stages:
            return 0.0
        return MESSAGE + max(self.begin(way, number, stage, is_send), self.begin(way, number, other, not is_send))

    def operations(self) -> list[tuple[str, int, int, float, float]]:
        """Return kind, number, stage, start and end of each."""
        found = [("params-all-gather", 0, stage, 0.0, float(GATHER)) for stage in range(self.stages)]
        for stage, order in enumerate(self.order):
            for place, (way, number) in enumerate(order):
                found.append((f"{way}-compute", number, stage, self.ready(stage, place), self.slot(stage, place + 1)))
                for kind, is_send in (("recv", False), ("send", True)):
                    if end := self.message(way, number, stage, is_send):
                        begin = self.begin(way, number, stage, is_send)
                        found.append((f"{way}-{kind}", number, stage, begin, end))
        return found


def _order(early: int, batches: int) -> list[tuple[str, int]]:
    """Return the computations of a stage with 1F1B that begins with some forwards."""
    order = [("forward", number) for number in range(early)]
    for number in range(batches):
        order += [("forward", number + early)] if number + early < batches else []
        order.append(("backward", number))
    return order
