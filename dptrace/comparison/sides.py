"""The two sides of a comparison: one or several recordings each, reduced to steps of the kinds that both have."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.per_gpu.causes import CAUSES
from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.analysis.per_gpu.split import COMPUTE, FIGURES
from dptrace.comparison.significance import (
    EQUIVALENT,
    MIN_FOR_OUTLIERS,
    MIN_STEPS,
    Float,
    Steps,
    has_enough_steps,
    inlier_steps,
)
from dptrace.core.array_file import let_go
from dptrace.core.intervals import Int64
from dptrace.core.units import plural
from dptrace.errors import DptraceError, UsageError
from dptrace.run.run import Run
from dptrace.timeline.model import Collective, Kind, Timeline

if TYPE_CHECKING:
    from typing_extensions import Self

# Sample one run for a comparison: its steady steps, the same on all its GPUs.


DeviceId = tuple[int, int]
"""A rank, and the index of its GPU: 0 unless the rank has several."""
Key = TypeVar("Key", bound=Hashable)


class Signature(NamedTuple):
    """What a step does: steps with equal signatures are of one kind."""

    optimizer: bool
    """Whether any compute is of the optimizer."""
    collectives: tuple[tuple[str, int], ...]
    """Number of collectives of each kind on the first device, sorted by kind; kinds without any are left out."""


@dataclass(frozen=True, slots=True)
class StepTables:
    """What a stored recording keeps of its steps besides their split: a column per step in each array."""

    exposed_wait: Int64 | None
    """The part of exposed communication that is waiting, in ns; a row per device. None where it is unknown."""
    kernels: dict[tuple[str, str], Float]
    """As :meth:`RunSample.kernels`."""
    collectives: dict[Collective, Float]
    """As :meth:`RunSample.collectives`."""
    ideal_ns: float | None
    """As :func:`ideal_ns`."""


@dataclass(frozen=True, repr=False)
class StoredRun(Run):
    """A recording of which only figures are left, as a baseline keeps them: its timelines have no intervals."""

    tables: StepTables = StepTables(None, {}, {}, None)

    def select(self, ranks: object = None, steps: object = None) -> Self:
        """Refuse: means over the ranks can't be taken apart.

        Raises:
            UsageError: ranks or steps are given.
        """
        if ranks is None and steps is None:
            return self
        raise UsageError(
            f"{self.path}: a baseline has the ranks and steps that it was saved with; select before you save it."
        )


def copies(runs: Sequence[Run]) -> dict[int, int]:
    """Return the index of each run that is a copy of an earlier one, and that of the earlier one.

    Runs with the same figures in each step, to the nanosecond, are one recording, whatever their files are called.
    """
    first: dict[Hashable, int] = {}
    found = {}
    for index, run in enumerate(runs):
        figures = [
            (device.timeline.rank, *(device.split.figures[name].tobytes() for name in FIGURES))
            for device in run.devices
            if len(device.split.names)
        ]
        earlier = first.setdefault(tuple(figures) or id(run), index)
        if earlier != index:
            found[index] = earlier
    return found


def refuse_copies(runs: Sequence[Run]) -> None:
    """Raise an error where one recording is among *runs* twice.

    Raises:
        UsageError: it is.
    """
    for copy, earlier in copies(runs).items():
        same = runs[copy].path == runs[earlier].path
        also = "" if same else f", also as {runs[earlier].path}"
        raise UsageError(f"{runs[copy].path}: a recording is given twice{also}; a copy adds no evidence.")


@dataclass(frozen=True)
class RunSample:
    """One of the two runs: some of its GPUs, with the same steps for each; run, GPUs and steps tell two apart."""

    run: Run
    device_ids: tuple[DeviceId, ...]
    devices: tuple[DeviceFigures, ...] = field(compare=False)
    """In the order of ``device_ids``."""
    steps: tuple[str, ...]
    left_out: tuple[tuple[str, int], ...]
    """Outlier steps, with their wall time in ns."""
    step_index: Int64 = field(compare=False)
    """Index of each step in each device's own steps: devices by steps."""
    notes: tuple[str, ...]
    place: Int64 = field(compare=False)
    """Number of each step among those that all devices have, also counting outliers."""
    signatures: tuple[Signature, ...]
    """What each step does."""

    def keep(self, chosen: NDArray[np.bool_]) -> RunSample:
        """Keep some of the steps."""
        kept = np.flatnonzero(chosen)
        return replace(
            self,
            steps=tuple(self.steps[k] for k in kept),
            signatures=tuple(self.signatures[k] for k in kept),
            step_index=self.step_index[:, kept],
            place=self.place[kept],
        )

    @property
    def wall(self) -> Float:
        """The wall time of each step in ns, mean over the devices."""
        wall: Float = self.figures["wall_ns"].mean(axis=0)
        return wall

    def index(self, device_id: DeviceId) -> int:
        """Return the index of a GPU in ``devices``."""
        return self.device_ids.index(device_id)

    @cached_property
    def figures(self) -> dict[str, Int64]:
        """Each figure and idle cause by name, without those that are not known: ns, devices by steps."""
        figures = {name: self._in_steps([device.split.figures[name] for device in self.devices]) for name in FIGURES}
        figures |= {name: self._in_steps([d.idle_causes[name] for d in self.devices]) for name in CAUSES}
        return {name: values for name, values in figures.items() if name not in self.unknown}

    @cached_property
    def unknown(self) -> dict[str, str]:
        """Why each figure and idle cause that is unknown on a GPU is unknown, by its name."""
        return {name: why for device in self.devices for name, why in device.split.unknown.items()}

    @cached_property
    def incomparable(self) -> dict[str, str]:
        """Why figures and idle causes can't be compared, by name: unknown ones, and bounds, which move with losses."""
        bounds = {name: how for device in self.devices for name, how in device.split.bounds.items() if how != "about"}
        return self.unknown | {
            name: "only bounds are known" for name in bounds if name not in (*self.unknown, "wall_ns", COMPUTE)
        }

    @cached_property
    def exposed_wait(self) -> Int64 | None:
        """The part of exposed communication that is waiting: ns, devices by steps; None where it is unknown."""
        if isinstance(self.run, StoredRun):
            stored = self.run.tables.exposed_wait
            return None if stored is None else stored[:, self.step_index[0]]
        waits = self.run.cross_rank.exposed_waits
        numbers = {id(device): number for number, device in enumerate(self.run.devices)}
        own = [waits[numbers[id(device)]] for device in self.devices]
        if not all(wait.known[index].all() for wait, index in zip(own, self.step_index, strict=True)):
            return None
        return self._in_steps([wait.wait_ns for wait in own])

    def _in_steps(self, columns: list[Int64]) -> Int64:
        return np.stack([column[index] for column, index in zip(columns, self.step_index, strict=True)])

    def kernels(self) -> dict[tuple[str, str], Float]:
        """Compute, by kind (compute or memory) and name: ns and count in each step, as means over the GPUs."""
        if isinstance(self.run, StoredRun):
            return self._of_steps(self.run.tables.kernels)
        # Ranks of a job have the same names: these are looked at once.
        totals: dict[tuple[str, tuple[str, ...]], Float] = {}
        for timeline, step in self._sampled_steps():
            for kind, word in ((Kind.COMPUTE, "compute"), (Kind.MEMORY, "memory")):
                chosen = (timeline.kind == kind) & (step >= 0)
                time = (timeline.end_ns - timeline.start_ns)[chosen]
                sums = self._sums(timeline.name[chosen], step[chosen], len(timeline.names), time)
                totals[word, timeline.names] = totals.get((word, timeline.names), 0) + sums
        kernels: dict[tuple[str, str], Float] = {}
        for (word, names), sums in totals.items():
            for index in np.flatnonzero(sums[1].any(axis=1)).tolist():
                key = word, kernel_name(names[index])
                kernels[key] = kernels.get(key, 0) + sums[:, index] / len(self.devices)
        return kernels

    def collectives(self) -> dict[Collective, Float]:
        """Compute, by kind, group and size, in each step, as means over GPUs: the values of COLLECTIVE_VALUES.

        The keys have no sequence number.
        """
        if isinstance(self.run, StoredRun):
            return self._of_steps(self.run.tables.collectives)
        collectives: dict[Collective, Float] = {}
        times = matched_times(self.run)
        for device, (timeline, step) in zip(self.devices, self._sampled_steps(), strict=True):
            comm = timeline.collective >= 0
            inside = (step >= 0)[comm]
            chosen = comm & (step >= 0)
            time = (timeline.end_ns - timeline.start_ns)[chosen]
            matched = (column[inside] for column in times[id(device)])
            values = time, device.exposed_ns[chosen], device.overlapped_ns[chosen], *matched
            sums = self._sums(timeline.collective[chosen], step[chosen], len(timeline.collectives), *values)
            for index in np.flatnonzero(sums[-1].any(axis=1)):
                c = timeline.collectives[index]
                key = Collective(c.kind, c.bytes, c.dtype, c.group, c.group_size)
                collectives[key] = collectives.get(key, 0) + sums[:, index] / len(self.devices)
        return collectives

    def _of_steps(self, stored: dict[Key, Float]) -> dict[Key, Float]:
        """Return the sampled steps of what a stored recording keeps, of what is in them at all."""
        index = self.step_index[0]
        return {key: values[:, index] for key, values in stored.items() if values[-1, index].any()}

    def _sampled_steps(self) -> Iterator[tuple[Timeline, NDArray[np.int64]]]:
        """Yield each timeline, and the index of the sampled step that launched each interval; -1 for no such step."""
        for device, index in zip(self.devices, self.step_index, strict=True):
            sampled = np.full(
                len(device.timeline.windows) + 2, -1, np.int64
            )  # the last two: before and after the steps
            sampled[index] = np.arange(len(index))
            yield device.timeline, sampled[device.timeline.step]
            let_go(device.timeline.start_ns)

    def _sums(self, code: Any, step: NDArray[np.int64], codes: int, *values: Int64) -> Float:
        """Sum values, and count, by code and step; shape: values and count, by codes, by steps."""
        cell = code.astype(np.int64) * len(self.steps) + step
        shape = codes, len(self.steps)
        sums = [np.bincount(cell, weights, codes * len(self.steps)).reshape(shape) for weights in values]
        count = np.bincount(cell, minlength=codes * len(self.steps)).reshape(shape)
        return np.stack([*sums, count]).astype(np.float64)


