"""Opening a run."""

from __future__ import annotations

import gc
import json
import os
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import dptrace
from dptrace.commands.shared.main import cli
from dptrace.core.files import cache_folder
from dptrace.errors import DptraceError, UsageError
from dptrace.load import open as load_open
from dptrace.load import rank_file
from dptrace.load.open import open_run
from dptrace.load.options import ReadOptions
from dptrace.load.stored_file import RankFile
from dptrace.readers.kineto import reader
from dptrace.readers.source import Source
from dptrace.replay.graph.events import RANK_EVENTS
from dptrace.run.run import Run
from dptrace.timeline.host_calls import OPERATOR_CALLS
from tests.support.kineto_files import KinetoFile, training_step
from tests.support.layered_files import layered_file
from tests.support.paths import ROOT


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for rank in (1, 0):
        file = KinetoFile(rank=rank, world_size=2)
        training_step(training_step(file, 4, 0), 5, 100).write(tmp_path / f"r{rank}.json.gz")
    return tmp_path


def test_missing_ranks_are_reported(tmp_path: Path) -> None:
    """Some are listed; those of a billion are counted and cost nothing."""
    few, many = (training_step(KinetoFile(rank=r, world_size=n), 1, 0) for r, n in ((0, 2), (5, 10**9)))

    (few_note,) = dptrace.open(few.write(tmp_path / "few.json")).notes
    (many_note,) = dptrace.open(many.write(tmp_path / "many.json")).notes

    assert few_note.endswith("rank 1.")
    assert many_note.endswith("ranks 0, 1, 2, 3, 4, 6, 7, 8 and 999,999,991 more.")


def test_ranks_on_one_gpu_are_named(folder: Path) -> None:
    """By the UUIDs in run.json; those that are unknown say nothing."""
    for uuids, named in ((["A", "A"], ["Ranks 0, 1"]), (["A", "B"], []), ([None, None], []), ([7, 7], [])):
        entries = [{"rank": rank, "device_uuid": uuid} for rank, uuid in enumerate(uuids)]
        (folder / "run.json").write_text(json.dumps({"ranks": entries}))
        notes = [note for note in dptrace.open(folder).notes if "one GPU" in note]
        assert named == [note.partition(" share")[0] for note in notes]


def test_a_copied_file_is_no_further_rank(tmp_path: Path) -> None:
    """It is named; a file that differs in a time is not."""
    names = [tmp_path / f"{name}.json" for name in "abc"]
    for name, start in zip(names, (0, 0, 1), strict=True):
        training_step(KinetoFile(rank=None), 4, start).write(name)

    assert [f"{names[1]}: is a copy of {names[0]}"] == [
        note.partition(";")[0] for note in dptrace.open(*names).notes if "copy" in note
    ]


def test_a_damaged_file_of_a_folder_is_left_out_and_reported(folder: Path) -> None:
    """In a folder one bad file does not hide the others; named by the user it is an error."""
    (folder / "r9.json").write_text("")

    run = dptrace.open(str(folder))

    assert 2 == len(run.timelines)
    assert any("Left out" in note and "is empty" in note for note in run.notes)
    with pytest.raises(DptraceError, match="is empty"):
        dptrace.open(str(folder / "r0.json.gz"), str(folder / "r9.json"))


@pytest.mark.heavy
def test_many_bad_files_are_counted(folder: Path) -> None:
    """The first are named; thousands do not hide the rest of the answer."""
    for number in range(300):
        (folder / f"bad{number}.json").write_text(f"<html>{number}")

    run = dptrace.open(folder)

    assert 2 == len(run.timelines)
    assert len(run.notes) < 10
    assert any("295" in note for note in run.notes)
    for rank in (0, 1):
        (folder / f"r{rank}.json.gz").unlink()
    with pytest.raises(DptraceError, match="295 more") as raised:
        dptrace.open(folder)
    assert len(str(raised.value).splitlines()) < 10


def test_notes_that_differ_only_in_numbers_are_said_once(tmp_path: Path) -> None:
    """A problem of all ranks is one sentence, not one for each."""
    for rank in range(3):
        training_step(KinetoFile(rank=rank, world_size=3), 1, 0).kernel("orphan", 5, 6 + rank, None).write(
            tmp_path / f"{rank}.json"
        )

    (note,) = dptrace.open(str(tmp_path)).notes

    assert note.endswith("2 more files.")


