"""Collectives, step by step: all-reduces, and the primitives that they are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dptrace.model.collectives import ALGORITHMS
from dptrace.simulate.cluster import Cluster, Plan, Transfer
from dptrace.simulate.explanation import Cost, Outcome, Settings, cost_of, megabytes, verify


class Collective(NamedTuple):
    """A collective: what the ranks begin with, how it moves, and what they end with."""

    begin: str
    """``whole``: every rank has a tensor, in chunks; ``root``: rank 0 alone has one; ``own``: rank r has chunk r."""
    move: Callable[[Plan], None]
    end: str
    """Where the sum over the ranks ends, to which a rank without a chunk adds 0: on ``all`` ranks, on the ``root``, or
    chunk r on rank r (``own``)."""
    counted: str
    checked: str
    """What was found equal to NumPy's result; ``{ranks}`` and ``{sums}`` are filled in."""
    algorithm: str = ""
    """Of ``dptrace.model.collectives``, whose formula the messages must take; empty for one of those below."""
    note: str = ""


# Reductions and broadcasts along binomial trees, for any number of ranks.


Rounds = list[list[tuple[int, int]]]


def reduce_rounds(ranks: int) -> Rounds:
    """Return (source, target) of each round of a reduction to rank 0.

    >>> reduce_rounds(5)
    [[(1, 0), (3, 2)], [(2, 0)], [(4, 0)]]
    """
    rounds, distance = [], 1
    while distance < ranks:
        rounds.append([(rank + distance, rank) for rank in range(0, ranks - distance, 2 * distance)])
        distance *= 2
    return rounds


def broadcast_rounds(ranks: int) -> Rounds:
    """Return (source, target) of each round of a broadcast from rank 0: the reduction backwards.

    >>> broadcast_rounds(4)
    [[(0, 2)], [(0, 1), (2, 3)]]
    """
    return [[(target, source) for source, target in sends] for sends in reversed(reduce_rounds(ranks))]


def _reduce(plan: Plan, groups: Sequence[Sequence[int]], phase: str = "reduce") -> None:
    """Sum whole tensors on the first member of each group, all groups at the same time."""
    title = "of each two ranks that are left, one sends all it has, and the other adds it"
    _along_trees(plan, groups, reduce_rounds, True, phase, title)


def _broadcast(plan: Plan, groups: Sequence[Sequence[int]], phase: str = "broadcast") -> None:
    """Copy the tensor of the first member of each group to the others, all groups at the same time."""
    _along_trees(plan, groups, broadcast_rounds, False, phase, "every rank that has the result sends it on")


def _along_trees(
    plan: Plan,
    groups: Sequence[Sequence[int]],
    rounds_of: Callable[[int], Rounds],
    adds: bool,
    phase: str,
    title: str,
) -> None:
    rounds = [rounds_of(len(group)) for group in groups]
    for turn in range(max(map(len, rounds))):
        transfers = [
            Transfer(group[source], group[target], range(plan.columns), adds)
            for group, of_group in zip(groups, rounds, strict=True)
            if turn < len(of_group)
            for source, target in of_group[turn]
        ]
        plan.step(phase, title, transfers)


def _scatter(plan: Plan) -> None:
    for sends in broadcast_rounds(plan.ranks):
        transfers = [Transfer(source, target, _subtree(source, target, plan.ranks)) for source, target in sends]
        plan.step("scatter", "each sender passes on the chunks of half of its ranks", transfers)


def _gather(plan: Plan) -> None:
    for sends in reduce_rounds(plan.ranks):
        transfers = [Transfer(source, target, _subtree(target, source, plan.ranks)) for source, target in sends]
        plan.step("gather", "each sender passes on all chunks that it has", transfers)


def _subtree(parent: int, child: int, ranks: int) -> range:
    """Return the ranks at and below a child in the binomial tree: as many as it is away from its parent."""
    return range(child, min(child + (child - parent), ranks))


# Around a ring, of as many members as there are chunks.


def _ring_sum(plan: Plan, members: Sequence[int], shift: int = 0, phase: str = "reduce-scatter") -> None:
    """Send partial sums around; member r ends with the sum of chunk (r + 1 + shift) mod P."""
    count, title = len(members), "each rank sends one chunk to the right; the receiver adds it"
    for turn in range(count - 1):
        chunks = [(r - turn + shift) % count for r in range(count)]
        plan.step(phase, title, _to_the_right(members, chunks, adds=True))


