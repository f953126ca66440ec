"""What the planners share: options that describe a training, and how an answer is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dptrace.commands.shared.answer import HTML, JSON, TEXT, Answer, Destination, drawn
from dptrace.commands.shared.numbers import Amount, NumberType, Whole
from dptrace.commands.shared.options import Toggle, given_options, group
from dptrace.commands.shared.output import print_notes
from dptrace.core.numbers import Number
from dptrace.errors import DptraceError, UsageError
from dptrace.model.planning.describe import OPTIONS, Description, Option

if TYPE_CHECKING:
    from rich.console import Console

    from dptrace.viewers.base.marks import Drawing


class _Names(click.Choice):  # type: ignore[type-arg]  # generic in newer releases of click only
    """Names that a shell completes; what is none of them is refused with the description, in Python too."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Take any text."""
        return value


def _option(name: str, option: Option, default: Any) -> Any:
    """Return the option that sets a part of a description; dptrace.model.planning.describe declares and checks it."""
    flag, takes = f"--{name.replace('_', '-')}", option.takes
    text = option.help.format(", ".join(takes)) if isinstance(takes, tuple) else option.help
    if default is not None and default is not False and "[" not in text:
        text += f" [{default}]"
    if takes is None and option.metavar == "N":
        if default is None:
            return click.option(f"{flag}/--no{flag[1:]}", cls=Toggle, default=None, help=text)
        return click.option(flag, is_flag=True, help=text)
    kind: click.ParamType[Any] | None = _Names(takes) if isinstance(takes, tuple) else None
    if isinstance(takes, Number):  # the limits are checked with the description, in Python too
        kind = Whole() if takes.whole else NumberType() if takes.most == 1 else Amount()
    return click.option(flag, type=kind, default=default, metavar=option.metavar, help=text)


_LINKS = "Measured links (dptrace links -o FILE) instead of nominal ones."
plan_options = group(
    *(_option(name, *declared) for name, declared in OPTIONS.items()),
    click.option("--links", type=click.Path(path_type=Path), metavar="FILE", help=_LINKS),
)
"""What the time of a training depends on."""
_OF_RECORDINGS = {"comm_patterns", "phase_labels", "step_range", "strict", "cache", "jobs", "ranks", "steps"}
_SPELLED = {"comm_patterns": "comm-pattern", "cache": "no-cache", "message_bytes": "bytes"}
"""Options that are not called as their parameter."""


def _refuse(names: Iterable[str], why: str) -> None:
    """Refuse the first of some options that is on the command line.

    Raises:
        UsageError: it names the option.
    """
    for name in sorted(given_options().intersection(names)):
        raise UsageError(f"--{_SPELLED.get(name, name.replace('_', '-'))}{why}")


_OF_TIME = {"links", "message_bytes", "gamma", "tokens"}
"""Options beside those of a description, which only the time of a step depends on."""


def refuse_timed() -> None:
    """Refuse what only the time of a step depends on, beside a description, and what chooses among recorded steps."""
    _refuse(_OF_RECORDINGS | _OF_TIME, ": the memory of a training does not depend on it; leave it out.")


def refuse_description(but: Iterable[str] = ()) -> None:
    """Refuse options that describe a training, next to a recording.

    Args:
        but: names of options that a recording takes, too.
    """
    _refuse((_OF_TIME | OPTIONS.keys()).difference(but), " describes a training; a recording describes itself.")


def description_of(options: dict[str, Any]) -> Description:
    """Take the options of a description out of a verb's options."""
    given = given_options()
    described = {name: options.pop(name) for name in OPTIONS if name in options}
    return Description(**described, given=frozenset(given & described.keys()))


def plan_of(options: dict[str, Any], links: Path | None) -> Description:
    """Take the described training out of a verb's options, with the measured links of a file where there is one.

    Raises:
        UsageError: an option is about a recording.
        DptraceError: the file holds no fitted line.
    """
    _refuse(_OF_RECORDINGS, " is about a recording; name its folder, too.")
    description = description_of(options)
    if links is None:
        return description
    return with_measured_links(description, links)