def test_what_the_recorder_noted_stands_with_the_figures(folder: Path) -> None:
    """Notes of run.json, and that the recording failed, are notes of the run."""
    manifest = {"status": "failed", "failure": {"rank": 1, "message": "exit code 9"}, "notes": ["Step 5 is cut short."]}
    (folder / "run.json").write_text(json.dumps(manifest))

    failed, cut = dptrace.open(str(folder)).notes

    assert ("exit code 9" in failed, "Step 5 is cut short.") == (True, cut)


def test_a_cut_file_is_shown_with_a_warning_and_refused_when_strict(tmp_path: Path) -> None:
    """The readable part of a killed job's trace is used, with a note that any step may lack work."""
    text = training_step(training_step(KinetoFile(base=False), 1, 0), 2, 100).text()
    path = tmp_path / "t.json"
    path.write_text(text[: int(len(text) * 0.9)])

    assert "Any step may lack work" in dptrace.open(path).notes[0]
    with pytest.raises(DptraceError, match=r"strict.*ends in the middle, after \d+ events"):
        dptrace.open(path, strict=True)


def test_a_step_that_the_recorder_did_not_finish_is_left_out(folder: Path) -> None:
    """run.json counts complete steps; impossible counts are ignored."""
    for count, steps in ((1, 1), (2, 2), (0, 2), (9, 2), (True, 2), ("1", 2)):
        (folder / "run.json").write_text(json.dumps({"ranks": [{"rank": 0, "recorded_steps": count}, 7]}))
        assert steps == len(dptrace.open(folder).splits[0].names)


def test_files_of_different_jobs_are_reported(tmp_path: Path) -> None:
    """Files with different world sizes, or with a rank outside the world size, are not of one run."""
    for rank, world in ((0, 2), (1, 2), (2, 8)):
        training_step(KinetoFile(rank=rank, world_size=world), 1, 0).write(tmp_path / f"{rank}.json")

    assert any("2 and 8" in note for note in dptrace.open(tmp_path).notes)
    training_step(KinetoFile(rank=2, world_size=2), 1, 0).write(tmp_path / "2.json")
    assert any("Rank 2 is outside world size 2" in note for note in dptrace.open(tmp_path).notes)


def test_a_pattern_that_fits_no_kernel_is_a_note(folder: Path) -> None:
    """Else a misspelled pattern would look as if there were no such communication."""
    for rank in (0, 1):
        file = training_step(KinetoFile(rank=rank, world_size=2), 4, 0).kernel("MyExchange<float>", 90, 95, None)
        file.write(folder / f"r{rank}.json.gz")

    for figures_only in (False, True):
        run = dptrace.open(str(folder), comm_patterns=("myexchange", "MyExchnage"), figures_only=figures_only)
        assert ["--comm-pattern 'MyExchnage' fits no kernel."] == [note for note in run.notes if "pattern" in note]


# Reading all files of a run in parallel.


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Source]:
    monkeypatch.setenv("DPTRACE_CACHE", str(tmp_path / "cache"))
    paths = [training_step(KinetoFile(rank=rank), 1, 7 * rank).write(tmp_path / f"{rank}.json.gz") for rank in range(6)]
    (tmp_path / "bad.json").write_text("no")
    return [Source.of(path) for path in (*paths, tmp_path / "bad.json")]


def totals(sources: list[Source], read_options: ReadOptions) -> dict[int, object]:
    return {
        index: result.devices[0].split.total() if isinstance(result, RankFile) else type(result)
        for index, result in load_open.read_files(sources, read_options)
    }


@pytest.mark.slow
@pytest.mark.spawn
@pytest.mark.parametrize("figures_only", [False, True])
@pytest.mark.parametrize("cached", [False, True])
def test_processes_give_what_one_gives(figures_only: bool, cached: bool, sources: list[Source]) -> None:
    """Figures and intervals do not depend on processes or on the cache; errors are results, too."""
    one = totals(sources, ReadOptions(jobs=1, cache=False))
    read_options = ReadOptions(jobs=3, cache=cached, figures_only=figures_only)

    for _ in range(2):
        assert one == totals(sources, read_options)
        for _, result in load_open.read_files(sources[:6], read_options):
            assert isinstance(result, RankFile)
            assert (1 if figures_only else 4) == len(result.devices[0].timeline)
    assert cached == any(cache_folder().glob("*.rank"))


