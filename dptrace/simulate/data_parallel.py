"""Data parallelism, step by step: replicas, ZeRO and sharded parameters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from dptrace.core.units import share as percent
from dptrace.simulate.cluster import Group, Numbers, shards
from dptrace.simulate.explanation import Message, Outcome, Settings, megabytes, verify

# A small network that simulations train: layers tanh(x·W), and a loss of half the sum of squares.


WIDTH = 3
"""Features of every layer."""
_SAMPLES = 2
"""Of each rank."""


def weights(count: int) -> list[Numbers]:
    """Return the weights of *count* layers, always the same."""
    random = np.random.default_rng(0)
    return [random.normal(size=(WIDTH, WIDTH)) for _ in range(count)]


def samples(*shape: int) -> Numbers:
    """Return an array of samples, ``(*shape, WIDTH)``, always the same."""
    return np.random.default_rng(1).normal(size=(*shape, WIDTH))


def forward(x: Numbers, weight: Numbers) -> Numbers:
    """Return a layer's output."""
    return np.asarray(np.tanh(x @ weight))


def backward(x: Numbers, y: Numbers, weight: Numbers, gradient: Numbers) -> tuple[Numbers, Numbers]:
    """Return the gradients of a layer's input and of its weights, from that of its output."""
    inner = gradient * (1 - y**2)
    return inner @ weight.T, x.T @ inner


def gradients(batch: Numbers, layers: Sequence[Numbers]) -> list[Numbers]:
    """Return the gradients of all weights for a whole batch, ``(samples, WIDTH)``: the reference."""
    values = [batch]
    for weight in layers:
        values.append(forward(values[-1], weight))
    gradient, found = values[-1], []
    for layer in reversed(range(len(layers))):
        gradient, of_weights = backward(values[layer], values[layer + 1], layers[layer], gradient)
        found.append(of_weights)
    return found[::-1]


class _Ranks:
    """Ranks with different samples that train one network layer by layer, and the picture of what they hold."""

    def __init__(self, settings: Settings, layers: int, columns: Sequence[str]) -> None:
        self.settings, self.layers, self.ranks = settings, layers, settings.ranks
        self.group = Group(settings, columns)
        self.batch = samples(self.ranks, _SAMPLES)
        self.values = [[batch] for batch in self.batch]
        self.flowing: list[Numbers] = []
        self.local: dict[int, list[Numbers]] = {}
        """By layer, the gradient of each rank for its own samples."""

    def compute_forward(self, layer: int, weight: Numbers) -> None:
        """Append each rank's output of a layer."""
        for values in self.values:
            values.append(forward(values[layer], weight))

    def compute_backward(self, layer: int, weight: Numbers) -> None:
        """Compute each rank's gradient of a layer."""
        flowing = self.flowing or [values[-1] for values in self.values]
        found = [
            backward(values[layer], values[layer + 1], weight, gradient)
            for values, gradient in zip(self.values, flowing, strict=True)
        ]
        self.flowing = [of_input for of_input, _ in found]
        self.local[layer] = [of_weights for _, of_weights in found]

    def expected(self) -> list[Numbers]:
        """Return the mean gradients that NumPy computes for the whole batch at once."""
        return [one / self.ranks for one in gradients(self.batch.reshape(-1, WIDTH), weights(self.layers))]

    def show(self, column: str, label: str, state: str, arrays: Sequence[Numbers]) -> None:
        """Show what each rank holds in a column; the rank's number replaces ``{}`` in the label."""
        for rank, array in enumerate(arrays):
            self.group.show(rank, column, label.format(rank), state, array)


# DistributedDataParallel: gradients fill buckets during backward, and full buckets are all-reduced meanwhile.


DEFAULT_BUCKET_BYTES, FIRST_BUCKET_BYTES = 25 * 2**20, 2**20
"""Sizes at which DDP's buckets are full, and its first bucket, so that communication begins early. With a
``bucket_cap_mb`` of one's own, the first has that limit too (``torch.nn.parallel.distributed``)."""
_LAYERS = 6
"""Where none are asked for."""
_UNIT = "the forward of one layer; its backward takes two, and so does the all-reduce of its gradients"


