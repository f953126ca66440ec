"""The small runs in traces/: each recording shows what its mode does."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest

import dptrace

TRACES = Path(__file__).resolve().parents[1] / "traces"
NAMES = sorted(path.name for path in TRACES.iterdir() if path.is_dir())
ON_CPU = [name for name in NAMES if "cpu" in name]
PARAMETERS = 8_432_138


def overlap(name: str) -> float:
    totals = dptrace.open(str(TRACES / name)).totals()
    overlapped, exposed = totals["overlapped_comm_ns"].sum(), totals["exposed_comm_ns"].sum()
    return float(overlapped / (overlapped + exposed))


def test_modes_overlap_as_they_should() -> None:
    """Naive overlaps nothing, interleaved more than half, DDP something in between, and more with smaller buckets."""
    naive, interleaved = overlap("naive_cpu_2ranks"), overlap("interleaved_cpu_2ranks")

    assert naive < 0.02 < 0.5 < interleaved
    assert naive < overlap("ddp_cpu_2ranks") < interleaved
    assert overlap("ddp_cpu_2ranks") < overlap("ddp_4mb_cpu_2ranks")


def test_every_step_reduces_every_gradient_once() -> None:
    """A step's all-reduces move the bytes of all parameters, in one call per tensor or per bucket."""
    for name, count in (("naive", 10), ("interleaved", 10), ("ddp", 2), ("ddp_4mb", 3)):
        run = dptrace.open(str(TRACES / f"{name}_cpu_2ranks"))
        for figures in run.splits:
            assert {4 * PARAMETERS} == set(figures.comm["all_reduce"].bytes.tolist())
            assert {count} == set(figures.comm["all_reduce"].count.tolist())


def test_all_modes_learn_the_same() -> None:
    """The loss averaged over ranks is the same curve for all modes; a single rank's loss is not."""
    curves = [json.loads((TRACES / name / "run.json").read_text())["losses"] for name in ON_CPU]

    for curve in curves[1:]:
        assert curves[0] == pytest.approx(curve, rel=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_is_small_whole_and_quiet(name: str) -> None:
    """Under 1 MB, with all ranks, a phase for all compute, and at most the note that its machine implies."""
    run = dptrace.open(str(TRACES / name))
    total = run.totals().sum()

    assert sum(path.stat().st_size for path in (TRACES / name).iterdir()) < 1_000_000
    assert len(run.timelines) == run.world_size
    # Of what the GPU had yet to do when the recording began, a note says that its launch is not in the file.
    assert len(run.notes) == (name != "single_h200")
    assert total["other_ns"] < 0.01 * total["wall_ns"]


def test_nccl_on_a_gpu_reduces_every_gradient_once() -> None:
    """NCCL's own metadata give the bytes of each bucket, and the ranks of its group."""
    run = dptrace.open(str(TRACES / "ddp_h200_2ranks"))
    for figures in run.splits:
        assert {4 * PARAMETERS} == set(figures.comm["all_reduce"].bytes.tolist())
        assert {2} == set(figures.comm["all_reduce"].count.tolist())
    calls = run.collectives().dropna(subset=["step_number"])  # the rest was launched before the recording began
    assert {2} == set(calls["group_size"])
    assert run.matched_collectives()["complete"].all()


@pytest.mark.slow
def test_no_cut_gives_wrong_figures_unsaid(tmp_path: Path) -> None:
    """Cut anywhere, a recording has the figures of the whole, or a note that steps may lack work."""
    raw = gzip.decompress((TRACES / "naive_cpu_2ranks" / "rank0.pt.trace.json.gz").read_bytes())
    whole = dptrace.open(TRACES / "naive_cpu_2ranks" / "rank0.pt.trace.json.gz").splits[0].total()
    path = tmp_path / "cut.json"
    choose = random.Random(7)
    for end in (*(choose.randrange(len(raw)) for _ in range(100)), *range(len(raw) - 40, len(raw))):
        path.write_bytes(raw[:end])
        try:
            run = dptrace.open(path, cache=False)
        except dptrace.DptraceError:
            continue
        assert whole == run.splits[0].total() or "Any step may lack work" in run.notes[0], end
