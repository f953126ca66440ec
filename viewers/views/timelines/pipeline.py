"""The schedule of a pipeline and its bubble: a row per rank, a box per forward and backward of a micro-batch."""

from __future__ import annotations

from statistics import median

from rich.table import Table
from rich.text import Text

from dptrace.analysis.cross_rank.pipeline_bubble import Pipeline, PipelineStep
from dptrace.analysis.per_gpu.split import Part
from dptrace.core.intervals import Int64
from dptrace.core.units import milliseconds, plural
from dptrace.run.run import Run
from dptrace.timeline.model import Action, Actions
from dptrace.viewers.base import theme
from dptrace.viewers.base.format import rank_label, step_label
from dptrace.viewers.base.marks import Box, Drawing, Entry, Label, message, time_axis
from dptrace.viewers.base.table import TextTable
from dptrace.viewers.charts.bars import TALL, RowLayout
from dptrace.viewers.views.registry import View

__all__ = ["TITLE", "VIEW", "bubble_table", "labels", "schedule", "schedule_table"]

TITLE = "Pipeline schedule"
NO_PIPELINE = "This run has no pipeline: its traces have no labels such as PP:0F1 or Forward 1."
_FORWARD, _BACKWARD = theme.PART_COLORS[Part.FORWARD], theme.PART_COLORS[Part.BACKWARD]


def labels(actions: Actions, stages: int = 1) -> list[str]:
    """Return the names of actions as in schedule diagrams: ``F3``, or ``2F3`` where a rank has several *stages*."""
    columns = zip(actions.stage.tolist(), actions.kind.tolist(), actions.micro_batch.tolist(), strict=True)
    return [f"{stage if stages > 1 else ''}{Action(kind).name}{micro}" for stage, kind, micro in columns]


def _typical(pipeline: Pipeline) -> PipelineStep:
    """Return the step whose bubble is closest to the median."""
    return min(pipeline.steps, key=lambda pipeline_step: abs(pipeline_step.bubble_percent - pipeline.bubble_percent))


def _row(
    run: Run, pipeline: Pipeline, pipeline_step: PipelineStep, place: int
) -> tuple[str, Int64, Int64, list[str], list[int]]:
    """Return one rank's actions in a step: its name, starts and ends from the start of the schedule, labels, kinds."""
    share, stages = pipeline_step.shares[place], pipeline.stages[place]
    timeline = run.timelines[share.device]
    actions = timeline.actions
    own = actions.filter(actions.step == timeline.windows.names.index(pipeline_step.step))
    # The shift from the rank's clock to the first rank's, taken at its first action.
    moved = share.start_ns - int(own.start_ns.min()) - min(one.start_ns for one in pipeline_step.shares)
    name = f"rank {rank_label(run, timeline)} · stage{'s' * (len(stages) > 1)} {', '.join(map(str, stages))}"
    return name, own.start_ns + moved, own.end_ns + moved, labels(own, len(stages)), own.kind.tolist()


def _caption(pipeline: Pipeline, pipeline_step: PipelineStep) -> str:
    """Describe the pipeline and its bubble in one line."""
    by_formula = pipeline.formula_percent
    by_formula_text = "" if by_formula is None else f"; the formula for equal stages gives {by_formula:.1f} %"
    return (
        f"{pipeline.schedule}, {plural(pipeline.micro_batches, 'micro-batch', 'micro-batches')}, step "
        f"{step_label(pipeline_step.step)}: bubble "
        f"{pipeline_step.bubble_percent:.1f} %{by_formula_text}"
    )


def schedule(run: Run) -> Drawing:
    """Draw a typical step of each pipeline."""
    if not run.pipelines:
        return message(TITLE, NO_PIPELINE)
    rows, marks, captions = RowLayout(TALL), list[Box | Label](), []
    for pipeline in run.pipelines:
        pipeline_step = _typical(pipeline)
        captions.append(_caption(pipeline, pipeline_step))
        for place in range(len(pipeline.devices)):
            name, start, end, texts, kinds = _row(run, pipeline, pipeline_step, place)
            top = rows.row(name)
            for text, left, right, kind in zip(texts, start.tolist(), end.tolist(), kinds, strict=True):
                color = _FORWARD if kind == Action.F else _BACKWARD
                tip = f"{name}: {text} {milliseconds(right - left)} ms"
                marks.append(Box(left, right, top, top + TALL, color, tip, (text,), theme.ink_on(color)))
    longest = max(_typical(pipeline).span_ns for pipeline in run.pipelines)
    legend = (Entry(_FORWARD, "Forward"), Entry(_BACKWARD, "Backward (B), of the inputs (I), of the weights (W)"))
    return Drawing(TITLE, ". ".join(captions), time_axis(longest), rows.axis(), rows.y, tuple(marks), legend)


def schedule_table(run: Run) -> TextTable:
    """Return each action of a typical step of each pipeline, in the order of their starts; times in ms."""
    rows = []
    for pipeline in run.pipelines:
        pipeline_step = _typical(pipeline)
        for place in range(len(pipeline.devices)):
            name, start, end, texts, _ = _row(run, pipeline, pipeline_step, place)
            for text, left, right in zip(texts, start.tolist(), end.tolist(), strict=True):
                rows.append((name, text, f"{left / 1e6:.3f}", f"{(right - left) / 1e6:.3f}"))
    note = "A typical step; times in ms from the start of its schedule." if rows else NO_PIPELINE
    return TextTable(("rank", "action", "start ms", "ms"), tuple(rows), 2, note)


def bubble_table(run: Run) -> Table | None:
    """Return a row for each rank of each pipeline, with its bubble and the formula's; None without a pipeline."""
    if not run.pipelines:
        return None
    title = Text("pipeline: the bubble's share of the schedule, median of the steps", style="bold")
    table = Table(title=title, title_justify="left", title_style="", box=None, pad_edge=False, padding=(0, 1))
    for heading in ("rank", "stages", "schedule", "micro-\nbatches", "busy\nms", "bubble\n%", "formula\n%"):
        table.add_column(
            heading, justify="left" if heading in ("rank", "stages", "schedule") else "right", no_wrap=True
        )
    for pipeline in run.pipelines:
        for place, (i, stages) in enumerate(zip(pipeline.devices, pipeline.stages, strict=True)):
            shares = [(pipeline_step, pipeline_step.shares[place]) for pipeline_step in pipeline.steps]
            busy, bubble = (
                median(values)
                for values in (
                    [share.busy_ns for _, share in shares],
                    [pipeline_step.rank_bubble_percent(share) for pipeline_step, share in shares],
                )
            )
            numbers = milliseconds(busy), f"{bubble:.1f}", ""
            table.add_row(rank_label(run, run.timelines[i]), ", ".join(map(str, stages)), "", "", *numbers)
        formula = "–" if pipeline.formula_percent is None else f"{pipeline.formula_percent:.1f}"
        counts = pipeline.schedule, str(pipeline.micro_batches), "", f"{pipeline.bubble_percent:.1f}", formula
        table.add_row("all", str(max(map(max, pipeline.stages)) + 1), *counts, style="bold")
    return table


VIEW = View("pipeline", TITLE, schedule_table, schedule)
