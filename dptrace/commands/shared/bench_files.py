"""What ``dptrace bench`` leaves in its folder: the table in three forms, the page of charts, each chart for slides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dptrace.core.files import atomic_write

if TYPE_CHECKING:
    from dptrace.bench.conclusions import ChartText
    from dptrace.bench.table import Row
    from dptrace.viewers.base.marks import Drawing

__all__ = ["BenchResult", "draw_charts", "machine_info", "write"]

_PNG_WIDTH = 1600


@dataclass(frozen=True, slots=True)
class BenchResult:
    """A benchmark that is done."""

    rows: list[Row]
    title: str
    notes: list[str] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)
    here: str = "On this machine"
    plan: dict[str, Any] = field(default_factory=dict)
    """What bench.json tells beside the figures: the plan, or the file that they come from."""


def machine_info(results: Mapping[Any, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Tell on what was trained, and with what, as the runs say; several kinds of devices are all named."""
    runs = [run for runs in results.values() for run in runs if "failed" not in run]
    devices = list(dict.fromkeys(str(run["device"]) for run in runs if run.get("device")))
    versions: dict[str, Any] = next((run["versions"] for run in runs if isinstance(run.get("versions"), dict)), {})
    return {"devices": devices, "versions": versions}


def page_facts(result: BenchResult) -> list[str]:
    """Give what the page says below its title."""
    versions = result.machine.get("versions", {})
    versions_text = [f"{name} {versions[name]}" for name in ("torch", "cuda", "nccl") if versions.get(name)]
    runs = f"{len(result.rows)} rows"
    return [runs, *result.machine.get("devices", []), *versions_text]


def draw_charts(result: BenchResult, local_loss: bool) -> list[tuple[ChartText, Drawing]]:
    """Read the six charts, and draw them."""
    from dptrace.bench.conclusions import conclusions
    from dptrace.bench.scaling import usable
    from dptrace.viewers.benchmarks.bench_charts import draw

    good = usable(result.rows)
    on_cpu = set(result.machine.get("devices", [])) == {"CPU"}
    charts = conclusions(result.rows, result.here, local_loss, on_cpu)
    return [(chart, draw(chart, good, local_loss, on_cpu)) for chart in charts]


def write(folder: Path, result: BenchResult, charts: Sequence[tuple[ChartText, Drawing]], png: bool) -> list[str]:
    """Write all files; give their names within the folder."""
    from dptrace.bench.store import PLAN, write_json
    from dptrace.bench.table import as_dict, frame
    from dptrace.viewers.benchmarks import bench_page, bench_table

    sentences = [sentence for chart, _ in charts for sentence in chart.sentences]
    with atomic_write(folder / "table.csv") as temporary:
        frame(result.rows).to_csv(temporary, index=False)
    _text(folder / "table.md", bench_table.markdown(result.rows, result.title, [*result.notes, *sentences]))
    page = bench_page.Content(result.title, page_facts(result), result.notes, result.rows, charts)
    _text(folder / "charts.html", bench_page.document(page))
    drawn = _pictures(folder / "charts", charts, png)
    reading = {chart.name: list(chart.sentences) or [chart.missing] for chart, _ in charts}
    tables = {
        "machine": result.machine,
        "notes": result.notes,
        "reading": reading,
        "rows": [as_dict(r) for r in result.rows],
    }
    write_json(folder / PLAN, {"schema": 1, **result.plan, **tables})
    return ["charts.html", *([f"charts/ ({drawn} pictures)"] if drawn else []), "table.csv", "table.md", PLAN]


def _text(path: Path, text: str) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _pictures(folder: Path, charts: Sequence[tuple[ChartText, Drawing]], png: bool) -> int:
    """Write each chart as SVG, and as PNG; one that can't be drawn any more is taken away. Give how many there are."""
    from dptrace.viewers.base.screenshot import framed, screenshot
    from dptrace.viewers.base.svg_renderer import svg

    folder.mkdir(exist_ok=True)
    count = 0
    for chart, drawing in charts:
        flat, pixels = folder / f"{chart.name}.svg", folder / f"{chart.name}.png"
        pixels.unlink(missing_ok=True)
        if drawing.message:
            flat.unlink(missing_ok=True)
            continue
        text = svg(drawing)
        _text(flat, text)
        count += 1 + png
        if png:
            with atomic_write(pixels) as temporary:
                screenshot(framed(text), temporary, (_PNG_WIDTH, _height(text)))
    return count


def _height(text: str) -> int:
    """Give the height of a PNG that shows all of an SVG."""
    import re

    found = re.search(r'width="([\d.]+)" height="([\d.]+)"', text)
    return round(float(found[2]) / float(found[1]) * _PNG_WIDTH) if found else _PNG_WIDTH
