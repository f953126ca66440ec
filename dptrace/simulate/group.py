"""Ranks that compute and communicate at the same time: operations with their times, carried out in that order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dptrace.simulate.cluster import Numbers
from dptrace.simulate.explanation import Cell, Cost, Message, Outcome, State, Step, Work
from dptrace.simulate.settings import Settings

__all__ = ["Group", "Operation", "shards"]


class Operation(NamedTuple):
    """What all ranks do at once: compute, or a collective."""

    number: int
    kind: str
    label: str
    title: str
    durations: tuple[float, ...]
    start: float
    run: Callable[[], Sequence[Message] | None]


def shards(array: Numbers, ranks: int) -> list[Numbers]:
    """Divide an array into one flat shard for each rank."""
    return [np.array(part) for part in np.array_split(array.ravel(), ranks)]


class Group:
    """The ranks of a way to train. Compute and communication each take place one after the other, on a lane each."""

    def __init__(self, settings: Settings, columns: Sequence[str]) -> None:
        self.settings, self.ranks, self.columns = settings, settings.ranks, tuple(columns)
        self.cells: list[list[Cell]] = [[Cell("", "empty", (), 0) for _ in columns] for _ in range(self.ranks)]
        self.operations: list[Operation] = []
        self.ends: list[float] = []
        self.lanes = {"compute": 0.0, "communication": 0.0}

    def show(self, rank: int, column: str, label: str, state: str, array: Numbers | None = None) -> None:
        """Set what a rank holds in a column."""
        values = () if array is None else tuple(float(value) for value in array.ravel()[:8])
        self.cells[rank][self.columns.index(column)] = Cell(label, state, values)

    def clear(self, column: str) -> None:
        """Free a column on all ranks."""
        for rank in range(self.ranks):
            self.cells[rank][self.columns.index(column)] = Cell("", "empty", (), 0)

    def add(
        self,
        kind: str,
        label: str,
        title: str,
        run: Callable[[], Sequence[Message] | None],
        after: Sequence[int] = (),
        duration: float | Sequence[float] = 1,
    ) -> int:
        """Add an operation, which begins as soon as its lane is free and those that it waits for have ended.

        Args:
            kind: of its work; ``communication`` has a lane of its own.
            run: carries it out; a collective returns its messages.
            after: numbers of the operations that it waits for.
            duration: in units, for all ranks or for each.

        Returns:
            Its number.
        """
        lane = "communication" if kind == "communication" else "compute"
        durations = (float(duration),) * self.ranks if isinstance(duration, int | float) else tuple(duration)
        start = max([self.lanes[lane], *(self.ends[number] for number in after)])
        self.operations.append(Operation(len(self.operations), kind, label, title, durations, start, run))
        self.lanes[lane] = start + max(durations)
        self.ends.append(self.lanes[lane])
        return len(self.operations) - 1

    def ring(self, column: str, label: str, share: float, turns: int = 1) -> list[Message]:
        """Return the messages of an all-gather or reduce-scatter around a ring (of an all-reduce with two *turns*).

        Args:
            share: the part of n that the whole tensor is.
        """
        hops = turns * (self.ranks - 1)
        size, at = hops * share * self.settings.size_bytes / self.ranks, self.columns.index(column)
        return [
            Message(
                source=rank,
                target=(rank + 1) % self.ranks,
                column=at,
                into=at,
                label=label,
                values=(),
                bytes=size,
                count=hops,
                between_nodes=self.settings.node_of(rank) != self.settings.node_of((rank + 1) % self.ranks),
            )
            for rank in range(self.ranks)
        ]

    def steps(self) -> tuple[Step, ...]:
        """Carry out all operations in the order of their times, and return them as steps.

        What is received at the same time as something is computed is there before that is freed.
        """
        steps: list[Step] = []
        for operation in sorted(self.operations, key=_begin):
            before = self._state()
            messages = operation.run() or ()
            lane = "communication" if operation.kind == "communication" else "compute"
            work = tuple(
                Work(rank, lane, operation.kind, operation.label, operation.start, operation.start + duration)
                for rank, duration in enumerate(operation.durations)
                if duration
            )
            end = operation.start + max(operation.durations)
            steps.append(
                Step(
                    len(steps) + 1,
                    operation.kind,
                    f"{operation.label}: {operation.title}",
                    tuple(messages),
                    before,
                    self._state(),
                    work,
                    operation.start,
                    end,
                )
            )
        return tuple(steps)

    def _state(self) -> State:
        return tuple(tuple(row) for row in self.cells)

    def outcome(self, steps: tuple[Step, ...], cost: Cost, checked: str, unit: str) -> Outcome:
        """Return what was recorded."""
        return Outcome(self.columns, steps, cost, checked, unit)


def _begin(operation: Operation) -> tuple[float, bool, int]:
    return operation.start, operation.kind != "communication", operation.number
