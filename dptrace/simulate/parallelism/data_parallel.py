"""DistributedDataParallel: gradients fill buckets during backward, and full buckets are all-reduced meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from dptrace.core.units import share as percent
from dptrace.simulate.cluster import Numbers
from dptrace.simulate.costs import cost_of, megabytes
from dptrace.simulate.explanation import Message, Outcome, verify
from dptrace.simulate.group import Group
from dptrace.simulate.parallelism.network import backward, forward, gradients, layers_of, samples, weights
from dptrace.simulate.settings import Settings

__all__ = ["DEFAULT_BUCKET_BYTES", "FIRST_BUCKET_BYTES", "buckets", "ddp"]

DEFAULT_BUCKET_BYTES, FIRST_BUCKET_BYTES = 25 * 2**20, 2**20
"""Sizes at which DDP's buckets are full, and its first bucket, so that communication begins early. With a
``bucket_cap_mb`` of one's own, the first has that limit too (``torch.nn.parallel.distributed``)."""
_LAYERS, _MOST_LAYERS, _SAMPLES = 6, 24, 2
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


class _Replicas:
    """A copy of the network on every rank, each with its own samples."""

    def __init__(self, settings: Settings, layers: int) -> None:
        self.ranks, self.weights = settings.ranks, weights(layers)
        self.batch = samples(settings.ranks, _SAMPLES)
        self.values = [[batch] for batch in self.batch]
        self.flowing: list[Numbers] = []
        self.gradients: list[dict[int, Numbers]] = [{} for _ in range(self.ranks)]

    def forward(self, layer: int) -> None:
        for values in self.values:
            values.append(forward(values[layer], self.weights[layer]))

    def backward(self, layer: int) -> None:
        flowing = self.flowing or [values[-1] for values in self.values]
        found = [
            backward(values[layer], values[layer + 1], self.weights[layer], gradient)
            for values, gradient in zip(self.values, flowing, strict=True)
        ]
        self.flowing = [of_input for of_input, _ in found]
        for rank, (_, of_weights) in enumerate(found):
            self.gradients[rank][layer] = of_weights

    def average(self, bucket: Sequence[int]) -> None:
        for layer in bucket:
            mean = np.mean([of_rank[layer] for of_rank in self.gradients], axis=0)
            for of_rank in self.gradients:
                of_rank[layer] = mean

    def check(self) -> str:
        expected = gradients(self.batch.reshape(-1, self.batch.shape[-1]), self.weights)
        for of_rank in self.gradients:
            for layer, gradient in enumerate(expected):
                verify(of_rank[layer], gradient / self.ranks, f"layer {layer}'s gradient")
        return (
            f"All {self.ranks} ranks end with the same gradients, and they are those that NumPy computes for the whole "
            "batch at once, divided by the number of ranks."
        )


def ddp(settings: Settings) -> Outcome:
    """Overlap the all-reduces of buckets with backward.

    Raises:
        UsageError: the number of layers is out of range.
    """
    layers = layers_of(settings, _LAYERS, _MOST_LAYERS)
    replicas, group = _Replicas(settings, layers), Group(settings, [f"gradient {layer}" for layer in range(layers)])
    for layer in range(layers):
        group.add("forward", f"F{layer}", f"forward of layer {layer}", partial(replicas.forward, layer))
    assigned = buckets(layers, settings.size_bytes / layers, settings.bucket_bytes)
    last_backward = 0
    for number, bucket in enumerate(assigned):
        for layer in bucket:
            last_backward = _add_backward(group, replicas, layer, number)
        _add_all_reduce(group, replicas, bucket, number, last_backward)
    computed, ended = group.ends[last_backward], group.lanes["communication"]
    group.add("optimizer", "O", "every rank updates its copy", lambda: None, [len(group.operations) - 1])
    steps = group.steps()
    exposed, total = ended - computed, 2.0 * layers
    sizes = ", ".join(megabytes(len(bucket) * settings.size_bytes / layers) for bucket in assigned)
    hops, alpha, rate = 2 * (settings.ranks - 1), settings.link.alpha_s, settings.link.bytes_per_s
    limits = "the first is full from 1 MiB on, the others from 25 MiB on, as in DDP by default"
    if settings.bucket_bytes is not None:
        limits = f"each is full from {megabytes(settings.bucket_bytes)} on"
    filled = f"Buckets in the order of backward: {sizes}; {limits}."
    hidden = f"Exposed: {exposed:g} of {total:g} units of communication; {percent(1 - exposed / total)} are hidden."
    cost = cost_of(
        steps,
        settings,
        "bytes of all gradients",
        "2B(P-1)·alpha + 2(P-1)/P·n·beta for B buckets, if nothing hides it",
        [filled, hidden],
        {"buckets": float(len(assigned)), "exposed_units": exposed, "units": group.lanes["compute"]},
        len(assigned) * hops * alpha + hops / settings.ranks * settings.size_bytes / rate,
    )
    return group.outcome(steps, cost, replicas.check(), _UNIT)


def _add_backward(group: Group, replicas: _Replicas, layer: int, bucket: int) -> int:
    def run() -> None:
        replicas.backward(layer)
        for rank in range(group.ranks):
            group.show(rank, f"gradient {layer}", f"bucket {bucket}", "own", replicas.gradients[rank][layer])

    return group.add(
        "backward", f"B{layer}", f"backward of layer {layer}; its gradient fills bucket {bucket}", run, (), 2
    )


def _add_all_reduce(group: Group, replicas: _Replicas, bucket: Sequence[int], number: int, after: int) -> None:
    def run() -> list[Message]:
        replicas.average(bucket)
        for layer in bucket:
            for rank in range(group.ranks):
                group.show(rank, f"gradient {layer}", "average", "done", replicas.gradients[rank][layer])
        share = len(bucket) / len(replicas.weights)
        return group.ring(f"gradient {bucket[0]}", f"bucket {number}", share, turns=2)

    word = "layer" if len(bucket) == 1 else "layers"
    title = f"all-reduce of the gradients of {word} {', '.join(map(str, bucket))}"
    group.add("communication", f"AR{number}", title, run, [after], 2 * len(bucket))
