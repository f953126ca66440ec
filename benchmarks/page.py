"""Measure the Gantt page in headless Chromium: time until ready, frame times while zooming, time from key to paint.

    python benchmarks/page.py [CASE ...]

Prints a table in Markdown with a row per case: synthetic training runs of 1e5 to 1e7 kernels on 1 to 64 and 2,000 GPUs,
at one and two device pixels per pixel, and on a 4K screen; served ones of 3e7 and 1e8, whose first GPU is made and
drawn four times, also through a link of 100 Mbit/s and 20 ms in each direction. Every frame of three seconds is
measured while the wheel turns once per frame: how many of them show a new picture, and the renderer's CPU time for each
picture, which does not depend on the machine's load.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.link import shaped
from dptrace.run.run import Run
from dptrace.viewers.gantt.chart import Chart, chart
from dptrace.viewers.gantt.page import document as gantt
from dptrace.viewers.gantt.page.server import PageServer
from dptrace.viewers.gantt.tiles.service import TileService
from tests.support.browser import chromium
from tests.support.synthetic import training_run

LAPTOP, LARGE = (1440, 900), (3840, 2000)
STEPS = 12
_KEYS = 8

ZOOM = """async () => {
    const { main } = dptrace, canvas = main.canvas.getBoundingClientRect();
    const turn = (delta) => main.events.dispatchEvent(new WheelEvent("wheel", {
        bubbles: true, cancelable: true, composed: true, deltaY: delta,
        clientX: canvas.left + canvas.width * 0.6, clientY: canvas.top + canvas.height / 2,
    }));
    const frames = [], next = () => new Promise(requestAnimationFrame);
    let before = await next();
    for (const end = before + 3000; before < end; ) {
        turn(frames.length % 120 < 60 ? -25 : 25);
        const now = await next();
        frames.push(now - before);
        before = now;
    }
    return frames;
}"""

_COUNT_PICTURES = """() => {
    const { picture } = dptrace, paintOn = picture.paintOn.bind(picture);
    globalThis.pictures = 0;
    picture.paintOn = (...given) => {
        pictures++;
        paintOn(...given);
    };
}"""

_WATCH_KEYS = """() => {
    globalThis.keyTimes = [];
    const keep = (one) => one.name === "keydown" && keyTimes.push(one.duration);
    new PerformanceObserver((list) => list.getEntries().forEach(keep))
        .observe({ type: "event", durationThreshold: 16, buffered: true });
}"""


@dataclass(frozen=True)
class Case:
    """A run to draw, and the screen to draw it on."""

    name: str
    kernels: int
    gpus: int = 4
    size: tuple[int, int] = LAPTOP
    scale: float = 1
    expanded: bool = False
    slow: bool = False
    """Through a slow link."""


CASES = (
    Case("1e5", 100_000),
    Case("1e6", 1_000_000),
    Case("1e7", 10_000_000),
    Case("1e6, 2 pixels to one", 1_000_000, scale=2),
    Case("1e7, 2 pixels to one", 10_000_000, scale=2),
    Case("1e6, 4K", 1_000_000, size=LARGE),
    Case("1e6, 8 GPUs", 1_000_000, 8),
    Case("1e6, 16 GPUs", 1_000_000, 16),
    Case("1e6, 32 GPUs", 1_000_000, 32),
    Case("1e6, 64 GPUs", 1_000_000, 64),
    Case("1e6, 64 GPUs, all rows", 1_000_000, 64, expanded=True),
    Case("2,000 GPUs", 400_000, 2_000),
    Case("1e7, shaped", 10_000_000, slow=True),
    Case("3e7", 30_000_000),
    Case("3e7, shaped", 30_000_000, slow=True),
    Case("1e8", 100_000_000),
    Case("1e8, shaped", 100_000_000, slow=True),
)
_MADE = 10_000_000
"""Kernels of a run at most that is made as a whole; of a larger one, one GPU is made."""


def main() -> None:
    """Measure the named cases, or all."""
    wanted = [case for case in CASES if case.name in sys.argv[1:]] or CASES
    print(f"| kernels | {' | '.join(HEADS)} |\n|---|{'--:|' * len(HEADS)}", flush=True)
    for case in wanted:
        print(f"| {case.name} | {' | '.join(measure(case))} |", flush=True)


HEADS = (
    *("lay out CPU s", "make page CPU s", "page MB", "first picture s", "ready s", "ready CPU s"),
    *("frame p50 ms", "frame p95 ms", "drawn", "picture CPU ms", "key to paint ms", "renderer MB"),
)


def measure(case: Case) -> list[str]:
    """Draw a case, open it, and return its figures in the order of HEADS."""
    made = case.kernels if case.kernels <= _MADE else case.kernels // case.gpus
    run = training_run(made, case.gpus if made == case.kernels else 1, STEPS)
    # The cross-rank analysis is computed once per run and is not measured here.
    assert run.cross_rank
    began = time.process_time()
    laid_out = chart(run)
    between = time.process_time()
    if made < case.kernels:
        run, laid_out = repeated(run, laid_out, case.gpus)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        address, size = publish(stack, run, laid_out, folder, case.slow)
        finished = time.process_time()
        del run, laid_out
        seen = look(stack, case, address)
    return [f"{between - began:.2f}", f"{finished - between:.2f}", f"{size / 1e6:.1f}", *seen]


def repeated(run: Run, one: Chart, gpus: int) -> tuple[Run, Chart]:
    """Return a run and a chart that have their only GPU several times, without more memory."""
    (timeline,), (device,) = run.timelines, run.devices
    timelines = tuple(msgspec.structs.replace(timeline, rank=rank, device=rank) for rank in range(gpus))
    devices = tuple(msgspec.structs.replace(device, timeline=one) for one in timelines)
    many = replace(run, timelines=timelines, devices=devices, world_size=gpus)
    assert many.cross_rank
    tracks = tuple(replace(one.tracks[0], rank=rank, device=rank) for rank in range(gpus))
    lanes = tuple(replace(lane, track=track) for track in range(gpus) for lane in one.lanes)
    strips = (replace(one.strips[0], tracks=tuple(range(gpus))),)
    return many, replace(one, tracks=tracks, lanes=lanes, strips=strips, axes=one.axes * gpus)


def publish(stack: ExitStack, run: Run, laid_out: Chart, folder: Path, slow: bool) -> tuple[str, int]:
    """Write a run's page, or serve it if it is large; return its address and its size in bytes."""
    if len(laid_out) <= gantt.MAX_INTERVALS:
        page, path = gantt.document(run, laid_out), folder / "page.html"
        path.write_text(page, encoding="utf-8")
        return path.as_uri(), len(page)
    drawn = gantt.served(run, laid_out, folder / "run.tiles")
    server = PageServer(drawn.page, drawn.files, TileService(drawn.store))
    stack.callback(server.close)
    port = stack.enter_context(shaped(server.port)) if slow else server.port
    return server.url.replace(str(server.port), str(port)), len(drawn.page)


