"""``dptrace links``: latency and bandwidth of what connects the ranks."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dptrace.commands.shared.output import OutputFile
from dptrace.commands.shared.shared import console, progress
from dptrace.core.files import atomic_write, check_output
from dptrace.core.text import sanitize
from dptrace.errors import UsageError
from dptrace.model.link_report import link_report

if TYPE_CHECKING:
    from dptrace.bench.links.launch import LinksRequest

_OUT = Path("links.json")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_ELEMENT = 4
_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
"""dptrace.model.collectives says them too, but importing that is not free of charge for --help."""
_OTHER_NAMES = {"p2p": "send_recv", "point_to_point": "send_recv"}

_EXAMPLES = """\b
Examples:
  dptrace links --gpus 4 --html links.html
  dptrace links --collectives all-reduce,p2p --max-bytes 64MB --budget 20 -o quick.json
  dptrace links --nnodes 2 --node-rank 0 --rdzv-endpoint node0:29500    # and so with --node-rank 1 on the other
  dptrace links --from links.json --html links.html                     # draw what was measured before
"""


class Size(click.ParamType):  # type: ignore[type-arg]  # it takes none in older versions of click
    """Bytes, as a number or with a unit in powers of 1024, as nccl-tests takes them."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read 4096, 4K, 4KB or 4KiB."""
        found = re.fullmatch(r"(\d+)\s*([KMGT]?)(?:i?B)?", str(value).strip(), re.IGNORECASE)
        if found is None or int(found[1]) == 0:
            self.fail(f"{value!r} is no size; write it as 4096, 64KB or 1GB.", param, ctx)
        return int(found[1]) * _UNITS[found[2].upper()]


@click.command(epilog=_EXAMPLES)
@click.option(
    "--gpus", type=click.IntRange(1), metavar="N", help="Processes, one per GPU [default: all GPUs; 2 on CPU]."
)
@click.option("--collectives", metavar="LIST", help=f"Of {', '.join(k.replace('_', '-') for k in _KINDS)} (p2p) [all].")
@click.option("--min-bytes", type=Size(), default="1KB", show_default=True, help="Smallest message.")
@click.option(
    "--max-bytes", type=Size(), default="1GB", show_default=True, help="Largest, if memory and time allow it."
)
@click.option(
    "--budget",
    type=click.FloatRange(min=1),
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="How long to measure.",
)
@click.option("-o", "--output", type=OutputFile(), help=f"File of the result [default: {_OUT}; none with --json].")
@click.option("--html", type=OutputFile(), help="Write a page with the charts, too.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON instead of a table (docs/links.md).")
@click.option(
    "--from", "source", type=click.Path(path_type=Path), metavar="FILE", help="Show this result; measure nothing."
)
@click.option("--force", is_flag=True, help="Overwrite the files.")
@click.option("--nnodes", type=click.IntRange(1), default=1, metavar="N", help="Machines; start this command on each.")
@click.option("--node-rank", type=click.IntRange(0), metavar="N", help="Which of them this is, from 0.")
@click.option("--rdzv-endpoint", metavar="HOST:PORT", help="Where machine 0 listens.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but the answer and errors.")
def command(source: Path | None, as_json: bool, quiet: bool, **options: Any) -> None:
    """Measure latency (alpha) and time per byte (beta) of what connects the ranks, for each collective.

    Uses NCCL between GPUs, one process each, and gloo between processes on the CPU where there is no GPU. Sizes are
    taken in turns, round after round, and each is told by the median of its timings, the slowest rank's counting.
    """
    output, html = options["output"], options["html"]
    if output is not None and html is not None and output.resolve() == html.resolve():
        raise UsageError(f"--html {html}: is the file that -o names too; give each its own.")
    if source is None and output is None and not as_json:
        output = _OUT
    for path in filter(None, (output, html)):
        check_output(path, options["force"])
    if source is not None:
        from dptrace.bench.links.launch import read_links

        _refuse_measuring(options)
        content: dict[str, Any] | None = read_links(source)
    else:
        content = _measured(_request(options, quiet), quiet)
    if content is None:
        click.echo("This machine's ranks are done; machine 0 tells the result.", err=True)
        return
    _write(content, output, html)
    _show(content, as_json, quiet)
    if not quiet:
        _print_next(output, html, source)


def _refuse_measuring(options: dict[str, Any]) -> None:
    """Refuse options that mean nothing to a result that is there, rather than ignore them."""
    context = click.get_current_context()
    for name in ("gpus", "collectives", "min_bytes", "max_bytes", "budget", "nnodes", "node_rank", "rdzv_endpoint"):
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            raise UsageError(f"--{name.replace('_', '-')} is for measuring; --from shows what was measured.")
    if options["output"] is not None:
        raise UsageError("-o is for measuring; --from shows what was measured. Copy the file instead.")


