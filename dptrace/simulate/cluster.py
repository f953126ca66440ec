"""Ranks with chunks of arrays that send each other messages, in steps of messages that travel at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dptrace.simulate.explanation import Cell, Cost, Message, Outcome, Settings, State, Step, Work, cost_of, letter

Numbers = NDArray[np.float64]

_EMPTY = Cell("", "empty", (), 0)


class HeldChunk(NamedTuple):
    """A chunk that a rank holds: whose it is, and its numbers."""

    chunk: int
    numbers: Numbers
    """``(1 + ranks, width)``. Row 0 has the values. Row 1 + r has ones where the data of rank r is contained.

    Both are moved and added together, so that the label of a cell is computed from what arrived there. Example with
    two ranks: A0 = [[10], [1], [0]] plus B0 = [[20], [0], [1]] is [[30], [1], [1]]: the value 30, labelled A0+B0.
    """

    @property
    def values(self) -> tuple[float, ...]:
        """The values alone."""
        return tuple(map(float, self.numbers[0]))

    @property
    def origins(self) -> list[int]:
        """The ranks whose data it contains."""
        return [rank for rank, row in enumerate(self.numbers[1:]) if row.any()]

    @property
    def label(self) -> str:
        """The content by origin: ``A0+B0``."""
        return "+".join(f"{letter(rank)}{self.chunk}" for rank in self.origins)


class Transfer(NamedTuple):
    """A message to send: columns of one rank, into the same columns of another unless *into* says otherwise."""

    source: int
    target: int
    columns: Sequence[int]
    adds: bool = False
    into: int | None = None


class Plan:
    """The messages of a collective, in steps of messages that travel at the same time.

    Args:
        columns: the chunks that a tensor is divided into.
        node_size: ranks of a node; all are on one node without it.
    """

    def __init__(self, ranks: int, columns: int, node_size: int | None = None) -> None:
        self.ranks, self.columns, self.node_size = ranks, columns, node_size
        self.transfers: list[Sequence[Transfer]] = []

    def step(self, phase: str, title: str, transfers: Sequence[Transfer], text: str = "") -> None:
        """Let messages travel at the same time: all are read before any arrives."""
        self.transfers.append(transfers)


class Cluster(Plan):
    """The ranks of a collective. Rank r begins with some of its chunks; the steps move and add them."""

    def __init__(self, settings: Settings, columns: int, chunks: int | None = None, width: int = 1) -> None:
        super().__init__(settings.ranks, columns, settings.node_size)
        self.settings = settings
        self.chunk_bytes = settings.size_bytes / (chunks or columns)
        self.width = width
        self.held: list[dict[int, HeldChunk]] = [{} for _ in range(self.ranks)]
        self.steps: list[Step] = []
        self._drawn: dict[tuple[int, int], tuple[HeldChunk, Cell]] = {}
        self.complete = self.ranks
        """How many ranks' data make a result."""
        self.copies_are_results = False
        """Whether another rank's data is a result by itself, as in a broadcast."""

    def fill(self, rank: int, columns: Sequence[int], chunks: Sequence[int] | None = None) -> None:
        """Fill a rank with its own data: in chunk c the values 10(rank + 1) + c, 0.01 more for each element after."""
        for column, chunk in zip(columns, chunks or columns, strict=True):
            numbers = np.zeros((1 + self.ranks, self.width))
            numbers[0] = 10 * (rank + 1) + chunk + 0.01 * np.arange(self.width)
            numbers[1 + rank] = 1
            self.held[rank][column] = HeldChunk(chunk, numbers)

    def vectors(self) -> list[Numbers]:
        """Return each rank's values, one row per column; zeros where it holds nothing."""
        empty = np.zeros(self.width)
        return [np.array([h[c].numbers[0] if c in h else empty for c in range(self.columns)]) for h in self.held]

    def step(self, phase: str, title: str, transfers: Sequence[Transfer], text: str = "") -> None:
        """Carry the messages out, and record what they change."""
        before = self.steps[-1].after if self.steps else self.state()
        sent = [[self.held[t.source][column] for column in t.columns] for t in transfers]
        messages = [self._message(t, chunks) for t, chunks in zip(transfers, sent, strict=True)]
        for transfer, chunks in zip(transfers, sent, strict=True):
            first = transfer.columns[0] if transfer.into is None else transfer.into
            for offset, chunk in zip(transfer.columns, chunks, strict=True):
                column = first + offset - transfer.columns[0]
                self._receive(transfer.target, column, chunk, transfer.adds)
        self.steps.append(
            Step(len(self.steps) + 1, phase, title, tuple(messages), before, self.state(), text=text or None)
        )

    def _receive(self, rank: int, column: int, chunk: HeldChunk, adds: bool) -> None:
        held = self.held[rank].get(column)
        if adds and held is not None:
            if held.chunk != chunk.chunk:
                raise AssertionError(f"chunk {chunk.chunk} is added to chunk {held.chunk}")
            chunk = HeldChunk(chunk.chunk, held.numbers + chunk.numbers)
        self.held[rank][column] = chunk

    def _message(self, transfer: Transfer, chunks: Sequence[HeldChunk]) -> Message:
        first = transfer.columns[0]
        return self.settings.message(
            transfer.source,
            transfer.target,
            " ".join(chunk.label for chunk in chunks),
            len(chunks) * self.chunk_bytes,
            column=first,
            into=first if transfer.into is None else transfer.into,
            values=tuple(value for chunk in chunks for value in chunk.values),
            adds=transfer.adds,
            columns=len(chunks),
        )

    def state(self) -> State:
        """Return what each rank holds."""
        return tuple(tuple(self._cell(rank, column) for column in range(self.columns)) for rank in range(self.ranks))

    def _cell(self, rank: int, column: int) -> Cell:
        """Return the cell of what a rank holds in a column; the last one again if it has not changed."""
        held = self.held[rank].get(column)
        if held is None:
            return _EMPTY
        drawn = self._drawn.get((rank, column))
        if drawn is None or drawn[0] is not held:
            drawn = self._drawn[rank, column] = (held, self._cell_of(rank, held))
        return drawn[1]

    def _cell_of(self, rank: int, held: HeldChunk) -> Cell:
        origins = held.origins
        if len(origins) == self.complete and self.complete > 1:
            state = "done"
        elif len(origins) > 1:
            state = "partial"
        else:
            state = "own" if origins == [rank] else "done" if self.copies_are_results else "copy"
        return Cell(held.label, state, held.values, len(origins))

    def outcome(self, cost: Cost, checked: str, columns: Sequence[str] = ()) -> Outcome:
        """Return what was recorded; the columns are chunks unless they have other names."""
        chunks = [f"chunk {chunk}" for chunk in range(self.columns)] if self.columns > 1 else ["tensor"]
        return Outcome(columns=tuple(columns or chunks), steps=tuple(self.steps), cost=cost, checked=checked)


