"""Measurements with real ranks, ranks that die, and the file with the result."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import dptrace
from dptrace.bench import links as module
from dptrace.bench.links import check_endpoint, check_links, links_summary, measured_link, read_links
from dptrace.commands.shared.output import json_text
from dptrace.errors import DptraceError, UsageError
from dptrace.model.link_report import link_report
from tests.support.links_samples import ALPHA_S, BETA_S, measured, report_text, with_algorithms
from tests.support.paths import ROOT
from tests.support.recordings import dptrace as recordings_dptrace
from tests.support.recordings import environment

SMALL = ["--max-bytes", "256KB", "--budget", "2"]


@pytest.mark.slow
@pytest.mark.spawn
def test_two_ranks_measure_their_links(tmp_path: Path) -> None:
    """Each collective has a fit; the file can be read again, and --from shows it without measuring."""
    pytest.importorskip("torch")
    done = recordings_dptrace("links", "--gpus", "2", *SMALL, "-o", "links.html", cwd=tmp_path)
    content = read_links(tmp_path / "links.json")

    assert ("gloo", 2, 1) == (content["backend"], content["ranks"], content["nodes"])
    for found in content["collectives"].values():
        assert [1024 << k for k in range(len(found["measured"]))] == [row["bytes"] for row in found["measured"]]
        # Other tests may disturb two ranks so much that no line fits.
        assert found["fit"] is None or found["fit"]["alpha_s"] > 0
        assert found["busbw_gbps"] > 0
    assert 9 == len(content["collectives"])
    assert any(found["fit"] is not None for found in content["collectives"].values())
    assert "gloo between 2 processes" in done.stderr
    assert all(f"Wrote {name} (" in done.stderr for name in ("links.json", "links.html"))
    assert ["links.html", "links.json"] == sorted(os.listdir(tmp_path))
    again = recordings_dptrace("links", "--from", "links.json", cwd=tmp_path)
    assert again.stdout == done.stdout
    assert "point-to-point" in again.stdout


def _ranks(launcher: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return the ranks that a launcher has started."""
    below = psutil.Process(launcher.pid).children(recursive=True)
    return [process for process in below if "dptrace.bench.measure_links" in process.cmdline()[:5]]


@pytest.mark.slow
@pytest.mark.spawn
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_process_and_no_file_outlives_a_measurement_that_ends_early(tmp_path: Path, number: signal.Signals) -> None:
    """A killed rank is named and the others are stopped; Ctrl-C at the launcher stops all."""
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "dptrace", "links", "--gpus", "2", "--budget", "60", "-o", "links.json"]
    with (tmp_path / "errors").open("w") as errors:
        launcher = subprocess.Popen(command, cwd=tmp_path, stderr=errors, text=True, env=environment())
    until = time.monotonic() + 120
    while len(ranks := _ranks(launcher)) < 2:
        assert time.monotonic() < until
        time.sleep(0.1)
    time.sleep(3)  # into the measurement
    if number == signal.SIGKILL:
        ranks[1].kill()
    else:
        launcher.send_signal(number)
    code = launcher.wait(120)
    _, alive = psutil.wait_procs(ranks, 60)

    assert [] == alive
    assert ["errors"] == os.listdir(tmp_path)
    says = (tmp_path / "errors").read_text()
    if number == signal.SIGKILL:
        assert 1 == code
        assert "was ended by SIGKILL (out of memory?). Nothing was measured." in says
    else:
        assert 130 == code
        assert "Interrupted: all ranks are stopped" in says
    assert "Traceback" not in says.split("Its last lines:")[0]


