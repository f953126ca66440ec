"""The activations that the ranks of a recorded pipeline held, next to what its schedule predicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dptrace.model.training.pipeline import held_by_rank

__all__ = ["HeldActivations", "held_activations"]


class HeldActivations(msgspec.Struct, frozen=True):
    """What one rank held at most, in one step."""

    rank: int
    """In the job."""
    schedule: str
    place: int
    """The rank's number in its pipeline."""
    stages: int
    """How many stages it has."""
    micro_batches: int
    """Held at once; one counts once for each of the rank's stages."""
    expected: int | None
    """The same by the schedule; None for a schedule without a formula."""
    bytes: int | None
    """What autograd kept for the backward of these micro-batches; None where it was not measured."""

    def to_dict(self) -> dict[str, int | None]:
        """Return what was held and what was expected, as plain data."""
        return {"micro_batches": self.micro_batches, "expected_micro_batches": self.expected, "bytes": self.bytes}


def held_activations(metadata: Mapping[str, Any]) -> tuple[HeldActivations, ...]:
    """Return what each rank held, in the order of run.json; empty for runs of other modes, or without such entries.

    Args:
        metadata: the contents of run.json, which may be malformed.
    """
    entries = metadata.get("ranks")
    known = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    return tuple(held for entry in known if (held := _of_rank(entry.get("rank"), entry.get("pipeline"))) is not None)


def _of_rank(rank: object, found: object) -> HeldActivations | None:
    if not isinstance(found, dict) or not isinstance(found.get("stages"), list) or not found["stages"]:
        return None
    numbers = [rank, *(found.get(key) for key in ("in_flight", "ranks", "rank", "micro_batches"))]
    if not all(type(number) is int and number >= 0 for number in numbers):
        return None
    schedule, size, stages = str(found.get("schedule")), found.get("in_flight_bytes"), len(found["stages"])
    expected = held_by_rank(schedule, found["ranks"], found["rank"], found["micro_batches"], stages)
    size = size if type(size) is int and size >= 0 else None
    return HeldActivations(int(str(rank)), schedule, found["rank"], stages, found["in_flight"], expected, size)