def buckets(layers: int, layer_bytes: float, bucket_bytes: float | None = None) -> list[list[int]]:
    """Return the layers of each bucket, in the order of backward. A bucket is full from its limit on.

    Args:
        bucket_bytes: the limit; None for DDP's default.

    >>> buckets(6, 10e6), buckets(6, 10e6, 25e6)
    ([[5], [4, 3, 2], [1, 0]], [[5, 4, 3], [2, 1, 0]])
    """
    first, others = (FIRST_BUCKET_BYTES, DEFAULT_BUCKET_BYTES) if bucket_bytes is None else (bucket_bytes,) * 2
    found: list[list[int]] = [[]]
    for layer in reversed(range(layers)):
        found[-1].append(layer)
        if len(found[-1]) * layer_bytes >= (first if len(found) == 1 else others):
            found.append([])
    return [bucket for bucket in found if bucket]


class _Replicas(_Ranks):
    """A copy of the network on every rank."""

    def __init__(self, settings: Settings, layers: int) -> None:
        super().__init__(settings, layers, [f"gradient {layer}" for layer in range(layers)])
        self.weights = weights(layers)

    def forward(self, layer: int) -> None:
        self.compute_forward(layer, self.weights[layer])

    def backward(self, layer: int, bucket: int) -> None:
        self.compute_backward(layer, self.weights[layer])
        self.show(f"gradient {layer}", f"bucket {bucket}", "own", self.local[layer])

    def average(self, bucket: Sequence[int], number: int) -> list[Message]:
        for layer in bucket:
            self.local[layer] = [np.mean(self.local[layer], axis=0)] * self.ranks
            self.show(f"gradient {layer}", "average", "done", self.local[layer])
        return self.group.ring(f"gradient {bucket[0]}", f"bucket {number}", len(bucket) / self.layers, turns=2)

    def check(self) -> str:
        for layer, expected in enumerate(self.expected()):
            for gradient in self.local[layer]:
                verify(gradient, expected, f"layer {layer}'s gradient")
        return (
            f"All {self.ranks} ranks end with the same gradients, and they are those that NumPy computes for the whole "
            "batch at once, divided by the number of ranks."
        )


def _ddp(settings: Settings) -> Outcome:
    """Overlap the all-reduces of buckets with backward."""
    layers = settings.layers or _LAYERS
    replicas = _Replicas(settings, layers)
    group = replicas.group
    for layer in range(layers):
        group.add("forward", f"F{layer}", f"forward of layer {layer}", partial(replicas.forward, layer))
    assigned = buckets(layers, settings.size_bytes / layers, settings.bucket_bytes)
    last_backward = 0
    for number, bucket in enumerate(assigned):
        for layer in bucket:
            title = f"backward of layer {layer}; its gradient fills bucket {number}"
            run = partial(replicas.backward, layer, number)
            last_backward = group.add("backward", f"B{layer}", title, run, (), 2)
        title = f"all-reduce of the gradients of {'layer' if len(bucket) == 1 else 'layers'} "
        title += ", ".join(map(str, bucket))
        average = partial(replicas.average, bucket, number)
        group.add("communication", f"AR{number}", title, average, [last_backward], 2 * len(bucket))
    computed, ended = group.ends[last_backward], group.lanes["communication"]
    group.add("optimizer", "O", "every rank updates its copy", lambda: None, [len(group.operations) - 1])
    steps = group.steps()
    exposed, total = ended - computed, 2.0 * layers
    sizes = ", ".join(megabytes(len(bucket) * settings.size_bytes / layers) for bucket in assigned)
    limits = "the first is full from 1 MiB on, the others from 25 MiB on, as in DDP by default"
    if settings.bucket_bytes is not None:
        limits = f"each is full from {megabytes(settings.bucket_bytes)} on"
    filled = f"Buckets in the order of backward: {sizes}; {limits}."
    hidden = f"Exposed: {exposed:g} of {total:g} units of communication; {percent(1 - exposed / total)} are hidden."
    return group.outcome(
        steps,
        replicas.check(),
        _UNIT,
        "bytes of all gradients",
        "2B(P-1)·alpha + 2(P-1)/P·n·beta for B buckets, if nothing hides it",
        [filled, hidden],
        {"buckets": float(len(assigned)), "exposed_units": exposed, "units": group.lanes["compute"]},
        group.ring_seconds(2 * len(assigned), 2),
    )


