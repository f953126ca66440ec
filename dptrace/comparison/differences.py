"""How two recordings differ in setup: hardware, world size, options, versions."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from dptrace.comparison.samples import DeviceId, devices_by_id
from dptrace.core.units import plural
from dptrace.run.run import Run

__all__ = ["differences", "drawn_differences", "incomparable"]

_KEYS = ("mode", "model", "parameters", "backend", "script")
"""Keys of run.json that are compared where both runs have them."""
_GROUPS = {"options": "Option", "versions": "Version of"}


def differences(
    a: Run, b: Run, compared: Collection[DeviceId] | None, names: tuple[str, str] = ("A", "B")
) -> list[str]:
    """List how two compared runs differ, a sentence each: devices, world size, ranks, and entries of run.json.

    Args:
        compared: the GPUs in both runs, if only these are compared; None if all GPUs of each run are.
        names: what the sentences call the runs.
    """
    notes = []
    if a.on_cpu != b.on_cpu:
        notes.append(f"{_devices_recorded(a, b, names)}: they share no kernel name.")
    if a.world_size != b.world_size:
        notes.append(
            f"{names[0]} had {plural(a.world_size, 'rank')}, {names[1]} {b.world_size}: "
            "figures are means over each run's ranks."
        )
    elif compared is None:
        notes.append(f"{names[0]} and {names[1]} have no rank in common: figures are means over each run's ranks.")
    elif len(compared) < max(len(devices_by_id(a)), len(devices_by_id(b))):
        ranks = len({rank for rank, _ in compared})
        notes.append(
            f"Only ranks in both {names[0]} and {names[1]} are compared: {ranks} of {plural(a.world_size, 'rank')}."
        )
    return notes + _differing_facts(a, b, names)


def drawn_differences(a: Run, b: Run) -> list[str]:
    """List how two runs drawn in full differ, a sentence each, and how many of their ranks have no trace."""
    notes = []
    if a.world_size != b.world_size:
        notes.append(f"A had {plural(a.world_size, 'rank')}, B {b.world_size}.")
    for letter, run in (("A", a), ("B", b)):
        drawn = len({rank for rank, _ in devices_by_id(run)})
        if drawn < run.world_size:
            notes.append(f"{letter}: {drawn} of {plural(run.world_size, 'rank')} drawn; the others may be slower.")
    return notes + _differing_facts(a, b)


def incomparable(a: Run, b: Run) -> str:
    """Return why the times of two runs cannot be compared; empty where they can.

    Runs with different devices, versions or options are comparable: their effect on speed is what is compared. Runs of
    different models, of CPU operators and GPU kernels, or with and without backward do different work.
    """
    if a.on_cpu != b.on_cpu:
        return _devices_recorded(a, b, ("A", "B"))
    models = _text(a.metadata.get("model")), _text(b.metadata.get("model"))
    if None not in models and models[0] != models[1]:
        return f"A trained the model {models[0]}, B {models[1]}"
    trains = [any(split.figures["backward_ns"].any() for split in run.splits) for run in (a, b)]
    if trains[0] != trains[1]:
        return f"{'AB'[trains[0]]} has no backward, {'AB'[trains[1]]} has one"
    return ""


def _devices_recorded(a: Run, b: Run, names: tuple[str, str]) -> str:
    words = ["operators on CPUs" if run.on_cpu else "kernels on GPUs" for run in (a, b)]
    return f"{names[0]} shows {words[0]}, {names[1]} {words[1]}"


def _differing_facts(a: Run, b: Run, names: tuple[str, str] = ("A", "B")) -> list[str]:
    facts = ((word, old, new) for word, old, new in _facts(a, b) if old is not None and new is not None)
    return [f"{word}: {names[0]} {old}, {names[1]} {new}." for word, old, new in facts if old != new]


def _facts(a: Run, b: Run) -> Iterator[tuple[str, str | None, str | None]]:
    """Yield what the recordings say about their setup: a name, its value in A, its value in B."""
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
