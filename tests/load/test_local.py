"""Reading all files of a run in parallel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dptrace.core.files import cache_folder
from dptrace.errors import DptraceError
from dptrace.load import cache, local, rank_file
from dptrace.load.options import ReadOptions
from dptrace.load.rank_file import RankFile
from dptrace.readers.source import Source
from tests.support.kineto_files import KinetoFile, training_step


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Source]:
    monkeypatch.setenv("DPTRACE_CACHE", str(tmp_path / "cache"))
    paths = [training_step(KinetoFile(rank=rank), 1, 7 * rank).write(tmp_path / f"{rank}.json.gz") for rank in range(6)]
    (tmp_path / "bad.json").write_text("no")
    return [Source.of(path) for path in (*paths, tmp_path / "bad.json")]


def totals(sources: list[Source], read_options: ReadOptions) -> dict[int, object]:
    return {
        index: result.devices[0].split.total() if isinstance(result, RankFile) else type(result)
        for index, result in local.read_files(sources, read_options)
    }


@pytest.mark.spawn
@pytest.mark.parametrize("figures_only", [False, True])
@pytest.mark.parametrize("cached", [False, True])
def test_processes_give_what_one_gives(figures_only: bool, cached: bool, sources: list[Source]) -> None:
    """Figures and intervals do not depend on processes or on the cache; errors are results, too."""
    one = totals(sources, ReadOptions(jobs=1, cache=False))
    read_options = ReadOptions(jobs=3, cache=cached, figures_only=figures_only)

    for _ in range(2):
        assert one == totals(sources, read_options)
        for _, result in local.read_files(sources[:6], read_options):
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


def test_damage_is_refused_from_the_cache_too(tmp_path: Path) -> None:
    """A damaged file is refused although its parsed result is cached."""
    text = training_step(training_step(KinetoFile(), 1, 0), 2, 100).text()
    path = tmp_path / "t.json"
    path.write_text(text[: int(len(text) * 0.9)])
    source = Source.of(path)

    assert 1 == len(dict(local.read_files([source], ReadOptions())))
    for _ in range(2):
        ((_, refused),) = local.read_files([source], ReadOptions(strict=True))
        assert isinstance(refused, DptraceError)
        assert "--strict" in str(refused)


def test_an_emptied_cache_costs_a_reading(sources: list[Source], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the arrays to map are gone, the trace is read."""
    monkeypatch.setattr(cache, "read", lambda *_: (_ for _ in ()).throw(FileNotFoundError()))

    assert 2 == local._map_result(Path("gone"), sources[2], ReadOptions()).rank
