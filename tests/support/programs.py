"""Simulated programs of several ranks on CPUs, with gloo: written as Kineto traces, with the delays that are planted.

Each rank is a generator of what its host does, one after the other; a host goes on once what it waits for is over. The
same program without its delays, with the same noise, tells what a step would take: the truth. Times are in ms.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from dptrace.timeline.steps import WRAPPER
from tests.support.kineto_files import KinetoFile

STEPS = 6
_CALL, _TRANSFER, _RESUME = 0.04, 0.3, 0.02
_MAIN, _GLOO = 1, 100
Handle = tuple[object, ...]


class Plant(NamedTuple):
    """What a rank does longer at a place of its program."""

    rank: int
    place: str
    ms: float
    steps: Sequence[int] = tuple(range(STEPS))


class Do(NamedTuple):
    """One thing that a host does."""

    what: str
    """``sleep``, ``op``, ``reduce``, ``send``, ``recv``, ``wait``, ``load`` or ``mark``."""
    name: str = ""
    ms: float = 0.0
    handle: Handle = ()
    """What is posted, or waited for."""


@dataclass
class Rank:
    """A rank that runs: what its program needs to know of it, and what it recorded."""

    number: int
    size: int
    plants: Sequence[Plant]
    noise: random.Random
    step: int = 0
    now: float = 1.0
    file: KinetoFile = field(default_factory=KinetoFile)
    posted: dict[Handle, float] = field(default_factory=dict)
    counts: dict[object, int] = field(default_factory=dict)
    messages: dict[Handle, str] = field(default_factory=dict)
    groups: list[tuple[int, ...]] = field(default_factory=list)

    def at(self, place: str) -> Iterator[Do]:
        """Do what is planted at a place: a sleep, at ``mm…`` an operator, at ``load`` a slow DataLoader."""
        for plant in self.plants:
            if plant.rank == self.number and plant.place == place and self.step in plant.steps:
                yield Do("op", "aten::mm", plant.ms) if place.startswith("mm") else Do("sleep", ms=plant.ms)

    def work(self, name: str, ms: float, place: str = "") -> Iterator[Do]:
        """Run Python, with what is planted at the place, and then an operator of this length."""
        yield from self.at(place)
        yield Do("sleep", ms=ms * self.noise.uniform(1, 1.02))
        yield Do("op", name, 0.2 * self.noise.uniform(1, 1.05))

    def load(self) -> Iterator[Do]:
        late = sum(p.ms for p in self.plants if p.rank == self.number and p.place == "load" and self.step in p.steps)
        yield Do("load", ms=0.5 + late)

    def number_of(self, key: object) -> int:
        self.counts[key] = self.counts.get(key, -1) + 1
        return self.counts[key]

    def reduce(self, group: Sequence[int], kind: str = "all_reduce") -> Iterator[Do]:
        """Meet the others of a group, and wait."""
        handle = yield from self.start(group, kind)
        yield Do("wait", handle=handle)

    def start(self, group: Sequence[int], kind: str = "all_reduce") -> Generator[Do, None, Handle]:
        """Meet the others of a group, without waiting; returns the handle."""
        key = ("reduce", kind, tuple(group))
        handle: Handle = (*key, self.number_of(key))
        yield Do("reduce", kind, handle=handle)
        return handle

    def post(self, what: str, peer: int) -> Generator[Do, None, Handle]:
        """Post a send to, or a receive from, a peer; returns the handle."""
        ends = (self.number, peer) if what == "send" else (peer, self.number)
        handle: Handle = ("message", ends, self.number_of((what, ends)))
        yield Do(what, str(peer), handle=handle)
        return handle

    def send(self, peer: int) -> Iterator[Do]:
        handle = yield from self.post("send", peer)
        yield Do("wait", handle=handle)

    def recv(self, peer: int) -> Iterator[Do]:
        handle = yield from self.post("recv", peer)
        yield Do("wait", handle=handle)


Program = Callable[[Rank], Iterator[Do]]
"""A step of a rank."""


def run(program: Program, size: int, plants: Sequence[Plant] = (), seed: int = 1) -> list[Rank]:
    """Run a program on all ranks for some steps."""
    ranks = [Rank(number, size, plants, random.Random(100 * seed + number)) for number in range(size)]
    for rank in ranks:
        rank.file = KinetoFile(rank.number, size, backend="gloo")
        rank.groups.append(tuple(range(size)))
    running = [(rank, _all_steps(program, rank)) for rank in ranks]
    waiting: dict[int, Handle] = {}
    while running:
        moved = []
        for rank, doing in running:
            handle = waiting.get(rank.number)
            if handle is not None:
                if (over := _over(handle, ranks)) is None:
                    moved.append((rank, doing))
                    continue
                _go_on(rank, handle, over)
                del waiting[rank.number]
            for do in doing:
                if do.what == "wait":
                    waiting[rank.number] = do.handle
                    moved.append((rank, doing))
                    break
                _do(rank, do)
        running = moved
    return ranks


def _all_steps(program: Program, rank: Rank) -> Iterator[Do]:
    for step in range(STEPS):
        rank.step = step
        start = rank.now
        yield from program(rank)
        rank.file.label(f"ProfilerStep#{step}", 1e3 * start, 1e3 * rank.now, _MAIN)


def _over(handle: Handle, ranks: Sequence[Rank]) -> float | None:
    """Return when all that take part were there and the transfer is over; None if some are not there yet."""
    members: Any = handle[2] if handle[0] == "reduce" else handle[1]
    came = [ranks[member].posted.get(handle) for member in members]
    return None if None in came else max(one for one in came if one is not None) + _TRANSFER


def _do(rank: Rank, do: Do) -> None:
    start, us = rank.now, 1e3
    if do.what == "sleep":
        rank.now += do.ms
    elif do.what == "op":
        rank.now += do.ms
        rank.file.op(do.name, us * start, us * rank.now, _MAIN)
        rank.now += 0.005
    elif do.what == "load":
        rank.now += do.ms
        name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        rank.file.label(name, us * start, us * rank.now, _MAIN)
    else:
        rank.now += _CALL
        rank.posted[do.handle] = start + 0.02
        name = {"reduce": f"c10d::{do.name.replace('_', '')}_", "send": "c10d::send", "recv": "c10d::recv_"}[do.what]
        args: dict[str, Any] = {
            "Input Dims": [[[1024]], [], [], []],
            "Input type": ["TensorList", "", "Scalar", "Scalar"],
        }
        if do.what != "reduce":
            args |= {"Concrete Inputs": ["", "", do.name, "0"]}
        rank.file.op(name, us * start, us * rank.now, _MAIN, **args)
        if do.what != "reduce":
            rank.messages[do.handle] = do.what


def _go_on(rank: Rank, handle: Handle, over: float) -> None:
    """Go on after a wait: gloo's threads end their collectives, and the host its messages."""
    rank.now = max(rank.now, over + _RESUME)
    args = {"Input Dims": [[1024]], "Input type": ["float"]}
    start, what = 1e3 * rank.posted[handle], rank.messages.get(handle)
    if what is None:
        thread = _thread(rank, handle[2])
        rank.file.label(f"gloo:{handle[1]}", start, 1e3 * over, thread, **args)
    else:
        rank.file.label(f"gloo:{what}", start, 1e3 * (rank.now - 0.005), _MAIN, **args)