# Fully sharded data parallelism: every rank keeps a shard of each layer, and gathers the layer when it needs it.


_SHARDED_LAYERS, _RATE = 3, 0.1
"""Layers, where none are asked for, and the learning rate."""
_SHARDED_UNIT = "the forward, the all-gather or the reduce-scatter of one layer; its backward takes two"

_TRAVELS = (
    "3 times the parameters travel: gathered for forward, gathered for backward, gradients scattered. An all-reduce of "
    "the gradients would be 2 times."
)


class _Sharded(_Ranks):
    """The shards of all ranks, and the layers that are gathered at the moment."""

    def __init__(self, settings: Settings, layers: int) -> None:
        super().__init__(settings, layers, [name for n in range(layers) for name in (f"W{n}", f"dW{n}")])
        self.shards = [shards(weight, self.ranks) for weight in weights(layers)]
        self.gathered: dict[int, Numbers] = {}
        self.most_gathered = 0
        self.reduced: dict[int, list[Numbers]] = {}
        for layer in range(layers):
            self._show_shards(layer)

    def _show_shards(self, layer: int) -> None:
        self.show(f"W{layer}", "shard {}", "own", self.shards[layer])

    def gather(self, layer: int) -> list[Message]:
        self.gathered[layer] = np.concatenate(self.shards[layer]).reshape(WIDTH, WIDTH)
        self.most_gathered = max(self.most_gathered, len(self.gathered))
        self.show(f"W{layer}", "whole", "copy", [self.gathered[layer]] * self.ranks)
        return self.group.ring(f"W{layer}", f"shards of W{layer}", 1 / self.layers)

    def forward(self, layer: int) -> None:
        self.compute_forward(layer, self.gathered.pop(layer))
        self._show_shards(layer)

    def backward(self, layer: int) -> None:
        self.compute_backward(layer, self.gathered.pop(layer))
        self.show(f"dW{layer}", "own", "own", self.local[layer])
        self._show_shards(layer)

    def reduce(self, layer: int) -> list[Message]:
        self.reduced[layer] = shards(np.mean(self.local.pop(layer), axis=0), self.ranks)
        self.show(f"dW{layer}", "shard {}", "done", self.reduced[layer])
        return self.group.ring(f"dW{layer}", f"shards of dW{layer}", 1 / self.layers)

    def update(self) -> None:
        for layer in range(self.layers):
            for shard, gradient in zip(self.shards[layer], self.reduced[layer], strict=True):
                shard -= _RATE * gradient
            self._show_shards(layer)

    def check(self) -> str:
        for layer, (start, gradient) in enumerate(zip(weights(self.layers), self.expected(), strict=True)):
            expected = start - _RATE * gradient
            verify(np.concatenate(self.shards[layer]), expected.ravel(), f"the shards of layer {layer}")
        return "The updated shards, put together, are the weights that NumPy computes from the whole batch at once."


def _fsdp(settings: Settings) -> Outcome:
    """All-gather each layer before its forward and before its backward, and reduce-scatter its gradients."""
    layers = settings.layers or _SHARDED_LAYERS
    state = _Sharded(settings, layers)
    _schedule(state)
    steps = state.group.steps()
    size = settings.size_bytes
    kept = (
        f"A rank keeps {megabytes(size / settings.ranks)} of parameters, and at most {state.most_gathered} whole "
        f"layers, {megabytes(state.most_gathered * size / layers)}: the next is gathered during the compute of one."
    )
    return state.group.outcome(
        steps,
        state.check(),
        _SHARDED_UNIT,
        "bytes of all parameters",
        "3L(P-1)·alpha + 3(P-1)/P·n·beta for L layers, if nothing hides it",
        [_TRAVELS, kept],
        {"most_gathered_layers": float(state.most_gathered), "units": state.group.lanes["compute"]},
        state.group.ring_seconds(3 * layers, 3),
    )


