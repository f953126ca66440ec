"""ZeRO: optimizer states, gradients and parameters divided among the ranks, in three stages."""

from __future__ import annotations

from functools import partial

import numpy as np

from dptrace.errors import UsageError
from dptrace.simulate.cluster import Numbers
from dptrace.simulate.costs import cost_of, megabytes
from dptrace.simulate.explanation import Message, Outcome, verify
from dptrace.simulate.group import Group, shards
from dptrace.simulate.parallelism.network import WIDTH, gradients, samples, weights
from dptrace.simulate.settings import Settings

__all__ = ["OPTIMIZER_BYTES", "state_bytes", "zero"]

OPTIMIZER_BYTES = 12
"""Bytes of Adam in mixed precision for each parameter: master weight, momentum and variance in four bytes each.
Parameter and gradient have two bytes each. (Rajbhandari et al. 2020, section 3.1.)"""
_LAYERS, _SAMPLES = 2, 2
_RATE, _BETA1, _BETA2, _EPSILON = 0.1, 0.9, 0.999, 1e-8
_UNIT = "the forward, or an all-gather or reduce-scatter of all parameters; backward takes two"


def state_bytes(parameters: float, ranks: int, stage: int) -> float:
    """Return the bytes of model state on each rank; stage 0 is plain data parallelism.

    (Rajbhandari et al. 2020, figure 1.)

    >>> [round(state_bytes(7.5e9, 64, stage) / 1e9, 1) for stage in range(4)]
    [120.0, 31.4, 16.6, 1.9]
    """
    parts = ((OPTIMIZER_BYTES, 1), (2, 2), (2, 3))  # optimizer, gradients, parameters, each with its first stage
    return parameters * sum(size / ranks if stage >= first else size for size, first in parts)


class _Partitioned:
    """Flat parameters, of which rank r updates shard r with Adam."""

    def __init__(self, settings: Settings) -> None:
        self.ranks, self.stage = settings.ranks, settings.stage
        self.group = Group(settings, ("parameters", "gradients", "optimizer"))
        self.batch = samples(self.ranks, _SAMPLES)
        start = np.concatenate([weight.ravel() for weight in weights(_LAYERS)])
        self.shards = shards(start, self.ranks)
        self.whole: list[Numbers] = [start.copy() for _ in range(self.ranks)]
        self.local: list[Numbers] = []
        self.reduced: list[Numbers] = []
        for rank in range(self.ranks):
            self.group.show(rank, "optimizer", f"shard {rank}", "own")
        self._show_parameters(whole=self.stage < 3, state="own")

    def _show_parameters(self, whole: bool, state: str) -> None:
        for rank in range(self.ranks):
            shard = self.shards[rank]
            self.group.show(rank, "parameters", "all" if whole else f"shard {rank}", state, None if whole else shard)

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
            layers = [part.reshape(WIDTH, WIDTH) for part in np.split(self.whole[rank], _LAYERS)]
            self.local.append(np.concatenate([one.ravel() for one in gradients(self.batch[rank], layers)]))
            self.group.show(rank, "gradients", "all, own batch", "own", self.local[rank])
        if self.stage == 3:
            self._show_parameters(whole=False, state="own")

    def scatter(self) -> list[Message]:
        self.reduced = shards(np.mean(self.local, axis=0), self.ranks)
        for rank, shard in enumerate(self.reduced):
            label = f"shard {rank}" if self.stage >= 2 else f"shard {rank} summed"
            self.group.show(rank, "gradients", label, "done", shard)
        return self.group.ring("gradients", "shards of the gradients", 1)

    def update(self) -> None:
        for rank, (shard, gradient) in enumerate(zip(self.shards, self.reduced, strict=True)):
            momentum, variance = (1 - _BETA1) * gradient, (1 - _BETA2) * gradient**2
            shard -= _RATE * (momentum / (1 - _BETA1)) / (np.sqrt(variance / (1 - _BETA2)) + _EPSILON)
            self.group.show(rank, "optimizer", f"shard {rank} updated", "done", momentum)
            self.group.show(rank, "parameters", f"shard {rank} updated", "done", shard)

    def check(self) -> str:
        start = weights(_LAYERS)
        flat = np.concatenate([one.ravel() for one in gradients(self.batch.reshape(-1, WIDTH), start)]) / self.ranks
        # The first step of Adam: both averages are unbiased, so that it moves by the rate along the gradient's sign.
        expected = np.concatenate([one.ravel() for one in start]) - _RATE * flat / (np.abs(flat) + _EPSILON)
        verify(np.concatenate(self.shards), expected, "the shards")
        for whole in self.whole if self.stage < 3 else []:
            verify(whole, expected, "the gathered parameters")
        where = "All ranks end with" if self.stage < 3 else "The ranks' shards, put together, are"
        return f"{where} the parameters that one step of Adam with NumPy gives for the whole batch at once."


def zero(settings: Settings) -> Outcome:
    """Divide the optimizer (stage 1), also the gradients (2), also the parameters (3) among the ranks.

    Raises:
        UsageError: there is no such stage.
    """
    stage, ranks, size = settings.stage, settings.ranks, settings.size_bytes
    if stage not in (1, 2, 3):
        raise UsageError(f"--stage {stage}: ZeRO has stages 1, 2 and 3.")
    state = _Partitioned(settings)
    _schedule(state)
    steps = state.group.steps()
    times, hops = 3 if stage == 3 else 2, ranks - 1
    each = [state_bytes(size / 2, ranks, number) for number in range(4)]
    listed = ", ".join(f"{megabytes(one)} in stage {number}" for number, one in enumerate(each[1:], 1))
    cost = cost_of(
        steps,
        settings,
        "bytes of the parameters in 16 bits",
        f"{times}(P-1)·alpha + {times}(P-1)/P·n·beta",
        [
            f"Model state on each rank, with Adam in mixed precision: {megabytes(each[0])} without ZeRO, {listed}.",
            f"{times} times the parameters travel" + (", as in an all-reduce." if times == 2 else ", half more."),
        ],
        {f"state_bytes_stage{number}": one for number, one in enumerate(each)},
        times * (hops * settings.link.alpha_s + hops / ranks * size / settings.link.bytes_per_s),
    )
    return state.group.outcome(steps, cost, state.check(), _UNIT)


def _schedule(state: _Partitioned) -> None:
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
