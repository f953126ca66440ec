"""What was different about two recordings to begin with, so that nobody takes it for a change in speed."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from dptrace.comparison.samples import DeviceId, devices_by_id
from dptrace.run.run import Run

__all__ = ["differences", "drawn_differences", "incomparable"]

_KEYS = ("mode", "model", "parameters", "backend", "script")
"""Of run.json, told where both runs have them."""
_GROUPS = {"options": "Option", "versions": "Version of"}


def differences(a: Run, b: Run, compared: Collection[DeviceId] | None) -> list[str]:
    """Say what was different, a sentence each: devices, world size, ranks, and what run.json tells of both.

    Args:
        compared: the GPUs that both have, if it is those that are compared; nothing if it is all of each.
    """
    notes = []
    if a.on_cpu != b.on_cpu:
        words = ["operators on CPUs" if run.on_cpu else "kernels on GPUs" for run in (a, b)]
        notes.append(f"A shows {words[0]}, B {words[1]}: they have no kernel's name in common.")
    if a.world_size != b.world_size:
        notes.append(f"A had {_ranks(a.world_size)}, B {b.world_size}: each figure is the mean of a run's own ranks.")
    elif compared is None:
        notes.append("The two have no rank in common: each figure is the mean of a run's own ranks.")
    elif len(compared) < max(len(devices_by_id(a)), len(devices_by_id(b))):
        ranks = len({rank for rank, _ in compared})
        notes.append(f"Only what both recorded is compared: {ranks} of {_ranks(a.world_size)}.")
    return notes + _unlike(a, b)


def drawn_differences(a: Run, b: Run) -> list[str]:
    """Say the same of two runs of which all is drawn, and of which ranks no trace is here."""
    notes = []
    if a.world_size != b.world_size:
        notes.append(f"A had {_ranks(a.world_size)}, B {b.world_size}.")
    for letter, run in (("A", a), ("B", b)):
        here = len({rank for rank, _ in devices_by_id(run)})
        if here < run.world_size:
            notes.append(
                f"{letter}: {here} of its {_ranks(run.world_size)} are drawn; those that are not may be slower."
            )
    return notes + _unlike(a, b)


def incomparable(a: Run, b: Run) -> str:
    """Say why one run's time can't be held against the other's: not the same work; nothing where it can.

    Other devices, versions or options change the speed, and that is what is compared; another model, operators on
    CPUs instead of kernels, or steps without backward are another work.
    """
    if a.on_cpu != b.on_cpu:
        words = ["operators on CPUs" if run.on_cpu else "kernels on GPUs" for run in (a, b)]
        return f"A shows {words[0]}, B {words[1]}"
    models = _text(a.metadata.get("model")), _text(b.metadata.get("model"))
    if None not in models and models[0] != models[1]:
        return f"A trained the model {models[0]}, B {models[1]}"
    trains = [any(split.figures["backward_ns"].any() for split in run.splits) for run in (a, b)]
    if trains[0] != trains[1]:
        return f"{'AB'[trains[0]]} has no backward, {'AB'[trains[1]]} has one"
    return ""


def _unlike(a: Run, b: Run) -> list[str]:
    facts = ((word, old, new) for word, old, new in _facts(a, b) if old is not None and new is not None)
    return [f"{word}: A {old}, B {new}." for word, old, new in facts if old != new]


def _ranks(count: int) -> str:
    return f"{count} rank{'' if count == 1 else 's'}"


def _facts(a: Run, b: Run) -> Iterator[tuple[str, str | None, str | None]]:
    """Give what the recordings say of themselves: its name, A's word, B's word."""
    yield "Device", _devices(a), _devices(b)
    for key in _KEYS:
        yield key.capitalize(), _text(a.metadata.get(key)), _text(b.metadata.get(key))
    for group, word in _GROUPS.items():
        old, new = a.metadata.get(group), b.metadata.get(group)
        if isinstance(old, dict) and isinstance(new, dict):
            for key in old:
                yield f"{word} {str(key).replace('_', ' ')}", _text(old[key]), _text(new.get(key))


def _devices(run: Run) -> str | None:
    return " and ".join(sorted({t.device_name for t in run.timelines if t.device_name})) or None


def _text(value: Any) -> str | None:
    return str(value) if isinstance(value, str | int | float) else None
