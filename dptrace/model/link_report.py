"""Build links.json from measured times: fits, bandwidths, and the known interconnect nearest to the links."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from dptrace.model.alpha_beta import Fit, Line, Segment, fit
from dptrace.model.collectives import (
    COUNTED,
    Algorithm,
    AllReduceVolume,
    algorithm_of,
    all_reduce_volume,
    bus_factor,
    crossing_bytes,
)
from dptrace.model.gpu_peaks import nearest_interconnect

# Timed all-reduce algorithms next to their predictions: the part ``algorithms`` of links.json.


ALGORITHM_PREFIX = "all_reduce/"
"""Begins the kinds of samples that are of an algorithm."""
ADDITION = "add"
"""The kind of samples that time the addition of two tensors on each rank, without communication."""


def algorithm_report(
    rows: Mapping[str, Sequence[dict[str, Any]]], ranks: int, ranks_per_node: int, link: Mapping[str, Any] | None,
    gamma_s_per_byte: float | None, nodes: int,
) -> dict[str, Any]:  # fmt: skip
    """Predict each algorithm's times by alpha and beta of a point-to-point message, and gamma of an addition.

    Args:
        rows: for each algorithm its measured sizes, each with ``bytes`` and ``median_s``.
        link: ``alpha_s`` and ``beta_s_per_byte``; None where no line could be fitted, which leaves no predictions.
        nodes: on several, the message crosses nodes, so that a hierarchy, which needs both links, is not predicted.
    """
    gamma = gamma_s_per_byte or 0.0
    volumes = {name: all_reduce_volume(name, ranks, ranks_per_node) for name in rows}
    known = {name: volume for name, volume in volumes.items() if link and not (name == "hierarchical" and nodes > 1)}
    found = {}
    for name, measured in rows.items():
        predicted = [_seconds(known.get(name), link, row["bytes"], gamma) for row in measured]
        found[name] = _about(volumes[name]) | {
            "deviation": _deviation(measured, predicted),
            "measured": [row | {"predicted_s": one} for row, one in zip(measured, predicted, strict=True)],
        }
    return {
        "ranks_per_node": ranks_per_node,
        "alpha_s": link["alpha_s"] if link else None,
        "beta_s_per_byte": link["beta_s_per_byte"] if link else None,
        "gamma_s_per_byte": gamma_s_per_byte,
        "crossovers": _crossovers(known, link, gamma),
        "all_reduce": found,
    }


def _about(volume: AllReduceVolume) -> dict[str, Any]:
    return {name: getattr(volume, name) for name in volume.__struct_fields__ if name != "algorithm"}


def _seconds(volume: AllReduceVolume | None, link: Mapping[str, Any] | None, size: int, gamma: float) -> float | None:
    if volume is None or link is None:
        return None
    return volume.seconds(size, link["alpha_s"], link["beta_s_per_byte"], gamma)


def _deviation(measured: Sequence[Mapping[str, Any]], predicted: Sequence[float | None]) -> float | None:
    """Return the median of measured over predicted minus one, without sign; None without predictions."""
    off = [abs(row["median_s"] / one - 1) for row, one in zip(measured, predicted, strict=True) if one]
    return float(np.median(off)) if off else None


def _crossovers(
    volumes: Mapping[str, AllReduceVolume], link: Mapping[str, Any] | None, gamma: float
) -> list[dict[str, Any]]:
    """List from which size on the one of two algorithms that sends more messages is faster, as predicted."""
    if link is None:
        return []
    found = []
    names = list(volumes)
    for at, name in enumerate(names):
        for other in names[at + 1 :]:
            many, few = sorted((volumes[name], volumes[other]), key=lambda volume: -volume.hops)
            size = crossing_bytes(many, few, link["alpha_s"], link["beta_s_per_byte"], gamma)
            if size is not None:
                found.append({"below": few.algorithm, "above": many.algorithm, "bytes": size})
    return found


SCHEMA = 1
"""Schema version of :func:`link_report`; docs/reference/json.md describes it."""
STATISTIC = "median over rounds of the best of three timings; the slowest rank sets each timing"

_POOR = 0.15
"""Median relative deviation above which a note says that the line does not explain the data."""


def link_report(measured: Mapping[str, Any]) -> dict[str, Any]:
    """Build the contents of links.json.

    Args:
        measured: ``samples``, a list of ``{"collective", "bytes", "calls", "seconds": [...]}``, and ``backend``,
            ``ranks``, ``nodes`` and anything else, which is copied to the result. Samples of an algorithm, such as
            ``all_reduce/tree``, and of the addition ``add`` make the part ``algorithms``.
    """
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for sample in measured["samples"]:
        kinds.setdefault(sample["collective"], []).append(sample)
    backend, ranks = measured["backend"], measured["ranks"]
    written = {kind: kinds.pop(kind) for kind in list(kinds) if kind not in COUNTED}
    found = {kind: _collective(kind, backend, ranks, samples) for kind, samples in kinds.items()}
    reasons = {kind: one.pop("unfitted") for kind, one in found.items()}
    unfitted = [f"{kind}: no line could be fitted: {why}." for kind, why in reasons.items() if why]
    rates = {kind: one["busbw_gbps"] for kind, one in found.items()}
    kept = {key: value for key, value in measured.items() if key not in ("samples", "ranks_per_node")}
    return {
        "schema": SCHEMA,
        "kind": "links",
        **kept,
        "notes": [*measured.get("notes", ()), *unfitted, *_remarks(found)],
        "statistic": STATISTIC,
        # One figure for all kinds, since busbw is comparable between them; all-reduce is the most common in training.
        "busbw_gbps": rates.get("all_reduce", max(rates.values(), default=None)),
        "busbw_gbps_by_kind": rates,
        "nearest": _nearest(measured, found),
        "collectives": found,
        **({"algorithms": _algorithms(written, measured, found)} if "ranks_per_node" in measured else {}),
    }


def _algorithms(
    samples: Mapping[str, Sequence[Mapping[str, Any]]],
    measured: Mapping[str, Any],
    found: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Compare the timed algorithms with what alpha and beta of a message, and gamma of an addition, predict."""
    rows = {kind: [_row(sample, 1.0) for sample in _by_size(of_kind)] for kind, of_kind in samples.items()}
    additions = rows.pop(ADDITION, [])
    ranks, names = measured["ranks"], {kind: kind.removeprefix(ALGORITHM_PREFIX) for kind in rows}
    factor = bus_factor("all_reduce", ranks)
    timed = {
        names[kind]: [row | {"busbw_gbps": row["algbw_gbps"] * factor} for row in of_kind]
        for kind, of_kind in rows.items()
    }
    link = found["send_recv"]["link"] if "send_recv" in found else None
    gamma = _gamma(samples.get(ADDITION, ()))
    report = algorithm_report(timed, ranks, measured["ranks_per_node"], link, gamma, measured["nodes"])
    return report | {"addition": additions}