def _thread(rank: Rank, group: Any) -> int:
    """Return the thread on which gloo carries out the collectives of a group: two threads for each, by creation."""
    if group not in rank.groups:
        rank.groups.append(group)
    return _GLOO + 2 * rank.groups.index(group)


def write(folder: Path, ranks: Sequence[Rank]) -> Path:
    """Write the traces of a run, and return their folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in ranks:
        config = [
            {"pg_name": str(group), "pg_desc": "", "backend_config": "cpu:gloo", "ranks": list(group)}
            for group in rank.groups
        ]
        rank.file.head["distributedInfo"] |= {"pg_config": config}
        rank.file.head["record_shapes"] = 1
        rank.file.head["gloo_threads"] = [_GLOO + number for number in range(2 * len(config))]
        rank.file.write(folder / f"rank{rank.number}.json.gz")
    return folder


def truth_ms(program: Program, size: int, plants: Sequence[Plant]) -> float:
    """Return how much shorter a step is without the plants."""
    ends = [fmean(rank.now for rank in run(program, size, some)) for some in (plants, ())]
    return (ends[0] - ends[1]) / STEPS


# Programs: a step of each.


def data_parallel(rank: Rank) -> Iterator[Do]:
    yield from rank.load()
    yield from rank.work("aten::linear", 6, "forward")
    yield from rank.work("AddmmBackward0", 12, "mm")
    yield from rank.reduce(tuple(range(rank.size)))
    yield from rank.work("aten::add_", 2, "optimizer")


def mesh(rank: Rank) -> Iterator[Do]:
    """Tensor parallel pairs, data parallel across them."""
    pair, across = rank.number // 2, rank.number % 2
    tensor, data = (2 * pair, 2 * pair + 1), tuple(range(across, rank.size, 2))
    yield from rank.load()
    yield from rank.work("aten::linear", 6, "forward")
    yield from rank.reduce(tensor)
    yield from rank.work("aten::relu", 4, "middle")
    yield from rank.reduce(tensor)
    yield from rank.work("AddmmBackward0", 10, "backward")
    yield from rank.reduce(tensor)
    yield from rank.reduce(data)
    yield from rank.work("aten::add_", 2, "optimizer")


def chain(rank: Rank) -> Iterator[Do]:
    """Groups of neighbors: those in the middle are in two."""
    yield from rank.load()
    yield from rank.work("aten::linear", 6, "forward")
    yield from rank.work("AddmmBackward0", 10, "backward")
    for low in range(rank.size - 1):
        if rank.number in (low, low + 1):
            yield from rank.reduce((low, low + 1))
    yield from rank.work("aten::add_", 2, "optimizer")


def fully_sharded(rank: Rank) -> Iterator[Do]:
    every = tuple(range(rank.size))
    yield from rank.load()
    for layer in range(3):
        yield from rank.reduce(every, "all_gather")
        yield from rank.work("aten::linear", 4, f"forward{layer}")
    for layer in reversed(range(3)):
        yield from rank.reduce(every, "all_gather")
        yield from rank.work("AddmmBackward0", 6, f"backward{layer}")
        yield from rank.reduce(every, "reduce_scatter")
    yield from rank.work("aten::add_", 2, "optimizer")


def experts(rank: Rank) -> Iterator[Do]:
    every = tuple(range(rank.size))
    yield from rank.load()
    yield from rank.work("aten::linear", 5, "forward")
    for name in ("aten::bmm", "BmmBackward0"):
        yield from rank.reduce(every, "all_to_all")
        yield from rank.work(name, 8, "mm expert")
        yield from rank.reduce(every, "all_to_all")
    yield from rank.reduce(every)
    yield from rank.work("aten::add_", 2, "optimizer")


def hidden(rank: Rank) -> Iterator[Do]:
    """An all-reduce that runs beside work, of which a rank that is late before has as much less."""
    every = tuple(range(rank.size))
    late = sum(plant.ms for plant in rank.plants if plant.rank == rank.number)
    yield from rank.work("aten::linear", 6 + rank.noise.uniform(0, 4), "forward")
    handle = yield from rank.start(every)
    yield Do("sleep", ms=60 - late + rank.noise.uniform(0, 0.5))
    yield Do("op", "aten::mm", 0.2)
    yield Do("wait", handle=handle)
    yield from rank.reduce(every)
    yield from rank.work("aten::add_", 2, "optimizer")


Order = Callable[[int, int, int], list[str]]
"""What a rank does, of how many ranks and micro-batches: ``F0``, ``B0`` …, or ``F4.0`` of the stage 4."""


def pipeline(order: Order, stages: int, replicas: int = 1) -> Program:
    """Return a pipeline whose stages run micro-batches in an order.

    Ranks are stage by stage, and a stage's replicas sum their gradients. Sends are waited for before the next one, and
    at the end.
    """

    def program(rank: Rank) -> Iterator[Do]:
        stage, replica = divmod(rank.number, replicas)
        if stage == 0:
            yield from rank.load()
        sent: list[Handle] = []
        for action in order(stage, stages, 4):
            forward = action[0] == "F"
            source, target = (stage - 1, stage + 1) if forward else (stage + 1, stage - 1)
            if action[0] != "W" and 0 <= source < stages:
                yield from rank.recv(source * replicas + replica)
            yield from rank.work("aten::linear" if forward else "AddmmBackward0", 5 if forward else 10, action[0])
            if action[0] != "W" and 0 <= target < stages:
                while sent:
                    yield Do("wait", handle=sent.pop())
                sent.append((yield from rank.post("send", target * replicas + replica)))
        while sent:
            yield Do("wait", handle=sent.pop())
        if replicas > 1:
            yield from rank.reduce(tuple(range(stage * replicas, (stage + 1) * replicas)))
        yield from rank.work("aten::add_", 2, "optimizer")

    return program


def gpipe(stage: int, stages: int, micro_batches: int) -> list[str]:
    return [f"F{m}" for m in range(micro_batches)] + [f"B{m}" for m in reversed(range(micro_batches))]


def one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> list[str]:
    ahead = min(stages - stage, micro_batches)
    order = [f"F{m}" for m in range(ahead)]
    for m in range(micro_batches):
        order += [f"B{m}"] + ([f"F{m + ahead}"] if m + ahead < micro_batches else [])
    return order


def zero_bubble(stage: int, stages: int, micro_batches: int) -> list[str]:
    """One forward, one backward; the gradients of the weights come last."""
    order = [action.replace("B", "I") for action in one_forward_one_backward(stage, stages, micro_batches)]
    return order + [f"W{m}" for m in range(micro_batches)]


class Action(NamedTuple):
    """What a rank with several stages does next."""

    kind: str
    """``F``, ``B``, or its two parts ``I``, for the input, and ``W``, for the weights."""
    stage: int
    micro_batch: int


Placed = Callable[[int, int], int]
"""Returns the rank of a stage, of how many ranks."""


def of_several_stages(
    order: Callable[[int, int], list[Action]], ranks: int, placed: Placed, gradient_of_input: bool = True
) -> Program:
    """Return a pipeline of two stages a rank, in torch's way: it posts receives ahead, and waits for sends at the end.

    What is planted at ``F`` is in each stage of a rank, what is planted at ``F4`` in that of stage 4.

    Args:
        gradient_of_input: whether the first stage computes one, which nothing needs.
    """
    stages = 2 * ranks

    def rank_of(stage: int) -> int:
        return placed(stage, ranks)

    orders = _with_messages([order(rank, ranks) for rank in range(ranks)], stages, rank_of)

    def program(rank: Rank) -> Iterator[Do]:
        if rank.number == rank_of(0):
            yield from rank.load()
        sent, posted = list[Handle](), dict[Action, Handle]()
        for what, action in orders[rank.number]:
            if what == "send":
                there = _target(action, stages)
                assert there is not None
                sent.append((yield from rank.post("send", rank_of(there))))
            elif what == "recv":
                posted[action] = yield from rank.post("recv", rank_of(action.stage))
            else:
                if (needed := _source(action, stages)) in posted:
                    yield Do("wait", handle=posted[needed])
                if gradient_of_input or (action.kind, action.stage) != ("I", 0):
                    yield from _carry_out(rank, action)
        while sent:
            yield Do("wait", handle=sent.pop())
        yield from rank.work("aten::add_", 2, "optimizer")

    return program


def _carry_out(rank: Rank, action: Action) -> Iterator[Do]:
    start, forward = 1e3 * rank.now, action.kind == "F"
    yield from rank.at(f"{action.kind}{action.stage}")
    name, ms = ("aten::linear", 5) if forward else ("AddmmBackward0", 10 if action.kind == "B" else 5)
    yield from rank.work(name, ms, action.kind)
    if not forward:
        rank.file.op(f"{WRAPPER}AddmmBackward0", start, 1e3 * rank.now, _MAIN)
    rank.file.label("PP:{1}{0}{2}".format(*action), start, 1e3 * rank.now, _MAIN)


def _with_messages(
    orders: Sequence[list[Action]], stages: int, rank_of: Callable[[int], int]
) -> list[list[tuple[str, Action]]]:
    """Add what ranks send and receive, each receive where its message is sent as ranks take turns, as torch does."""
    found: list[list[tuple[str, Action]]] = [[] for _ in orders]
    left, done = [list(own) for own in orders], set[Action]()
    while any(left):
        for rank, own in enumerate(left):
            if own and ((needed := _source(own[0], stages)) is None or needed in done):
                action = own.pop(0)
                done.add(action)
                found[rank].append(("do", action))
                if (there := _target(action, stages)) is not None and rank_of(there) != rank:
                    found[rank].append(("send", action))
                    found[rank_of(there)].append(("recv", action))
    return found


def _target(action: Action, stages: int) -> int | None:
    """Return the stage that waits for what an action results in."""
    there = action.stage + (1 if action.kind == "F" else -1)
    return there if action.kind != "W" and 0 <= there < stages else None


def _source(action: Action, stages: int) -> Action | None:
    """Return the action of another stage that one waits for."""
    there = action.stage - (1 if action.kind == "F" else -1)
    return action._replace(stage=there) if action.kind != "W" and 0 <= there < stages else None


def looped(stage: int, ranks: int) -> int:
    return stage % ranks


def folded(stage: int, ranks: int) -> int:
    """Like a V: the last stage is on the rank of the first."""
    return min(stage, 2 * ranks - 1 - stage)


def interleaved(rank: int, ranks: int) -> list[Action]:
    """One forward, one backward over two stages a rank, as Megatron and torch have it; two rounds of micro-batches."""
    total = 4 * ranks
    ahead = min(total, 2 * (ranks - rank - 1) + ranks)
    forward, backward = list[Action](), list[Action]()
    for number in range(total):
        chunk, micro_batch = number // ranks % 2, number // (2 * ranks) * ranks + number % ranks
        forward.append(Action("F", rank + ranks * chunk, micro_batch))
        backward.append(Action("B", rank + ranks * (1 - chunk), micro_batch))
    order = forward[:ahead]
    for number in range(total):
        order += [*forward[ahead + number : ahead + number + 1], backward[number]]
    return order


def interleaved_zero_bubble(rank: int, ranks: int) -> list[Action]:
    """The same; what weights need comes where a rank would wait for the last backwards, and at the end."""
    order, late = list[Action](), list[Action]()
    for action in interleaved(rank, ranks):
        own = action._replace(kind="I") if action.kind == "B" else action
        if own.kind == "I" and len(late) > rank:
            order.append(late.pop(0))
        order.append(own)
        late += [own._replace(kind="W")] if own.kind == "I" else []
    return order + late


def v_shaped_zero_bubble(rank: int, ranks: int) -> list[Action]:
    """What comes first by a greedy schedule of the V: backward before forward, weights where nothing else can run."""
    stages, micro_batches = 2 * ranks, 2 * ranks
    done: dict[Action, int] = {}
    orders: list[list[Action]] = [[] for _ in range(ranks)]
    time = 0
    while any(len(own) < 6 * micro_batches for own in orders):
        chosen = []
        for number, own in enumerate(orders):
            ready = [one for one in _left(number, ranks, micro_batches, own) if _is_ready(one, stages, done, time)]
            if ready:
                chosen.append(
                    (number, min(ready, key=lambda one: ("IFW".index(one.kind), one.micro_batch, -one.stage)))
                )
        for number, one in chosen:
            orders[number].append(one)
            done[one] = time
        time += 1
    return orders[rank]


def _left(rank: int, ranks: int, micro_batches: int, done: Sequence[Action]) -> list[Action]:
    """Return what a rank may do next: of each kind and stage the first micro-batch; at most 2 × ranks in flight."""
    found = []
    in_flight = sum({"F": 1, "I": -1, "W": 0}[one.kind] for one in done)
    for stage in (rank, 2 * ranks - 1 - rank):
        for kind in "FIW":
            number = sum((one.kind, one.stage) == (kind, stage) for one in done)
            if number < micro_batches and (kind != "F" or in_flight < 2 * ranks):
                found.append(Action(kind, stage, number))
    return found


def _is_ready(action: Action, stages: int, done: dict[Action, int], time: int) -> bool:
    needed = [_source(action, stages)]
    if action.kind != "F":
        needed.append(action._replace(kind="F" if action.kind == "I" else "I"))
    return all(one is None or done.get(one, time) < time for one in needed)
