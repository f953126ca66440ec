"""The orders in which the Gantt page can show the GPUs of a run, by rank, by what is wrong, by place in the job; and
the few to look at first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from dptrace.analysis.per_gpu.split import EXPOSED_LABELS
from dptrace.run.notable_ranks import notable_ranks
from dptrace.run.run import Run
from dptrace.viewers.gantt.chart import Chart

__all__ = ["few_ranks", "row_orders"]

_FEWEST = 3
"""Number of GPUs from which an order other than by rank helps."""
_OPEN = 4
"""Most notable GPUs that stay expanded, where the others are collapsed."""
_FEW = 5
"""Most GPUs that are chosen of a run."""
_WORDS = {"held others up": "latest"}
"""What the list of a run's chosen GPUs says, where that is not the reason itself."""


def row_orders(run: Run, gantt_chart: Chart) -> list[dict[str, Any]]:
    """Return the orders of a run's tracks, the present one first, as data of the page; none for few GPUs.

    Each has a ``label`` and the ``tracks`` in its order; ``open`` is the number of tracks that it is about, if not all,
    and ``groups`` the name of each track's group, if it groups them.
    """
    if len(gantt_chart.tracks) < _FEWEST:
        return []
    by_rank = list(range(len(gantt_chart.tracks)))
    notable = [one for one in notable_ranks(run) if one.index < len(by_rank)]
    causes = sum(one.why not in ("", "typical") for one in notable)
    orders: list[dict[str, Any]] = [{"label": "by rank", "tracks": by_rank}]
    if causes:
        tracks = [one.index for one in notable]
        tracks += [track for track in by_rank if track not in set(tracks)]
        orders.append({"label": "notable ranks first", "tracks": tracks, "open": min(causes, _OPEN)})
    orders += _by_figures(run, by_rank)
    for name, value_of in _places(run, gantt_chart):
        tracks = sorted(by_rank, key=lambda track: (value_of(track), track))
        groups = [f"{name} {value_of(track)}" if value_of(track) >= 0 else f"no {name} known" for track in by_rank]
        orders.append({"label": f"by {name}", "tracks": tracks, "groups": groups})
    return orders


def few_ranks(run: Run, gantt_chart: Chart) -> dict[str, Any] | None:
    """Return the few GPUs of a run to look at first, as data of the page; None where there are not many more.

    ``tracks`` holds them by rank, ``why`` the reason for each, ``label`` all reasons: ``latest, slowest, typical``.
    """
    reasons = {one.index: one.why for one in notable_ranks(run) if one.why} if gantt_chart.tracks else {}
    tracks = list(reasons)[:_FEW]
    typical = next((track for track, why in reasons.items() if why == "typical"), None)
    if typical is not None and typical not in tracks:
        tracks[-1] = typical
    if len(tracks) < 2 or len(gantt_chart.tracks) < len(tracks) + _FEWEST:
        return None
    words = dict.fromkeys(_WORDS.get(word, word) for track in tracks for word in reasons[track].split(", "))
    tracks.sort()
    return {"label": ", ".join(words), "tracks": tracks, "why": [reasons[track] for track in tracks]}


def _by_figures(run: Run, by_rank: list[int]) -> Iterable[dict[str, Any]]:
    """Yield the orders by figures that differ between GPUs, the largest mean over the steps first."""
    waits = [wait.wait_ns for wait in run.cross_rank.exposed_waits]
    columns = {
        "longest step first": [split.figures["wall_ns"] for split in run.splits],
        f"{EXPOSED_LABELS['exposed_wait_ns'].lower()}, most first": waits,
        "idle, most first": [split.figures["idle_ns"] for split in run.splits],
    }
    for label, per_device in columns.items():
        means = [float(np.mean(values)) if len(values) else 0.0 for values in per_device]
        if len(means) == len(by_rank) and max(means) > min(means):
            yield {"label": label, "tracks": sorted(by_rank, key=lambda track: -means[track])}


def _places(run: Run, gantt_chart: Chart) -> Iterable[tuple[str, Callable[[int], int]]]:
    """Yield the dimensions of the job in which ranks differ: the node, and those of its mesh."""
    entries = run.metadata.get("ranks")
    known = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    nodes = {entry.get("rank"): entry.get("node") for entry in known if isinstance(entry.get("node"), int)}
    tracks = gantt_chart.tracks
    places = [("node", [nodes.get(track.rank) for track in tracks])]
    dimensions = dict.fromkeys(name for track in tracks for name in track.coordinates)
    places += [(name, [track.coordinates.get(name) for track in tracks]) for name in dimensions]
    for name, values in places:
        numbers = [-1 if value is None else value for value in values]
        if len(set(numbers)) > 1:
            yield name, numbers.__getitem__