COLLECTIVE_VALUES = ("duration", "exposed", "overlapped", "transfer", "wait", "matched", "count")
"""Times in ns, and numbers of calls; transfer and wait are those of matched calls only."""


def matched_times(run: Run) -> dict[int, tuple[Int64, Int64, Int64]]:
    """Return transfer and wait of each communication interval in ns, and whether it is matched, by id of the device.

    As the cross-rank analysis has them: the transfer is the shortest duration among the ranks, the wait is the rest.
    Intervals of collectives that lack a rank, or that do not synchronize the ranks, count as not matched.
    """
    matches, timing = run.cross_rank.matches, run.cross_rank.timing
    usable = (matches.complete & matches.synchronizing)[matches.instance]
    found = {}
    for device, of_device in zip(run.devices, matches.of_device, strict=True):
        of_device = of_device[usable[of_device]]
        transfer, wait, matched = np.zeros((3, int((device.timeline.collective >= 0).sum())), np.int64)
        index = matches.index[of_device]
        transfer[index] = timing.transfer_ns[matches.instance[of_device]]
        wait[index] = timing.wait_ns[of_device]
        matched[index] = 1
        found[id(device)] = transfer, wait, matched
    return found


def ideal_ns(run: Run) -> float | None:
    """Return how long a step would take at the GPU's peak, in ns: MFU times the wall time; None without MFU."""
    if isinstance(run, StoredRun):
        return run.tables.ideal_ns
    mfu = run.efficiency.mfu
    if mfu is None:
        return None
    return mfu * float(np.concatenate([device.split.figures["wall_ns"] for device in run.devices]).mean())


