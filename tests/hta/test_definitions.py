"""HTA's figures computed by dptrace equal HTA's own to the last digit."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import pytest

from dptrace.errors import DptraceError, TraceError
from dptrace.hta.definitions import HtaCompat, hta_compat
from dptrace.hta.trace_analysis import silence_hta
from dptrace.readers.discovery import find
from tests.support.hta_own import needs_hta
from tests.support.kineto_files import KinetoFile
from tests.support.real_traces import needs_real_traces, real


def htas_own(analysis: Any) -> pd.DataFrame:

    with silence_hta():
        frame = analysis.get_temporal_breakdown(visualize=False)
        overlap = analysis.get_comm_comp_overlap(visualize=False)
    return pd.DataFrame(frame).assign(comp_comm_overlap_pctg=overlap["comp_comm_overlap_pctg"])


def assert_equal(own: pd.DataFrame, compat: HtaCompat) -> None:
    pd.testing.assert_frame_equal(own, compat.frame, check_exact=True, check_dtype=False)


@pytest.mark.heavy
@needs_real_traces
@pytest.mark.parametrize(
    ("name", "exact", "figures"),
    [
        ("ddp_a100_rank0of2", False, (338781, 75169, 21636, 435586, 77.78, 17.26, 4.97, 14.31)),
        ("ddp_a100_rank0of2", True, (336419.714688, 76935.828, 22232.018992, 435587.56168, 77.23, 17.66, 5.1, 14.76)),
        ("perparam_v100_rank1of2", False, (643612, 496485, 256572, 1396669, 46.08, 35.55, 18.37, 0.0)),
        ("ns_v100_1gpu", False, (10113, 372150, 2371, 384634, 2.63, 96.75, 0.62, None)),
    ],
)
def test_what_hta_printed(monkeypatch: pytest.MonkeyPatch, name: str, exact: bool, figures: tuple[Any, ...]) -> None:
    """The figures that HTA 0.6.1 printed, so that the check does not need HTA."""
    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1" if exact else "0")

    compat = hta_compat(find([real(name)]))

    (row,) = compat.to_dict()["ranks"]
    assert figures == tuple(None if v is None else round(v, 6) for v in list(row.values())[1:])
    assert (not exact) == compat.rounded


def crowded(path: Path, seed: int) -> Path:
    """Write a recording full of what is hard: ties, fractions, overlaps, synchronisation, events without a launch."""
    draw = Random(seed)
    file = KinetoFile(base=False)
    for step in range(3):
        file.label(f"ProfilerStep#{step}", 100 * step, 100 * step + 99)
    names = ("gemm", "ncclDevKernel_AllReduce", "Memcpy HtoD", "Memset (Device)", "hipblas", "my_Sync_kernel", "dma")
    for _ in range(120):
        launch = draw.randrange(0, 300) + draw.choice((0, 0.25, 0.5))
        start = launch + draw.randrange(1, 20)
        end = start + draw.choice((0, 0.125, 0.5, 0.75, 1, 3, 12))
        at = None if draw.random() < 0.2 else launch
        file.kernel(draw.choice(names), start, end, at, stream=draw.choice((0, 7, 20)))
    for name in ("Event Sync", "Context Sync", "Stream Wait Event"):
        at, correlation = draw.randrange(0, 300), draw.choice((-1, 110, 150))
        stream = draw.choice((-1, 7))
        file.event("cuda_sync", name, at, at + 5, stream=stream, correlation=correlation)
    file.op("triton", 40.5, 60, stream=0)
    return file.write(path)


@pytest.mark.slow
@needs_hta
@pytest.mark.parametrize("rounding", ["0", "1"])
def test_crowded_recordings_equal_hta(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounding: str) -> None:
    """Twenty recordings by chance, some of whose events end before they start once they are rounded."""
    from hta.configs.env_options import HTAEnvOptions

    from dptrace.hta.trace_analysis import hta_analysis

    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", rounding)
    monkeypatch.setattr(HTAEnvOptions, "_instance", HTAEnvOptions())
    for seed in range(20):
        found = find([str(crowded(tmp_path / f"{seed}.json", seed))])

        assert_equal(htas_own(hta_analysis(found)), hta_compat(found))


def test_a_case_by_hand(tmp_path: Path) -> None:
    """Two steps, of which the last is left out: 30 µs of compute, 20 of communication, 10 of them under it, 5 idle."""
    file = KinetoFile().label("ProfilerStep#0", 0, 100).label("ProfilerStep#1", 100, 200)
    file.kernel("gemm", 10, 40, 1).kernel("ncclDevKernel_AllReduce", 30, 50, 2, stream=20).kernel("Memset", 55, 60, 3)
    file.kernel("gemm", 110, 150, 101)

    compat = hta_compat(find([str(file.write(tmp_path / "t.json"))]))

    assert {
        "rank": 0,
        "idle_time(us)": 5,
        "compute_time(us)": 30,
        "non_compute_time(us)": 15,
        "kernel_time(us)": 50,
        "idle_time_pctg": 10,
        "compute_time_pctg": 60,
        "non_compute_time_pctg": 30,
        "comp_comm_overlap_pctg": 50,
    } == compat.frame.to_dict("records")[0]


def test_a_run_without_gpu_work_is_reported(tmp_path: Path) -> None:
    """HTA fails on it; dptrace reports an error, or a note where other ranks have GPU work; and for MTIA devices."""
    mtia = KinetoFile(backend="mtia:hccl").kernel("gemm", 0, 1, None).write(tmp_path / "t.json")
    with pytest.raises(TraceError, match="MTIA"):
        hta_compat(find([str(mtia)]))
    idle = KinetoFile(rank=1).op("aten::add", 0, 1).write(tmp_path / "rank1.json")
    busy = KinetoFile(rank=0).kernel("gemm", 0, 1, None).write(tmp_path / "rank0.json")

    with pytest.raises(DptraceError, match="no file contains GPU work"):
        hta_compat(find([str(idle)]))
    compat = hta_compat(find([str(idle), str(busy)]))

    assert [0] == compat.frame["rank"].tolist()
    assert "rank1.json: contains no GPU work" in compat.notes[0]
