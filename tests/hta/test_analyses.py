"""The analyses as the command line runs them: options are passed on, failures reported, nothing is printed."""

from __future__ import annotations

import gzip
import logging
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dptrace.errors import DptraceError, UsageError
from dptrace.hta.options import ANALYSES, Options
from dptrace.hta.trace_analysis import silence_hta
from dptrace.readers.discovery import find
from tests.support.hta_own import needs_hta, paths_of
from tests.support.kineto_files import KinetoFile, training_step
from tests.support.real_traces import needs_real_traces

pytestmark = needs_hta


@pytest.fixture
def run(tmp_path: Path) -> list[str]:
    """Two ranks of four steps, with an annotation on the GPU, a copy, and a synchronisation."""
    for rank in (0, 1):
        file = KinetoFile(rank=rank, world_size=2)
        for step in range(4):
            at = 1000 + 200 * step + rank
            training_step(file, step, at)
            bandwidth: dict[str, Any] = {"memory bandwidth (GB/s)": 2.5}
            file.kernel("Memcpy HtoD", at + 2, at + 5, at, category="gpu_memcpy", **bandwidth)
            file.event("gpu_user_annotation", "forward", at + 10, at + 30, tid=7)
        file.event("cuda_sync", "Stream Wait Event", 1100, 1101, stream=7)
        file.write(tmp_path / f"rank{rank}.json.gz")
    return [str(tmp_path)]


def analyze(name: str, paths: list[str], draw: bool = False, force: bool = False, **options: Any) -> Any:
    from dptrace.hta.analyses import analyze

    against = find(paths) if name == "trace-diff" else None
    return analyze(name, find(paths), Options(**options), against, draw=draw, force=force)


@pytest.mark.heavy
@pytest.mark.parametrize("name", ANALYSES)
def test_every_analysis_gives_tables_and_pictures(run: list[str], capfd: pytest.CaptureFixture[str], name: str) -> None:
    """Frames with plain columns, as many figures as HTA draws, and no output."""
    options: dict[str, Any] = {"operator": "aten::linear", "min_length": 1} if name == "frequent-sequences" else {}

    result = analyze(name, run, draw=True, **options)

    assert any(len(frame) for frame in result.tables.values())
    assert all(isinstance(column, str) for frame in result.tables.values() for column in frame.columns)
    assert ANALYSES[name].has_plots == bool(result.figures)
    assert ("", "") == capfd.readouterr()


def test_nothing_is_drawn_unasked(run: list[str]) -> None:
    """Drawing costs more than computing."""
    assert not analyze("idle-breakdown", run).figures


def test_ranks_are_chosen(run: list[str]) -> None:
    """All by default, otherwise those named; an unknown rank is an error that lists the known ones."""
    assert [0, 1] == analyze("temporal-breakdown", run).tables["ranks"]["rank"].tolist()
    assert {1} == set(analyze("idle-breakdown", run, ranks=(1,)).tables["idle"]["rank"])
    with pytest.raises(UsageError, match=r"rank 7 .* 0, 1"):
        analyze("overlap", run, ranks=(7,))


@pytest.mark.heavy
def test_options_reach_hta(run: list[str]) -> None:
    """Each option changes HTA's result."""
    kinds = analyze("kernel-breakdown", run, memory_kernels=False).tables["kinds"]["kernel_type"]
    assert not [kind for kind in kinds if "MEMORY" in kind]
    assert 1 == analyze("kernel-breakdown", run, num_kernels=1).tables["kernels"]["name"].tolist().count("others") // 2
    assert {20} == set(analyze("idle-breakdown", run, streams=(20,)).tables["idle"]["stream"])
    assert "intervals" in analyze("idle-breakdown", run, intervals=True).tables
    assert "series" in analyze("queue-length", run, series=True).tables
    assert "series" in analyze("memory-bandwidth", run, series=True).tables
    assert "launch_delay_over_3us" in analyze("launch-statistics", run, launch_delay_cutoff=3).tables["outliers"]
    cpu = analyze("annotation-breakdown", run, cpu=True).tables["annotations"]["name"]
    assert "Optimizer.step#SGD.step" in set(cpu)
    more = analyze("temporal-breakdown", run, include_last_step=True).tables["ranks"]["kernel_time(us)"]
    assert (more > analyze("temporal-breakdown", run).tables["ranks"]["kernel_time(us)"]).all()
    gpu = analyze("trace-diff", run, device="gpu", iterations=(1, 2), against_ranks=(1,)).tables["operators"]
    assert {"gemm": 2, "aten::linear": 0}.items() == {
        name: sum(gpu.loc[gpu["name"].eq(name), "Control_counts"]) for name in ("gemm", "aten::linear")
    }.items()


