"""Interrupt recordings in many ways, and print what each leaves: exit code, complete steps, processes, hidden folders.

``python -m benchmarks.interruptions``, in the repository; it takes two to five minutes. Ends with exit code 1 if a
complete step is lost that could be kept, or if a process or a hidden folder stays.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.support.interruptions import STEPS, Outcome, interrupt

_MANY = 2500
_CASES = [
    *(
        (how, when, who)
        for how in ("SIGINT", "SIGTERM")
        for when in ("before", "in", "after", "writing")
        for who in "0"
    ),
    *(
        (how, when, "1")
        for how in ("kill rank", "raise", "return", "SIGTERM to rank")
        for when in ("before", "in", "after")
    ),
    *((f"os._exit({code})", when, "all") for code in (0, 3) for when in ("before", "in", "after", "writing")),
    *(("os._exit(0)", when, "1") for when in ("in", "after", "writing")),
    *((how, when, "0") for how in ("kill recorder", "kill torchrun") for when in ("before", "in", "after", "writing")),
    ("SIGTERM to rank", "writing", "1"),
    ("kill rank", "writing", "1"),
]


def _lost(how: str, when: str, who: str, left: Outcome) -> str:
    """Return what is wrong; "" if all is kept that can be kept."""
    expected = {"before": 0, "in": 3, "after": STEPS, "writing": STEPS}[when]
    ranks = {0} if how == "kill rank" and when in ("in", "writing") else {0, 1}
    kept = max((min((steps.get(rank, 0) for rank in ranks)) for steps in left.runs.values()), default=0)
    wrong = [f"{kept} of {expected} steps"] if kept < expected else []
    wrong += [f"{left.orphans} processes stay"] if left.orphans else []
    wrong += [f"{', '.join(left.hidden)} stays"] if left.hidden else []
    wrong += ["traceback of dptrace"] if "dptrace/record/launch" in left.said else []
    return "; ".join(wrong)


def main() -> int:
    """Print the table, and return the exit code."""
    failed = 0
    print(f"{'what':16} {'when':8} {'rank':4} {'code':>4} {'seconds':>7}  {'kept: steps by rank':40} wrong")
    for how, when, who in _CASES:
        with tempfile.TemporaryDirectory() as folder:
            left = interrupt(Path(folder), how, when, who, _MANY if when == "writing" else 10)
        wrong = _lost(how, when, who, left)
        failed += bool(wrong)
        kept = "; ".join(f"{name} {list(steps.values())}" for name, steps in sorted(left.runs.items()))
        print(
            f"{how:16} {when:8} {who:4} {left.code:4} {left.seconds:7.1f}  {kept or '-':40} {wrong or '-'}", flush=True
        )
    print(f"{len(_CASES)} interruptions, {failed} of them wrong")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
