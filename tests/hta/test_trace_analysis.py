"""Holistic Trace Analysis on dptrace's frames: all results equal those with HTA's own loader."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import pytest

import dptrace
from dptrace.analysis.kernels.summary import summarize
from dptrace.errors import DptraceError, MissingExtraError
from dptrace.hta.definitions import hta_compat
from dptrace.hta.trace_analysis import hta_analysis, hta_of, silence_hta
from dptrace.readers.discovery import find
from dptrace.timeline.host_calls import OperatorCalls
from tests.hta.test_definitions import assert_equal, htas_own
from tests.support.hta_own import RUNS, both, needs_hta, own_trace, paths_of
from tests.support.kineto_files import KinetoFile, training_step
from tests.support.real_traces import needs_real_traces, real

COMMITTED = Path(__file__).resolve().parents[2] / "traces"


def assert_same(own: Any, ours: Any) -> None:
    """Compare the results of two calls: frames, and anything that contains frames."""
    assert type(own) is type(ours)
    if isinstance(own, pd.DataFrame):
        pd.testing.assert_frame_equal(own, ours, check_exact=True)
    elif isinstance(own, pd.Series):
        pd.testing.assert_series_equal(own, ours, check_exact=True)
    elif isinstance(own, dict):
        assert own.keys() == ours.keys()
        assert_same(list(own.values()), list(ours.values()))
    elif isinstance(own, list | tuple):
        assert len(own) == len(ours)
        for one, other in zip(own, ours, strict=True):
            assert_same(one, other)
    else:
        assert own == ours


def outcome(call: Callable[[Any], Any], analysis: Any) -> Any:
    """Return the result of a call, or the name of its exception: HTA fails on some recordings."""
    with silence_hta():
        try:
            return call(analysis)
        except Exception as error:
            return type(error).__name__


def first(analysis: Any) -> int:
    return int(min(analysis.t.traces))


def ranks(analysis: Any) -> list[int]:
    return sorted(analysis.t.traces)


def critical_path(analysis: Any) -> Any:
    graph, success = analysis.critical_path_analysis(first(analysis), "ProfilerStep", 1)
    path = graph.get_critical_path_breakdown()
    return success, graph.summary(), path.sort_values(["event_idx", "type", "duration"], ignore_index=True)


def frequent_sequences(analysis: Any) -> Any:
    with TemporaryDirectory() as folder:
        return analysis.get_frequent_cuda_kernel_sequences(
            "aten::addmm", folder, min_pattern_len=1, rank=first(analysis), visualize=False
        )


ANALYSES: dict[str, Callable[[Any], Any]] = {
    "temporal": lambda a: a.get_temporal_breakdown(visualize=False),
    "overlap": lambda a: a.get_comm_comp_overlap(visualize=False),
    "kernels": lambda a: a.get_gpu_kernel_breakdown(visualize=False),
    "gpu annotations": lambda a: a.get_gpu_user_annotation_breakdown(visualize=False),
    "cpu annotations": lambda a: a.get_gpu_user_annotation_breakdown(use_gpu_annotation=False, visualize=False),
    "kernels by annotation": lambda a: a.get_gpu_kernels_with_user_annotations(first(a)),
    "idle": lambda a: a.get_idle_time_breakdown(ranks(a), visualize=False, show_idle_interval_stats=True),
    "launches": lambda a: a.get_cuda_kernel_launch_stats(ranks(a), visualize=False),
    "queue length": lambda a: a.get_queue_length_summary(ranks(a)),
    "queue length series": lambda a: a.get_queue_length_time_series(ranks(a)),
    "memory bandwidth": lambda a: a.get_memory_bw_summary(ranks(a)),
    "memory bandwidth series": lambda a: a.get_memory_bw_time_series(ranks(a)),
    "steps": lambda a: a.get_profiler_steps(),
    "critical path": critical_path,
    "frequent sequences": frequent_sequences,
}


@pytest.mark.slow
@pytest.mark.heavy
@needs_hta
@needs_real_traces
@pytest.mark.parametrize("run", RUNS)
def test_frames_equal_those_of_htas_loader(run: str) -> None:
    """Every value of every column, every dtype, the order of rows, the symbols, the device and the origin."""
    own, ours = both(run)

    assert own.t.symbol_table.get_sym_table() == ours.t.symbol_table.get_sym_table()
    assert own.t.min_ts == ours.t.min_ts
    kinds, same = ([about["device_type"] for about in one.t.meta_data.values()] for one in (own, ours))
    assert kinds == same
    assert_same(own.t.traces, ours.t.traces)


@pytest.mark.slow
@pytest.mark.heavy
@needs_hta
@needs_real_traces
@pytest.mark.parametrize("run", RUNS)
def test_figures_of_real_runs_equal_hta(run: str) -> None:
    """Every figure of every rank is the one that HTA gives with its own loader."""
    assert_equal(htas_own(both(run)[0]), hta_compat(find(paths_of(run))))


@pytest.mark.slow
@pytest.mark.heavy
@needs_hta
@needs_real_traces
@pytest.mark.parametrize("analysis", ANALYSES)
def test_analyses_equal_those_with_htas_loader(analysis: str) -> None:
    """Each gives the same figures, or fails in the same way; one run of several ranks, as all frames are equal."""
    own, ours = both("sharded_h100")

    assert_same(outcome(ANALYSES[analysis], own), outcome(ANALYSES[analysis], ours))


@pytest.mark.slow
@pytest.mark.heavy
@needs_hta
@needs_real_traces
def test_trace_diff_equals_that_with_htas_loader() -> None:
    """Two runs compared, read by HTA and by dptrace."""
    from hta.common.trace import Trace
    from hta.trace_diff import TraceDiff

    from dptrace.hta.trace_adapter import trace_of

    found = [find([real(run)]) for run in ("ddp_a100_rank0of2", "ns_v100_1gpu")]
    with silence_hta():
        ours = [trace_of(files) for files in found]
        own = [Trace(trace_files=dict(trace.trace_files), trace_dir="/") for trace in ours]
        frames = [TraceDiff.compare_traces(*traces) for traces in (own, ours)]

    assert_same(*frames)
    assert len(frames[0]) > 100


@pytest.mark.heavy
@needs_hta
@pytest.mark.parametrize("run", ["ddp_cpu_2ranks", "single_cpu"])
def test_frames_of_the_committed_runs(run: str) -> None:
    """The committed CPU runs are enough for this test."""
    ours = hta_analysis(find([str(COMMITTED / run)]))

    assert_same(own_trace(ours.t.trace_files).traces, ours.t.traces)


def steps_file(path: Path, shift: float = 0) -> Path:
    file = KinetoFile()
    for step in range(4):
        training_step(file, step, 1000 + 100 * step + shift)
    file.events.append({"ph": "M", "name": "process_name", "pid": 10, "tid": 0, "ts": 0, "args": {"name": "python"}})
    file.op("triton", 1010, 1015, stream=0).op("late", 3000, 3001)
    return file.write(path)


@pytest.mark.heavy
@needs_hta
@pytest.mark.parametrize("shift", [0, 0.375])
def test_frames_of_a_file_made_by_hand(tmp_path: Path, shift: float) -> None:
    """Whole and fractional times, an operator with a stream, steps, and links both ways."""
    file = steps_file(tmp_path / "t.json", shift)
    ours = hta_analysis(find([str(file)]))

    assert_same(own_trace({0: str(file)}).traces, ours.t.traces)
    assert {0, 1, 2} <= set(ours.t.traces[0]["iteration"])


@needs_hta
def test_a_run_gives_htas_object(tmp_path: Path) -> None:
    """`run.hta()` in a notebook: the object has HTA's methods and the run's ranks."""
    analysis = hta_of(dptrace.open(steps_file(tmp_path / "t.json")))

    with silence_hta():
        assert [0, 1, 2] == analysis.get_profiler_steps()
        assert 280 == analysis.get_temporal_breakdown(visualize=False)["kernel_time(us)"][0]
    with_last = hta_of(dptrace.open(tmp_path / "t.json"), include_last_profiler_step=True)
    assert len(with_last.t.traces[0]) > len(analysis.t.traces[0])


@needs_hta
def test_a_damaged_file_is_read_where_hta_fails(tmp_path: Path) -> None:
    """A truncated file is read as far as possible, with a note."""
    text = steps_file(tmp_path / "t.json").read_text()
    cut = tmp_path / "cut.json"
    cut.write_text(text[: text.index("ProfilerStep#3")])

    trace = hta_analysis(find([str(cut)])).t

    assert trace.get_ranks() == [0]
    assert "it ends in the middle" in trace.notes[0]
    with pytest.raises(DptraceError, match="--strict"):
        hta_analysis(find([str(cut)]), strict=True)


@needs_hta
def test_a_file_that_is_none_is_left_out_of_a_folder(tmp_path: Path) -> None:
    """As in dptrace.open: a note where the user named a folder, an error where they named the file."""
    steps_file(tmp_path / "rank0.json")
    (tmp_path / "rank1.json").write_text("{}")

    notes = hta_analysis(find([str(tmp_path)])).t.notes

    assert ["Left out"] == [note.split(":")[0] for note in notes]
    with pytest.raises(DptraceError, match="no traceEvents"):
        hta_analysis(find([str(tmp_path / "rank1.json")]))


@needs_hta
def test_a_setting_that_only_htas_loader_knows_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """parse_all_args infers columns from the whole file, which dptrace does not support."""
    from hta.configs import parser_config

    monkeypatch.setattr(parser_config._DEFAULT_PARSER_CONFIG, "parse_all_args", True)

    with pytest.raises(DptraceError, match="parse_all_args"):
        hta_analysis(find([str(steps_file(tmp_path / "t.json"))]))


def test_a_missing_package_is_reported_with_its_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without HTA the message contains the command that installs it."""
    for name in [name for name in sys.modules if name.split(".")[0] == "hta" or name == "dptrace.hta.trace_adapter"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "hta", None)

    with pytest.raises(MissingExtraError, match=r"pip install 'traceinsight>=0.6'"):
        hta_analysis(find([str(steps_file(tmp_path / "t.json"))]))


