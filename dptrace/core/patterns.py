"""Users' regular expressions: compiled, and searched in names within a limited time.

Python's matcher tries one way to match after the other: for ``(.+)+x`` these are 2ⁿ in a name of n characters, and no
other thread runs meanwhile. Only a signal interrupts it, which only the main thread may handle, and a library may not
take the handler of its caller. So a search that may take long runs in a process of its own, which ends itself once its
processor time is used up, whatever happens to this one.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from dptrace.errors import UsageError

LIMIT_S = 10.0
"""Processor time of one search."""
_MAX_STEPS = 1 << 26
"""What a second is enough for."""
_MAX_SHOWN = 80
"""Characters of a pattern that a message repeats."""

# Without Python's site and without dptrace, it starts in 15 ms.
_SEARCH = """
import json, re, signal, sys
pattern, flags, names, limit_s = json.load(sys.stdin)
signal.setitimer(signal.ITIMER_PROF, limit_s)
search = re.compile(pattern, flags).search
json.dump([search(name) is not None for name in names], sys.stdout)
"""


class Patterns(NamedTuple):
    """The user's patterns of names that figures depend on, and so does the key of all that is cached of a file."""

    comm: Sequence[str] = ()
    """Regular expressions of further communication kernels (``--comm-pattern``)."""
    phase_labels: Sequence[str] = ()
    """``REGEX=PHASE``: the phase of work under labels that match (``--phase-labels``)."""
    step_range: str = ""
    """Name of the ranges that are steps (``--step-range``); empty for the profiler's marks."""


def compiled(pattern: str, option: str, flags: int = 0) -> re.Pattern[str]:
    """Compile a user's regular expression.

    Args:
        option: what the user calls it, for messages.

    Raises:
        UsageError: it is none.
    """
    if not isinstance(pattern, str):
        raise UsageError(f"{option} {pattern!r}: give a regular expression as text.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on notation that Python may change
            return re.compile(pattern, flags)
    except RecursionError:
        why = "its parentheses are nested too deeply"
    except (re.error, OverflowError, ValueError) as error:
        why = str(error)
    raise UsageError(f"{option} {_shown(pattern)}: not a regular expression: {why}.")


def matches(pattern: str, names: Sequence[str], option: str, flags: int = 0) -> list[bool]:
    """Return which names have a match of a user's regular expression anywhere in them.

    Args:
        names: texts, which may repeat.
        option: what the user calls the pattern, for messages.

    Raises:
        UsageError: the pattern is none, or takes too long.
    """
    compiled(pattern, option, flags)
    distinct = tuple(dict.fromkeys(names))
    found = _search(pattern, flags, distinct)
    if found is None:
        raise UsageError(
            f"{option} {_shown(pattern)}: takes more than {LIMIT_S:g} s to search. Each repeat within a repeat, such "
            "as (a+)+, and each further .* multiplies the ways to match: use fewer of them."
        )
    known = dict(zip(distinct, found, strict=True))
    return [known[name] for name in names]


# What-ifs search the same names for each variant of a run.
@lru_cache(maxsize=16)
def _search(pattern: str, flags: int, names: tuple[str, ...]) -> list[bool] | None:
    """Return which names match; None if that takes too long."""
    if _max_steps(pattern, names) > _MAX_STEPS:
        return _search_elsewhere(pattern, flags, names)
    search = compiled(pattern, "", flags).search
    return [search(name) is not None for name in names]


def _max_steps(pattern: str, names: Sequence[str]) -> float:
    """Return how many steps a search takes at most.

    Without parentheses, only single characters repeat: from each place in a name of n characters, each repeat can end
    at n + 1 places.
    """
    repeats, branches = sum(map(pattern.count, "*+?{")), pattern.count("|")
    if "(" in pattern and (repeats or branches):
        return float("inf")
    steps: int = (1 + branches) * sum((len(name) + 1) ** min(repeats + 1, 20) for name in names)
    return steps


def _search_elsewhere(pattern: str, flags: int, names: Sequence[str]) -> list[bool] | None:
    import json
    import signal
    import subprocess

    done = subprocess.run(
        [sys.executable, "-I", "-S", "-W", "ignore", "-c", _SEARCH],
        input=json.dumps([pattern, flags, names, LIMIT_S]),
        capture_output=True,
        encoding="ascii",
    )
    if done.returncode == -signal.SIGPROF:
        return None
    done.check_returncode()
    found: list[bool] = json.loads(done.stdout)
    return found


def _shown(pattern: str) -> str:
    return repr(pattern if len(pattern) <= _MAX_SHOWN else f"{pattern[:_MAX_SHOWN]}…")
