"""Write docs/published.md from published.csv: published trainings, predicted: ``python docs/make_published.py``."""

from __future__ import annotations

import csv
import math
import shlex
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec

from dptrace.core.units import byte_size, share
from dptrace.model.planning import describe
from dptrace.model.planning.describe import Description
from dptrace.model.planning.published import KINDS, Kind, Published, chip, kind_name
from dptrace.model.planning.search import Candidate, search
from dptrace.model.training import step

PAGE = Path(__file__).resolve().parent / "published.md"
TABLE = PAGE.with_suffix(".csv")
START, END = "<!-- runs -->\n", "<!-- end of runs -->"
LEFT_OUT, LEFT_OUT_END = "<!-- left out -->\n", "<!-- end of left out -->"
FACTORS = (0.5, 0.7, 0.85, 1.0, 1.2, 1.4, 2.0)
"""By which a constant is multiplied to choose it anew."""
GIB = 1 << 30
FAR = "## More than 30 % off in time or 10 % in memory, or predicted not to fit"
ASSUMED = "What the sources do not state, and what only follows from what they do:"


class Prediction(NamedTuple):
    """A plan, its figure in the unit of the published one, and how much longer than published it takes."""

    plan: Candidate
    figure: float
    error: float


class Run(NamedTuple):
    """A published training; ``layout`` is None where the publication does not tell it.

    ``alone``, without its layout, is searched for dense models in 16 bits only, and where there is no layout.
    """

    row: dict[str, str]
    layout: Prediction | None
    alone: Prediction | None


def runs(alone: bool = True) -> list[Run]:
    """Predict all rows of the table with their layouts, and *alone* without them, which takes a minute."""
    with TABLE.open(encoding="utf-8") as file:
        return [_run(row, alone) for row in csv.DictReader(file)]


def _run(row: dict[str, str], alone: bool) -> Run:
    with_layout = _predicted(row, f"{row['described']} {row['layout']}") if row["layout"] else None
    of_others = with_layout and kind_name(with_layout.plan.plan) != "dense in 16 bits"
    return Run(row, with_layout, None if of_others or not alone else _predicted(row, row["described"]))


def described(options: str) -> Description:
    """Read the options of a command as Python's keywords."""
    keywords: dict[str, Any] = {}
    words = shlex.split(options)
    for name, value in zip(words, [*words[1:], "--"], strict=True):
        if name.startswith("--no-"):
            keywords[name[5:].replace("-", "_")] = False
        elif name.startswith("--"):
            of_memory = value.removesuffix("GB") + "e9" if name == "--gpu-memory" else value
            keywords[name[2:].replace("-", "_")] = value.startswith("--") or of_memory
    return msgspec.convert(keywords, Description, strict=False)


def _predicted(row: dict[str, str], options: str) -> Prediction:
    best = search(described(options))[0]
    step, gpus = best.step, best.plan.layout.gpus
    rate = step.model_flops / gpus / step.step_s / 1e12
    figure = {
        "s": step.step_s,
        "tokens/s": step.tokens_per_s,
        "tokens/s/GPU": step.tokens_per_s / gpus,
        "TFLOP/s": rate,
        "TFLOP/s, recomputation counted": rate * 4 / 3,
        "GPU-hours": float(row["tokens"] or 0) / step.tokens_per_s * gpus / 3600,
    }[row["unit"]]
    ratio = figure / float(row["published"])
    return Prediction(best, figure, (ratio if row["unit"] in ("s", "GPU-hours") else 1 / ratio) - 1)