def devices_by_id(run: Run) -> dict[DeviceId, DeviceFigures]:
    """Return the GPUs of a run by rank and index among the rank's GPUs."""
    devices, count = dict[DeviceId, DeviceFigures](), Counter[int]()
    for device in run.devices:
        rank = device.timeline.rank
        devices[rank, count[rank]] = device
        count[rank] += 1
    return devices


def sample_run(run: Run, chosen: Collection[DeviceId], every_step: bool = False) -> RunSample:
    """Sample the chosen GPUs of a run in the steps that all of them have, without outliers.

    Args:
        every_step: keep the outliers too.
    """
    chosen_devices = {device_id: device for device_id, device in devices_by_id(run).items() if device_id in chosen}
    devices = tuple(chosen_devices.values())
    names, step_index, notes = _common([device.split.names for device in devices])
    wall = np.stack([d.split.figures["wall_ns"][row] for d, row in zip(devices, step_index, strict=True)])
    wall = wall.mean(axis=0)
    signatures = _signatures(devices, step_index)
    kept = np.ones(len(names), np.bool_) if every_step else _steady_by_kind(wall, signatures)
    whole = RunSample(
        run=run,
        device_ids=tuple(chosen_devices),
        devices=devices,
        steps=names,
        left_out=tuple((name, int(w)) for name, w, keep in zip(names, wall, kept, strict=True) if not keep),
        step_index=step_index,
        notes=notes,
        place=np.arange(len(names)),
        signatures=signatures,
    )
    return whole.keep(kept)


