"""``dptrace whatif``: what a step would take if something were different."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from dptrace.commands.shared.answer import (
    CSV,
    HTML,
    JSON,
    PNG,
    SVG,
    TEXT,
    Answer,
    Destination,
    Form,
    answer_options,
    drawn,
)
from dptrace.commands.shared.numbers import Whole
from dptrace.commands.shared.options import Selection, given_options, group, opening_options, run_options
from dptrace.commands.shared.output import print_hint, print_notes, progress, quoted_run
from dptrace.commands.shared.reading import open_with_progress
from dptrace.core.numbers import Number
from dptrace.core.units import duration
from dptrace.errors import UsageError
from dptrace.load.options import ReadOptions
from dptrace.replay.options import OPTIONS, Option, Options

if TYPE_CHECKING:
    from rich.console import Console

    from dptrace.analysis.findings.finding import Finding
    from dptrace.replay.whatif import Sweep, WhatIf
    from dptrace.run.run import Run
    from dptrace.timeline.host_calls import SecondPass
    from dptrace.viewers.base.marks import Drawing


# The options of ``dptrace whatif`` that say what is different.

_NEGATIVE = re.compile(r"(?:.*[,:])?\s*-[\d.]")


def _option(name: str, option: Option) -> Any:
    """Return the option that sets a keyword of :func:`dptrace.whatif`; dptrace.replay.options declares them."""

    def keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        for text in value if option.repeatable else (value,):
            # A pattern may hold a minus sign.
            if isinstance(text, str) and name != "fuse" and _NEGATIVE.match(text.rpartition("=")[2]):
                raise UsageError(f"{option.flag} {text}: must not be negative.")
        ctx.params.setdefault("different", {})[name] = value

    kind = click.Choice(option.choices) if option.choices else Whole() if name == "accumulate" else None
    attributes: dict[str, Any] = {"help": option.help, "callback": keep, "expose_value": False}
    if option.metavar:
        attributes |= {"metavar": option.metavar, "type": kind, "multiple": option.repeatable}
    else:
        attributes["is_flag"] = True  # not False for the others: click would take -2x after them for an option
    return click.option(option.flag, name, **attributes)


change_options = group(*(_option(name, option) for name, option in OPTIONS.items()))
"""What is different, as one argument *different*: what was typed, by the names of the keywords."""


def swept(typed: Mapping[str, Any]) -> tuple[str, list[float]] | None:
    """Return the option that has several values, and these; None without one.

    Raises:
        UsageError: two options have several values, or a value is no number.
    """
    several = {name: _values(name, typed.get(name)) for name, option in OPTIONS.items() if option.is_swept}
    several = {name: values for name, values in several.items() if len(values) > 1}
    if len(several) > 1:
        raise UsageError(f"{' and '.join(OPTIONS[name].flag for name in several)} have several values: sweep one.")
    return next(iter(several.items()), None)


def _values(name: str, text: str | None) -> list[float]:
    try:
        return [OPTIONS[name].read(part) for part in text.split(",")] if text is not None else []
    except ValueError:
        flag = OPTIONS[name].flag
        raise UsageError(f"{flag} {text}: expected a number, or several with commas: 1,4,25.") from None


def parsed(typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of :func:`dptrace.whatif`; of an option with several values, the first."""
    found: dict[str, Any] = {}
    for name, value in typed.items():
        option = OPTIONS[name]
        if option.repeatable:
            found[name] = _once((_pair(option, text) for text in value), option.flag)
        elif option.is_swept:
            found[name] = next(iter(_values(name, value)), None)
        else:
            found[name] = option.read(value) if isinstance(value, str) else value
    return found


def _pair(option: Option, text: str) -> tuple[Any, Any]:
    """Read one value of a repeatable option; times are refused in units, as they are typed, not in ns as in Python."""
    key, value = option.read(text)
    if isinstance(option.takes, Number):
        limits = replace(option.takes, show=duration) if option.metavar.endswith("TIME") else option.takes
        if refusal := limits.refusal(value):
            raise UsageError(f"{option.flag} {text}: {refusal}.")
    return key, value


def _once(pairs: Iterable[tuple[Any, Any]], option: str) -> dict[Any, Any]:
    """Return what is given for each name.

    Raises:
        UsageError: a name is given twice.
    """
    found: dict[Any, Any] = {}
    for name, value in pairs:
        if name in found:
            raise UsageError(f"{option} {name}: is given twice; leave one out.")
        found[name] = value
    return found


