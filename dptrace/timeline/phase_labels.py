"""Labels that say which phase their work belongs to: those of pipeline schedules, and those of ``--phase-labels``.

To add labels that a framework writes, add a line to ``LABELS``. A schedule that splits backward calls much of it
outside the autograd engine, where only its labels tell it from forward.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64, unique
from dptrace.core.notes import Note
from dptrace.core.patterns import matches
from dptrace.core.units import listed, sanitize, share
from dptrace.errors import UsageError
from dptrace.readers.trace import Category, Trace
from dptrace.timeline.collectives import last_enclosing
from dptrace.timeline.model import Phase


class Line(NamedTuple):
    """One line of the table of labels."""

    pattern: str
    """Regular expression of the whole label."""
    phase: Phase
    source: str
    """Repository and path of what writes such labels."""


_TORCH = "pytorch/pytorch torch/distributed/pipelining/schedules.py"
_MEGATRON = "NVIDIA/Megatron-LM megatron/core/"
_NODES = _MEGATRON + "pipeline_parallel/utils.py (ScheduleNode), models/common/utils.py"
_CHUNKS = _MEGATRON + "models/common/model_chunk_schedule_plan.py"
_TIMERS = _MEGATRON + "pipeline_parallel/schedules.py (timers)"
_ZERO_BUBBLE = "sail-sg/zero-bubble-pipeline-parallelism megatron/core/pipeline_parallel/zerobubble/runtime.py"
_DUALPIPE = "deepseek-ai/profile-data train.json"

# A label of both phases, such as PP:(3F1;0B0)OVERLAP_F_B or layer_0f-layer_3b, says neither and is not here.
LABELS = (
    Line(r"PP:\d+F\d+", Phase.FORWARD, _TORCH),
    # I and W are the two parts of a backward: the gradient of the input, and those of the weights.
    Line(r"PP:\(?\d+[BIW]\d+(?:;\d+[BIW]\d+)*\)?", Phase.BACKWARD, _TORCH),
    Line(r"PP:\d+REDUCE_GRAD\d*", Phase.BACKWARD, _TORCH),
    Line(r"Forward \d+", Phase.FORWARD, _TORCH + " (GPipe)"),
    Line(r"Backward \d+", Phase.BACKWARD, _TORCH + " (GPipe)"),
    Line(r".+\(F\)", Phase.FORWARD, _DUALPIPE),
    Line(r".+\([BW]\)", Phase.BACKWARD, _DUALPIPE),
    Line(r"\w+ forward", Phase.FORWARD, _NODES),
    Line(r"\w+ (?:backward|wgrad)", Phase.BACKWARD, _NODES),
    Line(r"layer_\d+f", Phase.FORWARD, _CHUNKS),
    Line(r"layer_\d+b", Phase.BACKWARD, _CHUNKS),
    Line(r"forward-compute", Phase.FORWARD, _TIMERS),
    Line(r"backward-compute", Phase.BACKWARD, _TIMERS),
    Line(r"F\d+\.\d+\.\d+", Phase.FORWARD, _ZERO_BUBBLE),
    Line(r"(?:B|W|BW)\d+\.\d+\.\d+|W_clear\.\d+\.\d+", Phase.BACKWARD, _ZERO_BUBBLE),
)

UNLABELED = 255
"""In the place of a phase: the name says none."""
_OPTION = "--phase-labels"
_CHOICES = {phase.name.lower(): phase for phase in Phase}
_SAYS_BACKWARD = re.compile(r"backward|bwd|dgrad|wgrad", re.IGNORECASE)
_SAYS_FORWARD = re.compile(r"forward|fwd", re.IGNORECASE)
_MIN_SHARE = 0.05
"""Share of compute from which a contradiction is reported."""
_OTHERS = ("dptrace::", "DistributedDataParallel.", "FullyShardedDataParallel.", "FSDP::")
"""Starts of labels with such names that other rules read, or that an evaluation has as well."""


@cache
def _table(phase: Phase) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{line.pattern})" for line in LABELS if line.phase is phase))


def _known(name: str) -> int:
    """Return the phase that the table gives a label, or UNLABELED."""
    return next((phase for phase in (Phase.BACKWARD, Phase.FORWARD) if _table(phase).fullmatch(name)), UNLABELED)


def read_rules(rules: Sequence[str]) -> list[tuple[str, Phase]]:
    """Parse ``REGEX=PHASE``, as of ``--phase-labels``; the first rule that fits a label counts.

    >>> read_rules(["^chunk_bwd=backward"])
    [('^chunk_bwd', <Phase.BACKWARD: 1>)]

    Raises:
        UsageError: a rule has no phase, or its pattern is not a regular expression or fits every name.
    """
    parsed = list[tuple[str, Phase]]()
    for rule in rules:
        if not isinstance(rule, str):
            raise UsageError(f"{_OPTION} {rule!r}: give REGEX=PHASE as text.")
        pattern, equals, phase = rule.rpartition("=")
        if not equals or phase not in _CHOICES:
            raise UsageError(f"{_OPTION} {rule!r}: end it with = and a phase: {', '.join(_CHOICES)}.")
        if matches(pattern, [""], _OPTION, re.IGNORECASE)[0]:
            raise UsageError(
                f"{_OPTION} {rule!r}: a pattern that matches an empty name matches every label; be more specific."
            )
        parsed.append((pattern, _CHOICES[phase]))
    return parsed


def _on_cpu(trace: Trace) -> NDArray[np.bool_]:
    # Older torch records labels as operators.
    on_cpu: NDArray[np.bool_] = (trace.category == Category.ANNOTATION) | (trace.category == Category.CPU_OP)
    return on_cpu


def labeled_phases(trace: Trace, rules: Sequence[str] = ()) -> NDArray[np.uint8]:
    """Return the phase that each event's name says, if it is a label or an operator; UNLABELED for most.

    Args:
        rules: the user's, as ``REGEX=PHASE``, which come before the table; they are searched without regard to case.

    Raises:
        UsageError: as for :func:`read_rules`; or a search takes too long.
    """
    on_cpu = _on_cpu(trace)
    used = unique(trace.name[on_cpu]).tolist()
    names = [trace.names[i] for i in used]
    said = np.array([_known(name) for name in names], np.uint8)
    for pattern, phase in reversed(read_rules(rules)):
        said[np.array(matches(pattern, names, _OPTION, re.IGNORECASE), np.bool_)] = phase
    by_name = np.full(len(trace.names) + 1, UNLABELED, np.uint8)
    by_name[used] = said
    return np.where(on_cpu, by_name[trace.name], np.uint8(UNLABELED))


class Work(NamedTuple):
    """What is launched, and the phase of each."""

    thread: NDArray[np.int32]
    time: Int64
    """When it was launched, in ns."""
    compute_ns: Int64
    """How long it computes; 0 for what does not."""
    phase: NDArray[np.uint8]
    """What it counts as."""
    unlabeled: NDArray[np.uint8]
    """What it would count as if no label said a phase."""


def label_notes(trace: Trace, work: Work, said: NDArray[np.uint8], rules: Sequence[str]) -> list[Note]:
    """Report where labels and the rule from launches contradict each other, and the user's rules that fit no label.

    A label that says a phase decides; one that is unknown, but has a telling name, does not.

    Args:
        said: the phase that each event's label says (:func:`labeled_phases`).
        rules: the user's.
    """
    text = "{} of compute has the phase that its labels say ({}); without them, it would count as {}."
    notes = [_notable(trace, work, said != UNLABELED, work.phase != work.unlabeled, work.unlabeled, text)]
    unknown = (trace.category == Category.ANNOTATION) & (said == UNLABELED) & ~trace.named(*_OTHERS)
    backward, forward = (trace.matching(says.search) for says in (_SAYS_BACKWARD, _SAYS_FORWARD))
    for says, phase, against in (
        (backward & ~forward, Phase.BACKWARD, (Phase.FORWARD, Phase.OTHER)),
        # Forward that runs within backward is a recomputation, and belongs there.
        (forward & ~backward, Phase.FORWARD, (Phase.OTHER,)),
    ):
        name = phase.name.lower()
        text = (
            f"{{}} of compute is launched under labels whose names mean {name} ({{}}), but counts as {{}}. "
            f"If these labels are right, add {_OPTION} 'REGEX={name}'."
        )
        notes.append(_notable(trace, work, unknown & says, np.isin(work.phase, against), work.phase, text))
    names = [trace.names[i] for i in unique(trace.name[_on_cpu(trace)]).tolist()]
    for pattern, _ in read_rules(rules):
        if not any(matches(pattern, names, _OPTION, re.IGNORECASE)):
            notes.append(Note(f"{_OPTION} {sanitize(pattern)!r} fits no label.", file=Path(trace.path).name))
    return [note for note in notes if note is not None]


def _notable(
    trace: Trace,
    work: Work,
    labels: NDArray[np.bool_],
    differs: NDArray[np.bool_],
    counted: NDArray[np.uint8],
    text: str,
) -> Note | None:
    """Report the work that *differs* below *labels*, where it is notable, with the labels of most of it.

    Args:
        counted: the phase of each in the note.
        text: the note, with places for the share of compute, the labels and the phases.
    """
    if not labels.any() or not differs.any():
        return None
    label = last_enclosing(trace, labels, work.thread, work.time)
    chosen = differs & (label >= 0)
    fraction = int(work.compute_ns[chosen].sum()) / max(int(work.compute_ns.sum()), 1)
    if fraction < _MIN_SHARE:
        return None
    time_by_name = np.bincount(trace.name[label[chosen]], work.compute_ns[chosen])
    most = np.argsort(-time_by_name, kind="stable")[: np.count_nonzero(time_by_name)].tolist()
    named = listed([sanitize(trace.names[i]) for i in most])
    phases = " or ".join(
        Phase(value).name.lower() for value in unique(counted[chosen & (work.compute_ns > 0)]).tolist()
    )
    return Note(text, (share(fraction), named, phases), Path(trace.path).name)
