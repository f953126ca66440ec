"""The first screen of a run: where the time of a step goes, what to change, and which ranks matter, in 24 lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.text import Text

from dptrace.analysis.findings.evidence import Straggler
from dptrace.analysis.findings.finding import NOISE, Finding, nothing_found, top_findings
from dptrace.analysis.per_gpu.split import (
    COMPUTE,
    EXPOSED_LABELS,
    FIGURE_WORDS,
    PART_LABELS,
    Part,
    overlap_percent,
    waiting_label,
)
from dptrace.core.notes import SELECTED
from dptrace.core.units import duration, listed, milliseconds, number, plural, sanitize, share
from dptrace.replay.findings import findings_of
from dptrace.run.columns import shown_figures
from dptrace.run.cross_rank import MeanStep, mean_step
from dptrace.run.notable_ranks import HELD_UP, notable_ranks
from dptrace.run.run import Run
from dptrace.run.utilization import Utilization
from dptrace.viewers.base.fitting import Fitting, text_lines
from dptrace.viewers.base.headline import headline
from dptrace.viewers.base.table import (
    GAIN_UNKNOWN,
    figure_words,
    gains_known,
    order_heading,
    plain,
    rank_label,
    step_words,
    wait_cell,
)
from dptrace.viewers.base.theme import GLYPHS

if TYPE_CHECKING:
    from dptrace.analysis.cross_rank.pipeline_bubble import Pipeline

LINES = 24
"""Of a usual terminal; one of them is what to type next."""
_SIZES = (
    *((3, 4, 3, 2), (3, 3, 3, 2), (3, 2, 2, 2), (3, 2, 2, 1), (3, 2, 1, 1)),
    *((2, 2, 2, 1), (2, 2, 1, 1), (1, 2, 2, 1), (1, 2, 1, 1)),
)
"""Findings, ranks, and lines that the first finding's text and its advice may have each, and those of the others: the
first that fits. What is longer ends with an earlier clause."""
_MORE = "More: --all --findings --split --communication --collectives --idle --notes"
_NAMED_SHARE = 0.01
"""Share of a step from which a part has a name in the bar; twice that gives it a column."""


def print_screen(run: Run, console: Console) -> None:
    """Print the headline, a bar of the mean step, the top findings, the ranks that matter and a line on notes."""
    parts: list[RenderableType] = []
    for findings, ranks, *lines in _SIZES:
        parts = [*_parts(run, console.width, findings, ranks, lines)]
        if len(console.render_lines(Group(*parts), pad=False)) < LINES:
            break
    console.print(*parts, sep="\n")


def _parts(run: Run, width: int, findings: int, ranks: int, lines: Sequence[int]) -> Iterator[RenderableType]:
    analysis = run.cross_rank
    found = mean_step(analysis)
    yield plain(headline(run).line)
    several = run.several_runs
    yield from (Text(line, style="bold red") for line in several)
    if found is None:
        yield Text("There is no step in this run.", style="bold")
    else:
        yield from (Text(line, style="bold yellow") for line in found.limits)
        yield Text(f"{length_words(found)}.", style="bold")
        yield from _lines(_named_parts(run, found), width)
        yield _bar(found, width)
    if efficiency := utilization_sentence(run.efficiency):
        yield plain(said(efficiency, width, 1))
    yield ""
    yield from _findings(run, width, findings, lines)
    selected = [note for note in run.notes if note.startswith(SELECTED)]
    yield from (_note(note, width) for note in selected)
    if len(run.splits) > 1 and found is not None:
        yield ""
        yield _ranks(run, ranks)
    yield from (plain(text) for text in pipeline_sentences(run.pipelines))
    # What was left out, or is unknown, matters more than what was inferred.
    ordered = {
        note: 4 * ("--ignore" in note) + 2 * note.startswith("Left out") + ("unknown" in note)
        for note in (*run.notes, *analysis.notes)
        if note not in (*several, *selected)
    }
    notes = sorted(ordered, key=lambda note: -ordered[note])
    if notes:
        more = f" ({plural(len(notes) - 1, 'more note')}: --notes)" if notes[1:] else ""
        yield _note(notes[0], width, more)
    yield Text(_MORE, style="dim")


def _note(note: str, width: int, more: str = "") -> Text:
    return Text("! ", style="yellow").append_text(plain(said(note, width - 2, 2, more)))


def pipeline_sentences(pipelines: Sequence[Pipeline]) -> Iterator[str]:
    """Describe the bubbles of pipelines: those of one shape, such as the replicas of a mesh, in one line."""
    alike: dict[tuple[int, str, float | None], list[Pipeline]] = {}
    for pipeline in pipelines:
        shape = len(pipeline.devices), pipeline.schedule, pipeline.formula_percent
        alike.setdefault(shape, []).append(pipeline)
    for (ranks, schedule, formula), some in alike.items():
        name = f"Pipeline of {ranks}" if len(some) == 1 else f"{len(some):,} pipelines of {ranks}"
        low, high = (number(end(one.bubble_percent for one in some)) for end in (min, max))
        bubble = low if low == high else f"{low} to {high}"
        by_formula = "" if formula is None else f", {number(formula)} % by the formula"
        inferred = "" if some[0].is_labeled else " Without labels: by the order of messages and work."
        yield f"{name}, {schedule}: bubble {bubble} % of the schedule{by_formula}.{inferred}"


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
        yield Text(f"waiting unknown: {run.cross_rank.not_recorded or 'incomplete collectives'}", style="bold red")
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
    """Draw the parts of the step that have a letter over a line, to scale, each in a cell at least."""
    bar, at, done, wall = Text(no_wrap=True), 0.0, 0, max(found.wall_ns, 1)
    for name, _, ns in step_parts(found):
        at += ns
        if ns / wall >= _NAMED_SHARE:
            cells = max(1, round(width * at / wall) - done)
            letter, style = GLYPHS[name]
            bar.append(letter * cells, style)
            done += cells
    return bar


def _findings(run: Run, width: int, most: int, lines: Sequence[int]) -> Iterator[RenderableType]:
    found = findings_of(run)
    shown = top_findings(found)
    if not found:
        yield Text(said(f"Findings: {nothing_found(run.on_cpu, run.is_limited)}", width, 2), style="bold")
        return
    known = gains_known(found)
    reasons = {finding.gain.reason for finding in shown}
    if known:
        yield Text(order_heading(shown[:most]), style="bold")
    else:
        why = f"; what a step would gain is unknown: {reasons.pop()}" if len(reasons) == 1 else ""
        yield plain(f"Findings by the time that each counts{why}")
    yield from _short(shown[:most], known, width, lines)
    left = f"{plural(len(shown) - most, 'more finding')}: --findings." if shown[most:] else ""
    if rest := _rest(left, "Then under 1 %" if shown else "Under 1 %", minor_findings(found), width):
        yield plain(rest)


def _rest(left: str, under: str, minor: Sequence[str], width: int) -> str:
    """Return a line on what is left, with as many of the minor findings as fit."""
    for count in range(len(minor), -1 if minor else 0, -1):
        line = f"{left} {under}: {listed(minor, count) if count else f'{len(minor)} more'}.".strip()
        if cell_len(line) <= width:
            return line
    return left


def _short(findings: Sequence[Finding], known: bool, width: int, lines: Sequence[int]) -> Iterator[Text]:
    """Yield the lines of each finding: its figure and what it is; the range of the figure and what to do.

    Args:
        known: whether the list says what a step gains.
        lines: how many the first one's text, and its advice, may have each, and how many those of the others.
    """
    figures = [figure_words(finding, known) for finding in findings]
    first = max((len(figure) for figure, of in figures if of), default=0)
    heads = [f"{figure:>{first}}  {of:>5}" if of else figure for figure, of in figures]
    ranges = [_range(finding, known) for finding in findings]
    left = max((cell_len(text) for text in (*heads, *ranges)), default=0)
    for place, (finding, head, between) in enumerate(zip(findings, heads, ranges, strict=True)):
        for start, text, style in ((head, finding.text, "bold"), (between, f"→ {_advice(finding)}", "dim")):
            room = width - left - 2
            for line in text_lines(plain(said(text, room, lines[place > 0])), room):
                # A word that is longer than the room begins further left.
                begin = min(left + 2, max(0, width - cell_len(line.plain)))
                yield Text(f"{start:>{len(head)}}".ljust(begin) if start else " " * begin, style=style).append_text(
                    Text(line.plain, "not bold not dim")
                )
                start = ""


def _advice(finding: Finding) -> str:
    """Return what to do, and of a late rank why it may gain nothing; if it may be noise, what to do if it is not."""
    gain, advice = finding.gain, finding.advice
    if not isinstance(finding.evidence, Straggler) or gain.ns is None or gain.low_ns or not gain.reason:
        return advice
    if gain.reason.startswith(NOISE) or finding.evidence.once:
        more = "it comes again" if finding.evidence.once else "it is more than noise"
        return f"If {more}, {advice[0].lower()}{advice[1:]}"
    return f"{advice} {gain.reason}"


def _range(finding: Finding, known: bool) -> str:
    """Return the range of a gain, or what it is alone where findings above have a part of it; unknown, what counts."""
    gain = finding.gain
    if gain.ns is None or gain.marginal_ns is None:
        return f"counts {milliseconds(finding.counted_ns)} ms" if known else GAIN_UNKNOWN
    if abs(gain.marginal_ns - gain.ns) > 0.05 * max(gain.ns, gain.marginal_ns):
        return f"alone {duration(gain.ns) if gain.ns > 0 else '0'}"
    if gain.high_ns is None or gain.low_ns is None:
        return ""
    low, high = (number(round(ns / 1e6, 4)) for ns in (gain.low_ns, gain.high_ns))
    return f"{low}–{high} ms"


def _ranks(run: Run, most: int) -> Fitting:
    """Return the ranks that matter, the most notable first, with the figures that any of them has.

    Late ones that the findings name come before all: in a pipeline, the others wait for a stage without meeting it.
    """
    certain = (one.evidence for one in top_findings(findings_of(run)) if one.gain.low_ns)
    late = {rank for evidence in certain if isinstance(evidence, Straggler) for rank in evidence.ranks}
    shown = sorted(notable_ranks(run), key=lambda one: run.timelines[one.index].rank not in late)[:most]
    both = [(run.splits[one.index].mean(), run.cross_rank.exposed_waits[one.index].mean()) for one in shown]
    means = [{**figures, **waits} for figures, waits in both]
    least = 2 * _NAMED_SHARE * max(mean["wall_ns"] or 0 for mean in means)
    known = (name for name in shown_figures(means) if name not in ("overlapped_comm_ns", "wall_ns"))
    names = [name for name in known if any(mean[name] is None or (mean[name] or 0) > least for mean in means)]
    heads = (_HEADS.get(name, name.removesuffix("_ns")) for name in names)
    columns = (("rank", True), *((head, False) for head in heads), ("step ms", False), ("", True))
    table = Fitting("", columns, ("memory", "of it incomplete", "other", "optimizer", "forward", "backward"))
    for one, mean in zip(shown, means, strict=True):
        cells = (wait_cell(mean[name]) for name in (*names, "wall_ns"))
        timeline, why = run.timelines[one.index], one.why.partition(", ")[0]
        is_late = timeline.rank in late and why != HELD_UP
        table.add_row(rank_label(run, timeline), *cells, "late" if is_late else why)
    more = len(run.splits) - len(shown)
    table.caption = f"{plural(more, 'more rank')}: --split" if more else ""
    return table


_HEADS = {
    "exposed_comm_ns": "exposed",
    "exposed_wait_ns": "of it waiting",
    "exposed_unmatched_ns": "of it incomplete",
    "exposed_memory_ns": "memory",
}
_END = re.compile(
    r"[.:;](?= )| \("
    r"|, (?=up to |most |in the |in Pro|which |since |because |leave |\d[\d.,]* (?:%|[mµn]?s)\b)"
)
"""Where a text may end: at a sentence, or before what only adds to it."""
_LEAST_WORDS = 3
"""Of a clause with which a text may end."""


def said(text: str, width: int, lines: int, more: str = "") -> str:
    """Return as much of a text as lines hold, which ends where a clause does, and *more*; the first clause always.

    >>> said("Ranks 0 and 1 wait for rank 2: its host runs Python code, up to 3 ms longer.", 60, 1)
    'Ranks 0 and 1 wait for rank 2: its host runs Python code.'
    >>> said("Keep freed blocks (as a pool); allocate once before the loop.", 30, 1)
    'Keep freed blocks (as a pool).'
    >>> said("2 TFLOP/s on each rank. FLOPs: counted in a step of the warm-up.", 40, 1)
    '2 TFLOP/s on each rank.'
    """
    ends = [end.start() for end in _END.finditer(text)]
    whole = [text[:end] for end in ends if all(text[:end].count(one) == text[:end].count(two) for one, two in _PAIRS)]
    # "FLOPs: counted in …" leaves no sentence before its colon.
    shorter = [f"{part}." for part in whole if len(re.split(r"[.;:] ", part)[-1].split()) >= _LEAST_WORDS]
    fitting = (
        one + more for one in (text, *reversed(shorter)) if len([*text_lines(plain(one + more), width)]) <= lines
    )
    return next(fitting, (shorter or [text])[0] + more)


_PAIRS = (("“", "”"), ("(", ")"))


# What it says of the mean step, its use of the GPU and minor findings; the sections behind it say the same.


def length_words(found: MeanStep) -> str:
    """Return how long the mean step is, of how many, and which steps stand out."""
    what = "A step" if found.marked else "The recording, in which no steps are marked,"
    about = f"{found.bounds['wall_ns']} " if "wall_ns" in found.bounds else ""
    return f"{what} takes {about}{milliseconds(found.wall_ns)} ms{_which(found)}"


def _which(found: MeanStep) -> str:
    """Return that the step is a mean of several, and the longest and the shortest where they stand out."""
    if found.steps == 1:
        return ""
    apart = [
        f"{word} {milliseconds(found.apart_ns[name])} ms in {sanitize(step_words(name))}"
        for word, name in (("longest", found.longest), ("shortest", found.shortest))
        if name in found.apart_ns
    ]
    median = f"; median {milliseconds(found.median_ns)} ms, {', '.join(apart)}" if apart else ""
    return f" (mean of {found.steps}{median})"


def exposed_parts(found: MeanStep) -> Iterator[tuple[str, str, float]]:
    """Yield name, label and ns of each part of exposed communication; that of waiting has the ranks it is for."""
    waiting = waiting_label(found.waits_for).replace("for rank", "mostly for rank")
    for name, ns in found.exposed_ns.items():
        yield name, waiting if name == "exposed_wait_ns" else EXPOSED_LABELS[name], ns


def step_parts(found: MeanStep) -> list[tuple[str, str, float]]:
    """Return name, label and ns of the parts that a step adds up to; exposed communication in its own parts."""
    parts = list[tuple[str, str, float]]()
    for part, label in PART_LABELS.items():
        name = f"{part.name.lower()}_ns"
        if part is Part.OTHER and found.figures_ns[name] is None:
            name, label = COMPUTE, FIGURE_WORDS[COMPUTE]
        bound = found.bounds.get(name, "about")
        at = label if bound == "about" else f"{label} {bound}"
        parts += exposed_parts(found) if part is Part.EXPOSED_COMM else [(name, at, found.figures_ns[name] or 0.0)]
    return parts


def utilization_sentence(found: Utilization) -> str:
    """Return FLOP/s, MFU, samples and tokens per second; empty where none is known."""
    clauses = []
    if found.tflops is not None:
        clauses.append(f"{number(found.tflops)} TFLOP/s of the model on each rank")
    if found.mfu is not None and found.peak_tflops is not None:
        of = " ".join(part for part in (found.gpu, found.dtype) if part)
        clauses.append(f"MFU {share(found.mfu)} of {number(found.peak_tflops)} TFLOP/s{f' ({of})' if of else ''}")
    if found.hfu is not None and found.mfu is not None and found.hfu > found.mfu * 1.001:
        clauses.append(f"HFU {share(found.hfu)}")
    rates = ((found.samples_per_s, "samples/s"), (found.tokens_per_s, "tokens/s"))
    clauses += [f"{number(rate)} {what}" for rate, what in rates if rate is not None]
    if not clauses:
        return ""
    source = f" FLOPs: {found.source}." if found.source else ""
    return f"{', '.join(clauses)}.{source}{f' {found.note}' if found.note else ''}"


def minor_findings(findings: Sequence[Finding]) -> list[str]:
    """Return what each kind of the findings is called that would gain less than 1 % of a step, with the most of it."""
    gains = dict[str, int]()
    for one in findings:
        if one.is_minor:
            of = f" of rank {one.evidence.rank}" if one.kind == "straggler" else ""
            name = f"{one.kind.replace('_', ' ')}{of}"
            gains[name] = max(gains.get(name, 0), one.figure[0])
    shown = ((name.replace("comm", "communication"), milliseconds(ns)) for name, ns in gains.items())
    return [name if float(ms.replace(",", "")) == 0 else f"{name} {ms} ms" for name, ms in shown]