def _schedule(state: _Sharded) -> None:
    """Add all operations: one layer is gathered ahead, during the compute of the one before it."""
    group, computed = state.group, list[int]()

    def gather(layer: int, after: list[int]) -> int:
        title = f"all-gather of layer {layer}"
        return group.add("communication", f"AG{layer}", title, partial(state.gather, layer), after)

    def reduce(layer: int, after: int) -> None:
        title = f"reduce-scatter of the gradients of layer {layer}"
        group.add("communication", f"RS{layer}", title, partial(state.reduce, layer), [after])

    for layer in range(state.layers):
        ready, title = gather(layer, computed[-2:-1]), f"forward of layer {layer}, then free it"
        computed.append(group.add("forward", f"F{layer}", title, partial(state.forward, layer), [ready]))
    for layer in reversed(range(state.layers)):
        last = layer == state.layers - 1
        ready, title = gather(layer, computed[-1:] if last else computed[-2:-1]), f"backward of layer {layer}, "
        if not last:
            reduce(layer + 1, computed[-1])
        run = partial(state.backward, layer)
        computed.append(group.add("backward", f"B{layer}", f"{title}then free it", run, [ready], 2))
    reduce(0, computed[-1])
    group.add("optimizer", "O", "every rank updates its shards", state.update, [len(group.operations) - 1])


# ZeRO: optimizer states, gradients and parameters divided among the ranks, in three stages.


OPTIMIZER_BYTES = 12
"""Bytes of Adam in mixed precision for each parameter: master weight, momentum and variance in four bytes each.
Parameter and gradient have two bytes each. (Rajbhandari et al. 2020, section 3.1.)"""
_ZERO_LAYERS = 2
"""Of the model whose optimizer is split."""
_ZERO_RATE, _BETA1, _BETA2, _EPSILON = 0.1, 0.9, 0.999, 1e-8
"""Adam's usual constants, and a learning rate."""
_ZERO_UNIT = "the forward, or an all-gather or reduce-scatter of all parameters; backward takes two"


def state_bytes(parameters: float, ranks: int, stage: int) -> float:
    """Return the bytes of model state on each rank; stage 0 is plain data parallelism.

    (Rajbhandari et al. 2020, figure 1.)

    >>> [round(state_bytes(7.5e9, 64, stage) / 1e9, 1) for stage in range(4)]
    [120.0, 31.4, 16.6, 1.9]
    """
    parts = ((OPTIMIZER_BYTES, 1), (2, 2), (2, 3))  # optimizer, gradients, parameters, each with its first stage
    return parameters * sum(size / ranks if stage >= first else size for size, first in parts)


