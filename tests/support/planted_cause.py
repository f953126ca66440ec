"""Run verbs with one more cause of idle time: ``python -m tests.support.planted_cause RUN FOLDER BASELINE``.

It takes all idle time of a host that launches late. Its record, its intervals and its change are planted before other
modules read the causes; nothing else is.
"""

from __future__ import annotations

import sys
from pathlib import Path

from msgspec.structs import replace

from dptrace.analysis.per_gpu import causes
from dptrace.core.intervals import EMPTY, Int64, IntervalSet
from dptrace.timeline.model import HostCause, Timeline

LABEL, HEADING, TEXT, NAME = "planted", "plan|ted", "GPUs are idle because a test says so", "planted_ns"
PLANTED = causes.IdleCause(
    name=NAME,
    label=LABEL,
    heading=HEADING,
    doc="idle, says a test",
    look=("#123456", "#FFFFFF", "#FEDCBA", "#000000"),
    pattern="hatch",
    host_causes=(HostCause.OPERATOR, HostCause.PYTHON),
    text=TEXT,
    advice="Do not plant it.",
)


def plant() -> None:
    """Add the cause, with the idle time of ``host_bound_ns``, and a change that takes it away."""
    causes.IDLE_CAUSES += (PLANTED,)  # type: ignore[assignment]
    causes.CAUSES += (NAME,)
    causes.CAUSE_LABELS[NAME] = f"Idle: {LABEL}"
    from dptrace.analysis.per_gpu import split

    found = split.idle

    def idle(timeline: Timeline, part_intervals: list[IntervalSet] | None = None) -> split.Idle:
        own = found(timeline, part_intervals)
        ns: dict[str, Int64] = own.causes | {"host_bound_ns": own.causes["host_bound_ns"] * 0}
        sets = own.sets | {"host_bound_ns": EMPTY, NAME: own.sets["host_bound_ns"]}
        return replace(own, causes=ns | {NAME: own.causes["host_bound_ns"]}, sets=sets)

    split.idle = idle
    from dptrace.replay.counterfactual import COUNTERFACTUALS

    COUNTERFACTUALS["planted"] = COUNTERFACTUALS["host_bound"]


def main() -> None:
    """Write what verbs print, as files of a folder."""
    run, folder, saved = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    plant()
    from click.testing import CliRunner

    from dptrace.commands.shared.main import cli

    for name, arguments in {
        "analyze.txt": ["analyze", run],
        "analyze.json": ["analyze", run, "--json"],
        "view.txt": ["view", run, "--text"],
        "diff.json": ["diff", "--baseline", saved, run, "--json"],
        "report": ["report", run, "-o", str(folder / "report.html")],
        "page": ["view", run, "-o", str(folder / "page.html"), "--no-browser"],
    }.items():
        result = CliRunner(env={"COLUMNS": "132"}).invoke(cli, [*arguments, "--no-cache"], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        (folder / name).write_text(result.stdout, encoding="utf-8")


if __name__ == "__main__":
    main()