# Time by kernel equals Holistic Trace Analysis' own kernel breakdown.


@pytest.mark.heavy
@needs_hta
@needs_real_traces
@pytest.mark.parametrize("name", ["ddp_a100_rank0of2", "dlrm_v100_4ranks"])
def test_time_by_kernel_equals_hta(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each kernel on each rank, to the nanosecond; HTA leaves out what was launched outside the steps."""
    env_options = pytest.importorskip("hta.configs.env_options")
    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
    monkeypatch.setattr(env_options.HTAEnvOptions, "_instance", None)  # HTA reads its settings once
    run = dptrace.open(real(name))
    with silence_hta():
        analysis = run.hta(include_last_profiler_step=True)
        _, table = analysis.get_gpu_kernel_breakdown(visualize=False, num_kernels=10_000, duration_ratio=1.0)
    theirs: dict[tuple[int, str], int] = {}
    for row in table.to_dict("records"):
        key = int(row["rank"]), str(row["name"])
        theirs[key] = theirs.get(key, 0) + round(float(row["sum (us)"]) * 1_000)
    ours: dict[tuple[int, str], int] = {}
    for row in summarize(
        run.timelines, lambda timeline: OperatorCalls(), "kernel", per_rank=True, only_steps=True
    ).rows:
        key = row["rank"], row["name"]
        ours[key] = ours.get(key, 0) + row["total_ns"]

    assert theirs == ours
