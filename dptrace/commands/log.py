"""``dptrace log``: a run's figures and pages in an experiment tracker."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import click

from dptrace.commands.shared.answer import JSON, TEXT, Answer, Destination, answer_options, refuse
from dptrace.commands.shared.options import Selection, align_option, opening_options, run_options
from dptrace.commands.shared.output import file_stem, progress, write_text
from dptrace.commands.shared.reading import open_with_progress
from dptrace.load.options import ReadOptions

_TRACKERS = ("wandb", "mlflow", "tensorboard")
_TO = "wandb, mlflow or tensorboard."


@click.command()
@run_options
@click.option("--to", "tracker", type=click.Choice(_TRACKERS), metavar="TRACKER", required=True, help=_TO)
@click.option("--project", metavar="NAME", help="Project of wandb, or experiment of MLflow. [dptrace]")
@click.option("--name", metavar="NAME", help="Name of the run there. [RUN's]")
@click.option("--run-id", metavar="ID", help="Log into this run of wandb or MLflow, such as the training's own.")
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), help="Write below this folder.")
@click.option("--no-pages", is_flag=True, help="Log the figures alone, without the report and the Gantt page.")
@answer_options()
@align_option
@opening_options
def command(
    paths: tuple[str, ...],
    selection: Selection,
    tracker: str,
    project: str | None,
    name: str | None,
    run_id: str | None,
    folder: Path | None,
    no_pages: bool,
    to: Destination,
    read_options: ReadOptions,
    verbosity: str,
) -> None:
    """Log RUN to an experiment tracker: the figures of each step as metrics, report and Gantt page as artifacts.

    Metrics are means over the ranks in ms, dptrace/wall_ms, dptrace/exposed_comm_ms and so on, at the number of the
    training step. The trackers' own settings apply: WANDB_MODE=offline writes to a folder, MLFLOW_TRACKING_URI names
    the server. TensorBoard's files go to runs/tensorboard/NAME, unless --folder names it.

    \b
    Examples:
      dptrace log runs/ddp --to tensorboard --folder runs/tensorboard/ddp
      dptrace log runs/ddp --to wandb --project step-time
      dptrace log runs/ddp --to mlflow --run-id 3f2a9c
      dptrace log runs/ddp --to mlflow --folder mlruns
    """
    refuse(
        (
            (
                tracker == "tensorboard" and project,
                "--project is of wandb and MLflow; TensorBoard has folders (--folder).",
            ),
            (tracker == "tensorboard" and run_id, "--run-id is of wandb and MLflow; name the run's --folder."),
        )
    )
    run = open_with_progress(paths, read_options, verbosity, selection)
    from dptrace.export.trackers import TRACKERS, logged
    from dptrace.viewers.pages import report, view
    from dptrace.viewers.views.registry import VIEWS

    with TemporaryDirectory(prefix="dptrace.") as temporary, progress("Logging", verbosity, measured=False):
        pages = []
        for page, draw in (("report", report.document), ("gantt", lambda run: view.document(VIEWS["gantt"], run))):
            if not no_pages:
                pages.append(Path(temporary, f"dptrace-{page}.html"))
                write_text(pages[-1], draw(run))
        content = logged(run, name or file_stem(paths[0]), pages)
        where = TRACKERS[tracker](content, project, run_id, folder)
    steps = [{"step": number, **metrics} for number, metrics in content.steps]
    answer = {"schema": 1, "to": tracker, "where": where, "steps": steps, "mean": content.summary}
    said = f"Logged {len(steps)} steps and {len(pages)} pages to {tracker}: {where}\n"
    to.write(Answer({TEXT: said, JSON: lambda: answer}))