def look(stack: ExitStack, case: Case, address: str) -> list[str]:
    """Open a page, use it, and measure."""
    browser = stack.enter_context(chromium())
    width, height = case.size
    context = browser.new_context(viewport={"width": width, "height": height}, device_scale_factor=case.scale)
    page = context.new_page()
    began = time.perf_counter()
    page.goto(address)
    page.locator("html[data-ready='1']").wait_for(state="attached", timeout=120_000)
    # The page's own clock starts with the navigation and excludes the driver's time.
    ready = min(page.evaluate("performance.now()") / 1e3, time.perf_counter() - began)
    first = page.evaluate("dptrace.timing.first") / 1e3
    if case.expanded:
        page.evaluate("dptrace.stage.collapseAll(false)")
    page.wait_for_timeout(800)
    process = renderer()
    page.evaluate(_COUNT_PICTURES)
    memory, opened = process.memory_info().rss / 1e6, cpu(process)
    frames = sorted(page.evaluate(ZOOM))
    zoomed, pictures = cpu(process) - opened, page.evaluate("pictures")
    key = key_to_paint(page)
    return [
        *(
            f"{first:.2f}",
            f"{ready:.2f}",
            f"{opened:.2f}",
            f"{statistics.median(frames):.1f}",
            f"{frames[int(0.95 * len(frames))]:.1f}",
        ),
        *(f"{pictures / len(frames):.0%}", f"{1e3 * zoomed / max(1, pictures):.1f}", f"{key:.0f}", f"{memory:.0f}"),
    ]


def key_to_paint(page: Any) -> float:
    """Return the longest time from a press of w or s to the next paint, in steps of 8 ms."""
    page.evaluate(_WATCH_KEYS)
    page.keyboard.press("f")
    for i in range(_KEYS):
        page.keyboard.press("ws"[i % 2])
        page.wait_for_timeout(120)
    times: list[float] = page.evaluate("keyTimes")
    return max(times, default=0)


def renderer() -> psutil.Process:
    """Return the largest of this process's renderers, which is the page's."""
    found = [child for child in psutil.Process().children(recursive=True) if "--type=renderer" in child.cmdline()]
    return max(found, key=lambda child: child.memory_info().rss)


def cpu(process: psutil.Process) -> float:
    """Return the CPU seconds that a process has used."""
    times = process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    main()
