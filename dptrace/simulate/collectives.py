"""Collectives, step by step: all-reduces, and the primitives that they are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dptrace.model.collectives import ALGORITHMS
from dptrace.simulate.cluster import Cluster, Numbers, Transfer
from dptrace.simulate.explanation import Cost, Outcome, Settings, cost_of, megabytes

__all__ = [
    "all_gather",
    "all_to_all",
    "broadcast",
    "gather",
    "halving_doubling",
    "hierarchical",
    "naive",
    "reduce",
    "reduce_scatter",
    "ring",
    "scatter",
    "tree",
]


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


def reduce_tree(cluster: Cluster, groups: Sequence[Sequence[int]], phase: str = "reduce") -> None:
    """Sum whole tensors on the first member of each group, all groups at the same time."""
    title = "of each two ranks that are left, one sends all it has, and the other adds it"
    _carry_out(cluster, groups, reduce_rounds, True, phase, title)


def broadcast_tree(cluster: Cluster, groups: Sequence[Sequence[int]], phase: str = "broadcast") -> None:
    """Copy the tensor of the first member of each group to the others, all groups at the same time."""
    _carry_out(cluster, groups, broadcast_rounds, False, phase, "every rank that has the result sends it on")


def _carry_out(
    cluster: Cluster,
    groups: Sequence[Sequence[int]],
    rounds_of: Callable[[int], Rounds],
    adds: bool,
    phase: str,
    title: str,
) -> None:
    rounds = [rounds_of(len(group)) for group in groups]
    for turn in range(max(map(len, rounds))):
        transfers = [
            Transfer(group[source], group[target], range(cluster.columns), adds)
            for group, of_group in zip(groups, rounds, strict=True)
            if turn < len(of_group)
            for source, target in of_group[turn]
        ]
        cluster.step(phase, title, transfers)


# All-reduce by five algorithms: every rank ends with the sum of all ranks' arrays.


_COUNTED = "bytes of each rank's tensor"


def _full(settings: Settings, chunks: int | None = None) -> Cluster:
    """Fill every rank with its own whole tensor, in chunks; by default one chunk for each rank."""
    cluster = Cluster(settings, chunks or settings.ranks)
    for rank in range(settings.ranks):
        cluster.fill(rank, range(cluster.columns))
    return cluster


def _checked(cluster: Cluster) -> str:
    """Compare what every rank ends with, with the sum that NumPy computes from what they began with."""
    vectors = _full(cluster.settings, cluster.columns).vectors()
    expected = sum(vectors[1:], vectors[0])
    cluster.check_equal([expected] * cluster.ranks, "the all-reduce")
    numbers = ", ".join(f"{value:g}" for value in expected[:8, 0])
    more = ", …" if cluster.columns > 8 else ""
    return f"All {cluster.ranks} ranks end with NumPy's sum over the ranks: [{numbers}{more}]."


def _cost(cluster: Cluster, formula: str, expected_s: float) -> Cost:
    flat = cluster.settings.link == cluster.settings.between
    return cost_of(
        cluster.steps, cluster.settings, _COUNTED, formula, _against_naive(cluster), None, expected_s if flat else None
    )


def _named_cost(cluster: Cluster, algorithm: str) -> Cost:
    """Return the cost with the formula of ``dptrace.model``."""
    named, settings = ALGORITHMS[algorithm], cluster.settings
    return _cost(cluster, named.formula, named.seconds(settings.ranks, settings.size_bytes, *_alpha_beta(settings)))


def _alpha_beta(settings: Settings) -> tuple[float, float]:
    return settings.link.alpha_s, 1 / settings.link.bytes_per_s


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


def ring_reduce_scatter(
    cluster: Cluster, members: Sequence[int], shift: int = 0, phase: str = "reduce-scatter"
) -> None:
    """Send partial sums around a ring of as many members as there are chunks.

    Member r ends with the sum of chunk (r + 1 + shift) mod P.
    """
    count = len(members)
    for turn in range(count - 1):
        transfers = [
            Transfer(rank, members[(r + 1) % count], [(r - turn + shift) % count], adds=True)
            for r, rank in enumerate(members)
        ]
        cluster.step(phase, "each rank sends one chunk to the right; the receiver adds it", transfers)


def ring_all_gather(cluster: Cluster, members: Sequence[int], shift: int = 0, phase: str = "all-gather") -> None:
    """Send finished chunks around a ring; member r begins with chunk (r + 1 + shift) mod P."""
    count = len(members)
    for turn in range(count - 1):
        transfers = [
            Transfer(rank, members[(r + 1) % count], [(r + 1 - turn + shift) % count]) for r, rank in enumerate(members)
        ]
        cluster.step(phase, "each rank passes one finished chunk to the right; the receiver keeps it", transfers)


def ring(settings: Settings) -> Outcome:
    """All-reduce as a reduce-scatter and an all-gather around a ring."""
    cluster = _full(settings)
    ring_reduce_scatter(cluster, range(settings.ranks))
    ring_all_gather(cluster, range(settings.ranks))
    return cluster.outcome(_named_cost(cluster, "ring all-reduce"), _checked(cluster))


def naive(settings: Settings) -> Outcome:
    """All-reduce through rank 0, which receives everything and sends everything."""
    cluster = _full(settings)
    everything, others = range(settings.ranks), range(1, settings.ranks)
    one_by_one = "The link of rank 0 carries these messages one after the other, while all others idle."
    inward = [Transfer(rank, 0, everything, adds=True) for rank in others]
    cluster.step("reduce", "all ranks send their whole tensor to rank 0, which adds them", inward, one_by_one)
    outward = [Transfer(0, rank, everything) for rank in others]
    cluster.step("broadcast", "rank 0 sends the sum to all ranks", outward, one_by_one)
    return cluster.outcome(_named_cost(cluster, "naive all-reduce"), _checked(cluster))


def tree(settings: Settings) -> Outcome:
    """All-reduce as a reduction along a binomial tree and a broadcast back."""
    cluster = _full(settings)
    reduce_tree(cluster, [range(settings.ranks)])
    broadcast_tree(cluster, [range(settings.ranks)])
    return cluster.outcome(_named_cost(cluster, "tree all-reduce"), _checked(cluster))


def hierarchical(settings: Settings) -> Outcome:
    """All-reduce in nodes first, so that the links between nodes carry one tensor for each node."""
    nodes: dict[int, list[int]] = {}
    for rank in range(settings.ranks):
        nodes.setdefault(settings.node_of(rank), []).append(rank)
    groups = list(nodes.values())
    leaders = [group[0] for group in groups]
    cluster = _full(settings, len(leaders))
    reduce_tree(cluster, groups, "reduce in nodes")
    ring_reduce_scatter(cluster, leaders, phase="reduce-scatter between nodes")
    ring_all_gather(cluster, leaders, phase="all-gather between nodes")
    broadcast_tree(cluster, groups, "broadcast in nodes")
    formula = (
        "2·log2(G)·(alpha + n·beta) + 2(N-1)·alpha' + 2(N-1)/N·n·beta'; "
        "G ranks in a node, N nodes, alpha' and beta' of the link between nodes"
    )
    inside, across = settings.link, settings.between
    rounds, count, size = 2 * (max(map(len, groups)) - 1).bit_length(), len(groups), settings.size_bytes
    expected_s = rounds * (inside.alpha_s + size / inside.bytes_per_s)
    expected_s += 2 * (count - 1) * (across.alpha_s + size / count / across.bytes_per_s)
    cost = cost_of(cluster.steps, settings, _COUNTED, formula, _against_naive(cluster), None, expected_s)
    return cluster.outcome(cost, _checked(cluster))


def halving_doubling(settings: Settings) -> Outcome:
    """All-reduce by exchanging halves with partners ever nearer, then all that is finished with partners ever farther.

    This is Rabenseifner's algorithm. Where the number of ranks is not a power of two, some ranks hand their tensor to
    a neighbor before, and get the result after (Thakur, Rabenseifner and Gropp 2005, section 4.5).
    """
    power = 1 << (settings.ranks.bit_length() - 1)
    extra, cluster = settings.ranks - power, _full(settings, power)
    # Of the first 2·extra ranks the even ones hand over; the odd ones and all further ranks take part.
    active = [rank for rank in range(settings.ranks) if rank >= 2 * extra or rank % 2]
    if extra:
        handed = [Transfer(rank, rank + 1, range(power), adds=True) for rank in range(0, 2 * extra, 2)]
        cluster.step("before", "ranks beyond a power of two hand over their whole tensor", handed)
    _halve(cluster, active)
    _double(cluster, active)
    if not extra:
        return cluster.outcome(_named_cost(cluster, "halving-doubling all-reduce"), _checked(cluster))
    returned = [Transfer(rank + 1, rank, range(power)) for rank in range(0, 2 * extra, 2)]
    cluster.step("after", "the ranks that handed over get the result", returned)
    formula = "2(log2(Q) + 1)·alpha + (2(Q-1)/Q + 2)·n·beta; Q is the largest power of two below P"
    alpha, beta = _alpha_beta(settings)
    messages, share = 2 * power.bit_length(), 2 * (power - 1) / power + 2
    cost = _cost(cluster, formula, messages * alpha + share * settings.size_bytes * beta)
    return cluster.outcome(cost, _checked(cluster))


def _halve(cluster: Cluster, active: Sequence[int]) -> None:
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
        cluster.step("recursive halving", title, transfers)


def _double(cluster: Cluster, active: Sequence[int]) -> None:
    """Exchange what is finished, twice as much each time: the halving backwards."""
    size = 1
    while size < len(active):
        transfers = [
            Transfer(rank, active[i ^ size], range(i // size * size, i // size * size + size))
            for i, rank in enumerate(active)
        ]
        title = f"exchange all that is finished with the partner at distance {size}"
        cluster.step("recursive doubling", title, transfers)
        size *= 2


# Broadcast, reduce, scatter, gather, all-gather, reduce-scatter and all-to-all.


def _primitive_cost(cluster: Cluster, counted: str, algorithm: str, note: str = "") -> Cost:
    """Return the cost with the formula of ``dptrace.model``."""
    named, settings = ALGORITHMS[algorithm], cluster.settings
    return _cost_by(cluster, counted, named.formula, named.hops(settings.ranks), named.share(settings.ranks), note)


def _cost_by(cluster: Cluster, counted: str, formula: str, messages: float, share: float, note: str = "") -> Cost:
    settings = cluster.settings
    expected_s = messages * settings.link.alpha_s + share * settings.size_bytes / settings.link.bytes_per_s
    flat = settings.link == settings.between
    notes = [note] if note else []
    return cost_of(cluster.steps, settings, counted, formula, notes, None, expected_s if flat else None)


def broadcast(settings: Settings) -> Outcome:
    """Copy the tensor of rank 0 to all ranks, along a binomial tree."""
    cluster = Cluster(settings, 1)
    cluster.fill(0, [0])
    cluster.copies_are_results = True
    expected = cluster.vectors()[0]
    broadcast_tree(cluster, [range(settings.ranks)])
    cluster.check_equal([expected] * settings.ranks, "the broadcast")
    note = "NCCL pipelines large messages around a ring instead: (P-1)·alpha + n·beta."
    cost = _primitive_cost(cluster, "bytes of the tensor", "binomial-tree broadcast", note)
    return cluster.outcome(cost, f"All {settings.ranks} ranks end with rank 0's tensor.")


def reduce(settings: Settings) -> Outcome:
    """Sum the tensors of all ranks on rank 0, along a binomial tree."""
    cluster = Cluster(settings, 1)
    for rank in range(settings.ranks):
        cluster.fill(rank, [0])
    expected = np.sum(cluster.vectors(), axis=0)
    reduce_tree(cluster, [range(settings.ranks)])
    cluster.check_equal([expected, *[None] * (settings.ranks - 1)], "the reduce")
    cost = _primitive_cost(cluster, "bytes of each rank's tensor", "binomial-tree broadcast")
    return cluster.outcome(
        cost, f"Rank 0 ends with NumPy's sum over the ranks, {expected[0, 0]:g}; the others keep no result."
    )


_TREE = "log2(P)·alpha + (P-1)/P·n·beta"


def scatter(settings: Settings) -> Outcome:
    """Send each rank its chunk of the tensor of rank 0, along a binomial tree."""
    ranks = settings.ranks
    cluster = Cluster(settings, ranks)
    cluster.fill(0, range(ranks))
    cluster.copies_are_results = True
    whole = cluster.vectors()[0]
    for sends in broadcast_rounds(ranks):
        transfers = [Transfer(source, target, _subtree(source, target, ranks)) for source, target in sends]
        cluster.step("scatter", "each sender passes on the chunks of half of its ranks", transfers)
    own = [cluster.vectors()[rank][rank] for rank in range(ranks)]
    for rank, chunk in enumerate(own):
        if not np.array_equal(chunk, whole[rank]):
            raise AssertionError(f"rank {rank} ends without chunk {rank} of rank 0's tensor")
    cost = _cost_by(cluster, "bytes of rank 0's tensor", _TREE, (ranks - 1).bit_length(), (ranks - 1) / ranks)
    return cluster.outcome(
        cost, f"Each of the {ranks} ranks ends with its chunk of rank 0's tensor, as numpy.split gives it."
    )


def gather(settings: Settings) -> Outcome:
    """Collect a chunk of each rank on rank 0, along a binomial tree."""
    ranks = settings.ranks
    cluster = Cluster(settings, ranks)
    for rank in range(ranks):
        cluster.fill(rank, [rank])
    cluster.copies_are_results = True
    expected = np.sum(cluster.vectors(), axis=0)  # each column has one owner
    for sends in reduce_rounds(ranks):
        transfers = [Transfer(source, target, _subtree(target, source, ranks)) for source, target in sends]
        cluster.step("gather", "each sender passes on all chunks that it has", transfers)
    cluster.check_equal([expected, *[None] * (ranks - 1)], "the gather")
    counted = "bytes of the gathered tensor, all ranks' chunks together"
    cost = _cost_by(cluster, counted, _TREE, (ranks - 1).bit_length(), (ranks - 1) / ranks)
    return cluster.outcome(cost, "Rank 0 ends with the chunks of all ranks, as numpy.concatenate gives them.")


def _subtree(parent: int, child: int, ranks: int) -> range:
    """Return the ranks at and below a child in the binomial tree: as many as it is away from its parent."""
    return range(child, min(child + (child - parent), ranks))


def all_gather(settings: Settings) -> Outcome:
    """Collect a chunk of each rank on all ranks, around a ring."""
    ranks = settings.ranks
    cluster = Cluster(settings, ranks)
    for rank in range(ranks):
        cluster.fill(rank, [rank])
    cluster.copies_are_results = True
    expected = np.sum(cluster.vectors(), axis=0)  # each column has one owner
    ring_all_gather(cluster, range(ranks), shift=-1)
    cluster.check_equal([expected] * ranks, "the all-gather")
    cost = _primitive_cost(cluster, "bytes of the gathered tensor, all ranks' parts together", "ring all-gather")
    return cluster.outcome(
        cost, f"All {ranks} ranks end with the chunks of all ranks, as numpy.concatenate gives them."
    )


def reduce_scatter(settings: Settings) -> Outcome:
    """Sum the tensors of all ranks, and leave chunk r of the sum on rank r, around a ring."""
    ranks = settings.ranks
    cluster = Cluster(settings, ranks)
    for rank in range(ranks):
        cluster.fill(rank, range(ranks))
    expected = np.sum(cluster.vectors(), axis=0)
    ring_reduce_scatter(cluster, range(ranks), shift=-1)
    for rank, vector in enumerate(cluster.vectors()):
        if not np.allclose(vector[rank], expected[rank]):
            raise AssertionError(f"rank {rank} ends without the sum of chunk {rank}")
    cost = _primitive_cost(cluster, "bytes of each rank's whole input", "ring reduce-scatter")
    sums = ", ".join(f"{value:g}" for value in expected[:8, 0])
    return cluster.outcome(
        cost, f"Rank r ends with chunk r of NumPy's sum over the ranks: [{sums}{', …' if ranks > 8 else ''}]."
    )


def all_to_all(settings: Settings) -> Outcome:
    """Send chunk j of each rank i to rank j: a transposition of the matrix of chunks."""
    ranks = settings.ranks
    cluster = Cluster(settings, 2 * ranks, chunks=ranks)
    for rank in range(ranks):
        cluster.fill(rank, range(ranks))
        cluster.held[rank][ranks + rank] = cluster.held[rank][rank]  # its own chunk stays
    cluster.copies_are_results = True
    expected = _transposed(cluster.vectors(), ranks)
    for distance in range(1, ranks):
        transfers = [
            Transfer(rank, (rank + distance) % ranks, [(rank + distance) % ranks], into=ranks + rank)
            for rank in range(ranks)
        ]
        cluster.step("all-to-all", f"each rank sends one chunk to the rank at distance {distance}", transfers)
    cluster.check_equal(expected, "the all-to-all")
    cost = _primitive_cost(cluster, "bytes that each rank sends, its own part included", "pairwise all-to-all")
    checked = "The received chunks are NumPy's transposition of the sent ones: chunk i on rank j was j on i."
    names = [f"{word} {rank}" for word in ("to", "from") for rank in range(ranks)]
    return cluster.outcome(cost, checked, names)


def _transposed(vectors: Sequence[Numbers], ranks: int) -> list[Numbers]:
    """Return what each rank must end with: the chunks that it sent, then the transposed matrix's row."""
    sent = np.array([vector[:ranks] for vector in vectors])
    received = np.transpose(sent, (1, 0, 2))
    return [np.concatenate((sent[rank], received[rank])) for rank in range(ranks)]
