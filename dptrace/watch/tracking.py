"""Figures of a watched run for a tracker: ``wandb.log``, ``mlflow.log_metrics``, any ``log(figures, step)``."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from operator import sub
from pathlib import Path
from typing import Any

from dptrace.record.safety import harmless
from dptrace.watch.hooks import Taps, now
from dptrace.watch.records import STAGES
from dptrace.watch.verdict import SUMMARY_FILE

Log = Callable[[dict[str, float], int], object]
EVERY_NS = 10_000_000_000


class Tracked:
    """Tells a tracker, in rank 0, of the steps since the last time: its ms per step, and who of all is late."""

    def __init__(self, log: Log, folder: Path, taps: Taps) -> None:
        self._log, self._summary, self._taps = log, folder / SUMMARY_FILE, taps
        self._before = self._state()
        self.next_ns = now() + EVERY_NS
        """When to tell it again."""

    def _state(self) -> tuple[int, ...]:
        return (self._taps.step, self._taps.last, *self._taps.own, sum(self._taps.blocked))

    @harmless("logging the figures of the watch")
    def tell(self) -> None:
        """Call the tracker, between two steps."""
        state = self._state()
        steps, *spent = map(sub, state, self._before)
        self.next_ns = state[1] + EVERY_NS
        figures = {}
        if steps:
            self._before = state
            names = ("step_ms", *(f"{stage}_ms" for stage in STAGES), "waiting_ms")
            figures = {f"watch/{name}": ns / steps / 1e6 for name, ns in zip(names, spent, strict=True)}
        with suppress(OSError, ValueError, KeyError):  # the reader writes it from time to time
            content = json.loads(self._summary.read_text(encoding="utf-8"))
            figures |= {"watch/median_step_ms": content["step_ns"]["median"] / 1e6}
            if content["cannot_tell"] is None:
                first: dict[str, Any] = next(iter(content["suspects"]), {"ns_per_step": 0, "rank": None})
                figures["watch/late_ms"] = first["ns_per_step"] / 1e6
                figures |= {} if first["rank"] is None else {"watch/late_rank": first["rank"]}
        if figures:
            self._log(figures, self._taps.step)
