"""Which runs a folder holds: loose traces are told apart by what they say, not by where they lie."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dptrace.readers.discovery import confine
from dptrace.readers.runs import runs_in
from tests.support.kineto_files import BASE_NS, KinetoFile
from tests.support.paths import TRACES

HOUR = 3_600 * 10**9


def trace(path: Path, rank: int | None, world_size: int = 2, begin_ns: int = BASE_NS) -> None:
    """Write a trace of one step, whose first time is in its head, as Kineto's is."""
    file = KinetoFile(rank, world_size, base=False)
    file.head["baseTimeNanoseconds"] = begin_ns
    path.parent.mkdir(parents=True, exist_ok=True)
    file.label("ProfilerStep#1", 0, 100).kernel("gemm", 10, 50, 5).write(path)


def found(folder: Path) -> dict[str, list[str]]:
    """Return the files of each run, from the folder."""
    runs = {str(Path(run.path).relative_to(folder)): run.files for run in runs_in(folder)}
    return {name: [str(Path(file).relative_to(folder)) for file in files] for name, files in runs.items()}


def test_loose_files_of_different_runs_are_different_runs(tmp_path: Path) -> None:
    """By rank, number of ranks and time; the files of one run are opened by a pattern that fits them alone."""
    for name, hours in (("old", 0), ("new", 5)):
        for rank in range(2):
            trace(tmp_path / f"{name}_rank{rank}.json", rank, begin_ns=BASE_NS + hours * HOUR)
    trace(tmp_path / "other_rank0.json.gz", 0, 1)
    (tmp_path / "settings.json").write_text("{}")

    ranks = {f"{name}_rank*.json": [f"{name}_rank{rank}.json" for rank in range(2)] for name in ("new", "old")}
    assert {**ranks, "other_rank0.json.gz": ["other_rank0.json.gz"]} == found(tmp_path)


def test_ranks_of_one_run_are_one(tmp_path: Path) -> None:
    """Side by side without a rank in their names, and in a folder for each machine; two runs there are two."""
    for rank, name in enumerate(("host_11.json", "host_12.json")):
        trace(tmp_path / "flat" / name, rank, begin_ns=BASE_NS + rank * 10**9)
        trace(tmp_path / "nodes" / f"node{rank}" / "trace.json", rank)
        trace(tmp_path / "two" / f"run{rank}" / "trace.json", 0, 1, BASE_NS + rank * HOUR)

    names = {"flat": ["host_11.json", "host_12.json"], "nodes": [f"node{rank}/trace.json" for rank in range(2)]}
    listed = {key: [f"{key}/{name}" for name in files] for key, files in names.items()}
    assert {**listed, **{f"two/run{rank}": [f"two/run{rank}/trace.json"] for rank in range(2)}} == found(tmp_path)


def test_copies_and_unknown_times_are_kept_apart(tmp_path: Path) -> None:
    """Files without a rank were recorded together or are runs of their own; a cut file is named, not an error."""
    trace(tmp_path / "a.json", None, 1)
    trace(tmp_path / "b.json", None, 1, BASE_NS + HOUR)
    (tmp_path / "rank7.json.gz").write_bytes(b"\x1f\x8b cut")
    (tmp_path / "rank8.json").write_bytes(b"")
    assert {"a.json", "b.json", "rank7.json.gz", "rank8.json"} == found(tmp_path).keys()


def test_run_folders_and_archives_and_what_leads_out(tmp_path: Path) -> None:
    """A run.json makes a folder one run; links out of a confined folder are not followed."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    shutil.copytree(TRACES / "single_cpu", root / "nightly" / "n1")
    shutil.make_archive(str(root / "packed"), "zip", root / "nightly" / "n1")
    trace(outside / "rank0.json", 0, 1)
    (root / "link").symlink_to(outside)
    assert {"link", "nightly", "packed.zip"} == found(root).keys()
    confine(root)
    try:
        assert {"nightly", "packed.zip"} == found(root).keys()
    finally:
        confine(None)
    with pytest.raises(FileNotFoundError):
        runs_in(root / "none")
