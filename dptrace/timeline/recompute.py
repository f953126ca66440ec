"""Forward work repeated in backward since its results were discarded: activation checkpointing.

Reentrant checkpointing repeats it in an autograd function, ``CheckpointFunctionBackward``, and runs its backward in
nodes nested in that. Otherwise it is repeated where the first discarded tensor is needed: at the start of an ordinary
node, such as ``ReluBackward0``, before the node's own work. Operators that modules call and derivatives do not show it.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64
from dptrace.readers.trace import Category, Trace
from dptrace.timeline.launches import last_enclosing
from dptrace.timeline.phases import WRAPPER

__all__ = ["is_recomputed"]

_REENTRANT = "CheckpointFunctionBackward"
# torch numbers the nodes that it generates. A node without a number is a user's autograd function, whose backward may
# call linear() for its own purpose, so it is not classified.
_GENERATED = re.compile(r"Backward\d+$")
# Derivatives, second ones too, use the operators below these (convolution, mm, native_layer_norm).
_FORWARD = {
    *(f"aten::conv{kind}{d}d" for kind in ("", "_transpose") for d in (1, 2, 3)),
    *(f"aten::{kind}_norm" for kind in ("batch", "layer", "group", "instance", "rms")),
    *(f"aten::{name}" for name in ("linear", "bilinear", "embedding", "embedding_bag", "lstm", "gru")),
    *(f"aten::{name}" for name in ("relu", "relu_", "gelu", "silu", "silu_", "dropout", "dropout_")),
    *(f"aten::{name}" for name in ("scaled_dot_product_attention", "max_pool1d", "max_pool2d", "max_pool3d")),
}
_COMPILED = "CompiledFunction"
"""The forward graph of a compiled module."""


def is_recomputed(trace: Trace, thread: NDArray[np.int32], time: Int64) -> NDArray[np.bool_]:
    """Return whether the work launched at each (thread, time) is forward work repeated in backward.

    Errs on the side of too little: work of a block after the last operator that shows it is not counted, nor is what a
    compiled backward graph repeats within itself.
    """
    ops = trace.category == Category.CPU_OP
    forward = np.array([name in _FORWARD or name == _COMPILED for name in trace.names], np.bool_)
    reentrant = np.array([name.startswith(WRAPPER) and name.endswith(_REENTRANT) for name in trace.names], np.bool_)
    nodes = ops & trace.named(WRAPPER)
    checkpoint = nodes & trace.events_named(reentrant)
    again = np.flatnonzero(ops & trace.events_named(forward))
    inside = last_enclosing(trace, nodes, trace.thread[again], trace.start_ns[again])
    generated = np.array([bool(_GENERATED.search(name)) for name in trace.names], np.bool_)
    shown = (inside >= 0) & (
        trace.events_named(generated)[inside] | (trace.events_named(forward) & trace.named(_COMPILED))[again]
    )
    if not (checkpoint.any() or shown.any()):
        return np.zeros(len(time), np.bool_)
    until = np.full(len(trace), np.iinfo(np.int64).min)
    until[checkpoint] = trace.end_ns[checkpoint]
    np.maximum.at(until, inside[shown], trace.end_ns[again[shown]])
    node = last_enclosing(trace, nodes, thread, time)
    return (node >= 0) & (time <= until[node])
