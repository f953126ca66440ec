"""Fully sharded data parallelism: every rank keeps a shard of each layer, and gathers the layer when it needs it."""

from __future__ import annotations

from functools import partial

import numpy as np

from dptrace.simulate.cluster import Numbers
from dptrace.simulate.costs import cost_of, megabytes
from dptrace.simulate.explanation import Message, Outcome, verify
from dptrace.simulate.group import Group, shards
from dptrace.simulate.parallelism.network import WIDTH, backward, forward, gradients, layers_of, samples, weights
from dptrace.simulate.settings import Settings

__all__ = ["fsdp"]

_LAYERS, _MOST_LAYERS, _SAMPLES, _RATE = 3, 12, 2, 0.1
_UNIT = "the forward, the all-gather or the reduce-scatter of one layer; its backward takes two"

_TRAVELS = (
    "3 times the parameters travel: gathered for forward, gathered for backward, gradients scattered. An all-reduce of "
    "the gradients would be 2 times."
)


class _Sharded:
    """The shards of all ranks, the layers that are gathered at the moment, and the picture of both."""

    def __init__(self, settings: Settings, layers: int) -> None:
        self.settings, self.layers, self.ranks = settings, layers, settings.ranks
        self.shards = [shards(weight, self.ranks) for weight in weights(layers)]
        self.gathered: dict[int, Numbers] = {}
        self.most_gathered = 0
        self.batch = samples(self.ranks, _SAMPLES)
        self.values = [[batch] for batch in self.batch]
        self.flowing: list[Numbers] = []
        self.local: dict[int, list[Numbers]] = {}
        self.reduced: dict[int, list[Numbers]] = {}
        names = [name for layer in range(layers) for name in (f"W{layer}", f"dW{layer}")]
        self.group = Group(settings, names)
        for layer in range(layers):
            self._show_shards(layer)

    def _show_shards(self, layer: int) -> None:
        for rank in range(self.ranks):
            self.group.show(rank, f"W{layer}", f"shard {rank}", "own", self.shards[layer][rank])

    def gather(self, layer: int) -> list[Message]:
        self.gathered[layer] = np.concatenate(self.shards[layer]).reshape(WIDTH, WIDTH)
        self.most_gathered = max(self.most_gathered, len(self.gathered))
        for rank in range(self.ranks):
            self.group.show(rank, f"W{layer}", "whole", "copy", self.gathered[layer])
        return self.group.ring(f"W{layer}", f"shards of W{layer}", 1 / self.layers)

    def _free(self, layer: int) -> None:
        del self.gathered[layer]
        self._show_shards(layer)

    def forward(self, layer: int) -> None:
        for values in self.values:
            values.append(forward(values[layer], self.gathered[layer]))
        self._free(layer)

    def backward(self, layer: int) -> None:
        flowing = self.flowing or [values[-1] for values in self.values]
        found = [
            backward(values[layer], values[layer + 1], self.gathered[layer], gradient)
            for values, gradient in zip(self.values, flowing, strict=True)
        ]
        self.flowing = [of_input for of_input, _ in found]
        self.local[layer] = [of_weights for _, of_weights in found]
        for rank, gradient in enumerate(self.local[layer]):
            self.group.show(rank, f"dW{layer}", "own", "own", gradient)
        self._free(layer)

    def reduce(self, layer: int) -> list[Message]:
        total = sum(self.local[layer][1:], self.local.pop(layer)[0])
        self.reduced[layer] = shards(total / self.ranks, self.ranks)
        for rank, shard in enumerate(self.reduced[layer]):
            self.group.show(rank, f"dW{layer}", f"shard {rank}", "done", shard)
        return self.group.ring(f"dW{layer}", f"shards of dW{layer}", 1 / self.layers)

    def update(self) -> None:
        for layer in range(self.layers):
            for shard, gradient in zip(self.shards[layer], self.reduced[layer], strict=True):
                shard -= _RATE * gradient
            self._show_shards(layer)

    def check(self) -> str:
        start = weights(self.layers)
        for layer, gradient in enumerate(gradients(self.batch.reshape(-1, WIDTH), start)):
            expected = start[layer] - _RATE * gradient / self.ranks
            verify(np.concatenate(self.shards[layer]), expected.ravel(), f"the shards of layer {layer}")
        return "The updated shards, put together, are the weights that NumPy computes from the whole batch at once."


def fsdp(settings: Settings) -> Outcome:
    """All-gather each layer before its forward and before its backward, and reduce-scatter its gradients.

    Raises:
        UsageError: the number of layers is out of range.
    """
    layers = layers_of(settings, _LAYERS, _MOST_LAYERS)
    state = _Sharded(settings, layers)
    _schedule(state)
    steps = state.group.steps()
    hops, size = settings.ranks - 1, settings.size_bytes
    kept = (
        f"A rank keeps {megabytes(size / settings.ranks)} of parameters, and at most {state.most_gathered} whole "
        f"layers, {megabytes(state.most_gathered * size / layers)}: the next is gathered during the compute of one."
    )
    cost = cost_of(
        steps,
        settings,
        "bytes of all parameters",
        "3L(P-1)·alpha + 3(P-1)/P·n·beta for L layers, if nothing hides it",
        [_TRAVELS, kept],
        {"most_gathered_layers": float(state.most_gathered), "units": state.group.lanes["compute"]},
        3 * layers * hops * settings.link.alpha_s + 3 * hops / settings.ranks * size / settings.link.bytes_per_s,
    )
    return state.group.outcome(steps, cost, state.check(), _UNIT)


def _schedule(state: _Sharded) -> None:
    """Add all operations: one layer is gathered ahead, during the compute of the one before it."""
    group, computed = state.group, list[int]()
    for layer in range(state.layers):
        ready = _gather(state, layer, computed[-2:-1])
        title = f"forward of layer {layer}, then free it"
        computed.append(group.add("forward", f"F{layer}", title, partial(state.forward, layer), [ready]))
    pending: list[tuple[int, int]] = []
    for layer in reversed(range(state.layers)):
        last = layer == state.layers - 1
        ready = _gather(state, layer, computed[-1:] if last else computed[-2:-1])
        _reduce(state, pending)
        title = f"backward of layer {layer}, then free it"
        computed.append(group.add("backward", f"B{layer}", title, partial(state.backward, layer), [ready], 2))
        pending.append((layer, computed[-1]))
    _reduce(state, pending)
    group.add("optimizer", "O", "every rank updates its shards", state.update, [len(group.operations) - 1])


def _gather(state: _Sharded, layer: int, after: list[int]) -> int:
    title = f"all-gather of layer {layer}"
    return state.group.add("communication", f"AG{layer}", title, partial(state.gather, layer), after)


def _reduce(state: _Sharded, pending: list[tuple[int, int]]) -> None:
    """Scatter the gradients of layers whose backward is queued."""
    for layer, after in pending:
        title = f"reduce-scatter of the gradients of layer {layer}"
        state.group.add("communication", f"RS{layer}", title, partial(state.reduce, layer), [after])
    pending.clear()
