"""The ranks side by side in the terminal: what matters most, how collectives waited and moved data, the clocks."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dptrace.analysis.cross_rank.latency import Latency, merge_groups, with_phase_in_name
from dptrace.analysis.findings.detect import Finding
from dptrace.analysis.matching.match import Matches
from dptrace.run.cross_rank import CrossRankAnalysis
from dptrace.viewers.terminal.split_tables import milliseconds, plain, quantity

__all__ = ["findings_list", "timing_table"]

_MOST_ROWS = 12


def findings_list(findings: tuple[Finding, ...]) -> RenderableType:
    """Give the findings, the dearest first: cost, what, and what to do."""
    if not findings:
        return Text("Findings: nothing that costs a hundredth of the step.", style="bold")
    parts: list[RenderableType] = [Text("Findings, by what each costs of a step", style="bold")]
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    for finding in findings:
        cost = Text(f"{milliseconds(finding.cost_ns)} ms\n{100 * finding.share:.1f} %", style="bold")
        table.add_row(cost, Group(plain(finding.text), plain(f"→ {finding.advice}{_where(finding)}")))
    return Group(*parts, table)


def _where(finding: Finding) -> str:
    """Say where to look, in the words of --json's evidence."""
    step, rank = finding.evidence.get("step"), finding.evidence.get("rank")
    if step is None or rank is None:
        return ""
    return f" (see {step}, rank {rank})"


def timing_table(together: CrossRankAnalysis, every: bool = False) -> Table | None:
    """Give how like collectives waited and transferred: a row for each kind, size and bucket that all ranks show.

    Groups of one purpose have one row, and so have the layers of what varies in size, as tokens to experts do.

    Args:
        every: leave no row out, with one for each group and layer.
    """
    if not together.latencies or len(together.devices) < 2:
        return None
    title = Text("collectives across ranks", style="bold")
    table = Table(title=title, title_justify="left", title_style="", box=None, pad_edge=False, padding=(0, 1))
    table.add_column("kind", no_wrap=True)
    table.add_column("bucket", no_wrap=True)
    transfer = ("transfer\np50 ms", "\np90 ms", "\nmax ms")
    for heading in ("count", "bytes", *transfer, "mean\nwait ms", "busbw\nGB/s", "slow"):
        table.add_column(heading, justify="right", no_wrap=True)
    rows = together.latencies if every else merge_groups(together.latencies, together.matches, together.timing)
    shown = with_phase_in_name(rows)[: None if every else _MOST_ROWS]
    for latency in shown:
        slow = int(latency.slow.sum())
        table.add_row(
            latency.kind,
            plain(_called(latency, together.matches, every)),
            str(len(latency.instances)),
            quantity(latency.bytes),
            *(f"{latency.quantile(share) / 1e6:.3f}" for share in (0.5, 0.9, 1)),
            milliseconds(latency.wait_ns),
            "–" if latency.busbw is None else f"{latency.busbw / 1e9:.1f}",
            str(slow) if slow else "",
        )
    if len(shown) < len(rows):
        table.add_row("…", "", f"{len(rows) - len(shown)} more: --all")
    return table


def _called(latency: Latency, matches: Matches, every: bool) -> str:
    """Name a row: by its label, and by its group where there are several."""
    group = matches.groups[latency.group]
    several = len({one.ranks for one in matches.groups if one.ranks}) > 1
    ranks = f"ranks {', '.join(map(str, group.ranks))}" if every and several and group.ranks else ""
    where = ranks or (group.description if several and not latency.name else "")
    return ", ".join(filter(None, (latency.name, where)))