def test_outliers_are_counted_as_hta_draws_them(run: list[str]) -> None:
    """Short kernels, long calls and long delays, from the same frame as the launches."""
    tables = analyze("launch-statistics", run, runtime_cutoff=0, launch_delay_cutoff=12).tables

    launches = tables["launches"].query("rank == 0")
    row = tables["outliers"].iloc[0]
    assert len(launches) == row["launches"] == row["runtime_over_0us"]
    assert launches["launch_delay"].gt(12).sum() == row["launch_delay_over_12us"] > 0
    assert 0 == row["short_gpu_kernels"]


def test_failures_are_sentences(run: list[str]) -> None:
    """Whatever HTA raises or logs, the message names the analysis, what went wrong and what it needs."""
    with pytest.raises(DptraceError, match=r"frequent-sequences .*nothing.* needs the operator"):
        analyze("frequent-sequences", run, operator="aten::absent")
    with pytest.raises(DptraceError, match=r"critical-path .*no annotation contains 'absent'"):
        analyze("critical-path", run, annotation="absent")
    with pytest.raises(UsageError, match=r"--instance counts from 0, and rank 0 has \d+ events named 'ProfilerStep'"):
        analyze("critical-path", run, instance=(99, 99))
    with pytest.raises(UsageError, match="--operator"):
        analyze("frequent-sequences", run)


def test_a_run_without_gpu_work_is_reported(tmp_path: Path) -> None:
    """HTA raises IndexError there."""
    path = KinetoFile().op("aten::add", 0, 1).write(tmp_path / "t.json")

    with pytest.raises(DptraceError, match=r"temporal-breakdown .*IndexError.* needs GPU kernels"):
        analyze("temporal-breakdown", [str(path)])


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["critical-path", "frequent-sequences"])
def test_overlays_are_written_and_not_overwritten(run: list[str], tmp_path: Path, name: str) -> None:
    """The folder contains the whole trace with the result added; overwriting it needs force."""
    options: dict[str, Any] = {"overlay": str(tmp_path / "overlays")}
    if name == "frequent-sequences":
        options |= {"operator": "aten::linear", "min_length": 1}

    (written,) = analyze(name, run, **options).written

    events = msgspec.json.decode(gzip.decompress(Path(written).read_bytes()))["traceEvents"]
    assert any("critical" in e.get("args", {}) or "Patterns" in e.get("args", {}) for e in events)
    with pytest.raises(UsageError, match="--force"):
        analyze(name, run, **options)
    assert analyze(name, run, force=True, **options).written == (written,)
    assert [Path(written)] == list((tmp_path / "overlays").iterdir())


def test_the_log_is_given_back() -> None:
    """Afterwards HTA logs as it did."""
    logger = logging.getLogger("hta")
    before = (logger.handlers[:], logger.level, logger.propagate)

    with silence_hta() as errors:
        logger.error("something")

    assert ["something"] == errors
    assert before == (logger.handlers[:], logger.level, logger.propagate)


@pytest.mark.heavy
@needs_real_traces
def test_fractions_that_htas_rounding_breaks() -> None:
    """HTA cannot nest events that its rounding reversed; the message names the option that avoids it."""
    options: dict[str, Any] = {"operator": "aten::batch_norm", "min_length": 1}

    with pytest.raises(DptraceError, match="--no-rounding"):
        analyze("frequent-sequences", paths_of("ddp_a100"), **options)
    frame = analyze("frequent-sequences", paths_of("ddp_a100"), rounding=False, **options).tables["sequences"]
    assert 56 == frame["count"].max()


def test_patterns_of_data_loading_reach_hta_as_the_names_that_they_match() -> None:
    """HTA searches without a limit of time, so it gets these names; a pattern that fits none gets nothing."""
    from dptrace.hta.analyses import _any_match

    symbols = ["load(1)", "xload(1)", "load", "copy"]
    found = {pattern: _any_match(symbols, [pattern, "copy$"]) for pattern in ("^load.1", "none")}

    assert [["load(1)", "copy"], ["copy"]] == [
        [name for name in (*symbols, "load(1)\n", "copy2") if re.search(text, name)] for text in found.values()
    ]
    assert not re.search(_any_match(symbols, ["none"]), "")
