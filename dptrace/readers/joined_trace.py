"""One trace from those of several windows of a rank, which a schedule that repeats wrote to a file each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64
from dptrace.readers.trace import OperatorArgs, Trace

CORRELATIONS = 1 << 44
"""What the ids of a window are apart from those of the one before: links between calls and work stay within one."""


def joined_trace(windows: Sequence[Trace]) -> Trace:
    """Return the events of all windows, which are in the order of time, as one trace."""
    names, threads = dict[str, int](), dict[tuple[str, int], int]()
    name = [_numbers(one.names, names) for one in windows]
    thread = [_numbers(_distinct(one), threads) for one in windows]
    columns: dict[str, Any] = {
        column: np.concatenate([getattr(one, column) for one in windows])
        for column in ("start_ns", "end_ns", "category", "device", "stream")
    }
    columns["name"] = np.concatenate([own[one.name] for own, one in zip(name, windows, strict=True)])
    columns["thread"] = np.concatenate([own[one.thread] for own, one in zip(thread, windows, strict=True)])
    columns["correlation"] = np.concatenate([apart(one.correlation, n) for n, one in enumerate(windows)])
    first = list(accumulate((len(one) for one in windows), initial=0))
    detail = list(accumulate((len(one.details) for one in windows), initial=0))
    operators = [one.operators for one in windows]
    return replace(
        windows[0],
        **columns,
        names=tuple(names),
        comm={first[n] + event: of for n, one in enumerate(windows) for event, of in one.comm.items()},
        products={first[n] + event: of for n, one in enumerate(windows) for event, of in one.products.items()},
        detail=np.concatenate([one.detail + np.int32(detail[n]) for n, one in enumerate(windows)]),
        details=tuple(detail for one in windows for detail in one.details),
        threads=tuple(text for text, _ in threads) if windows[0].threads else (),
        operators=_operators([one for one in operators if one is not None]) if None not in operators else None,
        memory=None,
        has_syncs=any(one.has_syncs for one in windows),
        later_ns=tuple(int(one.start_ns[0]) for one in windows[1:]),
    )


def apart(correlation: Int64, window: int) -> Int64:
    """Return the ids of a window, from 0, so that no other window has one of them; negative ones are none."""
    return np.where(correlation >= 0, correlation + window * CORRELATIONS, correlation)


def _numbers(texts: Sequence[Any], known: dict[Any, int]) -> NDArray[np.int32]:
    return np.array([known.setdefault(text, len(known)) for text in texts], np.int32)


def _distinct(trace: Trace) -> list[tuple[str, int]]:
    """Return the id of each thread, and how many threads before it have that id, as those of other processes may."""
    count = int(trace.thread.max(initial=-1)) + 1
    texts = trace.threads or tuple(map(str, range(count)))
    seen = defaultdict[str, int](int)
    found = []
    for text in texts:
        found.append((text, seen[text]))
        seen[text] += 1
    return found


def _operators(windows: Sequence[OperatorArgs]) -> OperatorArgs:
    first = accumulate((len(one.table) for one in windows), initial=0)
    inputs = [np.where(one.inputs >= 0, one.inputs + n, -1) for one, n in zip(windows, first, strict=False)]
    return OperatorArgs(
        np.concatenate(inputs).astype(np.int32),
        tuple(row for one in windows for row in one.table),
        np.concatenate([one.sequence for one in windows]),
        np.concatenate([one.forward_thread for one in windows]),
    )
