"""What was different about two recordings to begin with, so that nobody takes it for a change in speed."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from dptrace.run import Run
from dptrace.sides import Place, places

__all__ = ["differences"]

_KEYS = ("mode", "model", "parameters", "backend", "script")
"""Of run.json, told where both runs have them."""
_GROUPS = {"options": "Option", "versions": "Version of"}


def differences(a: Run, b: Run, compared: Collection[Place] | None) -> list[str]:
    """Say what was different, a sentence each: devices, world size, ranks, and what run.json tells of both.

    Args:
        compared: the GPUs that both have, if it is those that are compared; nothing if it is all of each.
    """
    told = []
    if a.on_cpu != b.on_cpu:
        words = ["operators on CPUs" if run.on_cpu else "kernels on GPUs" for run in (a, b)]
        told.append(f"A shows {words[0]}, B {words[1]}: they have no kernel's name in common.")
    if a.world_size != b.world_size:
        told.append(f"A had {_ranks(a.world_size)}, B {b.world_size}: each figure is the mean of a run's own ranks.")
    elif compared is None:
        told.append("The two have no rank in common: each figure is the mean of a run's own ranks.")
    elif len(compared) < max(len(places(a)), len(places(b))):
        ranks = len({rank for rank, _ in compared})
        told.append(f"Only what both recorded is compared: {ranks} of {_ranks(a.world_size)}.")
    facts = ((word, old, new) for word, old, new in _facts(a, b) if old is not None and new is not None)
    return told + [f"{word}: A {old}, B {new}." for word, old, new in facts if old != new]


def _ranks(count: int) -> str:
    return f"{count} rank{'' if count == 1 else 's'}"


def _facts(a: Run, b: Run) -> Iterator[tuple[str, str | None, str | None]]:
    """Give what the recordings say of themselves: its name, A's word, B's word."""
    yield "Device", _devices(a), _devices(b)
    for key in _KEYS:
        yield key.capitalize(), _text(a.info.get(key)), _text(b.info.get(key))
    for group, word in _GROUPS.items():
        old, new = a.info.get(group), b.info.get(group)
        if isinstance(old, dict) and isinstance(new, dict):
            for key in old:
                yield f"{word} {str(key).replace('_', ' ')}", _text(old[key]), _text(new.get(key))


def _devices(run: Run) -> str | None:
    return " and ".join(sorted({t.device_name for t in run.timelines if t.device_name})) or None


def _text(value: Any) -> str | None:
    return str(value) if isinstance(value, str | int | float) else None