def test_a_second_look_reads_nothing(sources: list[Source], monkeypatch: pytest.MonkeyPatch) -> None:
    """A cached file is not parsed; without the cache, or after a change of the file, it is."""
    first = totals(sources[:1], ReadOptions())
    monkeypatch.setattr(rank_file, "read_trace", lambda *_, **__: pytest.fail("was read again"))

    assert first == totals(sources[:1], ReadOptions())
    with pytest.raises(pytest.fail.Exception):
        totals(sources[:1], ReadOptions(cache=False))
    os.utime(sources[0].address, ns=(1, 1))
    with pytest.raises(pytest.fail.Exception):
        totals(sources[:1], ReadOptions())


@pytest.mark.heavy
def test_a_second_look_at_many_ranks_takes_the_memory_of_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the cache, a further rank takes less than three times its entry, however many ranks its groups list."""
    monkeypatch.setenv("DPTRACE_CACHE", str(tmp_path / "cache"))
    world = 2048
    about: dict[str, Any] = {"Collective name": "allreduce", "In msg nelems": 1000, "dtype": "Float"}
    about |= {"Process Group Name": "0", "Group size": world, "Process Group Ranks": str(list(range(world)))}
    for rank in range(8):
        file = KinetoFile(rank=rank, world_size=world)
        for step in range(20):
            at = 100 * step
            training_step(file, step, at).kernel("ncclDevKernel_AllReduce_Sum_f32", at + 91, at + 95, at + 50, **about)
        file.write(tmp_path / f"{rank}.json.gz")
    paths = sorted(map(str, tmp_path.glob("*.json.gz")))
    first = dptrace.open(*paths, figures_only=True)

    def peak(count: int) -> tuple[Run, int]:
        gc.collect()
        tracemalloc.start()
        run = dptrace.open(*paths[:count], figures_only=True)
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return run, held

    entry = min(path.stat().st_size for path in (tmp_path / "cache").glob("*.rank"))
    _, few = peak(2)
    again, all_of_them = peak(8)
    assert all_of_them - few < 6 * 3 * entry
    assert first.timelines[3].collectives == again.timelines[3].collectives
    assert world in {len(collective.ranks) for collective in again.timelines[3].collectives}
    assert first.to_dict() == again.to_dict()


def test_damage_is_refused_from_the_cache_too(tmp_path: Path) -> None:
    """A damaged file is refused although its parsed result is cached."""
    text = training_step(training_step(KinetoFile(), 1, 0), 2, 100).text()
    path = tmp_path / "t.json"
    path.write_text(text[: int(len(text) * 0.9)])
    source = Source.of(path)

    assert 1 == len(dict(load_open.read_files([source], ReadOptions())))
    for _ in range(2):
        ((_, refused),) = load_open.read_files([source], ReadOptions(strict=True))
        assert isinstance(refused, DptraceError)
        assert "--strict" in str(refused)


def test_an_emptied_cache_costs_a_reading(sources: list[Source], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the arrays to map are gone, the trace is read."""
    monkeypatch.setattr(rank_file, "read", lambda *_: (_ for _ in ()).throw(FileNotFoundError()))

    found = load_open._map_result(Path("gone"), sources[2], ReadOptions(), "")
    assert isinstance(found, RankFile)
    assert 2 == found.rank


# The options for reading a run.


