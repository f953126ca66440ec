"""Run verbs with one more cause of idle time: ``python -m tests.support.planted_cause RUN FOLDER BASELINE``.

It takes what host-bound idle time has. Its record is planted before other modules read the causes; nothing else is.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dptrace.analysis.per_gpu import causes
from dptrace.timeline.model import HostCause

LABEL, HEADING, TEXT, NAME = "planted", "plan|ted", "GPUs are idle because a test says so", "planted_ns"
PLANTED = causes.IdleCause(
    name=NAME,
    label=LABEL,
    heading=HEADING,
    doc="idle, says a test",
    look=("#123456", "#FFFFFF", "#FEDCBA", "#000000"),
    pattern="hatch",
    why="a test says so",
    host_causes=(HostCause.OPERATOR, HostCause.PYTHON, HostCause.NOTHING_RECORDED, HostCause.PASSIVE),
    text=TEXT,
    advice="Do not plant it.",
    without="nothing that is planted",
)


def plant() -> None:
    """Add the record of the cause."""
    causes.IDLE_CAUSES += (PLANTED,)  # type: ignore[assignment]
    causes.CAUSES += (NAME,)


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