# Links of a plan from a file of ``dptrace links``.


def measured_gamma(path: Path) -> float | None:
    """Return the measured time to add a byte, in seconds; None where ``--algorithms`` was not measured."""
    from dptrace.bench.links import read_links

    found = read_links(path).get("algorithms")
    return found["gamma_s_per_byte"] if found else None


def with_measured_links(description: Description, path: Path, preferred: str = "all_reduce") -> Description:
    """Replace the link that a measurement is of: between nodes if it was on several, else within a node.

    Args:
        preferred: the collective whose line counts, if it was measured. That of all-reduce includes the additions.

    Raises:
        DptraceError: the file holds no fitted line.
    """
    from msgspec.structs import replace

    from dptrace.bench.links import read_links
    from dptrace.model.training.communication import Link

    content = read_links(path)
    lines = {
        kind: found["link"]
        for kind, found in content["collectives"].items()
        if found["link"] and found["link"]["beta_s_per_byte"] > 0
    }
    if not lines:
        raise DptraceError(f"{path}: no line was fitted to its times. Measure again: dptrace links -o {path}")
    kind = preferred if preferred in lines else next(iter(lines))
    line = lines[kind]
    link = Link(f"{path.name} ({kind.replace('_', '-')})", line["alpha_s"], 1 / line["beta_s_per_byte"])
    several = content["nodes"] > 1
    return replace(description, **{"measured_between" if several else "measured_within": link})


# ``dptrace predict --bytes``: what one message takes, by every collective and by every algorithm of an all-reduce.


_USED = {"message_bytes", "gamma", "gpus", "gpus_per_node", "link", "links"}
_OUTPUT = {"run", "as_json", "outputs", "force", "verbosity"}


def predict_message(options: dict[str, Any], links: Path | None, size: float, gamma_ps: float | None) -> dict[str, Any]:
    """Return what the message takes over links at their nominal rates, or over measured ones.

    Raises:
        UsageError: an option describes a training, or there are fewer than two GPUs.
        DptraceError: the file of links has no fitted line.
    """
    from dptrace.model.training.communication import Network, message_costs, nominal_network

    _refuse(given_options() - _USED - _OUTPUT, " describes a training; --bytes is one message.")
    found = Description(gpus=options["gpus"], gpus_per_node=options["gpus_per_node"], link=options["link"])
    gamma = gamma_ps * 1e-12 if gamma_ps is not None else None
    if links is not None:
        found = with_measured_links(found, links, "send_recv")
        gamma = measured_gamma(links) if gamma is None else gamma
    nominal = nominal_network(found.links, found.node)
    near, far = found.measured_within or nominal.within, found.measured_between or nominal.between
    return message_costs(Network(near, far, found.node), size, found.gpus, gamma or 0.0)


# The answer in all forms.


def write_plan(
    content: dict[str, Any], to: Destination, every: bool = False, findings: Callable[[Console], None] | None = None
) -> None:
    """Write what a planner answers: text, JSON, a page or a chart; then what it assumes.

    Args:
        every: all rows of advice.
        findings: prints those of a recording, below the first table.
    """

    def page() -> str:
        from dptrace.viewers.planning.pages import document

        return document(content)

    def chart() -> Drawing:
        from dptrace.viewers.planning.charts import chart_of

        return chart_of(content)

    tables = partial(_print, content, every, findings)
    to.write(Answer({TEXT: tables, JSON: lambda: content, HTML: page, **drawn(chart)}))
    print_notes(content.get("assumptions", ()))


def _print(content: dict[str, Any], every: bool, findings: Callable[[Console], None] | None, console: Console) -> None:
    from dptrace.viewers.base.table import print_text_table
    from dptrace.viewers.planning.tables import facts, tables

    said = facts(content)
    for line in said:
        console.print(line, markup=False)
    for number, (title, table) in enumerate(tables(content, every)):
        if said or number:
            console.print()
        print_text_table(table, title, console)
        if findings is not None and not number:
            findings(console)