def _ring_copy(plan: Plan, members: Sequence[int], shift: int = 0, phase: str = "all-gather") -> None:
    """Send finished chunks around; member r begins with chunk (r + 1 + shift) mod P."""
    count, title = len(members), "each rank passes one finished chunk to the right; the receiver keeps it"
    for turn in range(count - 1):
        chunks = [(r + 1 - turn + shift) % count for r in range(count)]
        plan.step(phase, title, _to_the_right(members, chunks))


def _to_the_right(members: Sequence[int], chunks: Sequence[int], adds: bool = False) -> list[Transfer]:
    following = [*members[1:], members[0]]
    ends = zip(members, following, chunks, strict=True)
    return [Transfer(source, target, [chunk], adds) for source, target, chunk in ends]


# All-reduces: every rank ends with the sum of all ranks' arrays.


def _ring(plan: Plan) -> None:
    _ring_sum(plan, range(plan.ranks))
    _ring_copy(plan, range(plan.ranks))


def _naive(plan: Plan) -> None:
    everything, others = range(plan.ranks), range(1, plan.ranks)
    one_by_one = "The link of rank 0 carries these messages one after the other, while all others idle."
    inward = [Transfer(rank, 0, everything, adds=True) for rank in others]
    plan.step("reduce", "all ranks send their whole tensor to rank 0, which adds them", inward, one_by_one)
    outward = [Transfer(0, rank, everything) for rank in others]
    plan.step("broadcast", "rank 0 sends the sum to all ranks", outward, one_by_one)


def _tree(plan: Plan) -> None:
    _reduce(plan, [range(plan.ranks)])
    _broadcast(plan, [range(plan.ranks)])


def _nodes(ranks: int, node_size: int | None) -> list[range]:
    size = node_size or ranks
    return [range(first, min(first + size, ranks)) for first in range(0, ranks, size)]


def _hierarchical(plan: Plan) -> None:
    """Sum in nodes first, so that the links between nodes carry one tensor for each node."""
    nodes = _nodes(plan.ranks, plan.node_size)
    leaders = [node[0] for node in nodes]
    _reduce(plan, nodes, "reduce in nodes")
    _ring_sum(plan, leaders, phase="reduce-scatter between nodes")
    _ring_copy(plan, leaders, phase="all-gather between nodes")
    _broadcast(plan, nodes, "broadcast in nodes")


def _halving_doubling(plan: Plan) -> None:
    """Exchange halves with partners ever nearer, then all that is finished with partners ever farther.

    This is Rabenseifner's algorithm. Where the number of ranks is not a power of two, some ranks hand their tensor to
    a neighbor before, and get the result after (Thakur, Rabenseifner and Gropp 2005, section 4.5).
    """
    extra = plan.ranks - plan.columns
    # Of the first 2·extra ranks the even ones hand over; the odd ones and all further ranks take part.
    active = [rank for rank in range(plan.ranks) if rank >= 2 * extra or rank % 2]
    pairs, everything = [(rank, rank + 1) for rank in range(0, 2 * extra, 2)], range(plan.columns)
    if extra:
        handed = [Transfer(given, kept, everything, adds=True) for given, kept in pairs]
        plan.step("before", "ranks beyond a power of two hand over their whole tensor", handed)
    _halve(plan, active)
    _double(plan, active)
    if extra:
        returned = [Transfer(kept, given, everything) for given, kept in pairs]
        plan.step("after", "the ranks that handed over get the result", returned)


def _halve(plan: Plan, active: Sequence[int]) -> None:
    """Exchange half of what each rank still reduces, of a power of two of ranks, until one chunk is left.

    Rank i keeps the half that the bit of the distance selects in i. Of 4 ranks, rank 1 (binary 01) gives chunks 2 and 3
    to rank 3 at distance 2, then chunk 0 to rank 0 at distance 1, and keeps chunk 1.
    """
    low, size = [0] * len(active), len(active)
    while size > 1:
        size //= 2
        transfers = []
        for i, rank in enumerate(active):
            upper = bool(i & size)
            gives = low[i] if upper else low[i] + size
            low[i] += size if upper else 0
            transfers.append(Transfer(rank, active[i ^ size], range(gives, gives + size), adds=True))
        title = f"exchange a half with the partner at distance {size}; both add"
        plan.step("recursive halving", title, transfers)


