"""From what the user names to files and ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptrace.errors import DptraceError, UsageError
from dptrace.kineto import read_trace
from dptrace.sources import assign_ranks, find
from dptrace.trace import Trace
from tests.kineto_files import KinetoFile


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for rank in (0, 1):
        KinetoFile(rank=rank, world_size=2).op("a", 1, 2).write(tmp_path / f"rank{rank}.pt.trace.json.gz")
    (tmp_path / "run.json").write_text('{"schema": 1, "mode": "naive"}')
    (tmp_path / ".hidden.json").write_text("{}")
    return tmp_path


def test_a_run_folder_gives_its_traces_and_its_description(folder: Path) -> None:
    """run.json is read, not taken for a trace; hidden files are left alone."""
    sources = find([str(folder)])

    assert ["rank0.pt.trace.json.gz", "rank1.pt.trace.json.gz"] == [file.name for file in sources.files]
    assert "naive" == sources.info["mode"]


def test_run_json_stands_for_its_folder(folder: Path) -> None:
    """Naming run.json is naming the run."""
    assert find([str(folder)]).files == find([str(folder / "run.json")]).files


def test_a_folder_of_folders_is_searched_one_deep(folder: Path) -> None:
    """Traces that stand a folder deeper are found."""
    inner = folder / "deeper" / "traces"
    inner.mkdir(parents=True)
    KinetoFile().op("a", 1, 2).write(inner / "rank0.json")

    assert [inner / "rank0.json"] == list(find([str(folder / "deeper")]).files)


def test_a_glob_and_several_files_are_one_run(folder: Path) -> None:
    """A pattern, and the same file named twice, give each file once."""
    pattern = str(folder / "rank*.json.gz")

    assert 2 == len(find([pattern, str(folder / "rank0.pt.trace.json.gz")]).files)


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(tmp_path: Path) -> None:
    """Brackets in a file's own name do not make it a pattern."""
    path = KinetoFile().op("a", 1, 2).write(tmp_path / "run[1].json")

    assert (path,) == find([str(path)]).files


@pytest.mark.parametrize(("name", "message"), [("nothing*.json", "nothing matches"), ("empty", "holds no traces")])
def test_what_leads_to_nothing_is_named(name: str, message: str, tmp_path: Path) -> None:
    """A pattern without a match and a folder without traces say so."""
    (tmp_path / "empty").mkdir()

    with pytest.raises(DptraceError, match=message):
        find([str(tmp_path / name)])


def test_no_path_is_wrong_use() -> None:
    """At least one path is needed."""
    with pytest.raises(UsageError):
        find([])


def test_a_damaged_run_json_is_a_note(folder: Path) -> None:
    """The traces are shown without it, and the user is told."""
    (folder / "run.json").write_text("{broken")

    sources = find([str(folder)])

    assert {} == sources.info
    assert "run.json can't be read" in sources.notes[0]


def traces(folder: Path, *files: tuple[str, int | None]) -> list[Trace]:
    return [read_trace(KinetoFile(rank=rank).op("a", 1, 2).write(folder / name)) for name, rank in files]


def test_rank_comes_from_the_file_then_its_name_then_the_order(tmp_path: Path) -> None:
    """distributedInfo wins over the name, the name over the order, and guesses are told."""
    given = traces(tmp_path, ("rank9.json", 2), ("host_worker-3.json", None), ("x.json", None))

    ranks, notes = assign_ranks(given)

    assert [2, 3, 0] == ranks
    assert "x.json" in notes[0]
    assert "rank 0" in notes[0]


def test_two_files_of_one_rank_are_an_error_that_names_both(tmp_path: Path) -> None:
    """A rank is never lost silently under another."""
    with pytest.raises(DptraceError, match=r"a\.json and .*b\.json both claim rank 1"):
        assign_ranks(traces(tmp_path, ("a.json", 1), ("b.json", 1)))