# Ranks that compute and communicate at the same time: operations with their times, carried out in that order.


Run = Callable[[], Sequence[Message] | None]
"""Carries an operation out; a collective returns its messages."""


class Operation(NamedTuple):
    """What all ranks do at once: compute, or a collective."""

    number: int
    kind: str
    label: str
    title: str
    durations: tuple[float, ...]
    start: float
    run: Run


def shards(array: Numbers, ranks: int) -> list[Numbers]:
    """Divide an array into one flat shard for each rank."""
    return [np.array(part) for part in np.array_split(array.ravel(), ranks)]


class Group:
    """The ranks of a way to train. Compute and communication each take place one after the other, on a lane each."""

    def __init__(self, settings: Settings, columns: Sequence[str]) -> None:
        self.settings, self.ranks, self.columns = settings, settings.ranks, tuple(columns)
        self.cells: list[list[Cell]] = [[_EMPTY] * len(self.columns) for _ in range(self.ranks)]
        self.operations: list[Operation] = []
        self.ends: list[float] = []
        self.lanes = {"compute": 0.0, "communication": 0.0}

    def show(self, rank: int, column: str, label: str, state: str, array: Numbers | None = None) -> None:
        """Set what a rank holds in a column."""
        values = () if array is None else tuple(float(value) for value in array.ravel()[:8])
        self.cells[rank][self.columns.index(column)] = Cell(label, state, values)

    def add(
        self,
        kind: str,
        label: str,
        title: str,
        run: Run,
        after: Sequence[int] = (),
        duration: float | Sequence[float] = 1,
    ) -> int:
        """Add an operation, which begins as soon as its lane is free and those that it waits for have ended.

        Args:
            kind: of its work; ``communication`` has a lane of its own.
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
        pairs = [(rank, (rank + 1) % self.ranks) for rank in range(self.ranks)]
        return [self.settings.message(*pair, label, size, column=at, count=hops) for pair in pairs]

    def steps(self) -> tuple[Step, ...]:
        """Carry out all operations in the order of their times, and return them as steps.

        What is received at the same time as something is computed is there before that is freed.
        """
        steps: list[Step] = []
        for operation in sorted(self.operations, key=lambda one: (one.start, one.kind != "communication", one.number)):
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

    def ring_seconds(self, rings: int, tensors: float) -> float:
        """Return the time of as many rings, which carry as many tensors of n bytes in all, if nothing hides it."""
        hops, link = self.ranks - 1, self.settings.link
        return rings * hops * link.alpha_s + tensors * hops / self.ranks * self.settings.size_bytes / link.bytes_per_s

    def outcome(
        self,
        steps: tuple[Step, ...],
        checked: str,
        unit: str,
        counted: str,
        formula: str,
        sentences: Sequence[str],
        figures: dict[str, float] | None = None,
        expected_s: float | None = None,
    ) -> Outcome:
        """Return what was recorded, and its cost; see :func:`cost_of`."""
        cost = cost_of(steps, self.settings, counted, formula, sentences, figures, expected_s)
        return Outcome(columns=self.columns, steps=steps, cost=cost, checked=checked, unit=unit)
