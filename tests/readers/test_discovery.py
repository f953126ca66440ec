"""Files and ranks found from the user's arguments."""

from __future__ import annotations

import copy
import io
import json
import os
import re
import zipfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import dptrace
from dptrace.errors import DptraceError, UsageError
from dptrace.load.open import assign_ranks
from dptrace.readers.discovery import find, path_text
from dptrace.readers.kineto.reader import read_trace
from dptrace.readers.run_file import read_run_file
from dptrace.readers.source import Source
from dptrace.viewers.terminal.summary import print_run
from tests.support.flight_files import call as flight_call
from tests.support.flight_files import write as write_dumps
from tests.support.kineto_files import KinetoFile, training_step


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for rank in (0, 1):
        KinetoFile(rank=rank, world_size=2).op("a", 1, 2).write(tmp_path / f"rank{rank}.pt.trace.json.gz")
    (tmp_path / "run.json").write_text('{"schema": 1, "mode": "naive"}')
    (tmp_path / ".hidden.json").write_text("{}")
    return tmp_path


def test_a_run_folder_gives_its_traces_and_its_description(folder: Path) -> None:
    """run.json is read and is not a trace; hidden files are ignored."""
    sources = find([str(folder)])

    assert ["rank0.pt.trace.json.gz", "rank1.pt.trace.json.gz"] == [file.name for file in sources.files]
    assert "naive" == sources.metadata["mode"]


def test_a_run_has_several_names(folder: Path) -> None:
    """run.json and a file URL stand for the folder; a pattern, also one over folders, lists each file once."""
    (folder / "a").mkdir()
    files = find([str(folder)]).files

    for name in (str(folder / "run.json"), folder.as_uri(), str(folder / "rank*.json.gz"), f"{folder}/**/rank*.gz"):
        assert files == find([name, *[str(files[0].address)] * ("*" in name)]).files


def test_ranks_in_other_formats_and_folders_are_of_the_run(tmp_path: Path) -> None:
    """A rank that the files of the first kind lack is read, whatever its format, case and folder."""
    files = ["rank1.JSON", "rank1.json.GZ", "rank1.pftrace", "rank1.zip", "sub/rank1.json", "sub/deeper/worker_1.json"]
    for number, (first, name) in enumerate(product(("rank0.json", "host1/rank0.json"), files)):
        folder = tmp_path / str(number)
        for path in (folder / first, folder / name):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(KinetoFile().op("a", 1, 2).text())
        if name.endswith("zip"):
            with zipfile.ZipFile(folder / name, "w") as archive:
                archive.writestr("rank1.json", KinetoFile().text())

        sources = find([str(folder)])

        ranks = sorted(int(re.findall(r"[k_](\d)\.", file.name)[0]) for file in sources.files)
        assert (name, [0, 1]) == (name, ranks)
        assert [] == [note for note in sources.notes if note.startswith("Left out")]


@pytest.mark.parametrize(
    "name", ["rank0.pftrace", "all.pftrace", "old/rank0.json", "old/config.json", "all.tgz", "rank0.json.zst"]
)
def test_other_files_of_a_folder_are_left_out_by_name(name: str, folder: Path) -> None:
    """Copies, exports and other runs are not mixed into the run, but no file is left out without a word."""
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("{}")
    (folder / "old").mkdir(exist_ok=True)
    (folder / "old" / "rank2.pt.trace.json.gz.part").write_text("")

    sources = find([str(folder)])

    assert 2 == len(sources.files)
    (note,) = sources.notes
    assert str(folder / name) in note


def test_another_run_below_a_run_is_left_out_as_a_whole(folder: Path) -> None:
    """Where one of its ranks is there already, its others are not of the run either; one note counts them."""
    (folder / "old").mkdir()
    for rank in range(9):
        KinetoFile().op("a", 1, 2).write(folder / "old" / f"rank{rank}.json")

    sources = find([str(folder)])

    assert 2 == len(sources.files)
    (note,) = sources.notes
    assert "and 6 more" in note
    # Nor may others be of a run whose own files don't show their ranks.
    for rank in (0, 1):
        (folder / f"rank{rank}.pt.trace.json.gz").rename(folder / f"{'ab'[rank]}.json.gz")
    assert 2 == len(find([str(folder)]).files)


