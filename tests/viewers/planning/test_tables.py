"""The cost of a message as tables."""

from __future__ import annotations

from dptrace.model.training.communication import Link, Network, message_costs
from dptrace.viewers.planning.tables import message_facts, message_tables


def test_volumes_are_comparable_at_a_glance() -> None:
    """GPU workshop: 312 MB from each rank of a ring, 1,248 MB in and out of the naive root, and from all together."""
    link = Link("link", 5e-6, 25e9)
    content = message_costs(Network(link, link, 8), 208e6, 4, 1e-12)
    (_, collectives), (_, all_reduces) = message_tables(content)
    rows = {row[0]: row for row in all_reduces.rows}

    assert ("312 MB", "624 MB", "1,248 MB") == rows["ring"][2:5]
    assert ("624 MB", "1,248 MB", "1,248 MB") == rows["naive"][2:5]
    assert "98.8 kB" in all_reduces.note  # 2·alpha over 2.5·beta + 1.25·gamma
    assert len(content["collectives"]) == len(collectives.rows)
    assert {len(collectives.columns)} == {len(row) for row in collectives.rows}
    message, near = message_facts(content)
    assert "gamma 1 ps/byte" in message
    assert "n* = alpha·bandwidth = 125.0 kB" in near