def _double(plan: Plan, active: Sequence[int]) -> None:
    """Exchange what is finished, twice as much each time: the halving backwards."""
    size = 1
    while size < len(active):
        transfers = [
            Transfer(rank, active[i ^ size], range(i // size * size, i // size * size + size))
            for i, rank in enumerate(active)
        ]
        title = f"exchange all that is finished with the partner at distance {size}"
        plan.step("recursive doubling", title, transfers)
        size *= 2


# All of them, and how one is carried out, compared with NumPy's result, and costed.


_SUM = "All {ranks} ranks end with NumPy's sum over the ranks: [{sums}]."
_TENSORS, _GATHERED = "bytes of each rank's tensor", "bytes of the gathered tensor, all ranks' chunks together"

COLLECTIVES = {
    "ring": Collective("whole", _ring, "all", _TENSORS, _SUM, "ring all-reduce"),
    "tree": Collective("whole", _tree, "all", _TENSORS, _SUM, "tree all-reduce"),
    "halving-doubling": Collective("whole", _halving_doubling, "all", _TENSORS, _SUM, "halving-doubling all-reduce"),
    "hierarchical": Collective("whole", _hierarchical, "all", _TENSORS, _SUM),
    "naive": Collective("whole", _naive, "all", _TENSORS, _SUM, "naive all-reduce"),
    "broadcast": Collective(
        *("root", lambda plan: _broadcast(plan, [range(plan.ranks)]), "all", "bytes of the tensor"),
        "All {ranks} ranks end with rank 0's tensor.",
        "binomial-tree broadcast",
        "NCCL pipelines large messages around a ring instead: (P-1)·alpha + n·beta.",
    ),
    "reduce": Collective(
        *("whole", lambda plan: _reduce(plan, [range(plan.ranks)]), "root", _TENSORS),
        "Rank 0 ends with NumPy's sum over the ranks, {sums}; the others keep no result.",
        "binomial-tree broadcast",
    ),
    "scatter": Collective(
        *("root", _scatter, "own", "bytes of rank 0's tensor"),
        "Each of the {ranks} ranks ends with its chunk of rank 0's tensor, as numpy.split gives it.",
    ),
    "gather": Collective(
        *("own", _gather, "root", _GATHERED),
        "Rank 0 ends with the chunks of all ranks, as numpy.concatenate gives them.",
    ),
    "all-gather": Collective(
        *("own", lambda plan: _ring_copy(plan, range(plan.ranks), shift=-1), "all"),
        "bytes of the gathered tensor, all ranks' parts together",
        "All {ranks} ranks end with the chunks of all ranks, as numpy.concatenate gives them.",
        "ring all-gather",
    ),
    "reduce-scatter": Collective(
        *("whole", lambda plan: _ring_sum(plan, range(plan.ranks), shift=-1), "own"),
        "bytes of each rank's whole input",
        "Rank r ends with chunk r of NumPy's sum over the ranks: [{sums}].",
        "ring reduce-scatter",
    ),
}
"""All but the all-to-all, which adds nothing."""


def _chunks(name: str, ranks: int, node_size: int | None) -> int:
    """Return into how many chunks a tensor is divided."""
    if name == "hierarchical":
        return len(_nodes(ranks, node_size))
    if name == "halving-doubling":
        return 1 << (ranks.bit_length() - 1)
    return 1 if name in ("broadcast", "reduce") else ranks


def plan_of(name: str, ranks: int, node_size: int | None = None) -> Plan:
    """Return the messages of a collective: what ``dptrace explain`` shows, and ``dptrace links`` times."""
    plan = Plan(ranks, _chunks(name, ranks, node_size), node_size)
    COLLECTIVES[name].move(plan)
    return plan


def simulate(name: str, settings: Settings) -> Outcome:
    """Carry a collective out, and compare what each rank ends with, with NumPy's result.

    Raises:
        AssertionError: they differ.
    """
    if name == "all-to-all":
        return _all_to_all(settings)
    one, ranks = COLLECTIVES[name], settings.ranks
    cluster = Cluster(settings, _chunks(name, ranks, settings.node_size))
    for rank in range(1 if one.begin == "root" else ranks):
        cluster.fill(rank, [rank] if one.begin == "own" else range(cluster.columns))
    cluster.copies_are_results = one.begin != "whole"
    expected = np.sum(cluster.vectors(), axis=0)
    one.move(cluster)
    for rank, vector in enumerate(cluster.vectors()[: 1 if one.end == "root" else ranks]):
        chosen = slice(rank, rank + 1) if one.end == "own" else slice(None)
        verify(vector[chosen], expected[chosen], f"the {name}, on rank {rank}")
    sums = ", ".join(f"{value:g}" for value in expected[:8, 0]) + ", …" * (cluster.columns > 8)
    return cluster.outcome(_cost(cluster, name, one), one.checked.format(ranks=ranks, sums=sums))


def _cost(cluster: Cluster, name: str, one: Collective) -> Cost:
    """Return the cost, whose messages take as long as the formula of the algorithm says."""
    settings, ranks, flat = cluster.settings, cluster.ranks, cluster.settings.link == cluster.settings.between
    alpha, beta, size = settings.link.alpha_s, 1 / settings.link.bytes_per_s, settings.size_bytes
    if name == "hierarchical":
        nodes, slow, flat = _nodes(ranks, settings.node_size), settings.between, True
        formula = "2·log2(G)·(alpha + n·beta) + 2(N-1)·alpha' + 2(N-1)/N·n·beta'; "
        formula += "G ranks in a node, N nodes, alpha' and beta' of the link between nodes"
        expected_s = 2 * (max(map(len, nodes)) - 1).bit_length() * (alpha + size * beta)
        expected_s += 2 * (len(nodes) - 1) * (slow.alpha_s + size / len(nodes) / slow.bytes_per_s)
    elif name == "halving-doubling" and cluster.columns < ranks:
        formula = "2(log2(Q) + 1)·alpha + (2(Q-1)/Q + 2)·n·beta; Q is the largest power of two below P"
        power = cluster.columns
        expected_s = 2 * power.bit_length() * alpha + (2 * (power - 1) / power + 2) * size * beta
    elif not one.algorithm:
        formula = "log2(P)·alpha + (P-1)/P·n·beta"
        expected_s = (ranks - 1).bit_length() * alpha + (ranks - 1) / ranks * size * beta
    else:
        formula = ALGORITHMS[one.algorithm].formula
        expected_s = ALGORITHMS[one.algorithm].seconds(ranks, size, alpha, beta)
    notes = _against_naive(cluster) if one.checked == _SUM else [one.note] if one.note else []
    return cost_of(cluster.steps, settings, one.counted, formula, notes, None, expected_s if flat else None)


def _against_naive(cluster: Cluster) -> list[str]:
    """Compare the load of the busiest rank with that of the naive algorithm's root."""
    load = [0.0] * cluster.ranks
    for message in (message for step in cluster.steps for message in step.messages):
        load[message.source] += message.bytes
        load[message.target] += message.bytes
    most, root = max(load), 2 * (cluster.ranks - 1) * cluster.settings.size_bytes
    text = f"The busiest rank sends and receives {megabytes(most)} together"
    if most < root:
        return [f"{text}; the root of a naive all-reduce {megabytes(root)}, {root / most:.3g} times as much."]
    return [f"{text}."]


def _all_to_all(settings: Settings) -> Outcome:
    """Send chunk j of each rank i to rank j: a transposition of the matrix of chunks."""
    ranks = settings.ranks
    cluster = Cluster(settings, 2 * ranks, chunks=ranks)
    for rank in range(ranks):
        cluster.fill(rank, range(ranks))
        cluster.held[rank][ranks + rank] = cluster.held[rank][rank]  # its own chunk stays
    cluster.copies_are_results = True
    sent = np.array(cluster.vectors())[:, :ranks]
    for distance in range(1, ranks):
        transfers = [
            Transfer(rank, (rank + distance) % ranks, [(rank + distance) % ranks], into=ranks + rank)
            for rank in range(ranks)
        ]
        cluster.step("all-to-all", f"each rank sends one chunk to the rank at distance {distance}", transfers)
    verify(np.array(cluster.vectors()), np.concatenate((sent, sent.transpose(1, 0, 2)), axis=1), "the all-to-all")
    named = ALGORITHMS["pairwise all-to-all"]
    expected_s = named.seconds(ranks, settings.size_bytes, settings.link.alpha_s, 1 / settings.link.bytes_per_s)
    counted, flat = "bytes that each rank sends, its own part included", settings.link == settings.between
    cost = cost_of(cluster.steps, settings, counted, named.formula, (), None, expected_s if flat else None)
    checked = "The received chunks are NumPy's transposition of the sent ones: chunk i on rank j was j on i."
    return cluster.outcome(cost, checked, [f"{word} {rank}" for word in ("to", "from") for rank in range(ranks)])
