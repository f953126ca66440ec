"""Every output that shows several ranks together puts them on one clock; --no-align leaves them on their own."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dptrace.analysis.per_gpu.split import Part
from dptrace.commands.shared.main import cli
from dptrace.viewers.base import theme
from dptrace.viewers.gantt.packing import unpack
from tests.support.exported import read_back
from tests.support.replay_files import write_job
from tests.support.times import unpack_times

_FORWARD = theme.PART_COLORS[Part.FORWARD]
AHEAD_NS = 300_000
"""How far the clock of rank 1 is ahead; a step takes 800 µs."""


def of_page(text: str) -> list[float]:
    """Return the end of the last collective of the first two GPUs of a page, in ns."""
    island = re.search(r'<script type="application/json" id="scene">(.*?)</script>', text, re.DOTALL)
    assert island is not None
    scene, first, ends = json.loads(island[1]), 0, []
    starts, durations = (unpack(scene["columns"][name]) for name in ("delta", "duration"))
    for lane in scene["lanes"]:
        own = slice(first, first := first + lane["count"])
        if lane["role"] == "collectives":
            start, duration = unpack_times(lane["times"], lane["first"], starts[own], durations[own])
            ends.append(float(start[-1] + duration[-1]))
    return ends[:2]


def of_svg(text: str) -> list[float]:
    """Return where the first label of forward is on each GPU, in pixels: both begin it together."""
    labels: dict[str, float] = {}
    for x, y in re.findall(rf'<rect x="([\d.]+)" y="([\d.]+)"[^>]* rx="3" fill="{_FORWARD}"', text):
        labels.setdefault(y, float(x))
    return list(labels.values())


def of_text(text: str) -> list[float]:
    """Return the end of each GPU's communication in the terminal's picture, in cells."""
    return [float(len(line.rstrip())) for line in text.splitlines() if line.lstrip().startswith("comm ")][:2]


def of_csv(text: str) -> list[float]:
    """Return the end of each GPU's last collective, in ns."""
    last = {row["rank"]: float(row["end_ns"]) for row in csv.DictReader(io.StringIO(text))}
    return list(last.values())


def of_trace(path: Path) -> list[float]:
    """Return the same of an exported trace."""
    return [float(track.slices[-1].end_ns) for track in read_back(path) if "(communication)" in track.name][:2]


RAW = ("--no-align",)
CORRECTED, OWN = "one clock: 1 rank corrected by up to 300 µs", "each rank on its own clock"
PAGE = (of_page, 1_000, CORRECTED, OWN)
TRACE = (of_trace, 1_000, "Clocks aligned: rank 1 by −300 µs", "Clocks as recorded")
OUTPUTS: dict[str, tuple[Callable[[Any], list[float]], int, str, str]] = {
    "view RUN -o OUT.html": PAGE,
    "view RUN --against RUN -o OUT.html": PAGE,
    "report RUN -o OUT.html": PAGE,
    "diff RUN RUN -o OUT.html": PAGE,
    "whatif RUN --no-straggler -o OUT.html": PAGE,
    "view RUN -o OUT.svg": (of_svg, 1, CORRECTED, OWN),
    "view RUN --figure -o OUT.svg": (of_svg, 1, CORRECTED, OWN),
    "view RUN --text": (of_text, 1, CORRECTED, OWN),
    "analyze RUN --collectives --csv": (of_csv, 1_000, CORRECTED, OWN),
    "export RUN -o OUT.json": TRACE,
    "export RUN -o OUT.pftrace": TRACE,
}
"""Commands, with what finds two times that are equal on the ranks, its resolution, and what the command says of it."""


@pytest.mark.slow
@pytest.mark.parametrize("aligned", [True, False], ids=["corrected", "no-align"])
def test_ranks_that_end_together_are_shown_so(aligned: bool, tmp_path: Path) -> None:
    """Also where a rank's clock is ahead, and it is said; with --no-align they end as far apart as the clocks are."""
    run = write_job(tmp_path / "run", ahead_ns=AHEAD_NS)
    for number, (line, (find, resolution, corrected, own)) in enumerate(OUTPUTS.items()):
        if line.startswith("whatif") and not aligned:  # a replay needs one clock, so that it has no --no-align
            continue
        words = [word.replace("RUN", str(run)).replace("OUT", str(tmp_path / f"out{number}")) for word in line.split()]

        result = CliRunner().invoke(cli, [*words, *(() if aligned else RAW), *("--no-browser",) * (words[0] == "view")])

        assert 0 == result.exit_code, result.output
        (path,) = [word for word in words if "/out" in word] or [""]
        shown = Path(path) if path else None
        output = result.stdout if shown is None else shown if find is of_trace else shown.read_text(encoding="utf-8")
        first, second = find(output)
        apart = abs(second - first) / resolution
        assert apart <= 1 if aligned else apart >= 5, line
        said = result.output + (output if isinstance(output, str) else "")
        assert (corrected if aligned else own) in said, line
