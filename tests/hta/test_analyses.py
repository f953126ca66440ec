"""The analyses as the command line runs them: failures are reported, and nothing is printed."""

from __future__ import annotations

import gzip
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dptrace.errors import DptraceError
from dptrace.hta.analyses import ANALYSES, analyze
from dptrace.hta.trace_analysis import hta_analysis, silence_hta
from dptrace.readers.discovery import find
from tests.support.hta_own import needs_hta
from tests.support.kineto_files import KinetoFile, training_step

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


@pytest.mark.heavy
@pytest.mark.parametrize("name", ANALYSES)
def test_every_analysis_gives_tables(run: list[str], capfd: pytest.CaptureFixture[str], name: str) -> None:
    """Frames with plain columns, with both ranks unless HTA looks at one, and no output."""
    tables, _ = analyze(name, find(run))

    assert any(len(frame) for frame in tables.values())
    assert all(isinstance(column, str) for frame in tables.values() for column in frame.columns)
    assert all({0, 1} == set(frame["rank"]) for frame in tables.values() if "rank" in frame and len(frame))
    assert ("", "") == capfd.readouterr()


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "needs"),
    [("temporal-breakdown", "GPU kernels"), ("critical-path", "launch calls"), ("annotation-breakdown", "annotations")],
)
def test_a_failure_is_one_sentence(tmp_path: Path, name: str, needs: str) -> None:
    """Whatever HTA raises or logs, the message names the analysis and what it needs."""
    path = KinetoFile().op("aten::add", 0, 1).write(tmp_path / "t.json")

    with pytest.raises(DptraceError, match=rf"HTA's {name} needs .*{needs}.* no file here has GPU kernels"):
        analyze(name, find([str(path)]))


@pytest.mark.heavy
def test_what_hta_does_not_find_beside_kernels_is_named(tmp_path: Path) -> None:
    """A kernel without an annotation around it."""
    path = training_step(KinetoFile(), 1, 0).write(tmp_path / "t.json")

    with pytest.raises(DptraceError, match=r"HTA's annotation-breakdown failed .* needs user annotations"):
        analyze("annotation-breakdown", find([str(path)]))


@pytest.mark.heavy
def test_htas_own_overlay_works_on_the_object(run: list[str], tmp_path: Path) -> None:
    """In Python: HTA reads the rank's whole file again and writes it with the path added."""
    with silence_hta():
        analysis = hta_analysis(find(run))
        graph, _ = analysis.critical_path_analysis(0, "ProfilerStep", 1)
        written = analysis.overlay_critical_path_analysis(0, graph, str(tmp_path))

    events = msgspec.json.decode(gzip.decompress(Path(written).read_bytes()))["traceEvents"]
    assert any("critical" in event.get("args", {}) for event in events)


def test_the_log_is_given_back() -> None:
    """Afterwards HTA logs as it did."""
    logger = logging.getLogger("hta")
    before = (logger.handlers[:], logger.level, logger.propagate)

    with silence_hta() as errors:
        logger.error("something")

    assert ["something"] == errors
    assert before == (logger.handlers[:], logger.level, logger.propagate)
