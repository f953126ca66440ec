"""Measure a served Gantt page in headless Chromium: the first picture, frames while zooming, and how soon it is exact.

    python benchmarks/served_page.py [--shaped] [KERNELS ...]

Prints a row in Markdown for each number of kernels, 1e6, 1e7, 3e7 and 1e8 unless some are named: training runs of four
GPUs, of which the first is made and drawn four times. With --shaped, the page comes through a link of 100 Mbit/s and
20 ms in each direction. *First picture* is from the start of the navigation to kernels on the screen, *exact* to the
exact columns and intervals; *page* and *data* are the compressed kB until then. *Refined* is from a jump, pan or zoom
to exact columns and intervals.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.link import shaped
from benchmarks.page import STEPS, ZOOM, renderer, repeated
from dptrace.run.run import Run
from dptrace.viewers.gantt.chart import Chart, chart
from dptrace.viewers.gantt.page import document as gantt
from dptrace.viewers.gantt.page.server import PageServer
from dptrace.viewers.gantt.tiles.service import TileService
from tests.support.browser import chromium
from tests.support.synthetic import training_run

GPUS = 4
HEADS = (
    *("index s", "index MB", "page kB", "data kB", "first picture ms", "exact ms", "frame p50 ms", "frame p95 ms"),
    *("refined p50 ms", "refined p95 ms", "kB a jump", "renderer MB"),
)

_JUMPS = """async () => {
    const { main, scene, lod, navigation } = dptrace, wait = (ms) => new Promise((done) => setTimeout(done, ms));
    let seed = 7;
    const random = () => (seed = (seed * 16807) % 2147483647) / 2147483647, times = [], bytes = lod.connection.bytes;
    for (let i = 0; i < 40; i++) {
        const { from, to } = main.range, width = to - from, began = performance.now();
        if (i % 8 === 0) {
            const wide = scene.end * 10 ** (-1 - 0.7 * (i / 8)), at = random() * (scene.end - wide);
            navigation.show(at, at + wide);
        } else if (i % 2) {
            const by = width * (random() - 0.5);
            navigation.show(from + by, to + by);
        } else {
            const factor = random() < 0.6 ? 0.55 : 1.8, fixed = from + width * random();
            navigation.show(fixed - (fixed - from) * factor, fixed + (to - fixed) * factor);
        }
        await new Promise(requestAnimationFrame);
        while (!(lod.loaded && dptrace.picture.exact()) && performance.now() - began < 5000) await wait(4);
        await new Promise(requestAnimationFrame);
        times.push(performance.now() - began);
        await wait(120);
    }
    return [times, (lod.connection.bytes - bytes) / 40];
}"""


def main() -> None:
    """Measure the named numbers of kernels, or all."""
    slow = "--shaped" in sys.argv
    numbers = [argument for argument in sys.argv[1:] if argument != "--shaped"] or ["1e6", "1e7", "3e7", "1e8"]
    print(f"| kernels | {' | '.join(HEADS)} |\n|---|{'--:|' * len(HEADS)}", flush=True)
    for number in numbers:
        name = f"{number}, shaped" if slow else number
        print(f"| {name} | {' | '.join(measure(int(float(number)), slow))} |", flush=True)


def large_run(kernels: int) -> tuple[Run, Chart]:
    """Make a run of one GPU, and a chart that shows it several times without more memory."""
    run = training_run(kernels // GPUS, 1, STEPS)
    return repeated(run, chart(run), GPUS)


def measure(kernels: int, slow: bool) -> list[str]:
    """Serve a run, open its page, and return its figures in the order of HEADS."""
    run, drawn = large_run(kernels)
    with ExitStack() as stack:
        entry = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "run.tiles"
        began = time.perf_counter()
        served = gantt.served(run, drawn, entry)
        indexed, size = time.perf_counter() - began, entry.stat().st_size
        del run, drawn
        server = PageServer(served.page, served.files, TileService(served.store))
        stack.callback(server.close)
        port = stack.enter_context(shaped(server.port)) if slow else server.port
        page = stack.enter_context(chromium()).new_context(viewport={"width": 1440, "height": 900}).new_page()
        page.goto(server.url.replace(str(server.port), str(port)))
        page.locator("html[data-ready='1']").wait_for(state="attached", timeout=120_000)
        page.wait_for_timeout(2000)
        first, exact, data = page.evaluate("[dptrace.timing.first, dptrace.timing.loaded, dptrace.timing.bytes]")
        shell = page.evaluate("performance.getEntriesByType('navigation')[0].encodedBodySize")
        frames = sorted(page.evaluate(ZOOM))
        page.wait_for_timeout(800)
        refined, jump = page.evaluate(_JUMPS)
        memory = renderer().memory_info().rss
    return [
        *(
            f"{indexed:.1f}",
            f"{size / 1e6:.0f}",
            f"{shell / 1e3:.0f}",
            f"{data / 1e3:.0f}",
            f"{first:.0f}",
            f"{exact:.0f}",
        ),
        *(f"{statistics.median(frames):.1f}", f"{frames[int(0.95 * len(frames))]:.1f}"),
        *(f"{statistics.median(refined):.0f}", f"{sorted(refined)[int(0.95 * len(refined))]:.0f}"),
        *(f"{jump / 1e3:.0f}", f"{memory / 1e6:.0f}"),
    ]


if __name__ == "__main__":
    main()