def test_a_trace_of_an_unread_compression_is_reported(tmp_path: Path) -> None:
    """It is named with what to do; the rest of the run is shown."""
    KinetoFile(rank=0, world_size=2).kernel("k", 1, 2, None).write(tmp_path / "rank0.json")
    (tmp_path / "rank1.json.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(9))

    notes = dptrace.open(tmp_path).notes

    assert any("rank1.json.zst" in note and "zstd -d" in note for note in notes)


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(tmp_path: Path) -> None:
    """Brackets in a file's own name do not make it a pattern."""
    path = KinetoFile().op("a", 1, 2).write(tmp_path / "run[1].json")

    assert (Source.of(path),) == find([str(path)]).files


def test_what_leads_to_nothing_is_named(tmp_path: Path) -> None:
    """Errors name the pattern, folder or archive, what it holds, and what to do; no path at all is wrong use."""
    (tmp_path / "empty").mkdir()
    for archive, content in (("outer.zip", "inner.zip"), ("papers.zip", "paper.pdf")):
        with zipfile.ZipFile(tmp_path / archive, "w") as file:
            file.writestr(content, "")

    for name, message in (
        ("nothing*.json", "nothing matches"),
        ("empty", "holds no traces"),
        ("outer.zip", r"outer\.zip: holds an archive \(inner\.zip\)"),
        ("papers.zip", r"papers\.zip: holds no traces .* but paper\.pdf"),
    ):
        with pytest.raises(DptraceError, match=message):
            find([str(tmp_path / name)])
    with pytest.raises(UsageError):
        find([])


def test_a_run_json_that_is_damaged_in_its_archive_is_a_note(tmp_path: Path) -> None:
    """Whatever the compression: the traces are found."""
    path = tmp_path / "all.zip"
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with zipfile.ZipFile(path, "w", method) as archive:
            archive.writestr("run.json", '{"schema": 1, "mode": "' + "naive" * 1000 + '"}')
            archive.writestr("rank0.json", "1")
        data = path.read_bytes()
        path.write_bytes(data[:50] + b"\x55\xaa\x55" + data[53:])

        sources = find([str(path)])
        assert 1 == len(sources.files)
        assert "run.json can't be read" in sources.notes[0]


def test_rank_comes_from_the_file_then_its_name_then_the_order() -> None:
    """Guesses are reported; names of folders and archives don't count for their files; no rank replaces another."""
    ranks, notes = assign_ranks([("rank9.json", 2), ("host_worker-3.json", None), ("x.json", None)])

    assert [2, 3, 0] == ranks
    assert "x.json" in str(notes[0])
    assert "rank 0" in str(notes[0])
    assert [4, 0] == assign_ranks([("s3://b/rank9.zip!run/worker_4.json", None), ("rank9/other.json", None)])[0]
    with pytest.raises(DptraceError, match=r"a\.json and .*b\.json both claim rank 1"):
        assign_ranks([("a.json", 1), ("b.json", 1)])


@pytest.fixture
def zipped(folder: Path) -> Path:
    archive = folder / "all.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(folder.glob("*.*")):
            if path != archive:
                file.write(path, f"run/{path.name}")
        file.writestr("__MACOSX/run/._rank0.pt.trace.json.gz", "not one")
    return archive


def test_an_archive_is_a_run(zipped: Path) -> None:
    """Its traces and run.json, without hidden files; a copy under another name works, too."""
    copy = zipped.rename(zipped.with_name("upload.tmp"))

    sources = find([str(copy)])

    assert [f"{copy}!run/rank{rank}.pt.trace.json.gz" for rank in (0, 1)] == [file.address for file in sources.files]
    assert "naive" == sources.metadata["mode"]
    assert not sources.named


def test_a_file_in_an_archive_may_be_named_by_itself(zipped: Path) -> None:
    """As messages name it; a file with an exclamation mark in its own name is still a file."""
    address = f"{zipped}!run/rank1.pt.trace.json.gz"

    (file,) = find([address]).files

    assert address == file.address
    assert 1 == read_trace(file).rank
    odd = KinetoFile().op("a", 1, 2).write(zipped.with_name("b.zip!c.json"))
    assert str(odd) == find([str(odd)]).files[0].place + find([str(odd)]).files[0].address


def test_a_folder_of_archives_is_a_run_and_beside_traces_they_are_copies(zipped: Path, tmp_path: Path) -> None:
    """Exports and archives in a folder of traces are ignored; an archive without traces is left out with a note."""
    (tmp_path / "rank0.pftrace").write_bytes(b"x")
    assert 2 == len(find([str(tmp_path)]).files)
    apart = tmp_path / "apart"
    apart.mkdir()
    zipped.rename(apart / "all.zip")
    (apart / "broken.zip").write_text("no archive")

    for name in (apart, apart / "*.zip"):
        sources = find([str(name)])
        assert ["rank0.pt.trace.json.gz", "rank1.pt.trace.json.gz"] == [file.name for file in sources.files]
        (note,) = sources.notes
        assert "broken.zip" in note


def test_dumps_of_a_job_that_hangs_are_named_with_their_verb(tmp_path: Path) -> None:
    """As a folder of them, by name or by content, and as a file, a pickle or JSON; a cut trace is still called one."""
    dumps = write_dumps(tmp_path / "dumps", {0: [flight_call("all_reduce", 1)], 1: [flight_call("all_reduce", 1)]})
    pickled, text = dumps / "nccl_trace_rank_0", dumps / "rank_1.json"
    (renamed := tmp_path / "renamed").mkdir()
    (renamed / "0.pickle").write_bytes(pickled.read_bytes())
    (emptied := tmp_path / "emptied").mkdir()
    (emptied / pickled.name).touch()

    for named in (renamed, emptied, pickled, text):
        with pytest.raises(DptraceError, match=f"dptrace flight {named}$"):
            dptrace.open(named, cache=False)
    (cut := tmp_path / "cut.json").write_text('{"distributedInfo": {"pg_config": [{"pg_name": "0"}]}, "tra')
    with pytest.raises(DptraceError, match="ends before its first event"):
        dptrace.open(cut, cache=False)


def test_pipes_and_dead_links_in_a_folder_are_reported(folder: Path) -> None:
    """They are left out with a note; a pipe that is named is read."""
    os.mkfifo(folder / "rank2.json")
    (folder / "rank3.json").symlink_to(folder / "nothing")

    sources = find([str(folder)])

    assert 2 == len(sources.files)
    assert ["rank2.json: is a pipe", "rank3.json: is a dead link"] == [
        re.sub(r".*/(rank.*?(pipe|dead link)).*", r"\1", note) for note in sources.notes
    ]
    assert find([str(folder / "rank2.json")]).files[0].single_pass


def test_archives_in_an_archive_of_traces_are_reported(tmp_path: Path) -> None:
    """They are not read."""
    with zipfile.ZipFile(tmp_path / "outer.zip", "w") as file:
        file.writestr("rank0.json", KinetoFile().text())
        file.writestr("rank1.zip", "")

    sources = find([str(tmp_path / "outer.zip")])

    assert ["rank0.json"] == [file.name for file in sources.files]
    (note,) = sources.notes
    assert "rank1.zip" in note


def test_only_a_path_that_begins_with_a_tilde_is_in_a_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``./~`` is a name in this folder, as in a shell."""
    home, here = tmp_path / "home", tmp_path / "here"
    for folder in (home, here / "~"):
        folder.mkdir(parents=True)
        KinetoFile().op("a", 1, 2).write(folder / "r.json")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)

    assert [home / "r.json"] == [Path(file.address) for file in find(["~/r.json"]).files]
    inside = here / "~" / "r.json"
    for name in ("./~/r.json", "./~", "./~/*.json", path_text(Path("./~/r.json")), "file://~/r.json"):
        assert [inside] == [Path(file.address).absolute() for file in find([name]).files]
    assert str(inside) == os.path.abspath(dptrace.open(Path("./~/r.json"), cache=False).timelines[0].path)


def test_a_file_that_is_named_twice_is_read_once_and_said(folder: Path) -> None:
    """By itself, and in its folder."""
    once = find([str(folder)])
    twice = find([str(folder), str(once.local_files()[0])])

    assert once.files == twice.files
    assert [note for note in twice.notes if note not in once.notes] == [
        f"{Path(once.local_files()[0]).name} was named more than once: read once."
    ]


def test_standard_input_stands_alone(folder: Path) -> None:
    """It holds one trace and can't be combined with files."""
    assert ["standard input"] == [file.address for file in find(["-"]).files]
    with pytest.raises(UsageError, match="Standard input"):
        find(["-", str(folder)])


def test_the_parts_of_a_job_on_machines_without_a_shared_folder_are_one_run(tmp_path: Path) -> None:
    """Named together, their ranks, notes and failures are joined; a part of another job adds nothing."""
    shared = {"world_size": 4, "nnodes": 2, "mode": "ddp", "model": "small", "status": "complete"}
    parts = {
        "one": shared | {"ranks": [{"rank": 0}, {"rank": 1}], "notes": ["a"], "losses": [1.0]},
        "two": shared | {"ranks": [{"rank": 3}, {"rank": 2}], "notes": ["a", "b"], "losses": [2.0]},
        "died": shared | {"ranks": [{"rank": 2}], "status": "failed", "failure": {"rank": 3}},
        "other": shared | {"ranks": [{"rank": 2}], "world_size": 8},
        "odd": shared | {"ranks": [{"rank": "2"}, 7], "notes": 3},
    }
    for name, info in parts.items():
        (tmp_path / name).mkdir()
        rank = {"one": 0, "two": 2}.get(name, 3)
        KinetoFile(rank=rank, world_size=4).op("a", 1, 2).write(tmp_path / name / f"rank{rank}.json")
        (tmp_path / name / "run.json").write_text(json.dumps(info))

    def joined(*names: str) -> dict[str, Any]:
        return find([str(tmp_path / name) for name in names]).metadata

    both = joined("one", "two")
    assert ([0, 1, 2, 3], ["a", "b"], []) == ([r["rank"] for r in both["ranks"]], both["notes"], both["losses"])
    assert "complete" == both["status"]
    assert ("failed", {"rank": 3}) == tuple(joined("one", "died")[key] for key in ("status", "failure"))
    assert all(parts["one"] == joined("one", name) for name in ("other", "odd", "one"))
    run = dptrace.open(tmp_path / "one", tmp_path / "two")
    assert [0, 2] == [timeline.rank for timeline in run.timelines]
    assert any("ranks 1, 3" in note for note in run.notes)


# run.json as people and other tools write it.

_RANK = {
    "node": 0,
    "host": "h",
    "recorded_steps": 3,
    "unprofiled_ns": [5, 6],
    "memory": {"parameters_bytes": 5},
    "flops": {"model": 1e9, "hardware": 2e9, "dtype": "bf16"},
    "experts": {"layers": [0], "expert_load": [[1, 2]]},
}
RUN: dict[str, Any] = {
    "schema": 1,
    "mode": "ddp",
    "parameters": 100,
    "profiler_overhead": 0.2,
    "losses": [1.0, None],
    "options": {"batch_size": 8, "tokens_per_sample": 4, "dtype": "float32"},
    "versions": {"torch": "2.9"},
    "ddp": {"bucket_cap_bytes": 100, "bucket_sizes": "1, 2"},
    "links": {"busbw_gbps": 450.0},
    "notes": ["a note"],
    "ranks": [{"rank": rank, "coordinates": {"dp": rank}, **_RANK} for rank in (0, 1)],
}


def read(folder: Path, text: str) -> tuple[dict[str, Any], list[str]]:
    path = folder / "run.json"
    path.write_text(text, encoding="utf-8")
    return read_run_file(Source.of(path))


def test_what_holds_no_run_is_reported(tmp_path: Path) -> None:
    """The traces are read without it, and a note names the file."""
    for text in ("[1]", '"text"', "null", "5", "true", "{", "", '{"a": 1} x', "[" * 100_000):
        content, (note,) = read(tmp_path, text)
        assert ({}, True) == (content, note.startswith("run.json")), text


def test_any_spelling_of_json_is_read(tmp_path: Path) -> None:
    """Also with the byte order mark that editors on Windows write."""
    for text in (json.dumps(RUN), json.dumps(RUN, indent=2), "\ufeff" + json.dumps(RUN)):
        assert (RUN, []) == read(tmp_path, text)


def test_numbers_that_are_not_finite_are_null(tmp_path: Path) -> None:
    """Python writes them; they cost only themselves, and a note shows them."""
    for number in ("NaN", "Infinity", "-Infinity", "1e999", "1" * 400):
        content, (note,) = read(tmp_path, f'{{"mode": "ddp", "options": {{"clip": {number}}}}}')
        assert {"mode": "ddp", "options": {"clip": None}} == content
        assert number[:40] in note


def test_a_value_of_a_wrong_type_costs_only_itself(tmp_path: Path) -> None:
    """All else is there, and a note names the value."""
    wrong: list[tuple[str, object]] = [
        *(("ranks", 8), ("ranks", {"0": {}}), ("ranks.0", 5), ("ranks.0.rank", [0]), ("ranks.1.rank", True)),
        *(("ranks.0.flops.model", "1e9"), ("mode", ["ddp"]), ("notes", "a"), ("notes.0", {}), ("links", 450)),
        *(("links.busbw_gbps", "450"), ("options", []), ("losses", 0.5)),
    ]
    for place, value in wrong:
        path = tuple(int(key) if key.isdigit() else key for key in place.split("."))
        expected, given = copy.deepcopy(RUN), copy.deepcopy(RUN)
        _parent(given, path)[path[-1]] = value
        del _parent(expected, path)[path[-1]]

        content, (note,) = read(tmp_path, json.dumps(given))

        assert (place, expected) == (place, content)
        assert re.sub(r"\.(\d)", r"[\1]", place) in note


def _parent(value: Any, place: tuple[Any, ...]) -> Any:
    for key in place[:-1]:
        value = value[key]
    return value


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if place:
        yield place
    if isinstance(value, (dict, list)) and value:
        for key in value if isinstance(value, dict) else [0]:
            yield from _places(value[key], (*place, key))


@pytest.mark.slow
@pytest.mark.parametrize("value", ["x", [[8]], {"rank": [8]}], ids=str)
def test_no_value_breaks_the_figures(value: object, tmp_path: Path) -> None:
    """Whatever a key holds, a run has its figures and findings."""
    for rank in (0, 1):
        file = KinetoFile(rank=rank, world_size=2)
        for k in range(4):
            training_step(file, k, 100 * k)
        file.write(tmp_path / f"rank{rank}.json")
    run_file = tmp_path / "run.json"
    for place in _places(RUN):
        given = copy.deepcopy(RUN)
        _parent(given, place)[place[-1]] = value
        run_file.write_text(json.dumps(given))

        run, text = dptrace.open(tmp_path, jobs=1), io.StringIO()
        print_run(run, Console(file=text))

        assert 2 == len(run.to_dict()["ranks"])
        assert "forward" in text.getvalue()
