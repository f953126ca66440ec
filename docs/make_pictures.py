"""Draw the pictures of the README and the docs from the runs in traces/: ``python docs/make_pictures.py``.

Needs chromium and playwright (`make test` installs the latter).
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

from rich.console import Console

import dptrace
from dptrace.commands.recorded_plan import predict_recording
from dptrace.simulate.catalog import explain, settings_of
from dptrace.viewers.base.svg import svg
from dptrace.viewers.gantt.page import pair as pair_page
from dptrace.viewers.gantt.page.document import document
from dptrace.viewers.pages import explain as explain_page
from dptrace.viewers.pages.view import picture
from dptrace.viewers.planning.charts import chart_of
from dptrace.viewers.terminal.screen import print_screen
from dptrace.viewers.views.registry import VIEWS

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"


def split_picture(run: dptrace.Run, path: Path) -> None:
    """Print the first screen of a run into an SVG of a terminal."""
    console = Console(record=True, file=io.StringIO(), width=80, force_terminal=True, highlight=False)
    print_screen(run, console)
    path.write_text(console.export_svg(title="dptrace analyze traces/interleaved_cpu_2ranks"), encoding="utf-8")


def page_picture(content: str, path: Path, height: int) -> None:
    """Open a page in Chromium and keep what it shows."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = Path(folder, "page.html")
        page_file.write_text(content, encoding="utf-8")
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1440, "height": height})
        page.goto(page_file.as_uri())
        page.locator("html[data-ready='1']").wait_for(timeout=20_000)
        page.wait_for_timeout(300)
        page.screenshot(path=path)
        browser.close()


def view_pictures() -> None:
    """Draw some of the views as SVG, as ``dptrace view -o`` does."""
    for mode, name in (("ddp", "breakdown"), ("ddp", "heatmap"), ("interleaved", "gantt")):
        run = dptrace.open(str(ROOT / "traces" / f"{mode}_cpu_2ranks"))
        file = f"view_{name}.svg" if name != "gantt" else f"gantt_{mode}.svg"
        (IMAGES / file).write_text(picture(VIEWS[name], run), encoding="utf-8")
    remembered = dptrace.open(str(ROOT / "tests" / "golden" / "memory_cpu"))
    (IMAGES / "view_memory.svg").write_text(picture(VIEWS["memory"], remembered), encoding="utf-8")
    # Of recordings by others (AMD-AGI/TraceLens, KellerJordan/modded-nanogpt), which are not in the repository.
    shapes, h100 = (ROOT.parent / "shared" / "traces" / name for name in ("ddp_mi300_rank0of8", "sharded_h100_8ranks"))
    if shapes.exists():
        run = dptrace.open(str(shapes))
        (IMAGES / "roofline.svg").write_text(picture(VIEWS["roofline"], run), encoding="utf-8")
        page_picture(document(dptrace.open(str(h100))), IMAGES / "h100.png", 1010)


def explanation_picture(name: str, step: int, path: Path, height: int, **options: float) -> None:
    """Keep what the page of an explanation shows at one of its steps."""
    explanation = explain(name, settings_of(name, 4, 208e6, "pcie4", None, None, options))
    page_picture(explain_page.document(explanation, step), path, height)


def prediction_pictures() -> None:
    """Draw the all-reduces of one message, and a recording on the communication roofline."""
    path = "traces/interleaved_cpu_2ranks"
    for name, content in (
        ("message", dptrace.predict_message(208e6, gpus=4, link="5us:25GB/s")),
        ("communication_roofline", predict_recording(dptrace.open(str(ROOT / path)), path)),
    ):
        (IMAGES / f"{name}.svg").write_text(svg(chart_of(content)), encoding="utf-8")


def main() -> None:
    """Draw them all."""
    IMAGES.mkdir(exist_ok=True)
    split_picture(dptrace.open(str(ROOT / "traces" / "interleaved_cpu_2ranks")), IMAGES / "split.svg")
    view_pictures()
    figure = dptrace.figure_svg(dptrace.open(str(ROOT / "traces" / "ddp_cpu_2ranks")), annotate=True)
    (IMAGES / "figure_ddp.svg").write_text(figure, encoding="utf-8")
    for mode in ("naive", "interleaved", "ddp"):
        run = dptrace.open(str(ROOT / "traces" / f"{mode}_cpu_2ranks"))
        page_picture(document(run), IMAGES / f"gantt_{mode}.png", 560)
    pair = [dptrace.open(str(ROOT / "traces" / f"{mode}_cpu_2ranks")) for mode in ("naive", "interleaved")]
    page_picture(pair_page.document(pair[0], pair[1]), IMAGES / "against.png", 760)
    explanation_picture("ring", 3, IMAGES / "explain_ring.png", 700)
    explanation_picture("1f1b", 13, IMAGES / "explain_1f1b.png", 480)
    prediction_pictures()
    sys.stdout.write(f"Wrote {', '.join(sorted(path.name for path in IMAGES.iterdir()))} in {IMAGES}\n")


if __name__ == "__main__":
    main()
