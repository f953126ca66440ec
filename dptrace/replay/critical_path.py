"""The chain of kernels, collectives, launches and host gaps that sets the length of a step, across ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from dptrace.analysis.per_gpu.device import middle_step
from dptrace.core.intervals import Int64
from dptrace.core.table import with_missing, with_strings
from dptrace.errors import UsageError
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.schedule import Times
from dptrace.replay.paths import (
    FREE,
    HOST,
    LINK_KINDS,
    TIMED_TASKS,
    HostNames,
    Links,
    ModuleTime,
    RecordedPath,
    Shortening,
    StepEnds,
    binding_edges,
    chain_to,
    host_names,
    links_of,
    module_times,
    modules_frame,
    recorded_path,
    slack_of,
    step_ends,
    step_order,
)
from dptrace.replay.simulation import bound_of
from dptrace.timeline.model import Kind, Timeline

if TYPE_CHECKING:
    import pandas as pd

    from dptrace.replay.whatif import Doubt, Replay
    from dptrace.run.run import Run

SCHEMA = 1
"""Version of the JSON of a critical path."""
_MAX_ITEMS = 12
"""Names that are listed, those with most of the path."""
_COLUMNS = ("rank", "device", "name", "kind", "start_ns", "duration_ns", "slack_ns", "on_path")


class PathItem(msgspec.Struct, frozen=True):
    """What takes time on a critical path: a kernel, a kind of collective, or what the host does."""

    kind: str
    """One of :data:`LINK_KINDS`."""
    name: str
    path_ns: int
    """Its time on the path of the step."""
    gain_ns: int
    """How much shorter a step would be, by replay, if it took 10 % less in every step."""


@dataclass(frozen=True, eq=False)
class CriticalPath:
    """The chain that sets the length of one step; times in ns, on the clock that all ranks share."""

    path: str
    step: str
    rank: int
    """The rank whose step it is: the one on which the step ends last."""
    start_ns: int
    """Where the rank's step begins, and the chain."""
    end_ns: int
    wall_ns: int
    """Length of the step as recorded, the mean of all ranks."""
    by_kind: dict[str, int]
    """By the names in LINK_KINDS; they add up to the length."""
    by_rank: dict[int | None, int]
    """None stands for transfers, which are of all ranks."""
    items: tuple[PathItem, ...]
    """What takes the most time on the path."""
    links: Links
    notes: tuple[str, ...]
    doubts: tuple[Doubt, ...]
    """The reasons to distrust the replay, those that refuse an answer first."""
    _model: Model = field(repr=False)
    _names: HostNames = field(repr=False)
    _times: Times = field(repr=False)
    _slack: Int64 = field(repr=False)
    _ends: StepEnds = field(repr=False)

    @property
    def can_tell(self) -> bool:
        """Whether the replay explains the run, so that its chain is the run's."""
        return not any(doubt.refuses for doubt in self.doubts)

    @property
    def length_ns(self) -> int:
        """Length of the rank's step as replayed: that of the chain, by construction."""
        return self.end_ns - self.start_ns

    @property
    def apart_ns(self) -> int | None:
        """How far figures of a rank are from those of the one that stands for it, at most; None if all are replayed."""
        return None if self._model.of is None else self._model.of.apart_ns

    def described(self) -> list[dict[str, Any]]:
        """Return ``kind``, ``rank``, ``name`` and ``operator`` of each entry of ``links``."""
        return [
            {"kind": LINK_KINDS[kind], **_described(self._model, self._names, LINK_KINDS[kind], task)}
            for kind, task in zip(self.links.kind.tolist(), self.links.task.tolist(), strict=True)
        ]

    def pieces(self) -> Iterator[dict[str, Any]]:
        """Yield the pieces of the chain from first to last; neighbors of one kind, rank and name are one piece.

        The ``operator`` of a piece is that of its first part.
        """
        last: dict[str, Any] = {}
        times = zip(self.links.start_ns.tolist(), self.links.end_ns.tolist(), strict=True)
        for (start, end), about in zip(times, self.described(), strict=True):
            if last and all(last[key] == about[key] for key in ("kind", "rank", "name")):
                last["end_ns"] = end
                continue
            if last:
                yield last
            last = {"start_ns": start, "end_ns": end, **about}
        if last:
            yield last

    @cached_property
    def by_module(self) -> tuple[ModuleTime, ...]:
        """The time of the path by module, most first; empty where no file has modules. Files are read once more."""
        return module_times(self._model, self.links, Shortening(self._model, self._ends))

    def modules(self) -> pd.DataFrame:
        """Return the time of the path by module: a row each, most time first.

        Columns:
            module (str): path of the module: ``layers.3.attn``; ``(no module)`` for the rest.
            path_ns (int, ns): its time on the path; the rows add up to the length of the step.
            share (float): path_ns as a share of the step, from 0 to 1.
            compute_ns, memory_ns, transfer_ns, host_ns, other_ns (int, ns): path_ns by kind; the host's is that of its
                calls and the pauses between them.
            gain_ns (Int64, ns): how much shorter a step would be, by replay, if the kernels, transfers and host
                calls of the module took 10 % less, in every step; <NA> where it was not computed.
        """
        return modules_frame(self.by_module, self.length_ns)

    def kernels(self) -> pd.DataFrame:
        """Return the step's kernels, copies and collectives with their slack, of each rank that was replayed.

        Columns:
            rank, device (int): as in :meth:`dptrace.Run.steps`.
            name (str): name of the kernel, or of the operator on a CPU.
            kind (str): ``compute``, ``communication`` or ``memory``.
            start_ns, duration_ns (int, ns): as replayed, on the shared clock.
            slack_ns (Int64, ns): how much longer it could take before the step does; <NA> if the step does not
                wait for it.
            on_path (bool): whether it is part of the chain.
        """
        import pandas as pd

        frames = [pd.DataFrame(rows, columns=list(_COLUMNS)) for rows in self._kernel_columns()]
        return with_strings(pd.concat(frames, ignore_index=True).astype({"slack_ns": "Int64"}))

    @cached_property
    def recorded(self) -> RecordedPath:
        """Where the recording has the pieces of ``links``."""
        return recorded_path(self._model, self._times, self.links)

    @property
    def timelines(self) -> tuple[Timeline, ...]:
        """The timelines that were replayed, which ``recorded`` counts: of many ranks, some stand for all."""
        return self._model.run.timelines

    def slack_ns(self, number: int) -> tuple[Int64, Int64]:
        """Return the intervals of a timeline that the step has, and the slack of each in ns, or FREE or little less."""
        timeline, (_, tasks) = self._model.run.timelines[number], self._model.place[number]
        names = timeline.windows.names
        in_step = timeline.step == names.index(self.step) if self.step in names else np.zeros(len(timeline), np.bool_)
        own = np.flatnonzero((tasks >= 0) & in_step)
        return own, self._slack[self._model.over[tasks[own]]]

    def _kernel_columns(self) -> Iterator[dict[str, Any]]:
        model, times = self._model, self._times
        on_path = np.zeros(len(model.graph), np.bool_)
        on_path[self.links.task] = True
        kinds = np.array([kind.name.lower() for kind in Kind], object)
        for number, (timeline, (_, tasks)) in enumerate(zip(model.run.timelines, model.place, strict=True)):
            own, slack = self.slack_ns(number)
            task, over = tasks[own], model.over[tasks[own]]
            yield {
                "rank": timeline.rank,
                "device": timeline.device,
                "name": np.array(timeline.names, object)[timeline.name[own]],
                "kind": kinds[timeline.kind[own]],
                "start_ns": times.start_ns[task],
                "duration_ns": times.end_ns[over] - times.start_ns[task],
                "slack_ns": [ns if ns < FREE >> 1 else None for ns in slack.tolist()],
                "on_path": on_path[task] | on_path[over],
            }

    def to_dict(self) -> dict[str, Any]:
        """Return the path as plain data, as ``dptrace critical-path --json`` prints it."""
        return {
            "schema": SCHEMA,
            "run": self.path,
            "step": self.step,
            "rank": self.rank,
            "start_ns": self.start_ns,
            "end_ns": self.end_ns,
            "length_ns": self.length_ns,
            "wall_ns": self.wall_ns,
            "can_tell": self.can_tell,
            "all_ranks": self.apart_ns is None,
            "replayed_ranks": list(self._model.run.ranks),
            "apart_ns": self.apart_ns,
            "by_kind": self.by_kind,
            "by_rank": [{"rank": rank, "path_ns": ns} for rank, ns in self.by_rank.items()],
            "items": [with_missing(msgspec.structs.asdict(item)) for item in self.items],
            "modules": [module.to_dict() for module in self.by_module],
            "path": [*map(with_missing, self.pieces())],
            "doubts": msgspec.to_builtins(self.doubts),
            "notes": list(self.notes),
        }


