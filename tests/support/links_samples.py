"""Synthetic link measurements with known latency and bandwidth."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from dptrace.model.collectives import ALL_REDUCES, KINDS, algorithm_of, all_reduce_volume
from dptrace.model.link_report import link_report

ALPHA_S, BETA_S = 30e-6, 0.25e-9
"""Of a single link."""
GAMMA_S = 0.1e-9
SIZES = tuple(1024 << k for k in range(17))


def measured(ranks: int = 4, backend: str = "gloo", kinds: tuple[str, ...] = KINDS, **extra: Any) -> dict[str, Any]:
    """Return the time of each collective by its algorithm, three repetitions each, 2 % apart."""
    samples = []
    for kind in kinds:
        algorithm = algorithm_of(backend, kind)
        samples += [_sample(kind, size, algorithm.seconds(ranks, size, ALPHA_S, BETA_S)) for size in SIZES]
    machine = {"node": 0, "host": "box", "cores": 8, "numa": [{"node": "0", "cores": "0-7"}], "gpu_matrix": ""}
    about = {"backend": backend, "ranks": ranks, "nodes": 1, "gpus": [None] * ranks, "machines": [machine]}
    versions = {"torch": "2.13.0", "nccl": None if backend == "gloo" else "2.28.3"}
    about |= {"versions": versions, "rounds": 3, "seconds": 9.5, "notes": []}
    return about | {"samples": samples} | extra


@cache
def report_text(ranks: int = 4) -> str:
    """Return the file that ``dptrace links`` writes for such measurements; its fits take a quarter of a second."""
    return json.dumps(link_report(measured(ranks)))


def with_algorithms(raw: dict[str, Any]) -> dict[str, Any]:
    """Add the time of each all-reduce algorithm by its formula, and that of the addition, three repetitions each."""
    samples = [*raw["samples"]]
    for name in ALL_REDUCES:
        volume = all_reduce_volume(name, raw["ranks"], 2)
        samples += [
            _sample(f"all_reduce/{name}", size, volume.seconds(size, ALPHA_S, BETA_S, GAMMA_S)) for size in SIZES
        ]
    samples += [_sample("add", size, 1e-6 + size * GAMMA_S) for size in SIZES]
    return raw | {"samples": samples, "ranks_per_node": 2}


def _sample(kind: str, size: int, seconds: float) -> dict[str, Any]:
    return {"collective": kind, "bytes": size, "calls": 1, "seconds": [seconds * 0.98, seconds, seconds * 1.02]}