def _request(options: dict[str, Any], quiet: bool) -> LinksRequest:
    """Refuse before any process is started what would fail in it."""
    kinds = _kinds(options["collectives"])
    least, most = options["min_bytes"], options["max_bytes"]
    if least > most:
        raise UsageError(f"--min-bytes {least:,} is more than --max-bytes {most:,}.")
    nnodes, node_rank, endpoint = options["nnodes"], options["node_rank"], options["rdzv_endpoint"]
    if nnodes == 1 and (node_rank is not None or endpoint):
        raise UsageError("--node-rank and --rdzv-endpoint are for several machines: give --nnodes too.")
    if nnodes > 1 and (node_rank is None or endpoint is None):
        raise UsageError("--nnodes needs --node-rank (0 on the first machine) and --rdzv-endpoint HOST:PORT of it.")
    if node_rank is not None and node_rank >= nnodes:
        raise UsageError(f"--node-rank {node_rank}: from 0 to {nnodes - 1} with --nnodes {nnodes}.")
    processes = _processes(options["gpus"], nnodes, quiet)
    if least < _ELEMENT * processes * nnodes:
        raise UsageError(f"--min-bytes {least}: at least {_ELEMENT * processes * nnodes}, a number for each rank.")
    from dptrace.bench.links.launch import LinksRequest

    return LinksRequest(kinds, least, most, options["budget"], processes, nnodes, node_rank or 0, endpoint)


def _kinds(listed: str | None) -> tuple[str, ...]:
    if listed is None:
        return _KINDS
    asked = [name.strip().lower().replace("-", "_") for name in listed.split(",") if name.strip()]
    kinds = [_OTHER_NAMES.get(name, name) for name in asked]
    unknown = [name for name, kind in zip(asked, kinds, strict=True) if kind not in _KINDS]
    if unknown or not kinds:
        known = ", ".join(kind.replace("_", "-") for kind in _KINDS)
        raise UsageError(f"--collectives {listed}: there are {known} (or p2p).")
    return tuple(kind for kind in _KINDS if kind in kinds)


def _processes(gpus: int | None, nnodes: int, quiet: bool) -> int:
    from dptrace.record.launch.launcher import local_gpu_count

    here = local_gpu_count()
    if here and gpus is not None and gpus > here:
        raise UsageError(f"--gpus {gpus}: this machine has {here}.")
    processes = (gpus or here) if here else (gpus or 2)
    if processes * nnodes < 2:
        advice = "CUDA_VISIBLE_DEVICES= dptrace links --gpus 2 measures gloo between processes on the CPU instead."
        raise UsageError(f"One rank has no link to measure: two GPUs or more are needed, or several machines. {advice}")
    if not here and not quiet:
        plural = "process" if processes == 1 else "processes"
        click.echo(f"No GPU here: measuring gloo between {processes} {plural} on the CPU.", err=True)
    return processes


def _measured(asked: LinksRequest, quiet: bool) -> dict[str, Any] | None:
    from datetime import datetime, timezone

    from dptrace.bench.links.launch import measure_links
    from dptrace.environment import parse_links
    from dptrace.record.launch.launcher import Interrupted
    from dptrace.version import __version__

    created = datetime.now(timezone.utc).isoformat(timespec="seconds")
    try:
        with progress("Measuring", "quiet" if quiet else "normal") as show:
            measured = measure_links(asked, lambda done, total: show(done / total, ""))
    except Interrupted as stopped:
        click.echo("Interrupted: all ranks are stopped, and nothing is kept.", err=True)
        sys.exit(stopped.exit_code)
    if measured is None:
        return None
    for machine in measured["machines"]:
        machine["gpu_links"] = parse_links(machine["gpu_matrix"])
    header = {"created": created, "dptrace": __version__, "command": ["dptrace", *sys.argv[1:]]}
    return link_report(header | measured)


def _write(content: dict[str, Any], output: Path | None, html: Path | None) -> None:
    if output is not None:
        with atomic_write(output) as temporary:
            temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if html is not None:
        from dptrace.viewers.benchmarks.links_page import document

        page = document(content)
        with atomic_write(html) as temporary:
            temporary.write_text(page, encoding="utf-8")


def _show(content: dict[str, Any], as_json: bool, quiet: bool) -> None:
    if as_json:
        click.echo(json.dumps(content, indent=1))
        return
    from dptrace.viewers.benchmarks.links_table import facts, nearest_link_sentence, table, topology

    shown = console()
    shown.print(" · ".join(map(sanitize, facts(content))), markup=False)
    shown.print()
    shown.print(table(content))
    shown.print()
    for line in (nearest_link_sentence(content), *topology(content)):
        shown.print(line, markup=False)
    for note in content["notes"]:
        click.echo(f"! {sanitize(note)}", err=True)


def _print_next(output: Path | None, html: Path | None, source: Path | None) -> None:
    written = [str(path) for path in (output, html) if path is not None]
    if written:
        click.echo(f"Wrote {' and '.join(written)}.", err=True)
    if html is None and (known := output or source):
        click.echo(f"Next: dptrace links --from {shlex.quote(str(known))} --html links.html", err=True)