def critical_path(replay: Replay, step: str | int | None = None) -> CriticalPath:
    """Find what sets the length of a step; see :func:`dptrace.critical_path`."""
    model, times = replay.model, replay.base.times
    name = middle_step(replay.run.devices) or "" if step is None else step
    if not isinstance(name, str) or name.isdecimal():
        name = f"ProfilerStep#{name}"
    names = step_order(model)
    if name not in names:
        raise UsageError(f"{model.run.path}: has no step {name!r}. The steps are {', '.join(names[:12])}.")
    number, since, last, until = _span(replay, name)
    ends, index = step_ends(model), names.index(name)
    chain = chain_to(model.graph, binding_edges(model.graph, times), last, times, since)
    inside = ends.task[(ends.step <= index) & (times.end_ns[ends.task] <= until)]
    latest = np.append(np.full(len(inside), until), max(until, times.end_ns[last]))
    links = links_of(model, times, chain, since, until)
    host = host_names(model)
    return CriticalPath(
        path=model.run.path,
        step=name,
        rank=model.run.timelines[number].rank,
        start_ns=since,
        end_ns=until,
        wall_ns=round(float(np.mean(_walls(replay, name)))),
        by_kind=links.by_kind(),
        by_rank=_by_rank(model, links),
        items=_items(model, host, links, Shortening(model, ends)),
        links=links,
        notes=model.notes,
        doubts=replay.doubts,
        _model=model,
        _names=host,
        _times=times,
        _slack=slack_of(model.graph, times, np.append(inside, last), latest),
        _ends=ends,
    )