def _signatures(devices: Sequence[DeviceFigures], step_index: Int64) -> tuple[Signature, ...]:
    optimizer = np.stack([d.split.figures["optimizer_ns"][row] for d, row in zip(devices, step_index, strict=True)])
    comm = devices[0].split.comm
    counts = {kind: comm[kind].count[step_index[0]] for kind in sorted(comm)}
    return tuple(
        Signature(bool(optimizer[:, k].any()), tuple((kind, int(n[k])) for kind, n in counts.items() if n[k]))
        for k in range(step_index.shape[1])
    )


def _steady_by_kind(wall: Float, signatures: Sequence[Signature]) -> NDArray[np.bool_]:
    """Return which steps have a length like the others of their kind, or, of rare kinds, like all others."""
    kept = inlier_steps(wall)
    for signature in set(signatures):
        same = np.array([other == signature for other in signatures], np.bool_)
        if same.sum() >= MIN_FOR_OUTLIERS:
            kept[same] = inlier_steps(wall[same])
    return kept


def _common(names: list[tuple[str, ...]]) -> tuple[tuple[str, ...], Int64, tuple[str, ...]]:
    """Find the steps that all GPUs have, by name, and their indices in each; by order where no name is shared."""
    shared = [name for name in dict.fromkeys(names[0]) if all(name in other for other in names[1:])]
    if shared:
        index = [[gpu_names.index(name) for name in shared] for gpu_names in names]
        most = max(map(len, names))
        fewer = (f"Only the {plural(len(shared), 'step')} that all ranks have are compared.",)
        return tuple(shared), np.array(index, np.int64), fewer if len(shared) < most else ()
    count = min(map(len, names))
    index = [list(range(count)) for _ in names]
    return names[0][:count], np.array(index, np.int64), ("The ranks share no step name: steps are paired by order.",)


_COMPILER_SPELLING = re.compile(r"^void |\(anonymous namespace\)::|<unnamed>::|\{anonymous\}::| \[clone [^\]]*\]$")


def kernel_name(name: str) -> str:
    """Return a kernel's name without parts that compilers spell differently; template arguments stay.

    >>> kernel_name("void at::(anonymous namespace)::copy<float, 4>(int)  [clone .kd]")
    'at::copy<float, 4>(int)'
    """
    return " ".join(_COMPILER_SPELLING.sub("", name).split()) or name


# How two recordings differ in setup: hardware, world size, options, versions.

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
    return notes + differing_facts(a, b, names)