def _gamma(samples: Sequence[Mapping[str, Any]]) -> float | None:
    """Fit the time to add a byte; None where no line could be fitted."""
    ordered = _by_size(samples)
    try:
        return fit([one["bytes"] for one in ordered], [one["seconds"] for one in ordered]).line.beta_s_per_byte
    except ValueError:
        return None


def _by_size(samples: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(samples, key=lambda sample: int(sample["bytes"]))


def _collective(kind: str, backend: str, ranks: int, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    factor = bus_factor(kind, ranks)
    rows = [_row(sample, factor) for sample in _by_size(samples)]
    best = max(rows, key=lambda row: float(row["busbw_gbps"]))
    about = {
        "counted": COUNTED[kind],
        "bus_factor": factor,
        "algbw_gbps": best["algbw_gbps"],
        "busbw_gbps": best["busbw_gbps"],
        "busbw_at_bytes": best["bytes"],
    }
    by_size = {int(sample["bytes"]): sample["seconds"] for sample in samples}
    sizes = sorted(by_size)
    try:
        fitted = fit(sizes, [by_size[size] for size in sizes])
    except ValueError as error:
        return {**about, "fit": None, "link": None, "measured": rows, "unfitted": str(error)}
    for row in rows:
        row["fitted_s"] = fitted.seconds(row["bytes"])
    algorithm = algorithm_of(backend, kind)
    fits = {"fit": _fit_dict(fitted), "link": _link(fitted.line, algorithm, backend, ranks)}
    return {**about, **fits, "measured": rows, "unfitted": ""}


def _row(sample: Mapping[str, Any], factor: float) -> dict[str, Any]:
    seconds = np.asarray(sample["seconds"], np.float64)
    low, median, high = np.quantile(seconds, [0.25, 0.5, 0.75]).tolist()
    rate = sample["bytes"] / median / 1e9
    return {
        "bytes": sample["bytes"],
        "count": len(seconds),
        "calls": sample["calls"],
        "median_s": median,
        "quarter_s": low,
        "three_quarters_s": high,
        "least_s": float(seconds.min()),
        "algbw_gbps": rate,
        "busbw_gbps": rate * factor,
    }


def _fit_dict(fitted: Fit) -> dict[str, Any]:
    line = fitted.line
    return {
        "alpha_s": line.alpha_s,
        "alpha_range_s": list(fitted.alpha_range_s),
        "beta_s_per_byte": line.beta_s_per_byte,
        "beta_range_s_per_byte": list(fitted.beta_range_s_per_byte),
        "crossover_bytes": line.crossover_bytes,
        "crossover_s": None if line.crossover_bytes is None else fitted.seconds(line.crossover_bytes),
        "r2": fitted.r2,
        "r2_above": fitted.r2_above,
        "deviation": fitted.deviation,
        "worst": fitted.worst,
        "r2_pieces": fitted.r2_pieces,
        "pieces": [_piece(piece) for piece in fitted.pieces],
    }


def _piece(piece: Segment) -> dict[str, Any]:
    line = piece.line
    sizes = {"from_bytes": piece.from_bytes, "to_bytes": piece.to_bytes}
    return sizes | {"alpha_s": line.alpha_s, "beta_s_per_byte": line.beta_s_per_byte}


def _link(line: Line, algorithm: Algorithm, backend: str, ranks: int) -> dict[str, Any]:
    """Compute alpha and beta of one link from the formula of the algorithm."""
    beta = line.beta_s_per_byte / algorithm.share(ranks)
    return {
        "algorithm": algorithm.name,
        "formula": algorithm.formula,
        "assumed": backend == "nccl",  # it chooses the algorithm and does not report it
        "hops": algorithm.hops(ranks),
        "share": algorithm.share(ranks),
        "alpha_s": line.alpha_s / algorithm.hops(ranks),
        "beta_s_per_byte": beta,
        "bandwidth_gbps": 1e-9 / beta if beta > 0 else None,
    }


def _remarks(found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Note the kinds that one line does not explain: because several lines do, or because the times scatter."""
    segmented, scattered = [], []
    for kind, one in found.items():
        fitted = one["fit"]
        if fitted is None:
            continue
        if fitted["pieces"]:
            where = ", ".join(f"{piece['from_bytes']:,}" for piece in fitted["pieces"][1:])
            segmented.append(f"{kind} from {where} bytes up")
        elif fitted["deviation"] > _POOR:
            scattered.append(f"{kind} (median deviation {100 * fitted['deviation']:.0f} %)")
    if segmented:
        why = "a protocol switch, a full cache, or newly allocated memory"
        yield f"A different line fits {'; '.join(segmented)} ({why})."
    if scattered:
        advice = "Measure again while nothing else runs on these machines, or with a larger --budget."
        yield f"Times deviate strongly from the fitted line: {', '.join(scattered)}. {advice}"


def _nearest(measured: Mapping[str, Any], found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """Find the known interconnect nearest to one link, by send_recv if it was measured, else by the fastest kind."""
    lines = {kind: one["link"] for kind, one in found.items() if one["link"] and one["link"]["beta_s_per_byte"] > 0}
    if not lines:
        return None
    fastest = min(lines, key=lambda kind: float(lines[kind]["beta_s_per_byte"]))
    kind = "send_recv" if "send_recv" in lines else fastest
    several = measured["nodes"] > 1
    if measured["backend"] == "nccl":
        media = ["network"] if several else ["nvlink", "pcie"]
    else:
        media = ["network"] if several else ["network", "memory"]
    like = nearest_interconnect(1 / lines[kind]["beta_s_per_byte"], lines[kind]["alpha_s"], media)
    inside = "All ranks are on one machine: no network is involved." if not several else ""
    return {
        "by": kind,
        **msgspec.structs.asdict(like.interconnect),
        "bandwidth_ratio": like.bandwidth_ratio,
        "latency_ratio": like.latency_ratio,
        "remark": inside,
    }