def table(found: list[Run]) -> str:
    """Return the runs as a table, with their commands below it."""
    lines = [
        "| Run | Published | With its layout | Off | Memory of a GPU | By itself | Off |",
        "| --- | --: | --: | --: | --: | --- | --: |",
    ]
    for run in found:
        unit = run.row["unit"].split(",")[0]
        cells = [f"{run.row['run']} [{_number(found, run)}]", f"{_figure(float(run.row['published']))} {unit}"]
        one = run.layout
        cells += [_figure(one.figure), _percent(one.error), _memory(run.row, one)] if one else ["–", "–", "–"]
        own = run.alone
        cells += [f"{_figure(own.figure)}: {own.plan.label}", _percent(own.error)] if own else ["–", "–"]
        lines.append(f"| {' | '.join(cells)} |")
    sources = [f"{number}. {source}" for number, source in enumerate(_sources(found), 1)]
    assumed = [f"- {'; '.join(names)}: {text}." for text, names in _assumed(found).items()]
    reasons = [f"- {run.row['run']}: {run.row['reason']}." for run in found if run.row["reason"]]
    commands = [f"# {run.row['run']}\n{_command(run.row)}" for run in found]
    return "\n".join(
        [*lines, "", _summary(found), "", "## Sources", "", *sources, "", "## Derived or assumed", "", ASSUMED, "",
         *assumed, "", FAR, "", *reasons, "", "## The commands", "",
         "Without the options from `--strategy` on, the layout is searched.", "", "```text", *commands, "```"]
    ) + "\n"  # fmt: skip


def kinds(found: list[Run]) -> list[Kind]:
    """Return how far predictions with the published layouts are off, by the kind of training."""
    return [_kind(name, [run for run in found if run.layout and _kind_of(run) == name]) for name in KINDS]


def _kind_of(run: Run) -> str | None:
    return run.layout and kind_name(run.layout.plan.plan)


def _kind(name: str, own: list[Run]) -> Kind:
    ratios = {factor: _scaled(own, name, factor) for factor in (FACTORS if name in _CHOSEN else (1.0,))}
    sources: dict[str, list[int]] = {}
    for at, run in enumerate(own):
        sources.setdefault(run.row["source"], []).append(at)
    judged = _judged(ratios, sources)
    factor, inside = _factor(list(judged.values())), 0
    for source, errors in judged.items():
        others = {name: runs for name, runs in sources.items() if name != source}
        limit = _factor(list(_judged(ratios, others).values()))
        inside += sum(limit is not None and _size(ratio) <= limit for ratio in errors)
    left_out = _error([ratio for errors in judged.values() for ratio in errors])
    return Kind(name, len(own), len(sources), _error(ratios[1.0]), left_out, factor, inside, _published(own))


def _judged(ratios: dict[float, list[float]], sources: dict[str, list[int]]) -> dict[str, list[float]]:
    """Return published over predicted of the runs of each source, by the constant that is best for all others."""
    found = {}
    for source, runs in sources.items():
        others = [at for name, some in sources.items() if name != source for at in some]
        best = min(ratios, key=lambda factor: _error([ratios[factor][at] for at in others])) if others else 1.0
        found[source] = [ratios[best][at] for at in runs]
    return found


def _factor(judged: list[list[float]]) -> float | None:
    """Return the factor within which eight of ten runs of one more source are; None where there are too few to tell.

    The conformal quantile over the sources: each has the same weight, and so has the one that is not known, whose runs
    may be anywhere (Dunn, Wasserman and Ramdas, arXiv 1809.07441).
    """
    weighed = sorted((_size(ratio), 1 / len(runs) / (len(judged) + 1)) for runs in judged for ratio in runs)
    for at, (size, _) in enumerate(weighed, 1):
        if sum(weight for _, weight in weighed[:at]) >= 0.8 - 1e-9:
            return math.ceil(100 * size) / 100
    return None


def _size(ratio: float) -> float:
    """Return by which factor a ratio is off, up or down."""
    return max(ratio, 1 / ratio)


def _error(ratios: list[float]) -> float:
    """Return the median of the relative errors' sizes."""
    return round(median(abs(1 / ratio - 1) for ratio in ratios), 3)


def _published(own: list[Run]) -> Published:
    """Return what the runs of a kind were trained on."""
    plans = [run.layout.plan.plan for run in own if run.layout]
    sizes, gpus = [plan.shape.parameters / 1e9 for plan in plans], [plan.layout.gpus for plan in plans]
    links = [(plan.network.within.bytes_per_s / 1e9, plan.network.between.bytes_per_s / 1e9) for plan in plans]
    slowest = tuple(float(f"{min(rates):.3g}") for rates in zip(*links, strict=True))
    ends = float(f"{min(sizes):.3g}"), float(f"{max(sizes):.4g}")
    chips = tuple(sorted({chip(plan.gpu.name) for plan in plans}))
    tokens = min(plan.shape.sequence for plan in plans)
    launched = any(one.launch_s >= one.compute_s for one in (run.layout.plan.step for run in own if run.layout))
    return Published(chips, ends, (min(gpus), max(gpus)), (slowest[0], slowest[1]), tokens, launched)


