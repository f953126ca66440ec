"""``dptrace explain``: an algorithm step by step, and what it costs."""

from __future__ import annotations

import re
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

import click

from dptrace.commands.shared.answer import HTML, JSON, TEXT, Answer, Destination, answer_options
from dptrace.commands.shared.numbers import NumberType, Whole
from dptrace.commands.shared.options import given_options, quiet_option
from dptrace.commands.shared.output import print_hint
from dptrace.core.units import plural
from dptrace.errors import UsageError
from dptrace.model.gpu_peaks import SHORT_NAMES
from dptrace.simulate.catalog import ENTRIES, OPTIONS, entry_named, explain, refuse_unused
from dptrace.simulate.explanation import DEFAULT_BYTES, DEFAULT_LINK, Settings, links_of

if TYPE_CHECKING:
    from rich.console import Console


_WIDTH = 80
"""Columns of a file, and of a terminal that does not say."""
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
_LINK = f"Link within nodes, and after a comma the one between nodes [{DEFAULT_LINK}]."

_NODE_SIZE = "Ranks of a node, for all-reduces [all ranks; for hierarchical half of them]."
_BUCKETS = "Size of a full bucket, for ddp-buckets [25MiB; 1MiB for the first]."
_STEP = "Print only step K; a page opens there."
_EXAMPLES = """\b
Examples:
  dptrace explain ring --ranks 4 --bytes 208MB --link pcie4
  dptrace explain hierarchical --ranks 8 --node-size 4 --link nvlink4,ib-ndr -o hierarchical.html
  dptrace explain 1f1b --ranks 4 --micro-batches 8
  dptrace explain halving-doubling --ranks 6 --step 2
"""


class Bytes(NumberType):
    """Bytes, as a number or with a unit: MB is 10⁶ bytes and MiB 2²⁰, as the figures that are printed."""

    name = "size"
    example = "write it as 4096, 208MB or 25MiB"

    def read(self, text: str) -> float:
        """Read 4096, 208MB, 1.5GB or 25MiB."""
        match = re.fullmatch(r"([\d.]+(?:e\d+)?)\s*([kKMGT]?i?)B?", text)
        unit = match[2].replace("K", "k") if match and match[2] != "Ki" else match[2] if match else ""
        if match is None or unit not in _UNITS:
            raise ValueError(text)
        return float(match[1]) * _UNITS[unit]


_HELP = f"""Explain a collective or a way to train in parallel: who sends what to whom when, and what it costs.

NAME is one of {", ".join(ENTRIES)}.

The algorithm runs on small NumPy arrays, and its result is compared with NumPy's. Sizes are in powers of 10: 1 MB is
10⁶ bytes. Times follow the alpha-beta model: a message of n bytes takes alpha + n·beta. LINK is one of
{", ".join(SHORT_NAMES)}, or 5us:12.5GB/s.
"""


@click.command(help=_HELP, epilog=_EXAMPLES)
@click.argument("name", metavar="NAME")
@click.option("--ranks", type=Whole(), default=4, show_default=True, metavar="N", help="Number of ranks.")
@click.option(
    "--bytes", "size_bytes", type=Bytes(), default=DEFAULT_BYTES, metavar="SIZE", help="Size n of the message [100MB]."
)
@click.option("--link", metavar="LINK", help=_LINK)
@click.option("--alpha", type=NumberType(), metavar="US", help="Latency of one message in µs, instead of --link.")
@click.option("--bandwidth", type=NumberType(), metavar="GBPS", help="GB/s, instead of --link.")
@click.option("--node-size", type=Whole(), metavar="N", help=_NODE_SIZE)
@click.option("--micro-batches", type=Whole(), metavar="M", help="For pipelines [2 × ranks].")
@click.option("--chunks", type=Whole(), default=2, metavar="V", help="Chunks of layers on a rank, for interleaved [2].")
@click.option("--layers", type=Whole(), metavar="L", help="Layers, for fsdp [3] and ddp-buckets [6].")
@click.option("--bucket-bytes", type=Bytes(), metavar="SIZE", help=_BUCKETS)
@click.option("--stage", type=Whole(), default=3, help="1, 2 or 3, for zero [3].")
@click.option("--tokens", type=Whole(), default=6, metavar="T", help="Tokens on a rank, for moe [6].")
@click.option("--top-k", type=Whole(), default=1, metavar="K", help="Experts for a token, for moe [1].")
@click.option("--capacity-factor", type=NumberType(), default=1.25, metavar="F", help="For moe [1.25].")
@click.option("--step", type=Whole(), metavar="K", help=_STEP)
@answer_options(HTML)
@quiet_option
def command(
    name: str,
    step: int | None,
    to: Destination,
    verbosity: str,
    link: str | None,
    alpha: float | None,
    bandwidth: float | None,
    **fields: Any,
) -> None:
    entry = entry_named(name)
    for option in given_options() & set(OPTIONS):
        refuse_unused(entry, option)
    within, between = links_of(link, alpha, bandwidth)
    explanation = explain(name, Settings(link=within, between=between, **fields))
    if step is not None and not 1 <= step <= len(explanation.steps):
        raise UsageError(
            f"--step {step}: {entry.name} with {explanation.ranks} ranks has {plural(len(explanation.steps), 'step')}."
        )

    def show(console: Console) -> None:
        from dptrace.viewers.terminal.explain import lines

        # In a pipe as in a file, unless COLUMNS says otherwise.
        width = get_terminal_size((_WIDTH, 24)).columns if to.on_terminal else _WIDTH
        console.print("\n".join(lines(explanation, width, step)), markup=False, soft_wrap=True)

    def data() -> object:
        from dptrace.simulate.explanation import to_dict

        return to_dict(explanation, step)

    def page() -> str:
        from dptrace.viewers.pages.explain import document

        return document(explanation, step or 0)

    to.write(Answer({TEXT: show, JSON: data, HTML: page}))
    if to.on_terminal:
        print_hint(
            f"Animated: dptrace explain {entry.name} --ranks {explanation.ranks} -o {entry.name}.html", verbosity
        )
