"""Recordings from which a kind of evidence is taken, and what their figures may then be.

Each figure must equal the whole recording's, or be unknown, or be a bound that holds; never another number.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dptrace
from dptrace.errors import DptraceError

Events = list[dict[str, Any]]
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_CALLS = ("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "runtime", "driver")
CLOSE = 0.01
"""By how much a figure may differ, as a share of the step: work at the edge of a step moves with it."""


def _is_mark(event: dict[str, Any]) -> bool:
    return str(event.get("name", "")).startswith("ProfilerStep#")


def _without(*categories: str) -> Callable[[Events], Events]:
    return lambda events: [event for event in events if str(event.get("cat")).lower() not in categories]


def _without_arguments(events: Events) -> Events:
    return [{key: value for key, value in event.items() if key != "args"} for event in events]


def _without_kernels(part: float) -> Callable[[Events], Events]:
    def remove(events: Events) -> Events:
        chance = random.Random(7)
        return [e for e in events if e.get("cat") != "kernel" or chance.random() >= part]

    return remove


def _without_first_kernels(events: Events) -> Events:
    kernels = [number for number, event in enumerate(events) if event.get("cat") == "kernel"]
    lost = {*kernels[: min(100, len(kernels) // 3)]}
    return [event for number, event in enumerate(events) if number not in lost]


def _changed(test: Callable[[dict[str, Any]], bool], **values: Any) -> Callable[[Events], Events]:
    return lambda events: [event | values if test(event) else event for event in events]


def _second_series(events: Events) -> Events:
    more = []
    for event in filter(_is_mark, events):
        number = int(event["name"].partition("#")[2].split(" ")[0])
        shifted = {"ts": float(event["ts"]) + 0.3 * float(event.get("dur", 0)), "name": f"ProfilerStep#{number + 1000}"}
        more.append(event | shifted)
    return [*events, *more]


def _equal_ids(events: Events) -> Events:
    return [
        event | {"args": event["args"] | {"correlation": 5}}
        if isinstance(event.get("args"), dict) and "correlation" in event["args"]
        else event
        for event in events
    ]


def _every_tenth_kernel(**factors: Callable[[float], float]) -> Callable[[Events], Events]:
    def change(events: Events) -> Events:
        count, result = 0, []
        for event in events:
            count += event.get("cat") == "kernel"
            hit = event.get("cat") == "kernel" and count % 10 == 0
            result.append(event | {key: of(float(event[key])) for key, of in factors.items()} if hit else event)
        return result

    return change


REMOVALS: dict[str, Callable[[Events], Events]] = {
    "launches": _without(*_CALLS),
    "arguments": _without_arguments,
    "operators": _without("cpu_op"),
    "labels": _without("user_annotation"),
    "copies": _without("gpu_memcpy"),
    "kernels": _without("kernel"),
    "1 % of kernels": _without_kernels(0.01),
    "10 % of kernels": _without_kernels(0.1),
    "50 % of kernels": _without_kernels(0.5),
    "first kernels": _without_first_kernels,
    "marks": lambda events: [event for event in events if not _is_mark(event)],
    "ends of marks": _changed(_is_mark, dur=0),
    "one series of marks": _second_series,
    "ids of launches": _equal_ids,
    "times of kernels": _every_tenth_kernel(ts=lambda ts: ts - 1e9),
    "durations of kernels": _every_tenth_kernel(dur=lambda dur: dur * 1e6),
}
"""What is taken away, by what it is."""


def read(path: Path) -> dict[str, Any]:
    """Return a recording's document."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    document: dict[str, Any] = json.loads(data)
    return document


def answers(document: dict[str, Any], folder: Path) -> Iterator[tuple[str, int, int, list[str]]]:
    """Yield for each removal: its name, how many figures are equal, how many unknown or bounds, and what is wrong."""
    whole = _figures(document, folder)
    assert whole
    for name, remove in REMOVALS.items():
        part = {**document, "traceEvents": remove(document["traceEvents"])}
        yield (name, *_compared(whole, _figures(part, folder)))


Figures = dict[tuple[str, str], tuple[float | None, str]]
"""By step and name: a value, None where it is not known, and what bound it is, if it is one."""


def _figures(document: dict[str, Any], folder: Path) -> Figures:
    """Return the figures of each step and the idle time by cause; none where the file is refused with a sentence."""
    path = folder / "rank0.json"
    path.write_text(json.dumps(document))
    try:
        (device,) = dptrace.open(str(path)).devices
    except DptraceError:
        return {}
    split, found = device.split, Figures()
    for number, step in enumerate(split.names):
        values: dict[str, int | None] = {**split.step(number)}
        values |= {
            cause: None if cause in split.unknown else int(ns[number]) for cause, ns in device.idle_causes.items()
        }
        found |= {(step, name): (value, split.bounds.get(name, "")) for name, value in values.items()}
    return found


def _compared(whole: Figures, part: Figures) -> tuple[int, int, list[str]]:
    equal, unsure, wrong = 0, 0, []
    for (step, name), (expected, _) in whole.items():
        value, bound = part.get((step, name), (None, ""))
        wall = whole[step, "wall_ns"][0] or 0
        if expected is None or value is None or bound == "about":
            unsure += 1
        elif bound:
            holds = value <= expected + CLOSE * wall if bound == "at least" else value >= expected - CLOSE * wall
            unsure += holds
            wrong += [] if holds else [f"{step} {name}: {value:,} is not {bound} {expected:,}"]
        elif abs(value - expected) <= CLOSE * wall:
            equal += 1
        else:
            wrong.append(f"{step} {name}: {value:,} instead of {expected:,}")
    return equal, unsure, wrong
