"""Which bucket size hides most of DDP's communication, from a line alpha + beta·n and the times gradients are ready.

Backward produces the gradients one after the other. DDP fills a bucket with them in that order and closes it once it
reaches the cap (``compute_bucket_assignment_by_size`` in torch's reducer.cpp; Li et al., "PyTorch Distributed",
VLDB 2020, section 3.2.3). The all-reduce of bucket i, of n_i bytes, begins when its last gradient is ready and the
previous all-reduce has ended:

    end_i = max(ready_i, end_(i-1)) + alpha + beta·n_i        exposed = end_last - ready_last

Backward ends with its last gradient, which is in the last bucket, so ``exposed`` is the communication after backward.
A small cap pays alpha often; a large one leaves much to send after backward. The model ignores that ranks are not ready
at the same time and that concurrent communication slows compute down.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

import msgspec

from dptrace.model.alpha_beta import Line

__all__ = ["CapPrediction", "best_cap", "bucket_ends", "candidate_caps", "exposed_s", "pipelined_bytes", "predict"]


class CapPrediction(msgspec.Struct, frozen=True):
    """The prediction for one cap."""

    cap_bytes: int
    buckets: tuple[int, ...]
    """Bytes of each bucket, in the order of their all-reduces."""
    exposed_s: float


def bucket_ends(sizes: Sequence[int], cap_bytes: float) -> list[int]:
    """Return where each bucket ends: the number of gradients in it and all buckets before it.

    >>> bucket_ends([3, 1, 4, 1, 5], 4)  # a bucket closes when it reaches the cap, and may exceed it
    [2, 3, 5]

    Args:
        sizes: bytes of the gradients, in the order in which they become ready.
        cap_bytes: ``bucket_cap_mb`` times 2**20.
    """
    return _fill([0, *accumulate(sizes)], cap_bytes)


def _fill(sums: Sequence[int], cap_bytes: float) -> list[int]:
    ends, last = [0], len(sums) - 1
    while ends[-1] < last:
        ends.append(min(bisect_left(sums, sums[ends[-1]] + cap_bytes, ends[-1] + 1), last))
    return ends[1:]


def exposed_s(buckets: Sequence[int], ready_s: Sequence[float], line: Line) -> float:
    """Return the seconds of communication after the last bucket is ready.

    Args:
        buckets: bytes of each bucket, in order.
        ready_s: when each bucket is ready, from any common origin.
        line: the time of an all-reduce of n bytes.
    """
    end = -math.inf
    for size, ready in zip(buckets, ready_s, strict=True):
        end = max(ready, end) + line.seconds(size)
    return end - ready_s[-1] if buckets else 0.0


def predict(sizes: Sequence[int], ready_s: Sequence[float], cap_bytes: float, line: Line) -> CapPrediction:
    """Predict the buckets and the exposed time of a cap.

    Args:
        sizes: bytes of the gradients, in the order in which they become ready.
        ready_s: when each becomes ready, ascending, from any common origin.
    """
    return _predict([0, *accumulate(sizes)], ready_s, cap_bytes, line)


def _predict(sums: Sequence[int], ready_s: Sequence[float], cap_bytes: float, line: Line) -> CapPrediction:
    ends = _fill(sums, cap_bytes)
    filled = [sums[end] - sums[begin] for begin, end in zip([0, *ends], ends, strict=False)]
    return CapPrediction(round(cap_bytes), tuple(filled), exposed_s(filled, [ready_s[end - 1] for end in ends], line))


def candidate_caps(sizes: Sequence[int]) -> list[int]:
    """Return every cap whose buckets differ from those of the next smaller cap: the sums of neighboring gradients."""
    sums = [0, *accumulate(sizes)]
    return sorted({high - low for i, low in enumerate(sums) for high in sums[i + 1 :]})


def best_cap(
    sizes: Sequence[int],
    ready_s: Sequence[float],
    line: Line,
    among: Iterable[float] | None = None,
    slack: float = 0.0,
) -> CapPrediction:
    """Choose the cap with the least exposed time; among equals the one with the fewest buckets, then the larger one.

    Args:
        sizes: bytes of the gradients, in the order in which they become ready; at least one.
        ready_s: when each becomes ready, ascending.
        among: caps in bytes; by default all of :func:`candidate_caps`.
        slack: share by which a cap may exceed the least exposed time and still count as equal.
    """
    sums = [0, *accumulate(sizes)]
    choices = [_predict(sums, ready_s, cap, line) for cap in (candidate_caps(sizes) if among is None else among)]
    # Sums in a different order differ in their last digits.
    most = min(choice.exposed_s for choice in choices) * (1 + slack) + 1e-12
    equal = [choice for choice in choices if choice.exposed_s <= most]
    return min(equal, key=lambda choice: (len(choice.buckets), -choice.cap_bytes))


def pipelined_bytes(total: int, line: Line) -> float | None:
    """Return the bucket size of the closed form sqrt(S·alpha/beta), for comparison; None if beta is 0.

    It minimizes S/b·alpha + b·beta: the latencies of all calls, plus the transfer of the last bucket, which is exposed.
    It ignores backward. (Elsewhere written sqrt(s·o/w), with s bytes, o the overhead of a call and w the seconds per
    byte.)

    Args:
        total: S, the bytes of all gradients together.
    """
    return math.sqrt(total * line.alpha_s / line.beta_s_per_byte) if line.beta_s_per_byte > 0 else None
