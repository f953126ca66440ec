"""The host rows of a page: within its size, with a note on what is left out; and the answers of a server."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dptrace.load.open import open_run
from dptrace.run.run import Run
from dptrace.timeline.host_calls import HOST_CALLS
from dptrace.viewers.gantt.chart import chart
from dptrace.viewers.gantt.host import host_data as module
from dptrace.viewers.gantt.host.host_data import HostAnswers, host_data, host_notes
from dptrace.viewers.gantt.host.track_data import track_data
from tests.support.paths import ROOT
from tests.support.synthetic import training_run


@pytest.fixture(scope="module")
def run() -> Run:
    return open_run([str(ROOT / "traces" / "ddp_cpu_2ranks")])


def test_a_small_run_is_whole(run: Run) -> None:
    """Every rank has its calls and launches, and there is nothing to note."""
    data = host_data(run, chart(run))

    assert ["0", "1"] == sorted(data["tracks"])
    assert all("launches" in one and one["calls"]["leftOut"] == 0 for one in data["tracks"].values())
    assert [] == host_notes(run, data)


def test_what_does_not_fit_is_left_out_with_a_note(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks share the page's room; the note has the numbers."""
    monkeypatch.setattr(module, "MOST_CALLS", 600)
    data = host_data(run, chart(run))
    calls = [one["calls"] for one in data["tracks"].values()]
    left_out, total = sum(one["leftOut"] for one in calls), sum(one["total"] for one in calls)
    [note] = host_notes(run, data)

    assert all(one["total"] - one["leftOut"] <= 300 for one in calls)
    assert f"{left_out:,} of {total:,}" in note


def test_a_large_page_has_no_launches_and_says_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a page of a million kernels keeps its size."""
    monkeypatch.setattr(module, "LARGE", 100)
    data = host_data(run, chart(run))

    assert not any("launches" in one for one in data["tracks"].values())
    assert any("--serve" in note for note in host_notes(run, data))


def test_of_many_ranks_the_most_notable_have_rows(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most as many as allowed; the note names them."""
    monkeypatch.setattr(module, "MOST_TRACKS", 1)
    data = host_data(run, chart(run))
    [track] = data["tracks"]

    assert any(f"rank {track}" in note for note in host_notes(run, data))


def test_a_run_built_in_memory_has_no_calls() -> None:
    """There is no file to read them from: the data has what the analysis knows, and no note claims otherwise."""
    run = training_run(200, ranks=2)
    data = host_data(run, chart(run))

    assert [[], []] == [one["threads"] for one in data["tracks"].values()]
    assert [] == host_notes(run, data)


def test_a_server_answers_with_a_gpu_or_a_window(run: Run) -> None:
    """The whole GPU as a page in one file has it; a window with the calls that touch it only."""
    drawn = chart(run)
    answers = HostAnswers(run, drawn)
    calls = run.read_again(run.timelines[1], HOST_CALLS)
    expected = track_data(run.timelines[1], calls, drawn, module.MOST_SERVED)
    whole, part = answers("1"), answers(f"1/0/{drawn.end_ns // 10}")

    assert whole is not None
    assert part is not None
    assert json.loads(json.dumps(expected)) == json.loads(whole)
    assert 0 < json.loads(part)["calls"]["total"] < expected["calls"]["total"]


@pytest.mark.parametrize("request_", ["", "2", "-1", "x", "0/1", "0/a/b", "0/1/2/3", "../0", "9" * 5000])
def test_a_server_refuses_other_requests(run: Run, request_: str) -> None:
    """Nothing is computed for a request that is no GPU or window."""
    assert HostAnswers(run, chart(run))(request_) is None


def test_a_file_that_is_gone_is_answered_without_calls(run: Run, tmp_path: Path) -> None:
    """A window of it, too."""
    answers = HostAnswers(replace(run, rereader=lambda path, reading: None), chart(run))

    for request in ("0", "0/1/2"):
        answer = answers(request)
        assert answer is not None
        assert [] == json.loads(answer)["threads"]