class _Partitioned(_Ranks):
    """Flat parameters, of which rank r updates shard r with Adam."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, _ZERO_LAYERS, ("parameters", "gradients", "optimizer"))
        self.stage = settings.stage
        start = np.concatenate([weight.ravel() for weight in weights(_ZERO_LAYERS)])
        self.shards = shards(start, self.ranks)
        self.whole: list[Numbers] = [start.copy() for _ in range(self.ranks)]
        self.own: list[Numbers] = []
        self.reduced: list[Numbers] = []
        for rank in range(self.ranks):
            self.group.show(rank, "optimizer", f"shard {rank}", "own")
        self._show_parameters(whole=self.stage < 3, state="own")

    def _show_parameters(self, whole: bool, state: str) -> None:
        if not whole:
            self.show("parameters", "shard {}", state, self.shards)
        for rank in range(self.ranks if whole else 0):
            self.group.show(rank, "parameters", "all", state)

    def gather(self, updated: bool = False) -> list[Message]:
        self.whole = [np.concatenate(self.shards) for _ in range(self.ranks)]
        self._show_parameters(whole=True, state="done" if updated else "copy")
        return self.group.ring("parameters", "shards of the parameters", 1)

    def forward(self) -> None:
        """Compute only in :meth:`backward`; what matters here is what is freed."""
        if self.stage == 3:
            self._show_parameters(whole=False, state="own")

    def backward(self) -> None:
        for rank in range(self.ranks):
            layers = [part.reshape(WIDTH, WIDTH) for part in np.split(self.whole[rank], _ZERO_LAYERS)]
            self.own.append(np.concatenate([one.ravel() for one in gradients(self.batch[rank], layers)]))
        self.show("gradients", "all, own batch", "own", self.own)
        if self.stage == 3:
            self._show_parameters(whole=False, state="own")

    def scatter(self) -> list[Message]:
        self.reduced = shards(np.mean(self.own, axis=0), self.ranks)
        self.show("gradients", "shard {}" if self.stage >= 2 else "shard {} summed", "done", self.reduced)
        return self.group.ring("gradients", "shards of the gradients", 1)

    def update(self) -> None:
        for rank, (shard, gradient) in enumerate(zip(self.shards, self.reduced, strict=True)):
            momentum, variance = (1 - _BETA1) * gradient, (1 - _BETA2) * gradient**2
            shard -= _ZERO_RATE * (momentum / (1 - _BETA1)) / (np.sqrt(variance / (1 - _BETA2)) + _EPSILON)
            self.group.show(rank, "optimizer", f"shard {rank} updated", "done", momentum)
            self.group.show(rank, "parameters", f"shard {rank} updated", "done", shard)

    def check(self) -> str:
        start = weights(_ZERO_LAYERS)
        flat = np.concatenate([one.ravel() for one in self.expected()])
        # The first step of Adam: both averages are unbiased, so that it moves by the rate along the gradient's sign.
        expected = np.concatenate([one.ravel() for one in start]) - _ZERO_RATE * flat / (np.abs(flat) + _EPSILON)
        verify(np.concatenate(self.shards), expected, "the shards")
        for whole in self.whole if self.stage < 3 else []:
            verify(whole, expected, "the gathered parameters")
        where = "All ranks end with" if self.stage < 3 else "The ranks' shards, put together, are"
        return f"{where} the parameters that one step of Adam with NumPy gives for the whole batch at once."


def _zero(settings: Settings) -> Outcome:
    """Divide the optimizer (stage 1), also the gradients (2), also the parameters (3) among the ranks."""
    stage, ranks, size = settings.stage, settings.ranks, settings.size_bytes
    state = _Partitioned(settings)
    _zero_schedule(state)
    steps = state.group.steps()
    times = 3 if stage == 3 else 2
    each = [state_bytes(size / 2, ranks, number) for number in range(4)]
    listed = ", ".join(f"{megabytes(one)} in stage {number}" for number, one in enumerate(each[1:], 1))
    return state.group.outcome(
        steps,
        state.check(),
        _ZERO_UNIT,
        "bytes of the parameters in 16 bits",
        f"{times}(P-1)·alpha + {times}(P-1)/P·n·beta",
        [
            f"Model state on each rank, with Adam in mixed precision: {megabytes(each[0])} without ZeRO, {listed}.",
            f"{times} times the parameters travel" + (", as in an all-reduce." if times == 2 else ", half more."),
        ],
        {f"state_bytes_stage{number}": one for number, one in enumerate(each)},
        state.group.ring_seconds(times, times),
    )


def _zero_schedule(state: _Partitioned) -> None:
    """Add one step of training, in which everything waits for what came before."""
    group, last = state.group, list[int]()
    if state.stage == 3:
        last = [group.add("communication", "AG", "all-gather of the parameters for forward", state.gather)]
    freed = ", then free all but the shard" if state.stage == 3 else ""
    last = [group.add("forward", "F", f"forward{freed}", state.forward, last)]
    if state.stage == 3:
        last = [group.add("communication", "AG", "all-gather of the parameters for backward", state.gather, last)]
    last = [group.add("backward", "B", f"backward{freed}", state.backward, last, 2)]
    freed = "" if state.stage == 1 else ", then free all but the shard"
    title = f"reduce-scatter of the gradients{freed}"
    last = [group.add("communication", "RS", title, state.scatter, last)]
    last = [
        group.add("optimizer", "O", "each rank updates its shard with its shard of Adam's state", state.update, last)
    ]
    if state.stage < 3:
        group.add("communication", "AG", "all-gather of the updated parameters", partial(state.gather, True), last)


def simulate(name: str, settings: Settings) -> Outcome:
    """Carry out ``ddp-buckets``, ``fsdp`` or ``zero``."""
    return {"ddp-buckets": _ddp, "fsdp": _fsdp, "zero": _zero}[name](settings)
