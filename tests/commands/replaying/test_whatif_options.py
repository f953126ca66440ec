"""What is different, as it was typed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dptrace.commands.replaying.whatif_options import Different, measured_link
from dptrace.errors import DptraceError, UsageError
from dptrace.model.link_report import link_report
from tests.support.links_samples import ALPHA_S, BETA_S, measured


def test_one_option_may_have_several_values() -> None:
    """These are compared; one value is no sweep."""
    assert ("bucket_cap_mb", [1.0, 4.5]) == Different(bucket_cap_mb="1,4.5", world_size="8").swept()
    assert Different(bucket_cap_mb="1", world_size="8").swept() is None
    assert 8 == Different(world_size="8").parsed()["world_size"]


@pytest.mark.parametrize(
    "typed", [{"bucket_cap_mb": "1,x"}, {"world_size": "1.5,2"}, {"bucket_cap_mb": "1,2", "world_size": "2,4"}]
)
def test_what_can_not_be_swept_is_refused(typed: dict[str, Any]) -> None:
    """No numbers, half a rank, and two sweeps at once."""
    with pytest.raises(UsageError):
        Different(**typed).swept()


def test_bandwidth_is_a_factor_or_a_rate() -> None:
    """2x is a number, 25GBps stays text for the model to parse."""
    assert [2.0, "25GBps"] == [Different(bandwidth=text).parsed()["bandwidth"] for text in ("2x", "25GBps")]


@pytest.mark.heavy
def test_measured_links_are_taken_from_their_file(tmp_path: Path) -> None:
    """The line of one link, which the all-reduce's was computed to."""
    path = tmp_path / "links.json"
    path.write_text(json.dumps(link_report(measured(ranks=2))))
    link = measured_link(str(path))

    assert "nvlink4" == measured_link("nvlink4")
    assert not isinstance(link, str)
    assert link.alpha_s == pytest.approx(ALPHA_S, rel=0.1)
    assert link.bytes_per_s == pytest.approx(1 / BETA_S, rel=0.1)


def test_a_file_without_all_reduce_is_refused(tmp_path: Path) -> None:
    """Its links are not known."""
    path = tmp_path / "links.json"
    path.write_text(json.dumps(link_report(measured(ranks=2, kinds=("broadcast",)))))

    with pytest.raises(DptraceError):
        measured_link(str(path))
