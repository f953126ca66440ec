"""Record every mode on CPU and draw its small picture: ``python docs/make_modes.py [MODE ...]``.

The pictures in docs/images/modes show one step, and for each rank its phases, and under them its communication.
trainers/README.md gets a line for each mode, and its picture where it has been drawn.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

import dptrace
from dptrace.analysis.per_gpu.split import OVERLAPPED_LABEL, PART_LABELS
from dptrace.record.options.modes import FAMILIES, MODES, trainer
from dptrace.timeline.steps import select_steps
from dptrace.viewers.base import theme
from dptrace.viewers.base.svg import Canvas, text_width
from dptrace.viewers.gantt.chart import OVERLAPPED, Lane, Role, chart
from dptrace.viewers.pages.gantt_svg import Intervals, Lod

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images" / "modes"
README = ROOT / "trainers" / "README.md"
BEGIN, END = "<!-- modes: written by docs/make_modes.py -->\n", "<!-- end of modes -->"

WIDTH, LEFT, RIGHT = 720, 58, 6
HEIGHTS = {Role.PHASES: 15, Role.EXPOSURE: 8}
COLORS = {**{int(part): color for part, color in theme.PART_COLORS.items()}, OVERLAPPED: theme.OVERLAPPED}
NAMES = {**{int(part): name for part, name in PART_LABELS.items()}, OVERLAPPED: OVERLAPPED_LABEL}

COMMON = ("--batch-size", "512", "--steps", "6", "--warmup", "2", "--wait", "1")
RANKS = {"single": 1, "ring": 4, "hierarchical": 4, "hsdp": 4, "pp": 4, "dp-tp": 4, "3d": 8, "4d": 8}
"""Processes where it takes other than 2 to see the idea."""
SMALL = ("--model", "small")
OPTIONS = {
    "ddp": (*SMALL, "--bucket-cap-mb", "2"),
    "hierarchical": (*SMALL, "--ranks-per-node", "2"),
    "hsdp": (*SMALL, "--ranks-per-node", "2"),
    "pp": ("--schedule", "1f1b", "--micro-batches", "8"),
}
"""What else is asked of a mode; of others, the small MLP where they train it."""


def recorded(mode: str, folder: Path) -> dptrace.Run:
    """Record a mode and keep its quickest step, which other work on the machine disturbed least."""
    usual = SMALL if "small" in MODES[mode].models else ("--batch-size", "32")
    options = [*COMMON, *OPTIONS.get(mode, usual), "-q", "-o", str(folder / mode)]
    ranks = [] if MODES[mode].single_gpu else ["--gpus", str(RANKS.get(mode, 2))]
    command = [sys.executable, "-m", "dptrace", "record", "--mode", mode, *ranks, *options]
    subprocess.run(command, check=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    run = dptrace.open(str(folder / mode))
    step = int(np.argmin(np.sum([np.diff(timeline.windows.bounds) for timeline in run.timelines], axis=0)))
    return replace(
        run, timelines=tuple(select_steps(timeline, step, step)[0] for timeline in run.timelines), devices=()
    )


def picture(run: dptrace.Run) -> str:
    """Draw a step of a run: each column of pixels is a stack of exact shares of its time."""
    laid_out = chart(run)
    rank_height = sum(HEIGHTS.values()) + 2
    canvas = Canvas(WIDTH, 8 + len(laid_out.tracks) * (rank_height + 5), "One step")
    for track, known in enumerate(laid_out.tracks):
        top = 4.0 + track * (rank_height + 5)
        canvas.text(4, top + rank_height / 2, f"rank {known.rank}", "#374151", 11)
        for role, height in HEIGHTS.items():
            if role is Role.PHASES:
                canvas.rect(LEFT, top, WIDTH - LEFT - RIGHT, height, theme.IDLE)
            for lane in (lane for lane in laid_out.lanes if (lane.track, lane.role) == (track, role)):
                _row(canvas, lane, laid_out.end_ns, top, height)
            top += height + 2
    return canvas.finish()


def _row(canvas: Canvas, lane: Lane, end_ns: int, top: float, height: float) -> None:
    columns = WIDTH - LEFT - RIGHT
    lod = Lod(Intervals(lane.start_ns, lane.duration_ns, lane.category), len(COLORS))
    shares = lod.density(0, end_ns, columns)
    heights = np.round(shares * height / np.maximum(shares.sum(axis=0), 1) * 2) / 2
    base = np.full(columns, top + height)
    for category in sorted(COLORS):
        tall = heights[category]
        base = base - tall
        first = np.concatenate(([0], np.flatnonzero(np.diff(tall) != 0) + 1, [columns]))
        first = np.union1d(first, np.flatnonzero(np.diff(base) != 0) + 1)
        spans = zip(first[:-1].tolist(), first[1:].tolist(), strict=True)
        boxes = [(LEFT + a, float(base[a]), b - a, float(tall[a])) for a, b in spans if tall[a] > 0]
        canvas.rects(boxes, COLORS[category])


def legend() -> str:
    """Draw what the colours mean."""
    shown = [category for category in COLORS if NAMES[category] != "Exposed memory"]
    x, places = 4.0, []
    for category in shown:
        places.append(x)
        x += text_width(NAMES[category]) + 32
    canvas = Canvas(x, 20, "Colours")
    for category, place in zip(shown, places, strict=True):
        canvas.rect(place, 4, 15, 12, COLORS[category], round_=2)
        canvas.text(place + 20, 10, NAMES[category], "#374151")
    return canvas.finish()


def write_modes() -> None:
    """Write the modes with their ideas and pictures into the README."""
    lines = [""]
    for family, heading in FAMILIES.items():
        named = [name for name, mode in MODES.items() if mode.family == family]
        lines += [f"## {heading}", ""] if named else []
        for name in named:
            lines += [f"**[{name}](./{trainer(name).name})**: {MODES[name].description}.", ""]
            if (IMAGES / f"{name}.svg").exists():
                lines += [f"![One step of {name}](../docs/images/modes/{name}.svg)", ""]
    text = README.read_text(encoding="utf-8")
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    README.write_text(before + "\n".join([*lines, ""]) + after, encoding="utf-8")


def main() -> None:
    """Draw the modes that are named, or all."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    (IMAGES / "legend.svg").write_text(legend(), encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        for mode in sys.argv[1:] or MODES:
            path = IMAGES / f"{mode}.svg"
            path.write_text(picture(recorded(mode, Path(folder))), encoding="utf-8")
            sys.stdout.write(f"Wrote {path.relative_to(ROOT)} ({path.stat().st_size / 1000:.0f} kB)\n")
            write_modes()


if __name__ == "__main__":
    main()