def test_an_address_at_which_nobody_can_listen_is_refused() -> None:
    """A port in use, an unknown host, a missing port, and the address of another machine."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UsageError, match="cannot listen there"):
            check_endpoint(f"127.0.0.1:{taken.getsockname()[1]}")
        port = taken.getsockname()[1]
    check_endpoint(f"127.0.0.1:{port}")
    for endpoint, says in (
        ("nowhere.invalid:29500", "unknown host nowhere.invalid"),
        ("a..b:29500", "unknown host a..b"),
        ("host", "HOST:PORT"),
        ("host:0", "HOST:PORT"),
        ("192.0.2.1:29500", "cannot listen there"),
    ):
        with pytest.raises(UsageError, match=says):
            check_endpoint(endpoint)


@pytest.mark.heavy
def test_what_is_no_measurement_is_refused(tmp_path: Path) -> None:
    """A missing file, invalid JSON, other JSON, and another schema."""
    path = tmp_path / "links.json"
    with pytest.raises(DptraceError, match="no such file"):
        read_links(path)
    for text in ("{", "[]", '{"kind": "links", "collectives": {}}', '{"schema": 1, "ranks": []}'):
        path.write_text(text)
        with pytest.raises(DptraceError, match=r"contains no measurement of links|not valid JSON|not a JSON object"):
            read_links(path)
    path.write_text(json.dumps(link_report(measured()) | {"schema": 2}))
    with pytest.raises(DptraceError, match="schema 2"):
        read_links(path)


@pytest.mark.heavy
def test_a_run_keeps_the_fits_without_the_single_measurements() -> None:
    """The summary holds what findings and models need, in a few kilobytes."""
    content = link_report(measured() | {"created": "2026-01-01T00:00:00+00:00"})
    kept = links_summary(content)

    assert kept["busbw_gbps"] == content["busbw_gbps"] > 0
    assert kept["collectives"]["all_reduce"]["fit"] == content["collectives"]["all_reduce"]["fit"]
    assert not any("measured" in found for found in kept["collectives"].values())
    assert len(json.dumps(kept)) < 10_000


@pytest.mark.parametrize(("load", "said"), [(0.9, False), (3.2, True)])
def test_a_busy_machine_is_reported(load: float, said: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a note where other processes keep more than half of the cores busy."""
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)

    notes = module._busy_machine_notes()
    assert bool(notes) == said
    assert all("4 cores, load 3.2" in note for note in notes)


# The link of a file of measurements.


@pytest.mark.heavy
def test_measured_links_are_taken_from_their_file(tmp_path: Path) -> None:
    """The line of one link, which the all-reduce's was computed to; Python takes the file, too."""
    path = tmp_path / "links.json"
    path.write_text(report_text(2))
    link = measured_link(str(path))

    assert "nvlink4" == measured_link("nvlink4")
    assert not isinstance(link, str)
    assert (link.alpha_s, 1 / link.bytes_per_s) == pytest.approx((ALPHA_S, BETA_S), rel=0.1)
    run = dptrace.open(ROOT / "traces" / "single_cpu")
    assert "link links.json" in run.whatif(world_size=2, link=str(path)).changes[0]

    path.write_text(json.dumps(link_report(measured(ranks=2, kinds=("broadcast",)))))
    with pytest.raises(DptraceError, match="no line of all_reduce"):
        measured_link(str(path))


# A links.json from elsewhere: what can be drawn is accepted, and anything else is named.


def written(raw: dict[str, Any]) -> Any:
    return json.loads(json_text(link_report(raw)))


def first(content: Any) -> Any:
    return content["collectives"]["all_reduce"]


@pytest.mark.heavy
@pytest.mark.parametrize("sizes", [1, 2, 3, 17])
def test_what_is_measured_is_accepted(sizes: int) -> None:
    """Any number of sizes, also too few for a fit; a collective of another name; more keys; timed algorithms."""
    raw = measured()
    samples = [sample for sample in raw["samples"] if sample["bytes"] < 1024 << sizes]
    content = written(raw | {"samples": samples, "later": "key"})
    content["collectives"]["all_to_some"] = first(content)

    assert "" == check_links(content)
    assert "" == check_links(written(with_algorithms(measured(kinds=("broadcast",)))))


EDITS: dict[str, Callable[[Any], object]] = {
    "a missing figure": lambda content: first(content).pop("busbw_at_bytes"),
    "a text for a number": lambda content: first(content)["measured"][2].update(median_s="12"),
    "no sizes": lambda content: first(content).update(measured=[]),
    "a time of zero": lambda content: first(content)["measured"][0].update(quarter_s=0),
    "a fit without its link": lambda content: first(content).update(link=None),
    "a list for an object": lambda content: content.update(collectives={"all_reduce": []}),
    "an infinite number": lambda content: first(content)["fit"].update(alpha_s=1e308),
    "no machines": lambda content: content.pop("machines"),
    "no time of an algorithm": lambda c: c["algorithms"]["all_reduce"]["ring"]["measured"][0].update(median_s=0),
}


@pytest.mark.heavy
@pytest.mark.parametrize("edit", EDITS)
def test_what_cannot_be_drawn_is_refused(edit: str) -> None:
    """One line says what is wrong."""
    content = written(with_algorithms(measured(kinds=("all_reduce", "send_recv"))))
    assert "" == check_links(content)
    EDITS[edit](content)

    wrong = check_links(content)

    assert wrong
    assert "\n" not in wrong
