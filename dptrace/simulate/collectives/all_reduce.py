"""All-reduce by five algorithms: every rank ends with the sum of all ranks' arrays."""

from __future__ import annotations

from collections.abc import Sequence

from dptrace.model.collectives import ALGORITHMS
from dptrace.simulate.cluster import Cluster, Transfer
from dptrace.simulate.collectives.trees import broadcast_tree, reduce_tree
from dptrace.simulate.costs import cost_of, megabytes
from dptrace.simulate.explanation import Cost, Outcome
from dptrace.simulate.settings import Settings

__all__ = ["halving_doubling", "hierarchical", "naive", "ring", "ring_all_gather", "ring_reduce_scatter", "tree"]

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
