"""What a pipeline's schedule leaves idle."""

from __future__ import annotations

from dptrace.analysis.cross_rank.pipeline_bubble import Pipeline
from dptrace.analysis.findings.finding import Case, Finding, milliseconds

__all__ = ["bubbles"]

_UNEVEN = 1.25
"""A stage that computes so much longer than the mean sets the pace of all."""


def bubbles(case: Case) -> list[Finding]:
    """One finding per pipeline: what its ranks did not compute while its schedule ran."""
    found = []
    for pipeline in case.pipelines:
        lost = [lap.span_ns * len(lap.shares) - sum(share.busy_ns for share in lap.shares) for lap in pipeline.laps]
        worst = max(range(len(lost)), key=lost.__getitem__)
        cost = sum(lost)
        own = pipeline.formula_percent
        per_step = cost / (len(pipeline.laps) * len(pipeline.devices))
        text = (
            f"The pipeline's bubble takes {milliseconds(per_step)} of a step: {pipeline.bubble_percent:.1f} % of its "
            "ranks' time" + (f"; the schedule's own ({pipeline.schedule}) is {own:.1f} %." if own is not None else ".")
        )
        slowest, times = _slowest(case, pipeline)
        if times > _UNEVEN:
            text += f" Rank {slowest}'s stages compute {times:.1f} times as long as the mean."
        where = {"step": pipeline.laps[worst].step, "rank": _idlest(case, pipeline, worst), "ns": lost[worst]}
        where |= {"bubble_percent": pipeline.bubble_percent, "formula_percent": own}
        where |= {"schedule": pipeline.schedule, "micro_batches": pipeline.micro_batches}
        found.append(case.finding("bubble", text, _advice(pipeline, times), cost, where))
    return found


def _advice(pipeline: Pipeline, times: float) -> str:
    todo = [f"more micro-batches (now {pipeline.micro_batches})"]
    if pipeline.schedule in ("naive", "gpipe", "1f1b"):
        todo.append("interleaved stages" if pipeline.schedule != "naive" else "a schedule such as 1f1b")
    if times > _UNEVEN:
        todo.insert(0, "deal the layers out so that all stages take equally long")
    elif pipeline.formula_percent is not None and pipeline.bubble_percent > 2 * pipeline.formula_percent:
        todo.append("larger micro-batches, if passing them on and launching takes as long as computing them")
    told = "; ".join(todo)
    return f"{told[0].upper()}{told[1:]}."


def _slowest(case: Case, pipeline: Pipeline) -> tuple[int, float]:
    """Give the rank that computes longest, and how many times as long as the mean."""
    busy = [sum(lap.shares[place].busy_ns for lap in pipeline.laps) for place in range(len(pipeline.devices))]
    most = max(range(len(busy)), key=busy.__getitem__)
    return case.matches.places[pipeline.devices[most]][0], busy[most] * len(busy) / max(sum(busy), 1)


def _idlest(case: Case, pipeline: Pipeline, lap: int) -> int:
    least = min(pipeline.laps[lap].shares, key=lambda share: share.busy_ns)
    return case.matches.places[least.device][0]