def drawn_differences(a: Run, b: Run, names: tuple[str, str] = ("A", "B")) -> list[str]:
    """List how two runs drawn in full differ, a sentence each, and how many of their ranks have no trace."""
    notes = []
    if a.world_size != b.world_size:
        notes.append(f"{names[0]} had {plural(a.world_size, 'rank')}, {names[1]} {b.world_size}.")
    for letter, run in zip(names, (a, b), strict=True):
        drawn = len({rank for rank, _ in devices_by_id(run)})
        if drawn < run.world_size:
            notes.append(f"{letter}: {drawn} of {plural(run.world_size, 'rank')} drawn; the others may be slower.")
    return notes + differing_facts(a, b, names)


def incomparable(a: Run, b: Run, names: tuple[str, str] = ("A", "B")) -> str:
    """Return why the times of two runs cannot be compared; empty where they can.

    Runs with different devices, versions or options are comparable: their effect on speed is what is compared. Runs of
    different models, of CPU operators and GPU kernels, or with and without backward do different work.
    """
    if a.on_cpu != b.on_cpu:
        return _devices_recorded(a, b, names)
    models = _text(a.metadata.get("model")), _text(b.metadata.get("model"))
    if None not in models and models[0] != models[1]:
        return f"{names[0]} trained the model {models[0]}, {names[1]} {models[1]}"
    splits = [*a.splits, *b.splits]
    trains = [any(split.figures["backward_ns"].any() for split in run.splits) for run in (a, b)]
    if trains[0] != trains[1] and not any("backward_ns" in split.unknown for split in splits):
        without, one = names if trains[1] else names[::-1]
        return f"{without} has no backward, {one} has one"
    return ""


def _devices_recorded(a: Run, b: Run, names: tuple[str, str]) -> str:
    words = ["operators on CPUs" if run.on_cpu else "kernels on GPUs" for run in (a, b)]
    return f"{names[0]} shows {words[0]}, {names[1]} {words[1]}"


def differing_facts(a: Run, b: Run, names: tuple[str, str] = ("A", "B")) -> list[str]:
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


# Which kinds of steps two sides have in common: a step is compared only with steps that do the same work.
#
# Steps may alternate, for example where an optimizer acts, or gradients are reduced, every second step. A kind
# is what a step does (its signature); only if all steps do the same, its length, where two lengths clearly alternate.

_MIN_OF_KIND = 2
"""Steps of a kind that each recording needs for the kind to be compared."""
_MAX_KINDS, _MIN_COVERED = 4, 0.25
"""With more signatures, as of experts that are called irregularly, the shared ones must cover this share of each
recording's steps; otherwise the optimizer alone decides the kind."""
_EXPLAINED, _MIN_OF_LENGTH, _MIN_SWITCHES = 0.95, 3, 3
"""Two lengths are kinds if they explain this share of the variance, have this many steps each, and alternate."""


@dataclass(frozen=True)
class StepKinds:
    """The kinds of steps that are compared."""

    labels: tuple[str, ...]
    """What distinguishes each kind, in words; one empty label where all steps are of one kind."""
    of_steps: tuple[NDArray[np.int64], ...]
    """For each recording, the kind of each step; -1 for steps that have no counterpart."""
    only: tuple[str, ...]
    """The kinds that cannot be compared, a sentence each."""
    unlike: str = ""
    """Why no kind has enough steps in both sides; empty where one has. Then all steps are compared as one kind."""
    comparable: bool = True
    """Whether some kind is in every recording, if only in few steps."""


def step_kinds(before: Sequence[RunSample], after: Sequence[RunSample]) -> StepKinds:
    """Find the kinds that every recording of both sides has."""
    samples = [*before, *after]
    if len({signature for sample in samples for signature in sample.signatures}) == 1:
        return _by_length(samples)
    keys: tuple[Callable[[Signature], Hashable], ...] = (lambda s: s, lambda s: s.optimizer)
    for key in keys:
        counts = [Counter(map(key, sample.signatures)) for sample in samples]
        # A recording of a single step has one step of its kind.
        shared = [k for k in counts[0] if all(c[k] >= min(_MIN_OF_KIND, c.total()) for c in counts)]
        covered = min(sum(c[k] for k in shared) / c.total() for c in counts)
        regular = len(set().union(*counts)) <= _MAX_KINDS
        if shared and (regular or covered >= _MIN_COVERED):
            found = _by_signature(samples, len(before), key, shared)
            if not _leaves_too_few(found, before, after):
                return found
        if regular and any(all(c[k] for c in counts) for k in counts[0]):
            return _one_kind(samples, "too few steps of any kind that every recording has")
    return replace(
        _one_kind(samples, "A's and B's steps are of different kinds: " + _sides_in_words(before, after)),
        comparable=False,
    )


