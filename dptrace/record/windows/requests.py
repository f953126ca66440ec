"""Windows that the launcher asks for while training runs: all ranks begin one at the same step.

The launcher writes a file. Rank 0 finds it, chooses a step far enough ahead and publishes it through the ranks'
key-value store; the other ranks look there. No collective is needed, which would show in the trace.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dptrace.record.ranks.distributed import RankStore
from dptrace.record.run_folder.messages import request_path

__all__ = ["Request", "WindowRequests"]

_POLL_NS = 50_000_000
"""A rank looks for requests at most this often: on shared storage, or in the store, each look takes time."""
_LEAD_S = 0.4
"""Seconds between the choice of a step and its beginning; several polls of the other ranks."""
_LEAD_STEPS = 2
"""Ranks may be this many steps apart although they exchange gradients in each."""


@dataclass(frozen=True, slots=True)
class Request:
    """Windows to begin at a step."""

    kind: Literal["record", "overhead"]
    first: int


class WindowRequests:
    """The requests of this job, in order.

    Args:
        folder: the launcher's folder.
    """

    def __init__(self, folder: Path, rank_store: RankStore) -> None:
        self._folder, self._rank_store = folder, rank_store
        self._next = 1
        self._polled_ns = time.monotonic_ns()
        self._polled_step = 0
        self._step_s = 0.0

    def forget_older(self) -> None:
        """Delete the requests to ranks that have been restarted since; rank 0 calls it before its first step."""
        for path in self._folder.glob("request-*.json"):
            path.unlink(missing_ok=True)

    def poll(self, step: int) -> Request | None:
        """Return the next request, if there is one; *step* is about to begin."""
        now = time.monotonic_ns()
        if now - self._polled_ns < _POLL_NS:
            return None
        if step > self._polled_step:
            self._step_s = (now - self._polled_ns) / 1e9 / (step - self._polled_step)
        self._polled_ns, self._polled_step = now, step
        text = self._lead(step) if self._rank_store.rank == 0 else self._rank_store.peek(self._key)
        if text is None:
            return None
        self._next += 1
        return Request(**json.loads(text))

    @property
    def _key(self) -> str:
        return f"request/{self._next}"

    def _lead(self, step: int) -> str | None:
        try:
            asked = json.loads(request_path(self._folder, self._next).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        lead = 0
        if self._rank_store.size > 1:
            lead = _LEAD_STEPS + math.ceil(_LEAD_S / self._step_s) if self._step_s else _LEAD_STEPS
        text = json.dumps({"kind": asked["kind"], "first": step + lead})
        self._rank_store.publish(self._key, text)
        return text
