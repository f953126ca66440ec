"""Interrupt recordings in 60 ways, and make writes fail in 33, and print what each leaves.

``python -m benchmarks.interruptions``, in the repository; it takes ten minutes. Ends with exit code 1 if a complete
step is lost that could be kept, if a process or a hidden folder stays, or if a fault of the recorder changes what the
training prints or how it ends.
"""

from __future__ import annotations

import sys
import tempfile
from itertools import product
from pathlib import Path

from tests.support.faults import setting
from tests.support.interruptions import STEPS, Outcome, interrupt

_LONG = 2500
_LARGE = 16_000
"""Operators of a step whose traces are written for a second, and of one whose six steps make 50 MB of JSON."""
_MOMENTS = ("before", "in", "after")
_CASES = [
    *product(("SIGINT", "SIGTERM", "kill recorder", "kill torchrun"), (*_MOMENTS, "writing"), "0"),
    *product(("kill rank", "raise", "return", "SIGTERM to rank"), _MOMENTS, "01"),
    *product(("os._exit(0)", "os._exit(3)"), (*_MOMENTS, "writing"), ("all",)),
    *product(("os._exit(0)",), (*_MOMENTS, "writing"), "1"),
    *product(("SIGTERM to rank", "kill rank"), ("writing",), "1"),
    *product(("SIGINT", "SIGTERM", "kill recorder", "kill torchrun"), ("large",), "0"),
    *product(("os._exit(0)", "os._exit(3)"), ("large",), ("all",)),
]
_STAGING = ".t.recording"
_ERRORS = ("ENOSPC", "EACCES", "EIO")
_BEGUN, _WRITING = f"{_STAGING}/rank0.steps", f"{_STAGING}/window1"
_FAULTS = [
    *product(("torchrun", "rank"), _ERRORS, (".", _BEGUN, _WRITING)),
    # From the start, the launcher refuses its folder, and no training begins.
    *product(("launcher",), _ERRORS, (_BEGUN, _WRITING, "t")),
    *product(("all",), _ERRORS, (_BEGUN, _WRITING)),
]
"""The kind of process whose writes fail, how, and the file from whose appearance on they do."""


def _wrong(how: str, when: str, who: str, left: Outcome) -> str:
    """Return what is wrong; "" if all is kept that can be kept."""
    expected = {"before": 0, "in": 3, "after": STEPS}.get(when, STEPS)
    # A rank that is killed takes with it what it has not written.
    ranks = {0, 1} - ({int(who)} if how == "kill rank" and when in ("in", "writing") else set())
    kept = max((min((steps.get(rank, 0) for rank in ranks)) for steps in left.runs.values()), default=0)
    wrong = [f"{kept} of {expected} steps"] if kept < expected else []
    return "; ".join([*wrong, *_remains(left)])


def _remains(left: Outcome) -> list[str]:
    wrong = [f"{left.orphans} processes stay"] if left.orphans else []
    wrong += [f"{', '.join(left.hidden)} stays"] if left.hidden else []
    wrong += ["traceback of dptrace"] if "dptrace/record/launch" in left.said else []
    return wrong


def _changed(left: Outcome, plain: str) -> str:
    """Return what a fault has changed; "" if the training ended as without it."""
    wrong = [f"exit code {left.code}"] if left.code else []
    wrong += ["another last line"] if left.printed.splitlines()[-1:] != [plain] else []
    # Nothing can be removed from a full disk's folder either.
    return "; ".join([*wrong, *(text for text in _remains(left) if "processes" in text or "traceback" in text)])


def main() -> int:
    """Print the tables, and return the exit code."""
    failed = 0
    print(f"{'what':16} {'when':8} {'rank':4} {'code':>4} {'seconds':>7}  {'kept: steps by rank':40} wrong")
    for how, when, who in _CASES:
        operators = {"writing": _LONG, "large": _LARGE}.get(when, 10)
        with tempfile.TemporaryDirectory() as folder:
            left = interrupt(Path(folder), how, "writing" if when == "large" else when, who, operators)
        wrong = _wrong(how, when, who, left)
        failed += bool(wrong)
        kept = "; ".join(f"{name} {list(steps.values())}" for name, steps in sorted(left.runs.items()))
        print(
            f"{how:16} {when:8} {who:4} {left.code:4} {left.seconds:7.1f}  {kept or '-':40} {wrong or '-'}", flush=True
        )
    print(f"\n{'writes fail in':16} {'with':8} {'since':26} {'code':>4} {'kept: steps by rank':30} wrong")
    with tempfile.TemporaryDirectory() as folder:
        plain = interrupt(Path(folder), "nothing").printed.splitlines()[-1]
    for role, error, since in _FAULTS:
        with tempfile.TemporaryDirectory() as folder:
            left = interrupt(Path(folder), "nothing", fault=setting(role, error, since))
        wrong = _changed(left, plain)
        failed += bool(wrong)
        kept = "; ".join(f"{name} {list(steps.values())}" for name, steps in sorted(left.runs.items()))
        print(f"{role:16} {error:8} {since:26} {left.code:4} {kept or '-':30} {wrong or '-'}", flush=True)
    print(f"\n{len(_CASES)} interruptions, {len(_FAULTS)} faults, {failed} wrong")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