def test_what_makes_no_sense_is_refused() -> None:
    """At least one process must read, and a cluster has its own number of them."""
    for choices in ({"jobs": 0}, {"jobs": -2}, {"dask": "local", "jobs": 2}):
        with pytest.raises(UsageError):
            ReadOptions(**choices)
    assert "local" == ReadOptions(dask="local").dask


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("verb", "again"),
    [("whatif", 1), ("critical-path", 1), ("advise", 1), ("view -o page.html --force", 0), ("kernels", 0)],
)
def test_what_a_replay_needs_is_said_before_it_starts(
    verb: str, again: int, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every verb that replays says how much memory that takes where less is free, and none where it suffices.

    Findings that are known need no replay.
    """
    monkeypatch.chdir(tmp_path)
    words = [*verb.split(), str(folder)]
    said = []
    for cache, free in (("a", 1 << 60), ("b", 1000), ("b", 1000)):
        monkeypatch.setenv("DPTRACE_CACHE", str(tmp_path / cache))
        monkeypatch.setattr("dptrace.load.open.available_memory", lambda free=free: free)
        said.append(CliRunner().invoke(cli, words).stderr)

    assert [0, 1, again] == [text.count("A replay of this run takes") for text in said]
    assert "are free" in said[1]


# Operators are read together with the figures where a command asks for both: each file is decoded once.


@pytest.mark.heavy
@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("jobs", [1, 2])
def test_each_file_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: bool, jobs: int) -> None:
    """With and without the cache, and where other processes read."""
    for rank in (0, 1):
        layered_file(rank, 2).write(tmp_path / f"rank{rank}.json")
    run = open_run([str(tmp_path)], ReadOptions(cache=cache, jobs=jobs, operators=True))
    monkeypatch.setattr(reader, "read_trace", None)
    found = [run.read_again(timeline, OPERATOR_CALLS) for timeline in run.timelines]

    assert [True, True] == [calls is not None and len(calls.table) > 1 for calls in found]


@pytest.mark.heavy
@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_replay_reads_no_file_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: bool, jobs: int) -> None:
    """Its events come from the pass that reads the figures, also those of a file with too many to be cached."""
    paths = [training_step(KinetoFile(rank=r, world_size=2), 4, 0).write(tmp_path / f"r{r}.json") for r in (0, 1)]
    for most in (RANK_EVENTS.most_cached, 1):
        events = msgspec.structs.replace(RANK_EVENTS, most_cached=most)
        monkeypatch.setenv("DPTRACE_CACHE", str(tmp_path / str(most)))
        run = open_run([str(tmp_path)], ReadOptions(cache=cache, jobs=jobs, prefetch=(events,)))
        with monkeypatch.context() as patched:
            patched.setattr(reader, "read_trace", None)
            found = [run.read_again(timeline, events) for timeline in run.timelines]

        assert len(paths) == len(found)
        assert all(one is not None and len(one) for one in found)


def test_figures_are_those_of_a_plain_reading(tmp_path: Path) -> None:
    """Whatever else was read."""
    layered_file().write(tmp_path / "rank0.json")
    both = open_run([str(tmp_path)], ReadOptions(cache=False, operators=True))

    assert open_run([str(tmp_path)]).to_dict() == both.to_dict()


@pytest.mark.heavy
@pytest.mark.parametrize("kept", [0, 20_000, 26_000])
def test_a_rank_whose_gpu_work_is_cut_away_is_left_out(kept: int, tmp_path: Path) -> None:
    """As one with an empty file, also where some kernels are left: the other's figures stay, and a diff compares it."""
    whole = ROOT / "traces" / "ddp_h200_2ranks"
    cut = Path(shutil.copytree(whole, tmp_path / "cut"))
    file = cut / "rank1.pt.trace.json.gz"
    file.write_bytes(file.read_bytes()[:kept])
    run, expected = dptrace.open(str(cut)), dptrace.open(str(whole))

    assert (2, [0]) == (run.world_size, [timeline.rank for timeline in run.timelines])
    for name in ("forward_ns", "exposed_comm_ns", "idle_ns", "wall_ns"):
        assert run.totals()[name][0] == expected.totals()[name][0]
    assert any(note.startswith("Left out") and file.name in note for note in map(str, run.notes))
    assert 1 == CliRunner().invoke(cli, ["analyze", str(file)]).exit_code
    compared = CliRunner().invoke(cli, ["diff", str(whole), str(cut), "--fail-if", "exposed_comm > +5%"])
    assert (0, True) == (compared.exit_code, "kept; it went from 21.0 ms to 21.0 ms" in compared.output)


def test_operators_on_a_cpu_are_not_averaged_with_kernels(tmp_path: Path) -> None:
    """A rank without GPU work beside one with some is left out, an error if named; alone it is a run on CPU."""
    gpu = training_step(KinetoFile(rank=0, world_size=2), 4, 0).write(tmp_path / "r0.json")
    cpu = KinetoFile(rank=1, world_size=2).label("ProfilerStep#4", 0, 100).op("aten::mm", 0, 90)
    named = cpu.write(tmp_path / "r1.json")
    run = open_run([str(tmp_path)])

    assert [False] == [timeline.on_cpu for timeline in run.timelines]
    assert any("r1.json: has no GPU work" in note for note in map(str, run.notes))
    for paths, options in (([str(gpu), str(named)], ReadOptions()), ([str(tmp_path)], ReadOptions(strict=True))):
        with pytest.raises(DptraceError, match="no GPU work"):
            open_run(paths, options)
    assert open_run([str(named)]).timelines[0].on_cpu