def left_out(found: list[Kind]) -> str:
    """Return a table of how far runs are off when the constant of their kind comes from the other sources only."""
    lines = [
        "| Kind | Runs | Sources | Median error, its source left out | Range of answers | Within the others' |",
        "| --- | --: | --: | --: | --- | --: |",
    ]
    for one in found:
        known = f"÷ {one.factor:g} to × {one.factor:g}" if one.factor else "unknown: too few sources"
        inside = f"{one.inside} of {one.runs}" if one.factor else "–"
        cells = (one.name, one.runs, one.sources, share(one.left_out), known, inside)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


_CHOSEN = {
    "dense in float8": lambda factor: patch.object(step, "_CASTS", step._CASTS * factor),
    "mixture of experts": lambda factor: patch.multiple(
        step,
        EXPERT_OPERATORS={kind: count * factor for kind, count in step.EXPERT_OPERATORS.items()},
        _EXPERT_OPERATORS=step._EXPERT_OPERATORS * factor,
    ),
    "long samples": lambda factor: patch.object(describe, "gpu_named", _with_flash(factor)),
}
"""The constant that was chosen on the runs of a kind, multiplied."""


def _with_flash(factor: float) -> Any:
    named = describe.gpu_named
    return lambda *words: (gpu := named(*words)) and msgspec.structs.replace(gpu, flash=gpu.flash * factor)


def _scaled(own: list[Run], name: str, factor: float) -> list[float]:
    """Return published over predicted of some runs with a constant of their kind multiplied."""
    if factor == 1.0:
        return [1 / (1 + run.layout.error) for run in own if run.layout]
    with _CHOSEN[name](factor):
        found = [_predicted(run.row, f"{run.row['described']} {run.row['layout']}") for run in own]
    return [1 / (1 + one.error) for one in found]


def _summary(found: list[Run]) -> str:
    lines = ["| Kind | Runs with layout | Median error |", "| --- | --: | --: |"]
    for name in KINDS:
        own = [run.layout.error for run in found if run.layout and _kind_of(run) == name]
        lines.append(f"| {name} | {len(own)} | {share(median(map(abs, own)))} |")
    alone = [abs(run.alone.error) for run in found if run.alone]
    return "\n".join([*lines, "", f"By itself, the median error of {len(alone)} runs is {share(median(alone))}."])


def _sources(found: list[Run]) -> list[str]:
    return list(dict.fromkeys(run.row["source"] for run in found))


def _assumed(found: list[Run]) -> dict[str, list[str]]:
    """Return what the sources do not state, each with the runs in whose commands it is."""
    names: dict[str, list[str]] = {}
    for run in found:
        if text := run.row["assumed"]:
            names.setdefault(text, []).append(run.row["run"])
    return names


def _number(found: list[Run], run: Run) -> int:
    return _sources(found).index(run.row["source"]) + 1


def _percent(error: float) -> str:
    return f"{100 * error:+.0f} %".replace("-", "−")


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _memory(row: dict[str, str], one: Prediction) -> str:
    published = float(row["memory_gib"] or 0) * GIB
    size = byte_size(one.plan.memory_bytes)
    return f"{size}; {byte_size(published)} measured" if published else size


def _command(row: dict[str, str]) -> str:
    tokens = f" --tokens {row['tokens']}" if row["tokens"] else ""
    return f"dptrace predict {row['described']} {row['layout']}".rstrip() + tokens


def filled(page: str, found: list[Run]) -> str:
    """Return the page with its runs as they are predicted now."""
    before, rest = page.split(START)
    return f"{before}{START}\n{table(found)}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    RUNS = runs()
    TEXT = filled(PAGE.read_text(encoding="utf-8"), RUNS)
    BEFORE, REST = TEXT.split(LEFT_OUT)
    FOUND = kinds(RUNS)
    TEXT = f"{BEFORE}{LEFT_OUT}\n{left_out(FOUND)}\n\n{LEFT_OUT_END}{REST.split(LEFT_OUT_END)[1]}"
    PAGE.write_text(TEXT, encoding="utf-8")
    print(*FOUND, sep="\n")  # for dptrace/model/planning/published.py
