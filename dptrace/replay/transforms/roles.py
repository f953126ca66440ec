"""Which ranks are compared with which, and at which points of their programs: ranks of one role run the same program.

::

    data parallel      0 1 2 3               one role: all are compared between the collectives that they share
    tp 2 × dp 2        0 1 │ 2 3             one role: the n-th collective of each is the same place of the program
    pipeline × dp 2    0 1 ► 2 3 ► 4 5       a role for each stage: its ranks are compared with one another, and what
                                             a stage takes in a step with what half of the other stages take

A rank without peers, such as one in two groups or a stage without replicas, is compared by what it takes in a step:
the others wait for it as long as it takes longer.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64, members
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.model import EdgeKind
from dptrace.replay.simulation import shared_steps
from dptrace.timeline.model import Kind

NEVER = np.iinfo(np.int64).max
MESSAGE = "send_recv"
_AS_OFTEN = 0.9
"""Share of how many times a rank does something in a step from which another does it about as often."""
_BESIDE_NS = 1_000_000
"""A collective that takes this long is waited for, or runs beside other work."""


class Peers(msgspec.Struct, frozen=True, eq=False):
    """Ranks that are compared, and the points that all of them pass: processes × points."""

    processes: tuple[int, ...]
    times_ns: Int64
    """Ascending, on the shared clock."""
    instance: Int64
    """The collective that each launches there, or -1."""
    role: Int64
    """Of each process: the number of its role. What one takes is compared with that of others in its role; with
    several roles, with what other roles take."""
    beside: Int64
    """The segments in which they launch collectives that run beside other work."""

    @property
    def by_step(self) -> bool:
        """Whether steps are the points: what is before the first, and after the last, belongs to none."""
        return bool((self.instance < 0).all())

    def usual(self, spent: Int64, count: Int64) -> Int64:
        """Return what each rank is compared with: ranks × what they spend it on or where, as *spent*.

        Args:
            count: for how many ranks each stands.
        """
        return self._of_others(spent, count, half_of_the_others)

    def usual_of_as_many(self, spent: Int64, number: NDArray[np.float64], count: Int64) -> Int64:
        """Return the same for each thing, of those that do it about as often: a stage may have less of it to do.

        Args:
            number: how many times each does it: ranks × things.
        """
        few = np.flatnonzero((number < _AS_OFTEN * number.max(axis=0)).any(axis=0))
        result = self.usual(spent, count)
        if len(few):
            roles = self.role if self.role.any() else np.arange(len(spent))
            own = [np.flatnonzero(roles == role) for role in range(int(roles.max()) + 1)]
            of_role = np.stack([lower_median(spent[:, few][one], count[one]) for one in own])
            often = np.stack([np.median(number[:, few][one], axis=0) for one in own])
            result[:, few] = np.maximum(result[:, few], _of_as_many(of_role, often)[roles])
        return result

    def always(self, spent: Int64, count: Int64) -> Int64:
        """Return what each rank is compared with in what it takes in all steps: of roles, some have less to do."""
        return self._of_others(spent, count, _of_other_roles)

    def _of_others(self, spent: Int64, count: Int64, of_roles: Callable[[Int64, Int64], Int64]) -> Int64:
        if not self.role.any():
            return half_of_the_others(spent, count)
        roles = [np.flatnonzero(self.role == role) for role in range(int(self.role.max()) + 1)]
        of_role = np.stack([lower_median(spent[own], count[own]) for own in roles])
        return of_roles(of_role, np.ones(len(roles), np.int64))[self.role]


def _of_as_many(spent: Int64, number: NDArray[np.float64]) -> Int64:
    """Return what half of the others take at most that do a thing about as often: roles × things; 0 where none does.

    >>> _of_as_many(np.array([[30], [44], [40]]), np.array([[3.0], [4], [4]])).tolist()
    [[40], [40], [44]]
    """
    result = np.zeros_like(spent)
    for own in range(len(spent)):
        alike = number >= _AS_OFTEN * number[own]
        alike[own] = False
        ranked, many = np.sort(np.where(alike, spent, NEVER), axis=0), alike.sum(axis=0)
        half = np.take_along_axis(ranked, np.maximum(many - 1, 0)[None] // 2, axis=0)[0]
        result[own] = np.where(many > 0, half, 0)
    return result


def _of_other_roles(total: Int64, count: Int64) -> Int64:
    """Return the same as :func:`half_of_the_others`, but where one more takes about as long as a role, what that takes.

    Of three roles, two that take as long as each other are as they should be: the third has less to do.

    >>> _of_other_roles(np.array([[10], [50], [12]]), np.array([1, 1, 1])).tolist()
    [[12], [10], [10]]
    >>> _of_other_roles(np.array([[10], [50], [48]]), np.array([1, 1, 1])).tolist()
    [[48], [48], [50]]
    """
    usual, half = half_of_the_others(total, count), len(total) // 2
    if len(total) % 2 == 0 or half == 0:
        return usual
    ranked = np.sort(total, axis=0)
    more = np.where(total <= ranked[half], ranked[half + 1], ranked[half])
    alike = np.abs(more - total) < np.minimum(more, total) - usual
    return np.where(alike, more, usual)


def half_of_the_others(total: Int64, count: Int64) -> Int64:
    """Return for each rank what half of the other ranks take at most; of two, the other one.

    Args:
        count: how many ranks take as long as each, with itself.

    >>> half_of_the_others(np.array([[10], [50], [12]]), np.array([1, 1, 1])).tolist()
    [[12], [10], [10]]
    >>> half_of_the_others(np.array([[10], [50], [12]]), np.array([1, 1, 3])).tolist()
    [[12], [12], [12]]
    """
    ranked = np.sort(np.repeat(total, count, axis=0), axis=0)
    # The lower median of all but one: where that one is below it, it is one further up.
    half = (len(ranked) - 2) // 2
    usual: Int64 = np.where(total <= ranked[half], ranked[half + 1], ranked[half])
    return usual


def lower_median(total: Int64, count: Int64) -> Int64:
    ranked = np.sort(np.repeat(total, count, axis=0), axis=0)
    result: Int64 = ranked[(len(ranked) - 1) // 2]
    return result


def launches(model: Model) -> Int64:
    """Return when each process launched each matched collective, or NEVER: collectives × processes.

    Those of steps that some rank has not recorded, or not whole, are left out: programs are compared without them.
    """
    transfers, steps = model.transfers, model.run.cross_rank.matches.step
    owner = model.graph.process[transfers.arrival]
    launched = np.full((len(model.run.cross_rank.matches), len(model.processes)), NEVER)
    for index, (process, own) in enumerate(zip(model.processes, members(owner, len(model.processes)), strict=True)):
        by = process.device.launched_by[transfers.arrival[own] - process.interval_tasks[:1].sum()]
        own, by = own[by >= 0], by[by >= 0]
        launched[transfers.match[transfers.instance[own]], index] = process.host.start_ns[by]
    launched[(steps != "") & ~np.isin(steps, shared_steps(model.run.timelines))] = NEVER
    return launched


def same_program(model: Model, launched: Int64) -> list[Peers]:
    """Return the ranks that run one program, and where they are compared.

    Where all ranks take part in some collectives, all are compared between the launches of these, except in pipelines.
    Others are compared with those that launch the same collectives in the same order.
    """
    met = _met(model)
    shared = np.flatnonzero((launched < NEVER).all(axis=1) & met)
    programs, orders = _programs(model, launched)
    everyone = tuple(range(len(model.processes)))
    if len(shared) and not (len(programs) > 1 and _is_pipeline(model)):
        shared = shared[np.argsort(launched[shared].min(axis=1), kind="stable")]
        # Threads may launch collectives in another order on a rank: a point never lies before the one before it.
        times = np.maximum.accumulate(launched[shared].T, axis=1)
        beside = np.searchsorted(times[0], launched[~met & (launched < NEVER).all(axis=1), 0])
        one_role = np.zeros(len(everyone), np.int64)
        return [Peers(everyone, times, np.broadcast_to(shared, times.shape), one_role, beside)]
    found = []
    for program, own in programs.items():
        if program and len(own) > 1:
            instance = np.stack([orders[index] for index in own])
            points = met[instance].any(axis=0)
            beside = np.cumsum(points, dtype=np.int64)[~points]
            instance = instance[:, points]
            times = np.stack([launched[each, index] for each, index in zip(instance, own, strict=True)])
            found.append(Peers(tuple(own), times, instance, np.zeros(len(own), np.int64), beside))
    return found


def _met(model: Model) -> NDArray[np.bool_]:
    """Return at which matched collectives the hosts meet.

    On a CPU, one that took long and that a host did not wait for runs beside the program: who is late there, and as
    much earlier at the next, delays nobody. Not so by chance, in one of several steps, as where a core is busy.
    """
    matches = model.run.cross_rank.matches
    met = np.ones(len(matches), np.bool_)
    if not model.run.on_cpu or not len(matches):
        return met
    edge, transfers = model.graph.edge, model.transfers
    waited = np.zeros(len(model.graph), np.bool_)
    waited[edge.src[edge.of(EdgeKind.HIDDEN)]] = True
    # Each rank leaves by a transfer of its own.
    match, arrival = transfers.match[transfers.instance], transfers.arrival
    long = transfers.end_ns[transfers.instance] - model.graph.start_ns[arrival] > _BESIDE_NS
    waits = waited[model.over[arrival]]
    place = _places(model, match, arrival)
    usual = 2 * np.bincount(place, long & waits) > np.bincount(place, long)
    met[match[long & ~waits & ~usual[place]]] = False
    return met if met.any() else ~met


def _places(model: Model, match: Int64, arrival: Int64) -> Int64:
    """Return a number for each arrival: which collective of its process it is in a step, the same in all steps."""
    process, start = model.graph.process[arrival], model.graph.start_ns[arrival]
    _, step = np.unique(model.run.cross_rank.matches.step[match].astype(str), return_inverse=True)
    of = process.astype(np.int64) * (int(step.max(initial=0)) + 1) + step
    order = np.lexsort((start, of))
    place = np.empty(len(of), np.int64)
    place[order] = np.arange(len(of)) - np.searchsorted(of[order], of[order])
    return process * (int(place.max(initial=0)) + 1) + place


def other_programs(model: Model, launched: Int64) -> list[Peers]:
    """Return ranks of different programs, which are compared by what each takes in a step; none if all run one."""
    programs, _ = _programs(model, launched)
    shared = (launched < NEVER).all(axis=1).any()
    if set(programs) != {()} and (len(programs) < 2 or (shared and not _is_pipeline(model))):
        return []
    role = np.zeros(len(model.processes), np.int64)
    for number, own in enumerate(programs.values()):
        role[own] = number
    starts = step_starts(model)
    return [Peers(tuple(range(len(role))), starts, np.full(starts.shape, -1), role, np.empty(0, np.int64))]


def _programs(model: Model, launched: Int64) -> tuple[dict[tuple[str, ...], list[int]], list[Int64]]:
    """Return the processes of each program, and the collectives of each process in the order of their launches."""
    orders = [np.argsort(own, kind="stable")[: int((own < NEVER).sum())] for own in launched.T]
    programs: dict[tuple[str, ...], list[int]] = {}
    for index, (kinds, order) in enumerate(zip(kinds_of(model), orders, strict=True)):
        programs.setdefault(tuple(kinds[order].tolist()), []).append(index)
    return programs, orders


def kinds_of(model: Model) -> list[NDArray[np.object_]]:
    """Return for each process what each matched collective is to it: its kind; of a message, its end and direction."""
    matches = model.run.cross_rank.matches
    found = [matches.kind.copy() for _ in model.processes]
    messages = np.flatnonzero(matches.kind == MESSAGE)
    if not len(messages):
        return found
    device_of = {device: number for number, device in enumerate(matches.device_ids)}
    for timeline, (process, _) in zip(model.run.timelines, model.place, strict=True):
        number = device_of.get((timeline.rank, timeline.device), -1)
        if number >= 0:
            ends = np.array([*(one.kind for one in timeline.collectives), ""], object)
            index = matches.member[messages, number]
            mine, index = messages[index >= 0], index[index >= 0]
            own = ends[timeline.collective[timeline.kind == Kind.COMMUNICATION]][index]
            # To or from a stage before or behind it: the order of its two devices, of which it is one.
            before = np.where(matches.device[matches.first[mine]] == number, "", "-")
            found[process][mine] = own + before
    return found


def _is_pipeline(model: Model) -> bool:
    """Whether stages send one another their activations and gradients."""
    if any(len(timeline.actions) for timeline in model.run.timelines):
        return True
    return bool((model.run.cross_rank.matches.kind == MESSAGE).any())


def step_starts(model: Model) -> Int64:
    """Return the starts of the steps that all processes have, and the end of the last: processes × steps + 1."""
    names = [process.step_names for process in model.processes]
    marks = [process.host.start_ns[process.host.marks] for process in model.processes]
    common = [name for name in names[0] if all(name in own for own in names)]
    places = [[own.index(name) for name in common] for own in names]
    # A rank may have more steps after the last one, which ends where the next begins.
    rows = [
        own[[*place, place[-1] + 1] if place else slice(len(own) - 1, None)]
        for own, place in zip(marks, places, strict=True)
    ]
    return np.array(rows, np.int64).reshape(len(rows), -1)
