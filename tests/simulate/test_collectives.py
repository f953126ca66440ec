"""All-reduces: every rank ends with the sum, and each algorithm costs what its formula says."""

from __future__ import annotations

import numpy as np
import pytest

from dptrace.model.training.communication import Link
from dptrace.simulate.cluster import Cluster, Numbers
from dptrace.simulate.explanation import Explanation
from tests.support.explanations import ONE_GB, WORKSHOP, explained, replay

ALGORITHMS = ["ring", "tree", "halving-doubling", "hierarchical", "naive"]


def first_values(explanation: Explanation) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.array([[cell.values[0] for cell in row] for row in explanation.steps[0].before])


@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 7, 9])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_all_ranks_end_with_numpys_sum(name: str, ranks: int) -> None:
    """What a reader gets who adds up the messages of the picture, for powers of two and all other numbers of ranks."""
    explanation = explained(name, ranks)
    expected = first_values(explanation).sum(axis=0)

    for row in replay(explanation):
        np.testing.assert_array_equal(expected, [values[0] for values in row])
    assert {"done"} == {cell.state for row in explanation.steps[-1].after for cell in row}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_wrong_algorithm_is_not_drawn(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An algorithm that loses a message raises an error instead of returning a picture."""
    send = Cluster.step

    def losing(cluster: Cluster, phase: str, title: str, transfers: list[object], text: str = "") -> None:
        send(cluster, phase, title, transfers if cluster.steps else transfers[1:], text)  # type: ignore[arg-type]

    monkeypatch.setattr(Cluster, "step", losing)
    with pytest.raises(AssertionError):
        explained(name, 4)


def test_the_walk_through_of_the_workshop() -> None:
    """GPU workshop, "How Ring AllReduce Actually Works": what each of four GPUs holds after each step."""
    explanation = explained("ring", 4)
    labels = [[[cell.label for cell in row] for row in step.after] for step in explanation.steps]

    assert [
        ["A0", "A1", "A2", "A3+D3"],
        ["A0+B0", "B1", "B2", "B3"],
        ["C0", "B1+C1", "C2", "C3"],
        ["D0", "D1", "C2+D2", "D3"],
    ] == labels[0]
    assert [
        ["A0", "A1", "A2+C2+D2", "A3+D3"],
        ["A0+B0", "B1", "B2", "A3+B3+D3"],
        ["A0+B0+C0", "B1+C1", "C2", "C3"],
        ["D0", "B1+C1+D1", "C2+D2", "D3"],
    ] == labels[1]
    whole = [f"A{chunk}+B{chunk}+C{chunk}+D{chunk}" for chunk in range(4)]
    assert [whole[1], whole[2], whole[3], whole[0]] == [labels[2][rank][(rank + 1) % 4] for rank in range(4)]
    sent = [(message.source, message.target, message.label) for message in explanation.steps[2].messages]
    assert [(0, 1, "A2+C2+D2"), (1, 2, "A3+B3+D3"), (2, 3, "A0+B0+C0"), (3, 0, "B1+C1+D1")] == sent
    had = {rank: sum(label == whole[c] for c, label in enumerate(row)) for rank, row in enumerate(labels[3])}
    assert {0: 2, 1: 2, 2: 2, 3: 2} == had
    assert [whole] * 4 == labels[5]


def test_the_volumes_of_the_workshop() -> None:
    """GPU workshop, "Why 2(N-1)/N Data Per GPU?": 208, 312 and 364 MB for each of 2, 4 and 8 GPUs; "Naive vs Ring
    AllReduce — The Numbers": 312 against 624 MB out, 624 against 1,248 MB in all."""
    for ranks, megabytes in ((2, 208), (4, 312), (8, 364)):
        cost = explained("ring", ranks).cost
        assert (megabytes * 1e6,) * ranks == pytest.approx(cost.sent_bytes)
        assert (2 * (ranks - 1), cost.sent_bytes) == (cost.messages, cost.received_bytes)
    ring, naive = explained("ring", 4), explained("naive", 4)

    assert (624e6, 624e6) == (naive.cost.sent_bytes[0], naive.cost.received_bytes[0])
    assert "1,248 MB" in " ".join(naive.cost.sentences)
    assert "624 MB" in " ".join(ring.cost.sentences)
    assert (6, 2) == (len(ring.steps), len(naive.steps))


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_times_of_the_guide(ranks: int) -> None:
    """Guide "Distributed Training", section 3.5: latency and bandwidth terms of four algorithms."""
    alpha, beta, size, depth = 10e-6, 1e-9, 1e6, ranks.bit_length() - 1
    optimal = 2 * (ranks - 1) / ranks * size * beta
    expected = {
        "naive": 2 * (ranks - 1) * (alpha + size * beta),
        "tree": 2 * depth * (alpha + size * beta),
        "ring": 2 * (ranks - 1) * alpha + optimal,
        "halving-doubling": 2 * depth * alpha + optimal,
    }

    assert expected == pytest.approx({name: explained(name, ranks, size).cost.seconds for name in expected})


def test_hierarchical_sends_one_tensor_for_each_node_over_the_slow_link() -> None:
    """Eight nodes of eight ranks would be 2·7 slow messages; here two nodes of two: 2 of half a tensor."""
    slow = Link("slow", 100e-6, 1e8)
    explanation = explained("hierarchical", 4, node_size=2, between=slow)
    between = [message for message in explanation.messages if message.between_nodes]
    flat = explained("ring", 4, node_size=2, between=slow)

    assert {(0, 2), (2, 0)} == {(message.source, message.target) for message in between}
    assert 2 * WORKSHOP == sum(message.bytes for message in between)
    tree = 2 * (ONE_GB.alpha_s + WORKSHOP / ONE_GB.bytes_per_s)
    assert tree + 2 * slow.alpha_s + WORKSHOP / slow.bytes_per_s == pytest.approx(explanation.cost.seconds)
    assert 6 * slow.alpha_s + 1.5 * WORKSHOP / slow.bytes_per_s == pytest.approx(flat.cost.seconds)


@pytest.mark.parametrize("ranks", [2, 5, 9])
def test_hierarchical_works_for_nodes_of_any_size(ranks: int) -> None:
    """One node, nodes of one rank, and a last node that is smaller: neighbors in the ring of nodes exchange."""
    for node_size in range(1, ranks + 1):
        explanation = explained("hierarchical", ranks, node_size=node_size, between=Link("slow", 1e-4, 1e8))
        nodes = -(-ranks // node_size)
        between = [message for message in explanation.messages if message.between_nodes]

        assert 2 * (nodes - 1) * nodes == len(between)
        np.testing.assert_array_equal(first_values(explanation).sum(axis=0), [v[0] for v in replay(explanation)[-1]])


@pytest.mark.parametrize("ranks", [2, 5, 8])
def test_the_ring_is_that_of_the_trainer(ranks: int) -> None:
    """dptrace record --mode ring sends the same chunks in the same order."""
    pytest.importorskip("torch")
    from dptrace.trainers.parts.collectives import rounds

    sent = [[0] * ranks for _ in range(2 * (ranks - 1))]
    for step in explained("ring", ranks).steps:
        for message in step.messages:
            sent[step.number - 1][message.source] = message.column

    theirs = [[chunk for chunk, _, _ in rounds(rank, ranks)] for rank in range(ranks)]
    assert theirs == [list(of_rank) for of_rank in zip(*sent, strict=True)]


# The other collectives, each against what NumPy says it means.


def own(ranks: int) -> Numbers:
    """Return what rank r has in chunk c, as the simulation numbers it."""
    return np.asarray(10.0 * (np.arange(ranks)[:, None] + 1) + np.arange(ranks))


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_the_primitives_mean_what_numpy_says(ranks: int) -> None:
    """Rank 0's tensor, sums, chunk r on rank r, the chunk of each rank in order, the transposed matrix."""
    start = own(ranks)
    diagonal, total = start.diagonal().tolist(), start.sum(axis=0).tolist()

    def ends(name: str) -> list[list[float]]:
        return [[values[0] if values else -1 for values in row] for row in replay(explained(name, ranks))]

    def on_its_rank(name: str) -> list[float]:
        return [row[rank] for rank, row in enumerate(ends(name))]

    assert [[10.0]] * ranks == ends("broadcast")
    assert total[:1] == ends("reduce")[0]
    assert start[0].tolist() == on_its_rank("scatter")
    assert diagonal == ends("gather")[0]
    assert [diagonal] * ranks == ends("all-gather")
    assert total == on_its_rank("reduce-scatter")
    assert start.T.tolist() == [row[ranks:] for row in ends("all-to-all")]
    assert (ranks - 1).bit_length() == len(explained("broadcast", ranks).steps)
    states = [row[0].state for row in explained("reduce", ranks).steps[-1].after]
    assert "done" == states[0]
    assert "done" not in states[1:]


@pytest.mark.parametrize(
    ("name", "messages", "share"),
    [
        ("broadcast", 2, 2.0),
        ("reduce", 2, 2.0),
        ("scatter", 2, 0.75),
        ("gather", 2, 0.75),
        ("all-gather", 3, 0.75),
        ("reduce-scatter", 3, 0.75),
        ("all-to-all", 3, 0.75),
    ],
)
def test_costs_of_the_guide(name: str, messages: int, share: float) -> None:
    """Guide "Distributed Training", section 4.4, for four ranks; broadcast and reduce forward whole messages."""
    cost = explained(name, 4, 1e6).cost

    assert messages == cost.messages
    assert messages * 10e-6 + share * 1e-3 == pytest.approx(cost.seconds)
