"""ZeRO's stages."""

from __future__ import annotations

import pytest

from dptrace.errors import UsageError
from dptrace.simulate.parallelism.zero import _Partitioned, state_bytes
from tests.support.explanations import explained


def test_the_paper_and_the_guide() -> None:
    """Rajbhandari et al. 2020, figure 1: 7.5 B parameters on 64 GPUs. The guide's 112 GB for 7 B without ZeRO."""
    assert [120.0, 31.4, 16.6, 1.9] == [round(state_bytes(7.5e9, 64, stage) / 1e9, 1) for stage in range(4)]
    assert 112e9 == state_bytes(7e9, 8, 0)


@pytest.mark.parametrize("ranks", range(2, 10))
@pytest.mark.parametrize(("stage", "times"), [(1, 2), (2, 2), (3, 3)])
def test_volumes_of_the_stages(stage: int, times: int, ranks: int) -> None:
    """Guide "Distributed Training", section 8.4: 2N, 2N and 3N."""
    cost = explained("zero", ranks, 1e6, stage=stage).cost

    assert (times * (ranks - 1) / ranks * 1e6,) * ranks == pytest.approx(cost.sent_bytes)


def test_what_each_stage_keeps_whole() -> None:
    """After the step: parameters in stages 1 and 2, only shards in stage 3."""
    held = {stage: [cell.label for cell in explained("zero", 2, stage=stage).steps[-1].after[1]] for stage in (1, 2, 3)}

    assert ["all", "shard 1 summed", "shard 1 updated"] == held[1]
    assert ["all", "shard 1", "shard 1 updated"] == held[2]
    assert ["shard 1 updated", "shard 1", "shard 1 updated"] == held[3]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_wrong_updates_are_not_drawn(stage: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that forgets to update its shard raises an error."""
    monkeypatch.setattr(_Partitioned, "update", lambda self: None)

    with pytest.raises(AssertionError):
        explained("zero", 2, stage=stage)


def test_there_are_three_stages() -> None:
    """The message names them."""
    with pytest.raises(UsageError, match="1, 2 and 3"):
        explained("zero", 2, stage=4)