def check_changes(changes: dict[str, Any], several: tuple[str, list[float]] | None) -> None:
    """Refuse changes that no run can have, before a long read.

    Raises:
        UsageError: a value is out of range, or a pattern is no regular expression.
        DptraceError: a file of links can't be read.
    """
    from dptrace.bench.links import with_measured_link
    from dptrace.replay.changes import changes_of

    name, values = several or ("link", (changes.get("link"),))
    for value in values:
        changes_of(**with_measured_link({**changes, name: value}))


_SWEEP_WIDTH = 960
"""In pixels."""
_CSV = "Print a CSV row for each rank and figure (times in ns)."


def _write_trace(make: Callable[[], Run], path: Path | None) -> None:
    from dptrace.api import export_trace

    assert path is not None
    export_trace(make(), path, force=True)  # checked, as every output, before the run was read


_TRACE = Form("a trace", (".pftrace", ".json.gz", ".json"), _write_trace)
"""The predicted run for Perfetto or Chrome, as dptrace export writes it; -o FILE.json is the answer."""


_EXAMPLES = """\b
Examples:
  dptrace whatif runs/ddp                                  # how well the unchanged run is replayed
  dptrace whatif runs/ddp --no-straggler
  dptrace whatif runs/ddp --bandwidth 2x --compute 1.5x --json
  dptrace whatif runs/ddp --kernel 'flash_bwd=0.5x' -o predicted.pftrace
  dptrace whatif runs/naive --schedule ddp -o predicted.html   # the predicted run below the measured one
  dptrace whatif runs/ddp --bucket-cap-mb 1,5,25,100 -o caps.svg
  dptrace whatif timeline.json.gz          # of pipeline stages: which worker or stage slows them
"""


@click.command(epilog=_EXAMPLES)
@run_options
@change_options
@answer_options(HTML, SVG, PNG, _TRACE, csv=_CSV, aliases={"export": _TRACE})
@click.option("--all", "all_rows", is_flag=True, help="Print every rank.")
@opening_options
def command(
    paths: tuple[str, ...],
    selection: Selection,
    different: dict[str, Any],
    to: Destination,
    all_rows: bool,
    read_options: ReadOptions,
    verbosity: str,
) -> None:
    """Predict what a step of RUN would take if something were different, by replaying it.

    --schedule is when gradients are reduced: after backward (naive), each when it is ready (interleaved), in DDP's
    buckets (ddp), or in buckets that the optimizer takes as they come (overlap-optimizer). --world-size keeps the batch
    of each rank. --compress all_to_all=fp16 is about messages of one kind.

    A replay starts each call, kernel and collective as soon as what it waits for has happened. Every answer comes with
    the error of the replay of the unchanged run, with a range, and with the reasons to doubt it. Several changes apply
    together. Without any change, the run is replayed as recorded, and the findings of dptrace analyze are listed as
    changes with what each gains.

    Of more than 64 ranks, some are replayed for all that are like them, and those that stand out for themselves. The
    answer says how many, and how far the others are from them at most.

    A timeline of pipeline stages, as ByteDance's StragglerAnalysis writes it from Megatron's timers, is compared with
    its ideal: all workers and micro-batches even. The answer says whether a worker, uneven stages or uneven sequences
    explain the difference. It takes no options but those of the output.
    """
    if _is_of_stages(paths):
        _refuse_options(to)
        from dptrace.replay.stage_timeline import stage_whatif

        content = stage_whatif(paths[0])
        to.write(_stage_answer(content))
        print_notes(content["notes"])
        return
    changes, several = parsed(different), swept(different)
    check_changes(changes, several)
    if several is None and (path := to.file_of(SVG, PNG)) is not None:
        raise UsageError(f"{path}: a chart compares several values, for example --bucket-cap-mb 1,4,25.")
    if several is not None and to.has(CSV, _TRACE):
        raise UsageError("Several values are told as text, --json, a page or a chart: leave --csv and a trace out.")
    run = open_with_progress(
        paths, read_options, verbosity, selection, True, _readings(changes), bool(changes.get("all_ranks"))
    )
    if several is not None:
        to.write(_sweep_answer(_swept(run, changes, *several, verbosity)))
        print_notes(run.notes)
        return
    with progress("Replaying", verbosity, measured=False):
        answer = _replayed(run, changes)
        findings = _findings(run, answer)
    to.write(_answer(run, answer, findings, all_rows))
    print_notes(run.notes)
    if (path := to.file_of(_TRACE)) is not None:
        held = "" if answer.apart_ns is None else f", of the {len(answer.run.ranks)} ranks that were replayed"
        print_hint(f"{path} is the predicted run{held}. Open it at https://ui.perfetto.dev.", verbosity)
    elif to.on_terminal:
        print_hint(f"Next: dptrace critical-path {quoted_run(paths, read_options)}", verbosity)