def _span(replay: Replay, step: str) -> tuple[int, int, int, int]:
    """Return the timeline on which a step ends last, when it begins there, the task that it ends with, and when."""
    model, times = replay.model, replay.base.times
    steps = _places_of_step(model.run, replay.run, step)
    places = {number: int(model.run.timelines[number].windows.span[place]) for number, place in steps.items()}
    ends = {number: bound_of(model, number, times, place) for number, place in places.items()}
    last = max(ends, key=lambda number: ends[number].at_ns)
    begins = bound_of(model, last, times, places[last] - 1)
    return last, begins.at_ns, ends[last].task, ends[last].at_ns


def _places_of_step(run: Run, selection: Run, step: str) -> dict[int, int]:
    """Return the place of a step in each selected timeline of a run that has it; in all where no selected one has."""
    selected = {(one.rank, one.device) for one in selection.timelines}
    places = {n: one.windows.names.index(step) for n, one in enumerate(run.timelines) if step in one.windows.names}
    own = (n for n in places if (run.timelines[n].rank, run.timelines[n].device) in selected)
    return {n: places[n] for n in own} or places


def _walls(replay: Replay, step: str) -> list[int]:
    """Return the length of a step as recorded, on each selected device, replayed or not."""
    places = _places_of_step(replay.whole, replay.run, step)
    return [int(replay.whole.devices[n].split.figures["wall_ns"][place]) for n, place in places.items()]


def _by_rank(model: Model, links: Links) -> dict[int | None, int]:
    ranks = {index: model.run.timelines[number].rank for number, (index, _) in reversed(list(enumerate(model.place)))}
    process = model.graph.process[links.task]
    length = links.end_ns - links.start_ns
    found: dict[int | None, int] = {
        rank: int(length[process == index].sum()) for index, rank in sorted(ranks.items(), key=lambda pair: pair[1])
    }
    shared = int(length[process < 0].sum())
    return {**{rank: ns for rank, ns in found.items() if ns}, **({None: shared} if shared else {})}


def _described(model: Model, host: HostNames, kind: str, task: int) -> dict[str, Any]:
    """Return rank, name and operator of a piece."""
    graph = model.graph
    process, operator = int(graph.process[task]), int(graph.operator[task])
    number = next((n for n, (index, _) in enumerate(model.place) if index == process), None)
    own = graph.names[graph.name[task]]
    operator_name = graph.names[operator] if operator >= 0 else ""
    return {
        "rank": None if number is None else model.run.timelines[number].rank,
        "name": host.names[host.name[task]] if kind == HOST else own if kind in TIMED_TASKS else "",
        "operator": operator_name,
    }


def _items(model: Model, host: HostNames, links: Links, shortening: Shortening) -> tuple[PathItem, ...]:
    """Return what takes the most time on the path, with what 10 % less time of it gains."""
    own, texts = model.graph.name, (*model.graph.names, *host.names)
    of_host = host.name + len(model.graph.names)
    name = np.where(links.kind == LINK_KINDS.index(HOST), of_host[links.task], own[links.task])
    named = np.isin(links.kind, [LINK_KINDS.index(kind) for kind in TIMED_TASKS])
    keys = links.kind.astype(np.int64) * (len(texts) + 1) + np.where(named, name, -1) + 1
    known, which = np.unique(keys, return_inverse=True)
    total = np.bincount(which, links.end_ns - links.start_ns).astype(np.int64)
    items = []
    for number in np.argsort(-total, kind="stable")[:_MAX_ITEMS].tolist():
        kind, one = divmod(int(known[number]), len(texts) + 1)
        gain = shortening.of_name(LINK_KINDS[kind], one - 1, of_host if LINK_KINDS[kind] == HOST else own)
        items.append(PathItem(LINK_KINDS[kind], texts[one - 1] if one else "", int(total[number]), gain))
    return tuple(items)
