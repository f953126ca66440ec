"""A small network that simulations train: layers tanh(x·W), and a loss of half the sum of squares."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dptrace.errors import UsageError
from dptrace.simulate.cluster import Numbers
from dptrace.simulate.settings import Settings

__all__ = ["WIDTH", "backward", "forward", "gradients", "layers_of", "samples", "weights"]

WIDTH = 3
"""Features of every layer."""


def layers_of(settings: Settings, usual: int, most: int) -> int:
    """Return the number of layers that the settings ask for.

    Raises:
        UsageError: it is out of range.
    """
    layers = settings.layers or usual
    if not 1 <= layers <= most:
        raise UsageError(f"--layers {layers}: must be from 1 to {most}.")
    return layers


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
