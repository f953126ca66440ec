"""``dptrace export`` on the command line."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dptrace.commands.shared.main import cli
from dptrace.export import formats
from dptrace.export.formats import FORMATS
from dptrace.run.run import Run
from tests.support.builders import two_rank_timelines
from tests.support.exported import read_back
from tests.support.kineto_files import KinetoFile


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let every path open as the run of two made-up ranks; collect the arguments."""
    opened_paths: list[Any] = []

    def open_run(paths: Any, reading: Any, progress: Any = None, sources: Any = None) -> Run:
        opened_paths.append((paths, reading.comm_patterns))
        return Run("runs/made", two_rank_timelines(), notes=("mind this",))

    monkeypatch.setattr("dptrace.load.open.open_run", open_run)
    return opened_paths


def export(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["export", *map(str, arguments)])


@pytest.mark.parametrize("suffix", sorted(FORMATS))
def test_it_writes_and_says_where_to_open(opened: list[Any], tmp_path: Path, suffix: str) -> None:
    """The file is written, its size, the run's notes and the way to open it are told, and nothing else is left."""
    path = tmp_path / f"all{suffix}"

    result = export("runs/made", "-o", path, "--comm-pattern", "mine")

    assert 0 == result.exit_code
    assert [(("runs/made",), ("mine",))] == opened
    assert f"Wrote {path}: 2 ranks, 60 slices, " in result.output
    assert "https://ui.perfetto.dev" in result.output
    assert "! mind this" in result.stderr
    assert [path] == list(tmp_path.iterdir())
    assert 60 == sum(len(track.slices) for track in read_back(path))


def test_several_files_hold_one_run(opened: list[Any], tmp_path: Path) -> None:
    """-o is repeatable; --format says the form whatever the name, and two files of one name are refused."""
    one, two, named = tmp_path / "a.pftrace", tmp_path / "b.json", tmp_path / "c.zip"

    assert 0 == export("runs/made", "-o", one, "-o", two).exit_code
    assert 0 == export("runs/made", "-o", named, "--format", "chrome").exit_code
    assert two.read_bytes() == named.read_bytes()
    assert 60 == sum(len(track.slices) for track in read_back(one))
    assert 2 == export("runs/made", "-o", one, "-o", one, "--force").exit_code
    assert 2 == len(opened)


def test_a_full_disk_leaves_nothing(opened: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When writing fails midway, the old file stays, the half-written one goes, and one line says why."""
    path = tmp_path / "all.json"
    path.write_text("precious")

    def fail(run: Run, target: Path, suffix: str, progress: object, aligned_run: object) -> int:
        target.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(formats, "write_trace", fail)
    result = export("runs/made", "-o", path, "--force")

    assert 1 == result.exit_code
    assert "No space left on device" in result.output
    assert [path] == list(tmp_path.iterdir())
    assert "precious" == path.read_text()


def recorded(folder: Path, late_ns: int) -> Path:
    """Write a file per rank with forty all-reduces that end together; rank 1's clock is ahead by *late_ns*."""
    about: dict[str, Any] = {"Collective name": "allreduce", "In msg nelems": 256, "Out msg nelems": 256}
    about |= {"dtype": "Float", "Group size": 2, "Process Group Name": "0", "stream": 7}
    for rank in (0, 1):
        file = KinetoFile(rank, 2)
        for k in range(40):
            late, at = 10 * (k % 3) * rank, 1000 * k + rank * late_ns / 1000
            about |= {"device": rank, "correlation": k}
            file.event("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", at + late, at + 500, **about)
        folder.mkdir(exist_ok=True)
        file.write(folder / f"rank{rank}.json")
    return folder


def starts(path: Path) -> list[int]:
    """Return the start of each rank's first collective."""
    return [track.slices[0].start_ns % 10**9 for track in read_back(path) if track.name.startswith("stream")]


@pytest.mark.parametrize("name", ["all.pftrace", "all.json"])
def test_clocks_are_aligned_unless_you_say_otherwise(tmp_path: Path, name: str) -> None:
    """A clock that is off is corrected and that is told with its uncertainty; --no-align leaves times as recorded."""
    recorded(tmp_path / "run", late_ns=412_000)

    aligned = export(tmp_path / "run", "-o", tmp_path / name)
    assert "Clocks aligned: rank 1 by −412 µs ± 1.00 µs." in aligned.stderr
    assert [0, 0] == starts(tmp_path / name)

    raw = export(tmp_path / "run", "-o", tmp_path / name, "--force", "--no-align")
    assert "Clocks as recorded: no offset between ranks was corrected." in raw.stderr
    assert [0, 412_000] == starts(tmp_path / name)