def _leaves_too_few(kinds: StepKinds, before: Sequence[RunSample], after: Sequence[RunSample]) -> bool:
    """Return whether both sides have enough steps for what is evident, but one keeps too few with a counterpart."""
    counts = [int((own >= 0).sum()) for own in kinds.of_steps]
    kept = min(sum(counts[: len(before)]), sum(counts[len(before) :]))
    whole = min(sum(len(sample.steps) for sample in side) for side in (before, after))
    return kept < MIN_STEPS <= whole


def _one_kind(samples: Sequence[RunSample], unlike: str = "") -> StepKinds:
    return StepKinds(("",), tuple(np.zeros(len(s.steps), np.int64) for s in samples), (), unlike)


def _by_signature(
    samples: Sequence[RunSample], before: int, key: Callable[[Signature], Hashable], shared: list[Hashable]
) -> StepKinds:
    examples = {key(signature): signature for sample in samples for signature in sample.signatures}
    coarse = key(next(iter(examples.values()))) in (True, False)
    words = dict(zip(examples, _in_words(list(examples.values()), coarse), strict=True))
    number = {kind: index for index, kind in enumerate(shared)}
    of_steps = tuple(np.array([number.get(key(s), -1) for s in sample.signatures], np.int64) for sample in samples)
    only = []
    for kind in examples:
        if kind not in number:
            counts = [sum(key(s) == kind for s in sample.signatures) for sample in samples]
            only.append(_absent(words[kind], sum(counts[:before]), sum(counts[before:])))
    labels = tuple(words[kind] for kind in shared) if len(examples) > 1 else ("",)
    return StepKinds(labels, of_steps, tuple(only))


def _absent(label: str, a: int, b: int) -> str:
    if a and b:
        return f"Cannot tell for steps of kind “{label}”: too few in some recording ({a} in A, {b} in B)."
    return f"Cannot tell: steps of kind “{label}” are only in {'A' if a else 'B'} ({plural(a or b, 'step')}, left out)."


def _in_words(signatures: Sequence[Signature], coarse: bool) -> list[str]:
    """Describe what distinguishes each signature from the others."""
    differs = len({s.optimizer for s in signatures}) > 1
    names = dict.fromkeys(kind for s in signatures for kind, _ in s.collectives)
    counts = [dict(s.collectives) for s in signatures]
    kinds = [] if coarse else [kind for kind in names if len({c.get(kind, 0) for c in counts}) > 1]
    words = []
    for signature, count in zip(signatures, counts, strict=True):
        parts = ["with optimizer" if signature.optimizer else "without optimizer"] if differs else []
        words.append(", ".join([*parts, *(f"{count.get(kind, 0)} {kind}" for kind in kinds)]))
    return words


def _sides_in_words(before: Sequence[RunSample], after: Sequence[RunSample]) -> str:
    optimizer = [any(s.optimizer for sample in side for s in sample.signatures) for side in (before, after)]
    if optimizer[0] != optimizer[1]:
        return f"only {'A' if optimizer[0] else 'B'}'s run the optimizer"
    return "no kind is in every recording"


def _by_length(samples: Sequence[RunSample]) -> StepKinds:
    """Separate kinds by length where every recording has two lengths that alternate."""
    long = [two_lengths(sample.wall) for sample in samples]
    if any(one is None for one in long):
        return _one_kind(samples)
    kinds = tuple(one.astype(np.int64) for one in long if one is not None)
    return StepKinds(("shorter steps", "longer steps"), kinds, ())


