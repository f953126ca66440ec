"""The answers of a what-if for several values: a row for each, the best one marked."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from dptrace.core.units import milliseconds, share
from dptrace.replay.whatif import Point, Sweep
from dptrace.viewers.base.format import plain
from dptrace.viewers.base.table import TextTable, print_text_table

__all__ = ["print_sweep", "sweep_sentence", "sweep_table"]


def print_sweep(sweep: Sweep, console: Console) -> None:
    """Print the table, what is best, and the reasons to doubt the answers."""
    console.print(Text(sweep_sentence(sweep), style="bold"))
    print_text_table(sweep_table(sweep), f"Predicted step by {sweep.option}", console)
    doubts = {doubt.text: doubt for point in sweep.points for doubt in point.answer.doubts}
    for doubt in doubts.values():
        console.print(Text("! ", style="bold red" if doubt.refuses else "yellow").append_text(plain(doubt.text)))


def sweep_sentence(sweep: Sweep) -> str:
    """Describe which value is best, and by how much."""
    first = sweep.points[0].answer
    measured = f"The recorded step takes {milliseconds(first.measured_step_ns)} ms."
    best = sweep.best
    if best is None:
        return f"{measured} Each rank keeps its batch, so a step with more ranks has more samples."
    answer = best.answer
    if sweep.alike:
        return (
            f"{measured} It is predicted to take {milliseconds(answer.predicted_step_ns)} ms with each {sweep.option}."
        )
    return (
        f"{measured} The best {sweep.option} is {best.value:g}: {milliseconds(answer.predicted_step_ns)} ms a step "
        f"(range {milliseconds(answer.low_ns)} to {milliseconds(answer.high_ns)} ms)."
    )


def sweep_table(sweep: Sweep) -> TextTable:
    """Return a row for each value."""
    columns = (sweep.option, "step, ms", "range, ms", "exposed, ms", "change", "can tell")
    return TextTable(columns, tuple(_row(sweep, point) for point in sweep.points), 1, "Medians over steps.")


def _row(sweep: Sweep, point: Point) -> tuple[str, ...]:
    answer = point.answer
    change = answer.predicted_step_ns / max(1, answer.measured_step_ns) - 1
    clear = sweep.clearly_best
    best = " (best)" if clear is not None and point.value == clear.value else ""
    return (
        f"{point.value:g}{best}",
        milliseconds(answer.predicted_step_ns),
        f"{milliseconds(answer.low_ns)}–{milliseconds(answer.high_ns)}",
        milliseconds(answer.predicted["exposed_comm_ns"]),
        f"{'−' if change < 0 else '+'}{share(abs(change))}",
        "yes" if answer.can_tell else "no",
    )
