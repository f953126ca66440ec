"""The split and the causes of idle time as tables that fit a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dptrace.analysis.cross_rank.transfers import ExposedWait, Latency, merge_groups, with_phase_in_name
from dptrace.analysis.findings.finding import Finding, nothing_found, top_findings
from dptrace.analysis.matching.match import Matches
from dptrace.analysis.per_gpu.causes import CAUSES
from dptrace.analysis.per_gpu.split import Split, by_kind, overlap_percent
from dptrace.core.units import byte_size, listed, milliseconds, sanitize
from dptrace.run.columns import HEADINGS, shown_figures
from dptrace.run.cross_rank import CrossRankAnalysis
from dptrace.run.nodes import nodes_first
from dptrace.run.notable_ranks import NotableRank, ranks_first, why_first
from dptrace.run.run import Run
from dptrace.timeline.model import Timeline
from dptrace.viewers.base.fitting import Fitting, heading_words
from dptrace.viewers.base.table import (
    collective_columns,
    column_table,
    figure_words,
    gain_sentence,
    gains_known,
    number_table,
    order_sentence,
    plain,
    rank_label,
    step_label,
    wait_cell,
)
from dptrace.viewers.terminal.screen import minor_findings

Figures = Mapping[str, float | None]

MAX_STEPS, MAX_RANKS, MAX_ROWS = 12, 16, 6
"""Rows of a table of steps, ranks or collectives, unless every row is requested."""


_LEAVING = (
    *("overlapped_comm_ns", "exposed_memory_ns", "exposed_unmatched_ns", "other_ns", "optimizer_ns"),
    *("exposed_wait_ns", "forward_ns", "backward_ns"),
)
"""Figures that a narrow terminal goes without, in this order, once the share of overlap is gone."""


def _overlap(figures: Figures) -> str:
    if figures["overlapped_comm_ns"] is None or figures["exposed_comm_ns"] is None:
        return "?"
    percent = overlap_percent(figures["overlapped_comm_ns"], figures["exposed_comm_ns"])
    return "–" if percent is None else f"{percent:.1f}"


def folded(name: str) -> str:
    """Return the heading of a figure, so narrow that all of them fit 80 characters."""
    return HEADINGS[name].folded.replace("overlapped", "overl.")


def _row(figures: Figures, names: Sequence[str]) -> list[str]:
    return [*(wait_cell(figures[name]) for name in names), _overlap(figures)]


def _table(title: Text | str, first: Sequence[str], names: Sequence[str]) -> Fitting:
    leaving = [heading_words(folded(name)) for name in _LEAVING]
    table = number_table(title, first, [*map(folded, names), "overlap\n%"], ["node", "overlap %", *leaving])
    styles = {"exposed_comm_ns": "bold red", "wall_ns": "bold", "overlapped_comm_ns": "green"}
    table.styles[len(first) : -1] = [styles.get(name, "") for name in names]
    return table


def _heading(timeline: Timeline) -> Text:
    text = Text(timeline.label, style="bold")
    model = timeline.label_with_model.removeprefix(timeline.label)
    return text.append_text(plain(model).append(" · ms per step"))


def _rank_table(timeline: Timeline, figures: Split, waits: ExposedWait, all_rows: bool) -> Fitting:
    """Return the table of one rank: a row for each step, the mean, and each part's share of the wall time."""
    steps: list[Figures] = [{**figures.step(k), **waits.step(k)} for k in range(len(figures.names))]
    names = shown_figures(steps)
    table = _table(_heading(timeline), ["step"], names)
    shown = range(len(figures.names)) if all_rows or len(figures.names) <= MAX_STEPS else range(MAX_STEPS // 2)
    for k in shown:
        table.add_row(
            plain(step_label(figures.names[k])),
            *_row(steps[k], names),
        )
    if len(shown) < len(figures.names):
        table.add_row("…", *["…"] * (len(names) + 1))
    if len(figures.names) > 1:
        table.add_row("mean", *_row({**figures.mean(), **waits.mean()}, names), style="bold")
    total: Figures = {**figures.total(), **waits.total()}
    wall = max(total["wall_ns"] or 0, 1)
    shares = (_share(total[name], wall) for name in names)
    table.add_row("share", *shares, _overlap(total), style="dim")
    return table


def _share(ns: float | None, wall: float) -> str:
    return "?" if ns is None else f"{100 * ns / wall:.1f}%".replace("100.0", "100")


def _ranks_table(run: Run, all_rows: bool) -> Fitting:
    """Return a table with a row for each rank: its mean step."""
    both = zip(run.splits, run.cross_rank.exposed_waits, strict=True)
    means: list[Figures] = [{**figures.mean(), **waits.mean()} for figures, waits in both]
    names = shown_figures(means)
    nodes = run.nodes
    table = _table("mean step by rank, ms", ["rank", *(["node"] if any(nodes) else [])], names)
    order = _shown(run, all_rows)
    for one in order:
        node = [Text(nodes[one.index])] if any(nodes) else []
        table.add_row(rank_label(run, run.timelines[one.index]), *node, *_row(means[one.index], names))
    if len(order) < len(run.splits):
        table.add_row("…", *["…"] * (len(names) + any(nodes) + 1))
        table.caption = why_first(run, order)
    return table


def _nodes_table(run: Run, all_rows: bool) -> Fitting | None:
    """Return a table with a row for each node: its ranks, the one that waits least, and its mean step; or None."""
    found = nodes_first(run)
    if not found:
        return None
    means = [node.mean_step(run) for node in found]
    names = shown_figures(means)
    table = _table("mean step by node, ms", ["node", "ranks", "waits\nleast"], names)
    shown = len(found) if all_rows else MAX_RANKS
    for node, figures in list(zip(found, means, strict=True))[:shown]:
        least = node.least_waiting(run)
        table.add_row(plain(node.name), node.numbers(run), "?" if least is None else str(least), *_row(figures, names))
    if shown < len(found):
        table.add_row("…", *["…"] * (len(names) + 3))
    late = [node.name for node in found if node.is_late]
    table.caption = sanitize(f"Nodes first: {listed(late)} held others up.") if late else ""
    return table


def _shown(run: Run, all_rows: bool) -> tuple[NotableRank, ...]:
    """Return the devices of a table in the order of its rows: all by rank, or of many some, notable ones first."""
    if all_rows:
        return tuple(NotableRank(index, "") for index in range(len(run.devices)))
    return ranks_first(run)[:MAX_RANKS]


def step_tables(run: Run, all_rows: bool = False) -> Iterator[RenderableType]:
    """Yield the tables of the split: by step for a run of one GPU, else by rank.

    Args:
        all_rows: also yield each rank's table by step, and leave no row out.
    """
    if (nodes := _nodes_table(run, all_rows)) is not None:
        yield nodes
    if len(run.splits) > 1:
        yield _ranks_table(run, all_rows)
    if len(run.splits) == 1 or all_rows:
        for timeline, figures, wait in zip(run.timelines, run.splits, run.cross_rank.exposed_waits, strict=True):
            yield _rank_table(timeline, figures, wait, all_rows)


def collective_table(run: Run) -> Fitting | None:
    """Return a table with a row for each kind of collective in the mean step; None without any."""
    kinds = by_kind(run.splits)
    columns = collective_columns(run)
    return column_table("mean step by kind of collective", columns, kinds) if kinds else None


def idle_table(run: Run, all_rows: bool = False) -> Fitting | None:
    """Return a table with a row for each rank: its mean step's idle time by cause; None where no GPU was idle.

    Args:
        all_rows: leave no rank out.
    """
    devices = [device for device in run.devices if len(device.timeline.windows)]
    if not any(device.split.figures["idle_ns"].any() for device in devices):
        return None
    known = [device for device in devices if not device.split.unknown.keys() & {*CAUSES}]
    if not known:
        return None
    shown_causes = [cause for cause in CAUSES if any(device.idle_causes[cause].any() for device in known)]
    headings = [*(HEADINGS[cause].folded for cause in shown_causes), "idle"]
    table = number_table("mean step by cause of idle time, ms", ["rank"], headings)
    found = [run.devices[one.index] for one in _shown(run, all_rows)]
    shown = [device for device in found if len(device.timeline.windows)]
    for device in shown:
        means = device.mean_idle()
        cells = (means[cause] for cause in shown_causes)
        table.add_row(rank_label(run, device.timeline), *map(wait_cell, (*cells, device.split.mean()["idle_ns"])))
    if len(shown) < len(devices):
        table.add_row("…", *["…"] * (len(shown_causes) + 1))
    return table


# Figures across ranks in the terminal: the findings, and wait and transfer time of collectives.


def findings_list(
    findings: tuple[Finding, ...], on_cpu: bool = False, is_limited: bool = False, about: str = ""
) -> RenderableType:
    """Return the findings: what a step gains without each once those above are gone; text, advice and gain alone.

    Those without which a step would gain less than 1 % share a line.

    Args:
        about: follows "Findings" in the heading.
    """
    if not findings:
        return Text(f"Findings: {nothing_found(on_cpu, is_limited)}", style="bold")
    known = gains_known(findings)
    parts: list[RenderableType] = [Text(findings_heading(findings, about), style="bold")]
    reasons = {finding.gain.reason for finding in findings}
    shared = not known and len(reasons) == 1
    if why := f"What a step would gain is unknown: {reasons.pop()}" if shared else order_sentence(findings):
        parts.append(plain(why))
    table = Table.grid(padding=(0, 1))
    for _ in ("gain", "share"):
        table.add_column(justify="right", style="bold", no_wrap=True)
    table.add_column()
    for finding in top_findings(findings):
        figure, of_step = figure_words(finding, known)
        lines = [plain(finding.text), plain(f"→ {finding.advice}{where(finding)}")]
        if not shared:
            lines.append(plain(f"= {gain_sentence(finding)}"))
        table.add_row(figure, of_step and f"({of_step})", Group(*lines))
    parts.append(table)
    if minor := minor_sentence(findings):
        parts.append(plain(minor))
    return Group(*parts)


def findings_heading(findings: Sequence[Finding], about: str = "") -> str:
    """Return the heading of a list of findings: what its figures are."""
    by = "what a step gains without each and those above" if gains_known(findings) else _COUNTED
    return f"Findings{about}, by {by}"


_COUNTED = "the time that each counts"


def minor_sentence(findings: Sequence[Finding]) -> str:
    """Return which findings gain less than 1 % of a step after those above, alike ones with the most; "" for none."""
    listed = ", ".join(minor_findings(findings))
    who = "Once those above are gone, a step" if top_findings(findings) else "A step"
    return f"{who} would gain less than 1 % without each of these: {listed}." if listed else ""


def where(finding: Finding) -> str:
    """Return the step and the rank to look at, as --json names them."""
    step, rank = finding.evidence.step, finding.evidence.rank
    if step is None or rank is None:
        return ""
    return f" (see {step}, rank {rank})"


def timing_table(analysis: CrossRankAnalysis, all_rows: bool = False) -> Fitting | None:
    """Return wait and transfer time of the matched collectives: a row for each kind, size and bucket.

    Groups with the same purpose share a row, and so do layers whose sizes vary, such as tokens sent to experts.

    Args:
        all_rows: leave no row out, and give each group and layer its own.

    Returns:
        The table; None for a run of one rank, or where no collective was matched.
    """
    if not analysis.latencies or len(analysis.devices) < 2:
        return None
    rows = analysis.latencies if all_rows else merge_groups(analysis.latencies, analysis.matches, analysis.timing)
    shown = with_phase_in_name(rows)[: None if all_rows else MAX_ROWS]
    names = [_name(latency, analysis.matches, all_rows) for latency in shown]
    title = "collectives across ranks" if len(shown) == len(rows) else f"collectives across ranks (first {len(shown)})"
    transfer = ("transfer\np50 ms", "transfer\np90 ms", "transfer\nmax ms")
    numbers = ("count", "bytes", *transfer, "mean\nwait ms", "busbw\nGB/s", "slow")
    leaving = ("slow", "transfer p90 ms", "transfer max ms", "busbw GB/s")
    table = number_table(title, ["kind", *["bucket"] * any(names)], numbers, leaving)
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


def _name(latency: Latency, matches: Matches, all_rows: bool) -> str:
    """Return a row's label, with its group where there are several."""
    group = matches.groups[latency.group]
    several = len({one.ranks for one in matches.groups if one.ranks}) > 1
    ranks = f"ranks {', '.join(map(str, group.ranks))}" if all_rows and several and group.ranks else ""
    where = ranks or (group.description if several and not latency.name else "")
    return ", ".join(filter(None, (latency.name, where)))