def two_lengths(walls: Float) -> NDArray[np.bool_] | None:
    """Return which steps are the longer ones; None where the lengths are not two that alternate.

    The cut of the sorted lengths that explains most of their variance (2-means, exact in one dimension).
    """
    n = len(walls)
    if n < 2 * _MIN_OF_LENGTH or np.ptp(walls) == 0:
        return None
    ordered = np.sort(walls)
    low = np.arange(_MIN_OF_LENGTH, n - _MIN_OF_LENGTH + 1)
    sums = np.cumsum(ordered)[low - 1]
    left, right = sums / low, (ordered.sum() - sums) / (n - low)
    explained = low * (n - low) / n * (left - right) ** 2 / ((ordered - ordered.mean()) ** 2).sum()
    best = int(explained.argmax())
    longer: NDArray[np.bool_] = walls >= ordered[low[best]]
    alternates = int((np.diff(longer.astype(int)) != 0).sum()) >= _MIN_SWITCHES
    return longer if explained[best] > _EXPLAINED and alternates else None


_RESOLUTION_NS, _RESOLUTION_SHARE = 1_000, 0.001
"""Differences below 1 µs, or below a thousandth of a step, are within the resolution of a profiler."""


@dataclass(frozen=True)
class Side:
    """The recordings of one side, with the same GPUs each; their steps one after the other."""

    samples: tuple[RunSample, ...]

    @property
    def steps(self) -> int:
        """Number of compared steps in all recordings."""
        return sum(len(sample.steps) for sample in self.samples)

    @cached_property
    def figures(self) -> dict[str, Int64]:
        """Each figure and idle cause by name, without those that a recording lacks: ns, devices by steps."""
        lacking = {name for sample in self.samples for name in sample.incomparable}
        names = [name for name in self.samples[0].figures if name not in lacking]
        return {name: np.concatenate([s.figures[name] for s in self.samples], axis=1) for name in names}

    @cached_property
    def exposed_wait(self) -> Float | None:
        """The exposed waiting of each step in ns, mean over the devices; None where a recording does not show it."""
        waits = [sample.exposed_wait for sample in self.samples]
        if any(wait is None for wait in waits):
            return None
        return np.concatenate([wait.mean(axis=0) for wait in waits if wait is not None])

    @cached_property
    def kernels(self) -> dict[tuple[str, str], Float]:
        """By kind (compute or memory) and name: ns and count in each step."""
        return _joined([sample.kernels() for sample in self.samples], [len(s.steps) for s in self.samples], 2)

    @cached_property
    def collectives(self) -> dict[Collective, Float]:
        """By kind, group and size: the values of COLLECTIVE_VALUES in each step."""
        steps = [len(sample.steps) for sample in self.samples]
        return _joined([sample.collectives() for sample in self.samples], steps, len(COLLECTIVE_VALUES))

    @property
    def shown(self) -> RunSample:
        """The recording that stands for the side in pictures: the one with the median wall time."""
        walls = [float(sample.wall.mean()) for sample in self.samples]
        return self.samples[int(np.argsort(walls, kind="stable")[(len(walls) - 1) // 2])]


def _joined(tables: Sequence[Mapping[Key, Float]], steps: Sequence[int], values: int) -> dict[Key, Float]:
    keys = dict.fromkeys(key for table in tables for key in table)
    empty = [np.zeros((values, count)) for count in steps]
    pairs = list(zip(tables, empty, strict=True))
    return {key: np.concatenate([table.get(key, none) for table, none in pairs], axis=1) for key in keys}


@dataclass(frozen=True)
class Sides:
    """Both sides, and what each of their steps is."""

    a: Side
    b: Side
    steps: Steps
    """A's steps, then B's."""
    kinds: StepKinds
    shared: tuple[DeviceId, ...]
    """GPUs that every recording has."""
    matching: bool
    """Whether only the shared GPUs are compared; otherwise all GPUs of each side, as means."""

    @property
    def several(self) -> bool:
        """Whether a side has several recordings."""
        return len(self.a.samples) + len(self.b.samples) > 2

    @cached_property
    def floor(self) -> float:
        """Resolution of the comparison in ns."""
        return max(_RESOLUTION_NS, _RESOLUTION_SHARE * self._longer)

    @property
    def margin(self) -> float:
        """Difference that does not matter, in ns."""
        return EQUIVALENT * self._longer

    @cached_property
    def _longer(self) -> float:
        """The longer of the mean steps, so that verdicts do not depend on the order of A and B."""
        return max(float(side.figures["wall_ns"].mean()) for side in (self.a, self.b))

    @cached_property
    def weights(self) -> tuple[Float, Float]:
        """Weight of each step in the mean of A and of B; each sums to 1."""
        weight = self.steps.step_weights(self.steps.kind_weights())
        return weight[self.steps.side == 0], weight[self.steps.side == 1]

    def table(self, of: Callable[[Side], Mapping[Key, Float]], values: int) -> dict[Key, Float]:
        """Join A's and B's values of each key: values by steps; 0 where a side does not have the key."""
        return _joined([of(self.a), of(self.b)], [self.a.steps, self.b.steps], values)


def make_sides(before: Sequence[Run], after: Sequence[Run], every_step: bool = False) -> Sides:
    """Sample the recordings of both sides and keep the steps of the kinds that all of them have.

    If all world sizes are equal, the ranks in all recordings are compared; otherwise those of each side, as means.

    Raises:
        DptraceError: the recordings of one side have no rank in common.
    """
    runs = [*before, *after]
    shared = _shared(runs)
    matching = len({run.world_size for run in runs}) == 1 and bool(shared)
    chosen = [shared if matching else _shared(side) for side in (before, after)]
    for side, ids in zip((before, after), chosen, strict=True):
        if not ids:
            raise DptraceError(f"{side[0].path} and {side[-1].path}: recordings of one side must share a rank.")
        for run in side:
            if isinstance(run, StoredRun) and len(ids) < len(run.devices):
                raise DptraceError(
                    f"{run.path}: the baseline has {plural(len(run.devices), 'device')}, and {len(ids)} of them are in "
                    "every recording. Record all of its ranks, or save a baseline of those that are there (--ranks)."
                )
    samples = [
        [sample_run(run, ids, every_step) for run in side] for side, ids in zip((before, after), chosen, strict=True)
    ]
    samples = _alike_known(samples)
    kinds = step_kinds(*samples)
    of_steps = iter(kinds.of_steps)
    kept = [[(sample, next(of_steps)) for sample in side] for side in samples]
    a, b = (Side(tuple(sample.keep(kind >= 0) for sample, kind in side)) for side in kept)
    return Sides(a, b, _steps(kept, a, b, kinds), kinds, tuple(shared), matching)


def _alike_known(samples: list[list[RunSample]]) -> list[list[RunSample]]:
    """Tell steps apart only by what every recording knows: an optimizer that one can't show makes no other kind."""
    unknown = {name for side in samples for sample in side for name in sample.incomparable}
    optimizer, comm = "optimizer_ns" not in unknown, "exposed_comm_ns" not in unknown
    if optimizer and comm:
        return samples
    return [
        [
            replace(
                sample,
                signatures=tuple(
                    Signature(one.optimizer and optimizer, one.collectives if comm else ()) for one in sample.signatures
                ),
            )
            for sample in side
        ]
        for side in samples
    ]


def _shared(runs: Sequence[Run]) -> list[DeviceId]:
    ids = [devices_by_id(run) for run in runs]
    return [device_id for device_id in ids[0] if all(device_id in other for other in ids[1:])]


def _steps(kept: Sequence[Sequence[tuple[RunSample, Int64]]], a: Side, b: Side, kinds: StepKinds) -> Steps:
    """Describe the kept steps; those of sides without a common kind can't support any claim."""
    kind = np.concatenate([one[one >= 0] for side in kept for _, one in side])
    recordings = [*a.samples, *b.samples]
    counts = [len(sample.steps) for sample in recordings]
    return Steps(
        side=np.repeat([0, 1], [a.steps, b.steps]),
        recording=np.repeat(np.arange(len(recordings)), counts),
        kind=np.unique(kind, return_inverse=True)[1],
        place=np.concatenate([sample.place for sample in recordings]),
        enough=has_enough_steps(a.steps, b.steps) and not kinds.unlike,
        comparable=kinds.comparable,
    )
