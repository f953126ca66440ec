"""``dptrace links``: latency and bandwidth between the ranks."""

from __future__ import annotations

import re
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dptrace.commands.shared.answer import HTML, JSON, MARKDOWN, TEXT, Answer, Destination, file_options
from dptrace.commands.shared.numbers import NumberType, Whole
from dptrace.commands.shared.options import (
    check_machines,
    given_options,
    json_option,
    machine_options,
    quiet_option,
)
from dptrace.commands.shared.output import print_hint, print_notes, progress
from dptrace.core.units import plural, sanitize
from dptrace.errors import UsageError
from dptrace.model.collectives import ALL_REDUCES, KINDS
from dptrace.model.link_report import link_report

if TYPE_CHECKING:
    from rich.console import Console

    from dptrace.bench.links import LinksRequest


_DEFAULT_OUTPUT = Path("links.json")
_BUDGET = "Time to spend on measuring. [60]"
_ABOUT = f" [{_DEFAULT_OUTPUT}]"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_ELEMENT_BYTES = 4
"""Of a float32, which is what messages are made of."""
_KIND_NAMES = ", ".join(kind.replace("_", "-") for kind in KINDS)
_ALGORITHMS = "Also time all-reduces written with send and receive: ring,tree … or all."
_KINDS_HELP = "Collectives to measure [all; with --algorithms all-reduce and p2p]."
_NODE = "Ranks of a node, for the hierarchical algorithm [of a machine, or half]."
_FOR_ALGORITHMS = ("all_reduce", "send_recv")
"""What an algorithm is compared with, and predicted from."""
_ALIASES = {"p2p": "send_recv", "point_to_point": "send_recv"}

_HELP = f"""Measure latency (alpha) and time per byte (beta) between the ranks, for each collective.

Uses NCCL between GPUs with one process each, and gloo between processes on the CPU where there is no GPU. Every size is
measured once per round; its figure is the median over the rounds of the slowest rank's time.

Collectives are {_KIND_NAMES} (or p2p). Algorithms are {", ".join(ALL_REDUCES)}.
"""
_EXAMPLES = """\b
Examples:
  dptrace links --gpus 4 -o links.json -o links.html
  dptrace links --collectives all-reduce,p2p --max-bytes 64MB --budget 20 -o quick.json
  dptrace links --gpus 4 --algorithms all -o algorithms.json            # and their predictions
  dptrace links --nnodes 2 --node-rank 0 --rdzv-endpoint node0:29500    # --node-rank 1 on the other
  dptrace links --from links.json -o links.html                         # draw an earlier measurement
"""


class Size(Whole):
    """Bytes, as a number or with a unit in powers of 1024, as in nccl-tests."""

    name = "size"
    example = "write it as 4096, 64KB or 1GB"

    def read(self, text: str) -> int:
        """Read 4096, 4K, 4KB or 4KiB."""
        match = re.fullmatch(r"(\d+)\s*([KMGT]?)(?:i?B)?", text, re.IGNORECASE)
        if match is None:
            raise ValueError(text)
        return int(match[1]) * _UNITS[match[2].upper()]


_SIZE = Size(1, 1 << 50)


@click.command(help=_HELP, epilog=_EXAMPLES)
@click.option("--gpus", type=Whole(1), metavar="N", help="Processes, one per GPU [default: all GPUs; 2 on CPU].")
@click.option("--collectives", metavar="LIST", help=_KINDS_HELP)
@click.option("--algorithms", metavar="LIST", help=_ALGORITHMS)
@click.option("--ranks-per-node", type=Whole(1), metavar="N", help=_NODE)
@click.option("--min-bytes", type=_SIZE, default="1KB", show_default=True, help="Smallest message.")
@click.option(
    "--max-bytes", type=_SIZE, default="1GB", show_default=True, help="Largest message, if memory and time allow it."
)
@click.option("--budget", type=NumberType(1, 1e9), default=60, metavar="SECONDS", help=_BUDGET)
@file_options(*(JSON, TEXT, MARKDOWN, HTML), flags=(json_option,), aliases={"html": HTML}, about=_ABOUT, printed=True)
@click.option(
    "--from", "source", type=click.Path(path_type=Path), metavar="FILE", help="Show this result without measuring."
)
@machine_options
@quiet_option
def command(source: Path | None, to: Destination, verbosity: str, **options: Any) -> None:
    if source is None and not to.has(JSON):
        to = to.also(JSON, _DEFAULT_OUTPUT)
    if source is not None:
        from dptrace.bench.links import read_links

        _refuse_measuring(to)
        content: dict[str, Any] | None = read_links(source)
    else:
        content = _measured(_request(options, verbosity), verbosity)
    if content is None:
        click.echo("This machine's ranks are done; machine 0 prints the result.", err=True)
        return
    to.write(_answer(content))
    if to.on_terminal:
        print_notes(content["notes"])
    if not to.has(HTML) and (result := to.file_of(JSON) or source):
        print_hint(f"Next: dptrace links --from {shlex.quote(str(result))} -o links.html", verbosity)


def _refuse_measuring(to: Destination) -> None:
    """Refuse options of a measurement when an existing result is shown."""
    shown = {"source", "alias_html", "as_json", "force", "verbosity", "outputs"}
    for name in sorted(given_options() - shown):
        raise UsageError(f"--{name.replace('_', '-')} is for measuring; --from shows an existing result.")
    if path := to.file_of(JSON):
        raise UsageError(f"-o {path} is for measuring; --from shows an existing result. Copy the file instead.")