def _replayed(run: Run, changes: dict[str, Any]) -> WhatIf:
    from dptrace.api import replay_with

    answer = replay_with(run, cast(Options, changes))
    if {name for name, value in changes.items() if value} - {"all_ranks"} != {"no_straggler"}:
        return answer
    from dptrace.replay.findings import with_late_ranks

    return with_late_ranks(answer, run)


def _findings(run: Run, answer: WhatIf) -> tuple[Finding, ...]:
    """Return the findings beside the answer of a run without any change."""
    from dptrace.replay.findings import findings_of

    return () if answer.changes else findings_of(run)


def _is_of_stages(paths: tuple[str, ...]) -> bool:
    from dptrace.readers.stage_timeline import holds_stage_timeline

    return len(paths) == 1 and Path(paths[0]).is_file() and holds_stage_timeline(paths[0])


def _refuse_options(to: Destination) -> None:
    """Refuse what a timeline of stages has no use for.

    Raises:
        UsageError: an option was typed that is about a run, or a form that the answer does not have.
    """
    given = given_options() - {"paths", "as_json", "as_csv", "outputs", "force", "verbosity"}
    typed = [param.opts[0] for param in click.get_current_context().command.params if param.name in given]
    if typed:
        raise UsageError(
            f"{', '.join(typed)}: a timeline of pipeline stages takes no options but --json, -o and -q; leave it out."
        )
    to.refuse_besides_words("what slows down a timeline of pipeline stages")


def _stage_answer(content: dict[str, Any]) -> Answer:
    def tables(console: Console) -> None:
        from dptrace.viewers.terminal.stage_timeline import print_stage_whatif

        print_stage_whatif(content, console)

    return Answer({TEXT: tables, JSON: lambda: content})


def _readings(changes: Mapping[str, Any]) -> tuple[SecondPass[Any], ...]:
    """Return what the changes need of each file besides its events: equal work, and gradients."""
    if not any(
        changes.get(name) for name in ("schedule", "bucket_cap_mb", "accumulate", "perfect_overlap", "world_size")
    ):
        return ()
    from dptrace.replay.graph.tasks import WORK
    from dptrace.replay.transforms.schedule import ACCUMULATED

    return WORK, ACCUMULATED


def _swept(run: Run, changes: dict[str, Any], name: str, values: list[float], verbosity: str) -> Sweep:
    """Predict the run for each value of an option."""
    from dptrace.api import replay_with
    from dptrace.replay.whatif import Sweep

    distinct = sorted(set(values))
    option, answers = name.replace("_", "-"), list[Any]()
    with progress("Replaying", verbosity) as show:
        for number, value in enumerate(distinct):
            show(number / len(distinct), f"{option} {value:g}")
            answers.append(replay_with(run, cast(Options, {**changes, name: value})))
    return Sweep.of(option, distinct, answers)


def _sweep_answer(sweep: Sweep) -> Answer:
    def tables(console: Console) -> None:
        from dptrace.viewers.terminal.replay import print_sweep

        print_sweep(sweep, console)

    def page() -> str:
        from dptrace.viewers.pages.whatif_sweep import document

        return document(sweep)

    def chart() -> Drawing:
        from dptrace.viewers.pages.whatif_sweep import sweep_chart

        return sweep_chart(sweep)

    return Answer({TEXT: tables, JSON: sweep.to_dict, HTML: page, **drawn(chart, _SWEEP_WIDTH)})


def _answer(run: Run, answer: WhatIf, findings: tuple[Finding, ...], all_rows: bool) -> Answer:
    def tables(console: Console) -> None:
        from dptrace.viewers.terminal.replay import print_whatif

        print_whatif(answer, console, all_rows, findings, run.several_runs)

    def data() -> dict[str, Any]:
        listed = {} if answer.changes else {"findings": [one.to_dict() for one in findings]}
        return answer.to_dict() | listed

    def page() -> str:
        """Draw the predicted run below the measured one."""
        from dptrace.viewers.gantt.page.pair import document
        from dptrace.viewers.terminal.replay import sentence

        measured = run if answer.apart_ns is None else run.select(ranks=answer.run.ranks)
        verdict = [sentence(answer).plain, *(doubt.text for doubt in answer.doubts)]
        if len(answer.steps) > 1:
            verdict.append("The answer is of the median step, the figures above the chart are of the mean step.")
        return document(measured, answer.run, verdict=verdict)

    return Answer({TEXT: tables, JSON: data, CSV: answer.figures, HTML: page, _TRACE: lambda: answer.run})
