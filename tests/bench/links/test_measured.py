"""The link of a file of measurements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dptrace
from dptrace.bench.links.measured import measured_link
from dptrace.errors import DptraceError
from dptrace.model.link_report import link_report
from tests.support.links_samples import ALPHA_S, BETA_S, measured
from tests.support.paths import ROOT


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


@pytest.mark.heavy
def test_python_takes_the_file_too(tmp_path: Path) -> None:
    """``run.whatif(link="links.json")`` is the link of the file."""
    path = tmp_path / "links.json"
    path.write_text(json.dumps(link_report(measured(ranks=2))))
    run = dptrace.open(ROOT / "traces" / "single_cpu")

    assert "link links.json" in run.whatif(world_size=2, link=str(path)).changes[0]
