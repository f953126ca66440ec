"""The first screen of a run: where the time of a step goes, what to change, and which ranks matter, in 24 lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.text import Text

from dptrace.analysis.findings.finding import Finding, nothing_found, top_findings
from dptrace.analysis.per_gpu.split import overlap_percent
from dptrace.core.units import duration, milliseconds, number, plural, share
from dptrace.replay.findings import findings_of
from dptrace.run.columns import shown_figures
from dptrace.run.cross_rank import MeanStep, mean_step
from dptrace.run.notable_ranks import notable_ranks
from dptrace.run.run import Run
from dptrace.viewers.base.fitting import Fitting, wrapped
from dptrace.viewers.base.headline import headline
from dptrace.viewers.base.table import plain, rank_label, wait_cell
from dptrace.viewers.base.theme import GLYPHS
from dptrace.viewers.terminal.split import minor_sentence
from dptrace.viewers.terminal.summary import length_words, step_parts, utilization_sentence

LINES = 24
"""Of a usual terminal; one of them is what to type next."""
_SIZES = ((3, 4, 3), (3, 3, 3), (3, 4, 1), (3, 3, 1), (3, 2, 1), (3, 2, 0), (2, 2, 1), (2, 2, 0), (1, 2, 1))
"""Findings, ranks, and findings whose text and advice have two lines each: the first that fits."""
_MORE = "More: --all --findings --split --communication --collectives --idle --notes"
_NAMED_SHARE = 0.01
"""Share of a step from which a part has a name in the bar; twice that gives it a column."""


def print_screen(run: Run, console: Console) -> None:
    """Print the headline, a bar of the mean step, the top findings, the ranks that matter and a line on notes."""
    parts: list[RenderableType] = []
    for findings, ranks, deep in _SIZES:
        parts = [*_parts(run, console.width, findings, ranks, deep)]
        if len(console.render_lines(Group(*parts), pad=False)) < LINES:
            break
    console.print(*parts, sep="\n")


def _parts(run: Run, width: int, findings: int, ranks: int, deep: int) -> Iterator[RenderableType]:
    analysis = run.cross_rank
    found = mean_step(analysis)
    yield plain(headline(run).line)
    if found is None:
        yield Text("There is no step in this run.", style="bold")
    else:
        yield from (Text(line, style="bold yellow") for line in found.limits)
        yield Text(f"{length_words(found)}.", style="bold")
        yield from _lines(_named_parts(run, found), width)
        yield _bar(found, width)
    if efficiency := utilization_sentence(run.efficiency):
        yield Text(clause(efficiency, width))
    yield ""
    yield from _findings(run, width, findings, deep)
    if len(run.splits) > 1 and found is not None:
        yield ""
        yield _ranks(run, ranks)
    for pipeline in run.pipelines:
        formula = "" if pipeline.formula_percent is None else f", {number(pipeline.formula_percent)} % by the formula"
        text = f"Pipeline of {len(pipeline.devices)}, {pipeline.schedule}: bubble {number(pipeline.bubble_percent)} %"
        yield plain(f"{text} of the schedule{formula}.")
    yield ""
    # What was left out, or is unknown, matters more than what was inferred.
    ordered = {
        note: 4 * ("--ignore" in note) + 2 * note.startswith("Left out") + ("unknown" in note)
        for note in (*run.notes, *analysis.notes)
    }
    notes = sorted(ordered, key=lambda note: -ordered[note])
    if notes:
        more = f" ({plural(len(notes) - 1, 'more note')}: --notes)" if notes[1:] else ""
        room = width * (2 if ordered[notes[0]] else 1) - 4 - len(more)
        yield Text("! ", style="yellow").append_text(plain(clause(notes[0], room) + more))
    yield Text(clause(_MORE, width), style="dim")


def _named_parts(run: Run, found: MeanStep) -> Iterator[Text]:
    """Yield the parts of the step with their letters in the bar, and what is unknown of them."""
    wall, unknown = max(found.wall_ns, 1), "unknown"
    for name, label, ns in step_parts(found):
        if ns / wall >= _NAMED_SHARE:
            letter, style = GLYPHS[name]
            yield Text.assemble((letter, style), " ", (share(ns / wall), "bold"), f" {label.lower()}")
    figures = found.figures_ns
    for name, words in (("exposed_comm_ns", "exposed communication"), ("idle_ns", "idle")):
        if figures[name] is None:
            yield Text(f"{words} {unknown}", style="bold red")
    if found.waits_ns["exposed_wait_ns"] is None and found.waits_ns["exposed_unmatched_ns"]:
        yield Text("waiting unknown: incomplete collectives", style="bold red")
    hidden, exposed = figures["overlapped_comm_ns"], figures["exposed_comm_ns"]
    if hidden is None or exposed is None:
        yield Text(f"overlap {unknown}")
    elif (percent := overlap_percent(hidden, exposed)) is not None:
        yield Text(f"({percent:.1f} % of communication overlapped)")
    else:
        yield Text("(no communication)")
    if (recomputed := run.recompute_percent()) is not None:
        yield Text(f"({recomputed:.1f} % of backward recomputes forward)")


def _lines(items: Iterator[Text], width: int) -> Iterator[Text]:
    """Yield lines of items, none of which is divided."""
    line = Text()
    for item in items:
        if line and cell_len(line.plain) + 3 + cell_len(item.plain) > width:
            yield line
            line = Text()
        line = line.append("   " if line else "").append_text(item)
    yield line


def _bar(found: MeanStep, width: int) -> Text:
    """Draw the parts of the step over a line, each in its letter, to scale."""
    bar, at, done = Text(no_wrap=True), 0.0, 0
    for name, _, ns in step_parts(found):
        at += ns
        cells = round(width * at / max(found.wall_ns, 1)) - done
        letter, style = GLYPHS[name]
        bar.append(letter * cells, style)
        done += cells
    return bar


def _findings(run: Run, width: int, most: int, deep: int) -> Iterator[RenderableType]:
    found = findings_of(run)
    shown = top_findings(found)
    if not found:
        yield Text(clause(f"Findings: {nothing_found(run.on_cpu, run.is_limited)}", 2 * width), style="bold")
        return
    known = any(finding.has_gain for finding in found)
    reasons = {finding.gain.reason for finding in shown}
    if known:
        yield Text("A step gains without each of these, once those above are gone:", style="bold")
    else:
        why = f"; what a step would gain is unknown: {reasons.pop()}" if len(reasons) == 1 else ""
        yield plain(f"Findings by the time that each counts{why}")
    yield from _short(shown[:most], width, deep)
    left = f"{plural(len(shown) - most, 'more finding')}: --findings. " if shown[most:] else ""
    if rest := left + minor_sentence(found).replace(
        "A step would gain less than 1 % without each of these", "Under 1 %"
    ):
        yield plain(clause(rest.rstrip(), width))


def _short(findings: Sequence[Finding], width: int, deep: int) -> Iterator[Text]:
    """Yield the lines of each finding: its figure and what it is; the range of the figure and what to do.

    Args:
        deep: how many of them have two lines for what they are, and two for what to do.
    """
    figures = [(f"{milliseconds(ns)} ms", share(of)) for ns, of in (finding.figure for finding in findings)]
    first = max((len(figure) for figure, _ in figures), default=0)
    heads = [f"{figure:>{first}}  {of:>5}" for figure, of in figures]
    ranges = [_range(finding) for finding in findings]
    left = max((cell_len(text) for text in (*heads, *ranges)), default=0)
    for place, (finding, head, between) in enumerate(zip(findings, heads, ranges, strict=True)):
        for start, text, style in ((head, finding.text, "bold"), (between, f"→ {finding.advice}", "dim")):
            room = width - left - 2
            cut = clause(text, room)
            # A line that says less than half of what fits gets another.
            cut = clause(text, 2 * room - 8) if place < deep or cell_len(cut) < room / 2 < cell_len(text) / 2 else cut
            for line in wrapped(plain(cut), room):
                yield Text(f"{start:>{len(head)}}".ljust(left + 2), style=style).append_text(
                    Text(line.plain, "not bold not dim")
                )
                start = ""


def _range(finding: Finding) -> str:
    """Return the range of a gain; what it is alone where findings above have a part of it; or that it is unknown."""
    gain = finding.gain
    if gain.ns is None or gain.marginal_ns is None:
        return "gain unknown"
    if abs(gain.marginal_ns - gain.ns) > 0.05 * max(gain.ns, gain.marginal_ns):
        return f"alone {duration(gain.ns) if gain.ns > 0 else '0'}"
    if gain.high_ns is None or gain.low_ns is None:
        return ""
    return f"{milliseconds(gain.low_ns)}–{milliseconds(gain.high_ns)}"


def _ranks(run: Run, most: int) -> Fitting:
    """Return the ranks that matter, the most notable first, with the figures that any of them has."""
    order = notable_ranks(run)
    shown = order[:most]
    both = [(run.splits[one.index].mean(), run.cross_rank.exposed_waits[one.index].mean()) for one in shown]
    means = [{**figures, **waits} for figures, waits in both]
    least = 2 * _NAMED_SHARE * max(mean["wall_ns"] or 0 for mean in means)
    known = (name for name in shown_figures(means) if name not in ("overlapped_comm_ns", "wall_ns"))
    names = [name for name in known if any(mean[name] is None or (mean[name] or 0) > least for mean in means)]
    heads = (_HEADS.get(name, name.removesuffix("_ns")) for name in names)
    columns = (("rank", True), *((head, False) for head in heads), ("step ms", False), ("", True))
    table = Fitting("", columns, ("memory", "incomplete", "other", "optimizer", "forward", "backward"))
    for one, mean in zip(shown, means, strict=True):
        cells = (wait_cell(mean[name]) for name in (*names, "wall_ns"))
        table.add_row(rank_label(run, run.timelines[one.index]), *cells, one.why.partition(", ")[0])
    if more := len(run.splits) - len(shown):
        table.caption = f"{plural(more, 'more rank')}: --split"
    return table


_HEADS = {
    "exposed_comm_ns": "exposed",
    "exposed_wait_ns": "waiting",
    "exposed_unmatched_ns": "incomplete",
    "exposed_memory_ns": "memory",
}
_END = re.compile(r"[.;:,](?= )| (?=\()")
_WORD = re.compile(r"(?:“[^”]*”|\S)+")


def clause(text: str, width: int) -> str:
    """Return the beginning of a text that fits a line: up to the end of a clause, else of a word, then an ellipsis.

    >>> clause("Ranks 0 and 1 wait for rank 2: its host runs Python code in “# my label”.", 60)
    'Ranks 0 and 1 wait for rank 2: its host runs Python code …'
    >>> clause("Keep freed blocks; allocate once before the loop.", 30)
    'Keep freed blocks …'
    """
    if cell_len(text) <= width:
        return text
    ends = [word.end() for word in _WORD.finditer(text) if cell_len(text[: word.end()]) <= width - 2]
    last = max(ends, default=width)
    clauses = [end.start() for end in _END.finditer(text) if width // 2 <= end.start() <= last]
    sentences = [end for end in clauses if text[end] == "."]
    return f"{text[: max(sentences or clauses, default=last)].rstrip(' .;:,')} …"
