"""Tensor parallelism: a pair of linear layers, the first split by columns and the second by rows (Megatron-LM)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from dptrace.simulate.cluster import Numbers
from dptrace.simulate.costs import cost_of, megabytes
from dptrace.simulate.explanation import Message, Outcome, verify
from dptrace.simulate.group import Group
from dptrace.simulate.settings import Settings

__all__ = ["sequence_parallel", "tensor_parallel"]

_FEATURES, _INNER = 4, 2
"""Features of a token, and columns of the first layer on each rank."""
_UNIT = "the product of all tokens with a rank's part of one weight"
_COLUMNS = ("X", "H", "Y", "dY", "dH", "dX")
_TWICE = (
    "A transformer layer has two such pairs, attention and MLP: twice as much in all. Nothing hides it, since the next "
    "layer needs the result."
)
_COUNTED = "bytes of the activation, tokens × features"


def _product(x: Numbers, first: Numbers, second: Numbers) -> tuple[Numbers, Numbers]:
    hidden = np.tanh(x @ first)
    return hidden, hidden @ second


class _Split:
    """The two weights in parts, and what every rank computes from its parts."""

    def __init__(self, settings: Settings, by_tokens: bool) -> None:
        self.ranks, self.group, self.by_tokens = settings.ranks, Group(settings, _COLUMNS), by_tokens
        random = np.random.default_rng(0)
        self.x = random.normal(size=(2 * self.ranks, _FEATURES))
        self.first = random.normal(size=(_FEATURES, _INNER * self.ranks))
        self.second = random.normal(size=(_INNER * self.ranks, _FEATURES))
        self.of_y = random.normal(size=self.x.shape)
        self.columns = np.split(self.first, self.ranks, axis=1)
        self.rows = np.split(self.second, self.ranks, axis=0)
        self.result: dict[str, list[Numbers]] = {}
        for name, array in (("X", self.x), ("dY", self.of_y)):
            parts = np.split(array, self.ranks) if by_tokens else [array] * self.ranks
            self._keep(name, parts, "tokens {}" if by_tokens else "all", "own")

    def _keep(self, name: str, parts: Sequence[Numbers], label: str, state: str) -> None:
        self.result[name] = list(parts)
        for rank, part in enumerate(parts):
            self.group.show(rank, name, label.format(rank), state, part)

    def gather(self, name: str) -> list[Message]:
        whole = np.concatenate(self.result[name])
        self._keep(name, [whole] * self.ranks, "all", "copy")
        return self.group.ring(name, f"tokens of {name}", 1)

    def hidden(self) -> None:
        parts = [np.tanh(x @ column) for x, column in zip(self.result["X"], self.columns, strict=True)]
        self._keep("H", parts, "columns {}", "own")

    def output(self) -> None:
        parts = [hidden @ row for hidden, row in zip(self.result["H"], self.rows, strict=True)]
        self._keep("Y", parts, "part {}", "partial")

    def sum(self, name: str) -> list[Message]:
        total = np.sum(self.result[name], axis=0)
        if self.by_tokens:
            self._keep(name, np.split(total, self.ranks), "tokens {}", "done")
            return self.group.ring(name, f"tokens of {name}", 1)
        self._keep(name, [total] * self.ranks, "all", "done")
        return self.group.ring(name, f"partial sums of {name}", 1, turns=2)

    def of_hidden(self) -> None:
        self.of_second = [hidden.T @ of_y for hidden, of_y in self._pairs("H", "dY")]
        inner = [of_y @ row.T for of_y, row in zip(self.result["dY"], self.rows, strict=True)]
        parts = [of_h * (1 - hidden**2) for of_h, hidden in zip(inner, self.result["H"], strict=True)]
        self._keep("dH", parts, "columns {}", "own")

    def of_input(self) -> None:
        self.of_first = [x.T @ of_h for x, of_h in self._pairs("X", "dH")]
        parts = [of_h @ column.T for of_h, column in zip(self.result["dH"], self.columns, strict=True)]
        self._keep("dX", parts, "part {}", "partial")

    def _pairs(self, one: str, other: str) -> zip[tuple[Numbers, Numbers]]:
        return zip(self.result[one], self.result[other], strict=True)

    def check(self) -> str:
        hidden, y = _product(self.x, self.first, self.second)
        of_hidden = (self.of_y @ self.second.T) * (1 - hidden**2)
        expected = {"Y": y, "dX": of_hidden @ self.first.T}
        for name, array in expected.items():
            parts = np.split(array, self.ranks) if self.by_tokens else [array] * self.ranks
            for actual, part in zip(self.result[name], parts, strict=True):
                verify(actual, part, name)
        verify(np.concatenate(self.of_first, axis=1), self.x.T @ of_hidden, "the gradient of the first weight")
        verify(np.concatenate(self.of_second), hidden.T @ self.of_y, "the gradient of the second weight")
        return (
            "The output, the gradient of the input and the gradients of both weights, put together, equal NumPy's for "
            "the weights in one piece."
        )


def tensor_parallel(settings: Settings) -> Outcome:
    """Multiply with columns, then with rows, and all-reduce the partial sums: once in forward, once in backward."""
    return _outcome(settings, by_tokens=False)


def sequence_parallel(settings: Settings) -> Outcome:
    """The same with tokens divided among the ranks before and after: an all-gather and a reduce-scatter each."""
    return _outcome(settings, by_tokens=True)


def _outcome(settings: Settings, by_tokens: bool) -> Outcome:
    split = _Split(settings, by_tokens)
    _schedule(split)
    steps = split.group.steps()
    hops, size = settings.ranks - 1, settings.size_bytes
    times = "2 all-gathers and 2 reduce-scatters" if by_tokens else "2 all-reduces"
    kept = size / settings.ranks if by_tokens else size
    cost = cost_of(
        steps,
        settings,
        _COUNTED,
        f"4(P-1)·alpha + 4(P-1)/P·n·beta, {times}",
        [f"Outside of the two layers a rank keeps {megabytes(kept)} of each activation.", _TWICE],
        None,
        4 * hops * settings.link.alpha_s + 4 * hops / settings.ranks * size / settings.link.bytes_per_s,
    )
    return split.group.outcome(steps, cost, split.check(), _UNIT)


def _schedule(split: _Split) -> None:
    """Add forward, then backward, each of which waits for the one before it."""
    last: list[int] = []

    def add(kind: str, label: str, title: str, run: Callable[[], list[Message] | None]) -> None:
        last[:] = [split.group.add(kind, label, title, run, last)]

    both = (("X", "H", "Y", split.hidden, split.output), ("dY", "dH", "dX", split.of_hidden, split.of_input))
    for kind, (given, inner, result, compute, finish) in zip(("forward", "backward"), both, strict=True):
        forward = kind == "forward"
        if split.by_tokens:
            add("communication", f"AG {given}", f"all-gather of the tokens of {given}", partial(split.gather, given))
        product = "tanh(X·W1), with the rank's columns of W1" if forward else "dY·W2ᵀ, with the rank's rows of W2"
        add(kind, inner, product, compute)
        product = "H·W2, with the rank's rows of W2" if forward else "dH·W1ᵀ, with the rank's columns of W1"
        add(kind, result, f"{product}: a part of the sum", finish)
        name, code = ("reduce-scatter", "RS") if split.by_tokens else ("all-reduce", "AR")
        add("communication", f"{code} {result}", f"{name} of the partial sums of {result}", partial(split.sum, result))
