"""Figures across ranks in the terminal: the findings, and wait and transfer time of collectives."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dptrace.analysis.cross_rank.transfers import Latency, merge_groups, with_phase_in_name
from dptrace.analysis.findings.finding import Finding, by_gain
from dptrace.analysis.matching.match import Matches
from dptrace.core.units import byte_size, milliseconds, share
from dptrace.run.cross_rank import CrossRankAnalysis
from dptrace.viewers.base.format import gain_sentence, plain
from dptrace.viewers.terminal.tables.split import titled_table

__all__ = ["MAX_ROWS", "findings_list", "timing_table"]

MAX_ROWS = 6


def findings_list(findings: tuple[Finding, ...]) -> RenderableType:
    """Return the findings: what a step would gain where that is known, else the cost; text and advice.

    They are sorted by that figure; those without which a step would gain less than 1 % share a line.
    """
    if not findings:
        return Text("Findings: nothing costs 1 % of a step or more.", style="bold")
    replayed = any(finding.gain is not None and finding.gain.change for finding in findings)
    order = "by what a step would gain without each" if replayed else "most expensive first (cost per step)"
    parts: list[RenderableType] = [Text(f"Findings, {order}", style="bold")]
    table = Table.grid(padding=(0, 1))
    for _ in ("cost", "share"):
        table.add_column(justify="right", style="bold", no_wrap=True)
    table.add_column()
    ordered = by_gain(findings)
    minor = [finding for finding in ordered if finding.is_minor]
    for finding in (finding for finding in ordered if not finding.is_minor):
        figure, of_step = finding.figure
        lines = [plain(finding.text), plain(f"→ {finding.advice}{_where(finding)}")]
        if replayed and finding.gain is not None:
            lines.append(plain(f"= {gain_sentence(finding.gain)}"))
        table.add_row(f"{milliseconds(figure)} ms", f"({share(of_step)})", Group(*lines))
    if not replayed and (why := next((f.gain.reason for f in findings if f.gain is not None), "")):
        parts.append(plain(f"What a step would gain without them is not known: {why}"))
    parts.append(table)
    if minor:
        gains = (f"{one.kind.replace('_', ' ')} {milliseconds(one.figure[0])} ms" for one in minor)
        parts.append(plain(f"A step would gain less than 1 % without each of these: {', '.join(gains)}."))
    return Group(*parts)


def _where(finding: Finding) -> str:
    """Return the step and the rank to look at, as --json names them."""
    step, rank = finding.evidence.get("step"), finding.evidence.get("rank")
    if step is None or rank is None:
        return ""
    return f" (see {step}, rank {rank})"


def timing_table(analysis: CrossRankAnalysis, every: bool = False) -> Table | None:
    """Return wait and transfer time of the matched collectives: a row for each kind, size and bucket.

    Groups with the same purpose share a row, and so do layers whose sizes vary, such as tokens sent to experts.

    Args:
        every: leave no row out, and give each group and layer its own.

    Returns:
        The table; None for a run of one rank, or where no collective was matched.
    """
    if not analysis.latencies or len(analysis.devices) < 2:
        return None
    rows = analysis.latencies if every else merge_groups(analysis.latencies, analysis.matches, analysis.timing)
    shown = with_phase_in_name(rows)[: None if every else MAX_ROWS]
    names = [_name(latency, analysis.matches, every) for latency in shown]
    title = "collectives across ranks" if len(shown) == len(rows) else f"collectives across ranks (first {len(shown)})"
    table = titled_table(title, collapse_padding=True)
    table.add_column("kind", no_wrap=True)
    if any(names):
        table.add_column("bucket")
    transfer = ("transfer\np50 ms", "\np90 ms", "\nmax ms")
    for heading in ("count", "bytes", *transfer, "mean\nwait ms", "busbw\nGB/s", "slow"):
        table.add_column(heading, justify="right", no_wrap=True)
    for latency, name in zip(shown, names, strict=True):
        slow = int(latency.slow.sum())
        table.add_row(
            latency.kind,
            *([plain(name)] if any(names) else []),
            f"{len(latency.instances):,}",
            byte_size(latency.bytes),
            *(f"{latency.quantile(quantile) / 1e6:.3f}" for quantile in (0.5, 0.9, 1)),
            "–" if latency.wait_ns is None else milliseconds(latency.wait_ns),
            "–" if latency.busbw is None else f"{latency.busbw / 1e9:.1f}",
            str(slow) if slow else "",
        )
    if len(shown) < len(rows):
        table.add_row("…", *[""] * any(names), f"+{len(rows) - len(shown):,}")
    return table


def _name(latency: Latency, matches: Matches, every: bool) -> str:
    """Return a row's label, with its group where there are several."""
    group = matches.groups[latency.group]
    several = len({one.ranks for one in matches.groups if one.ranks}) > 1
    ranks = f"ranks {', '.join(map(str, group.ranks))}" if every and several and group.ranks else ""
    where = ranks or (group.description if several and not latency.name else "")
    return ", ".join(filter(None, (latency.name, where)))
