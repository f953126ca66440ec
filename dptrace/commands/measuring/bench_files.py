"""The files that ``dptrace bench`` writes: the table in three formats, the page of charts, each chart as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dptrace.commands.shared.output import csv_text, write_text
from dptrace.commands.shared.pages import write_png
from dptrace.core.units import plural

if TYPE_CHECKING:
    from dptrace.bench.conclusions import ChartText
    from dptrace.bench.table import Row
    from dptrace.viewers.base.marks import Drawing

__all__ = ["BenchResult", "draw_charts", "machine_info", "write"]

_PNG_WIDTH = 1600


@dataclass(frozen=True, slots=True)
class BenchResult:
    """A finished benchmark."""

    rows: list[Row]
    title: str
    notes: list[str] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)
    here: str = "On this machine"
    plan: dict[str, Any] = field(default_factory=dict)
    """What bench.json holds besides the figures: the plan, or the file that they come from."""


def machine_info(results: Mapping[Any, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the devices and the versions that the runs report; every kind of device is listed."""
    runs = [run for runs in results.values() for run in runs if "failed" not in run]
    devices = list(dict.fromkeys(str(run["device"]) for run in runs if run.get("device")))
    versions: dict[str, Any] = next((run["versions"] for run in runs if isinstance(run.get("versions"), dict)), {})
    return {"devices": devices, "versions": versions}


def page_facts(result: BenchResult) -> list[str]:
    """Return the facts below the page's title."""
    versions = result.machine.get("versions", {})
    versions_text = [f"{name} {versions[name]}" for name in ("torch", "cuda", "nccl") if versions.get(name)]
    return [plural(len(result.rows), "row"), *result.machine.get("devices", []), *versions_text]


def draw_charts(result: BenchResult, local_loss: bool) -> list[tuple[ChartText, Drawing]]:
    """Draw the six charts, each with its conclusions."""
    from dptrace.bench.conclusions import conclusions
    from dptrace.bench.table import usable
    from dptrace.viewers.benchmarks.bench_charts import draw

    good = usable(result.rows)
    on_cpu = set(result.machine.get("devices", [])) == {"CPU"}
    charts = conclusions(result.rows, result.here, local_loss, on_cpu)
    return [(chart, draw(chart, good, local_loss, on_cpu)) for chart in charts]


def write(folder: Path, result: BenchResult, charts: Sequence[tuple[ChartText, Drawing]], png: bool) -> list[str]:
    """Write all files; return their names within the folder."""
    from dptrace.bench.store import PLAN, write_json
    from dptrace.bench.table import frame
    from dptrace.viewers.benchmarks import bench_page, bench_table

    sentences = [sentence for chart, _ in charts for sentence in chart.sentences]
    write_text(folder / "table.csv", csv_text(frame(result.rows)))
    write_text(folder / "table.md", bench_table.markdown(result.rows, result.title, [*result.notes, *sentences]))
    page = bench_page.Content(result.title, page_facts(result), result.notes, result.rows, charts)
    write_text(folder / "charts.html", bench_page.document(page))
    drawn = _pictures(folder / "charts", charts, png)
    reading = {chart.name: list(chart.sentences) or [chart.missing] for chart, _ in charts}
    tables = {
        "machine": result.machine,
        "notes": result.notes,
        "reading": reading,
        "rows": [asdict(r) for r in result.rows],
    }
    write_json(folder / PLAN, {"schema": 1, **result.plan, **tables})
    return ["charts.html", *([f"charts/ ({drawn} pictures)"] if drawn else []), "table.csv", "table.md", PLAN]


def _pictures(folder: Path, charts: Sequence[tuple[ChartText, Drawing]], png: bool) -> int:
    """Write each chart as SVG and PNG, and delete those that can no longer be drawn. Return the number of files."""
    from dptrace.viewers.base.svg_renderer import svg

    folder.mkdir(exist_ok=True)
    count = 0
    for chart, drawing in charts:
        svg_path, png_path = folder / f"{chart.name}.svg", folder / f"{chart.name}.png"
        png_path.unlink(missing_ok=True)
        if drawing.message:
            svg_path.unlink(missing_ok=True)
            continue
        text = svg(drawing)
        write_text(svg_path, text)
        count += 1 + png
        if png:
            write_png(text, png_path, _PNG_WIDTH)
    return count