def _request(options: dict[str, Any], verbosity: str) -> LinksRequest:
    """Return what to measure; refuse before any process is started what would fail in it."""
    algorithms = _algorithms(options["algorithms"])
    kinds = _kinds(options["collectives"], for_algorithms=bool(algorithms))
    least, most = options["min_bytes"], options["max_bytes"]
    if least > most:
        raise UsageError(f"--min-bytes {least:,} is more than --max-bytes {most:,}.")
    check_machines(options)
    nnodes, node_rank, endpoint = options["nnodes"], options["node_rank"], options["rdzv_endpoint"]
    processes = _processes(options["gpus"], nnodes, verbosity)
    smallest = _ELEMENT_BYTES * processes * nnodes
    if least < smallest:
        raise UsageError(f"--min-bytes {least}: must be at least {smallest}, one element for each rank.")
    per_node = options["ranks_per_node"]
    if per_node is not None and "hierarchical" not in algorithms:
        raise UsageError(f"--ranks-per-node {per_node}: is for --algorithms hierarchical; add it, or leave this out.")
    if per_node is not None and per_node > processes * nnodes:
        raise UsageError(f"--ranks-per-node {per_node}: there are only {processes * nnodes} ranks.")
    from dptrace.bench.links import LinksRequest

    budget, node = options["budget"], node_rank or 0
    return LinksRequest(kinds, least, most, budget, processes, nnodes, node, endpoint, algorithms, per_node)


def _kinds(listed: str | None, for_algorithms: bool = False) -> tuple[str, ...]:
    if listed is None:
        return _FOR_ALGORITHMS if for_algorithms else KINDS
    names = {name.replace("-", "_") for name in _names(listed)}
    kinds = {_ALIASES.get(name, name) for name in names}
    if not kinds or not kinds <= set(KINDS):
        raise UsageError(f"--collectives {listed}: choose from {_KIND_NAMES} (or p2p).")
    return tuple(kind for kind in KINDS if kind in kinds.union(_FOR_ALGORITHMS if for_algorithms else ()))


def _algorithms(listed: str | None) -> tuple[str, ...]:
    if listed is None:
        return ()
    names = _names(listed)
    if not names or not names <= {*ALL_REDUCES, "all"}:
        raise UsageError(f"--algorithms {listed}: choose from {', '.join(ALL_REDUCES)}, or all.")
    return ALL_REDUCES if "all" in names else tuple(name for name in ALL_REDUCES if name in names)


def _names(listed: str) -> set[str]:
    return {name.strip().lower().replace("_", "-") for name in listed.split(",") if name.strip()}


def _processes(gpus: int | None, nnodes: int, verbosity: str) -> int:
    from dptrace.record.launch.launcher import processes_here

    processes, local_gpus = processes_here(gpus)
    if processes * nnodes < 2:
        advice = "CUDA_VISIBLE_DEVICES= dptrace links --gpus 2 measures gloo between processes on the CPU instead."
        raise UsageError(f"A link needs two ranks: two GPUs or more, or several machines. {advice}")
    if not local_gpus:
        text = plural(processes, "process", "processes")
        print_hint(f"No GPU found: measuring gloo between {text} on the CPU.", verbosity)
    return processes


def _measured(request: LinksRequest, verbosity: str) -> dict[str, Any] | None:
    from datetime import datetime, timezone

    from dptrace.bench.links import measure_links
    from dptrace.doctor.environment import parse_links
    from dptrace.record.processes import Interrupted
    from dptrace.version import __version__

    created = datetime.now(timezone.utc).isoformat(timespec="seconds")
    try:
        with progress("Measuring", verbosity) as show:
            measured = measure_links(request, lambda done, total: show(done / total, ""))
    except Interrupted as stopped:
        click.echo("Interrupted: all ranks are stopped, and no result is kept.", err=True)
        sys.exit(stopped.exit_code)
    if measured is None:
        return None
    for machine in measured["machines"]:
        machine["gpu_links"] = parse_links(machine["gpu_matrix"])
    header = {"created": created, "dptrace": __version__, "command": ["dptrace", *sys.argv[1:]]}
    return link_report(header | measured)


def _answer(content: dict[str, Any]) -> Answer:
    def page() -> str:
        from dptrace.viewers.benchmarks.pages import links_document

        return links_document(content)

    return Answer({TEXT: partial(_print, content), JSON: lambda: content, HTML: page})


def _print(content: dict[str, Any], terminal: Console) -> None:
    from dptrace.viewers.base.table import fitting_table, print_text_table
    from dptrace.viewers.benchmarks.links_table import (
        algorithm_tables,
        facts,
        fits_table,
        nearest_link_sentence,
        topology,
    )

    terminal.print(" · ".join(map(sanitize, facts(content))), markup=False)
    terminal.print()
    terminal.print(fitting_table(fits_table(content)))
    terminal.print()
    for title, cells in algorithm_tables(content):
        print_text_table(cells, title, terminal)
        terminal.print()
    for line in (nearest_link_sentence(content), *topology(content)):
        terminal.print(line, markup=False)
