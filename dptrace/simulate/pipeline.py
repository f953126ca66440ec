"""Pipelines: who runs which micro-batch when, carried out on a network of real layers.

Every rank holds one chunk of layers, or several. A layer computes tanh(x·W) in forward; backward computes the gradients
of its input and of W. The gradients that the ranks accumulate over the micro-batches are compared with those that NumPy
computes for the whole batch at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dptrace.core.units import plural, share
from dptrace.errors import UsageError
from dptrace.simulate.cluster import Numbers
from dptrace.simulate.data_parallel import WIDTH, gradients
from dptrace.simulate.explanation import Cost, Message, Outcome, Settings, Step, Time, Work, cost_of, megabytes, verify

# The order in which each rank of a pipeline runs its micro-batches, by schedule.


class Action(NamedTuple):
    """One micro-batch on one chunk of layers of a rank."""

    kind: str
    """``forward``; ``backward`` (with *split_backward* of its input only); ``weight``, the gradient of the weights."""
    micro: int
    chunk: int = 0


Order = list[Action]
_LETTERS = {"forward": "F", "backward": "B", "weight": "W"}
_KINDS = {letter: kind for kind, letter in _LETTERS.items()}


def gpipe_order(rank: int, ranks: int, micro_batches: int, chunks: int) -> Order:
    """All forwards, then all backwards. (Huang et al. 2019.)"""
    forwards = [Action("forward", micro) for micro in range(micro_batches)]
    return forwards + [Action("backward", micro) for micro in range(micro_batches)]


def one_f_one_b_order(rank: int, ranks: int, micro_batches: int, chunks: int) -> Order:
    """One forward for each rank that follows, then a forward and a backward in turn. (Narayanan et al. 2019.)

    >>> "".join(f"{action.kind[0]}{action.micro} " for action in one_f_one_b_order(1, 3, 4, 1))
    'f0 f1 b0 f2 b1 f3 b2 b3 '
    """
    return _alternating(
        [Action("forward", m) for m in range(micro_batches)],
        [Action("backward", m) for m in range(micro_batches)],
        ranks - rank - 1,
    )


def interleaved_order(rank: int, ranks: int, micro_batches: int, chunks: int) -> Order:
    """1F1B over several chunks of layers per rank: P micro-batches on one chunk, then P on the next.

    (Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM".)
    """
    forwards, backwards = [], []
    for k in range(micro_batches * chunks):
        micro = k // (ranks * chunks) * ranks + k % ranks
        chunk = k // ranks % chunks
        forwards.append(Action("forward", micro, chunk))
        backwards.append(Action("backward", micro, chunks - 1 - chunk))
    return _alternating(forwards, backwards, 2 * (ranks - rank - 1) + (chunks - 1) * ranks)


def _alternating(forwards: Order, backwards: Order, warm_up: int) -> Order:
    """Put *warm_up* forwards first, then a forward and a backward in turn, then the backwards that are left."""
    ahead = min(warm_up, len(forwards))
    order = forwards[:ahead]
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        order += [forward, backward]
    return order + backwards[len(forwards) - ahead :]


def zero_bubble_order(rank: int, ranks: int, micro_batches: int, chunks: int) -> Order:
    """1F1B whose backward is split: the gradient of the weights is postponed, by *rank* micro-batches, to fill gaps.

    This is ZB-H1, which holds no more activations than 1F1B. (Qi et al. 2023, "Zero Bubble Pipeline Parallelism".)
    """
    order = [Action("forward", micro) for micro in range(ranks - rank)]
    forwards = iter(range(ranks - rank, micro_batches))
    for micro in range(micro_batches):
        order.append(Action("backward", micro))
        if micro >= rank:
            order.append(Action("weight", micro - rank))
        order += [Action("forward", following) for following in [next(forwards, None)] if following is not None]
    return order + [Action("weight", micro) for micro in range(micro_batches - rank, micro_batches)]


class _Written:
    """An order that is written down as kinds and chunks, of which each takes its next micro-batch."""

    def __init__(self, first: tuple[int, int] = (0, 0)) -> None:
        self.order: Order = []
        self.following = {(kind, chunk): first[chunk] for kind in _LETTERS for chunk in (0, 1)}

    def add(self, times: int, letters: str, *chunks: int) -> None:
        for letter, chunk in zip(letters * times, chunks * times, strict=True):
            key = (_KINDS[letter], chunk)
            self.order.append(Action(key[0], self.following[key], chunk))
            self.following[key] += 1


def zb_v_order(rank: int, ranks: int, micro_batches: int, chunks: int) -> Order:
    """Zero-bubble in a V: rank r has the stages r and 2P-1-r, so the last one turns at once, and none waits in between.

    It holds no more activations than 1F1B. (Qi et al. 2024, "Pipeline Parallelism with Controllable Memory", ZB-V;
    torch.distributed.pipelining has the same order.)
    """
    written, after = _Written(), ranks - rank
    written.add(2 * after - 1, "F", 0)
    written.add(rank, "FF", 1, 0)
    written.add(after, "FBW", 1, 1, 1)
    written.add(micro_batches - ranks - after + 1, "FBWFBW", 0, 0, 0, 1, 1, 1)
    written.add(after - 1, "BWFBW", 0, 0, 1, 1, 1)
    written.add(rank, "BB", 0, 1)
    written.add(after, "BW", 0, 0)
    written.add(rank, "W", 1)
    written.add(rank, "W", 0)
    return written.order


def dualpipe_order(rank: int, ranks: int, micro_batches: int, chunks: int) -> Order:
    """Two pipelines in opposite directions, each with half of the micro-batches: rank r has the stages r and P-1-r.

    The parameters are there twice. (DeepSeek-V3, arXiv 2412.19437, section 3.2.1; deepseek-ai/DualPipe.)
    """
    half, from_end = micro_batches // 2, min(rank, ranks - 1 - rank)
    own, other = (0, 1) if rank < ranks // 2 else (1, 0)
    written, inner, outer = _Written((0, half)), ranks // 2 - from_end - 1, from_end + 1
    written.add(2 * inner, "F", own)
    written.add(outer, "FF", own, other)
    written.add(inner, "BWF", other, other, other)
    written.add(half - ranks + outer, "FBWFBW", own, other, other, other, own, own)
    written.add(inner, "BWFBW", other, other, other, own, own)
    last = [other, own] * outer
    for chunk in last[:outer]:
        written.add(1, "BW", chunk, chunk)
    for chunk in last[outer:]:
        written.add(1, "B", chunk)
    for number, chunk in enumerate(last[outer:] + [own] * inner):
        written.add(1, "W", chunk)
        written.add(number < inner, "B", own)
    return written.order


ORDERS: dict[str, Callable[[int, int, int, int], Order]] = {
    "gpipe": gpipe_order,
    "1f1b": one_f_one_b_order,
    "interleaved": interleaved_order,
    "zero-bubble": zero_bubble_order,
    "zb-v": zb_v_order,
    "dualpipe": dualpipe_order,
}


_SAMPLES = 2
"""Of a micro-batch."""
_UNIT = "the forward of one micro-batch on one chunk of layers; its backward takes two"


class Pipeline:
    """Ranks that carry out their actions in the given order as soon as their inputs have arrived."""

    def __init__(self, settings: Settings, schedule: str, chunks: int = 1) -> None:
        self.settings, self.chunks = settings, chunks
        self.ranks, self.micro_batches = settings.ranks, settings.micro_batches or settings.ranks
        self.schedule, self.split = schedule, schedule in ("zero-bubble", "zb-v", "dualpipe")
        self.orders = [ORDERS[schedule](rank, self.ranks, self.micro_batches, chunks) for rank in range(self.ranks)]
        random = np.random.default_rng(0)
        self.stages = self.ranks if schedule == "dualpipe" else self.ranks * chunks
        self.weights = [random.normal(size=(WIDTH, WIDTH)) for _ in range(self.stages)]
        self.batch = random.normal(size=(self.micro_batches, _SAMPLES, WIDTH))
        self.gradients = [np.zeros((WIDTH, WIDTH)) for _ in range(self.stages)]
        # What has arrived, by kind, stage and micro-batch: the time, and the array.
        self.arrived: dict[tuple[str, int, int], tuple[int, Numbers]] = {
            ("forward", 0, micro): (0, samples) for micro, samples in enumerate(self.batch)
        }
        self.saved: list[dict[tuple[int, int], tuple[Numbers, Numbers]]] = [{} for _ in range(self.ranks)]
        self.peaks = [0] * self.ranks
        self.began: dict[int, tuple[list[Work], list[Message]]] = defaultdict(lambda: ([], []))

    def run(self) -> int:
        """Carry out all actions, and return when the last ends."""
        position, free = [0] * self.ranks, [0] * self.ranks
        while any(at < len(order) for at, order in zip(position, self.orders, strict=True)):
            progress = False
            for rank, order in enumerate(self.orders):
                if position[rank] < len(order) and (ready := self._ready(rank, order[position[rank]])) is not None:
                    free[rank] = self._carry_out(rank, order[position[rank]], max(ready, free[rank]))
                    position[rank] += 1
                    progress = True
            if not progress:
                raise AssertionError("the schedule deadlocks: every rank waits for another")
        return max(free)

    def _stage(self, rank: int, action: Action) -> int:
        """Return the position of a rank's chunk in the network: chunk c of rank r is stage c·P + r, unless in a V."""
        if action.chunk and self.schedule in ("zb-v", "dualpipe"):
            return self.stages - 1 - rank
        return action.chunk * self.ranks + rank

    def _rank(self, stage: int, micro: int) -> int:
        """Return the rank that runs a micro-batch on a stage; it inverts :meth:`_stage`."""
        back = stage >= self.ranks if self.schedule == "zb-v" else micro >= self.micro_batches // 2
        return self.stages - 1 - stage if back and self.schedule in ("zb-v", "dualpipe") else stage % self.ranks

    def _ready(self, rank: int, action: Action) -> int | None:
        """Return when the action's input is there; None if nobody has sent it yet."""
        stage = self._stage(rank, action)
        found = self.arrived.get((action.kind, stage, action.micro))
        return None if found is None else found[0]

    def _carry_out(self, rank: int, action: Action, start: int) -> int:
        """Compute one action, pass on its result, and return when it ends."""
        end = start + (2 if action.kind == "backward" and not self.split else 1)
        suffix = "" if self.chunks == 1 else "abcdefghijklmnopqrstuvwxyz"[action.chunk]
        label = f"{_LETTERS[action.kind]}{action.micro}{suffix}"
        self.began[start][0].append(Work(rank, "compute", action.kind, label, start, end))
        getattr(self, f"_{action.kind}")(rank, action, end)
        self.peaks[rank] = max(self.peaks[rank], len(self.saved[rank]))
        return end

    def _forward(self, rank: int, action: Action, end: int) -> None:
        stage, micro = self._stage(rank, action), action.micro
        x = self.arrived[("forward", stage, micro)][1]
        y = np.tanh(x @ self.weights[stage])
        self.saved[rank][(action.chunk, micro)] = (x, y)
        if stage + 1 < self.stages:
            self._send("forward", rank, stage + 1, micro, y, end)
        else:  # the loss is the sum of squares, halved; its gradient is the output itself
            self.arrived[("backward", stage, micro)] = (end, y)

    def _backward(self, rank: int, action: Action, end: int) -> None:
        stage, micro = self._stage(rank, action), action.micro
        inner = self.arrived[("backward", stage, micro)][1] * (1 - self.saved[rank][(action.chunk, micro)][1] ** 2)
        self.arrived[("weight", stage, micro)] = (end, inner)
        if stage > 0:
            self._send("backward", rank, stage - 1, micro, inner @ self.weights[stage].T, end)
        if not self.split:
            self._weight(rank, action, end)

    def _weight(self, rank: int, action: Action, end: int) -> None:
        stage, micro = self._stage(rank, action), action.micro
        x, _ = self.saved[rank].pop((action.chunk, micro))
        self.gradients[stage] += x.T @ self.arrived[("weight", stage, micro)][1]

    def _send(self, kind: str, rank: int, stage: int, micro: int, values: Numbers, end: int) -> None:
        self.arrived[(kind, stage, micro)] = (end, values)
        target = self._rank(stage, micro)
        if target == rank:
            return
        what = "activation" if kind == "forward" else "gradient"
        message = self.settings.message(
            rank,
            target,
            f"{what} of micro-batch {micro}",
            self.settings.size_bytes,
            values=tuple(map(float, values.ravel())),
        )
        self.began[end][1].append(message)

    def check(self) -> str:
        """Compare the accumulated gradients with NumPy's for the whole batch at once.

        Raises:
            AssertionError: they differ, or a rank still holds an activation.
        """
        for stage, expected in enumerate(gradients(self.batch.reshape(-1, WIDTH), self.weights)):
            verify(self.gradients[stage], expected, f"stage {stage}'s gradient")
        if any(self.saved):
            raise AssertionError("a rank still holds activations at the end")
        return (
            f"The gradients of all {self.stages} stages, accumulated over "
            f"{plural(self.micro_batches, 'micro-batch', 'micro-batches')}, "
            "equal those that NumPy computes for the whole batch at once."
        )

    def steps(self) -> tuple[Step, ...]:
        """Return one step for each moment at which something begins or arrives."""
        steps: list[Step] = []
        for time in sorted(self.began):
            work, messages = self.began[time]
            kinds = [name for name in _LETTERS if any(one.kind == name for one in work)]
            work.sort(key=lambda one: one.rank)
            title = ", ".join(f"rank {one.rank} {one.label}" for one in work) or "a message arrives"
            end = max((one.end for one in work), default=time)
            number, phase = len(steps) + 1, " and ".join(kinds) or "wait"
            steps.append(Step(number, phase, title, tuple(messages), (), (), tuple(work), time, end))
        return tuple(steps)


def simulate(name: str, settings: Settings) -> Outcome:
    """Run a schedule, and compare its bubble with that of the formula.

    Raises:
        UsageError: the micro-batches do not fit the schedule.
        AssertionError: the bubbles differ, or the gradients from NumPy's.
    """
    formula, bubble = _bubble(name, settings)
    chunks = settings.chunks if name == "interleaved" else 2 if name in ("zb-v", "dualpipe") else 1
    pipeline = Pipeline(settings, name, chunks)
    end = pipeline.run()
    checked, steps = pipeline.check(), pipeline.steps()
    busy = sum(work.end - work.start for step in steps for work in step.work)
    simulated = 1 - busy / (pipeline.ranks * end)
    if abs(simulated - bubble) > 1e-9:
        raise AssertionError(f"the bubble is {simulated}, the formula {formula} gives {bubble}")
    cost = _cost(pipeline, steps, end, bubble, formula)
    return Outcome(columns=(), steps=steps, cost=cost, checked=checked, unit=_UNIT)


def _bubble(name: str, settings: Settings) -> tuple[str, float]:
    """Return the formula of a schedule's bubble, with its numbers, and its value."""
    ranks, count = settings.ranks, settings.micro_batches or settings.ranks
    possible, needs = {
        "interleaved": (count % ranks == 0, f"a multiple of {ranks}, the ranks"),
        "zero-bubble": (count >= ranks, f"at least {ranks}, one for each rank"),
        "zb-v": (count >= 2 * ranks - 1, f"at least {2 * ranks - 1}, 2P-1"),
        "dualpipe": (
            ranks % 2 == count % 2 == 0 and count >= 2 * ranks,
            f"even --ranks, and {2 * ranks} or more, even",
        ),
    }.get(name, (True, ""))
    if not possible:
        raise UsageError(f"--micro-batches {count}: {name} needs {needs}.")
    times = {"interleaved": settings.chunks, "zero-bubble": 3, "zb-v": 6, "dualpipe": 3}.get(name, 1)
    symbol, numbers = ("M", f"{count}") if times == 1 else (f"{times}M", f"{times}·{count}")
    symbol, numbers = ("M·V", f"{count}·{times}") if name == "interleaved" else (symbol, numbers)
    waits, waited = (ranks // 2 - 1, "P/2-1") if name == "dualpipe" else (ranks - 1, "P-1")
    formula = f"({waited})/({symbol}+{waited}) = {waits}/({numbers}+{waits})"
    return formula, waits / (times * count + waits)


def _cost(pipeline: Pipeline, steps: tuple[Step, ...], end: int, bubble: float, formula: str) -> Cost:
    ranks, size = pipeline.ranks, pipeline.settings.size_bytes
    messages = [message for step in steps for message in step.messages]
    most = max(sum(message.source == rank for message in messages) for rank in range(ranks))
    return cost_of(
        steps,
        pipeline.settings,
        "bytes of the activation of one micro-batch between two stages",
        "alpha + n·beta for each message that a rank sends, if nothing hides it",
        [
            f"Bubble: {formula} = {share(bubble)} of the time of all ranks; the schedule takes {end} units.",
            f"Most activations in flight, by rank: {', '.join(map(str, pipeline.peaks))}.",
            f"All messages together carry {megabytes(len(messages) * size)}.",
        ],
        {"bubble_fraction": bubble, "units": float(end), "most_activations": float(max(pipeline.peaks))},
        times=(Time(most, most * size), Time()),
    )
