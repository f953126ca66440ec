"""The time of a critical path by module, and what 10 % less time of a module would gain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from dptrace.replay.graph.build import Model
from dptrace.replay.graph.task_modules import modules_of_tasks
from dptrace.replay.paths.path import LINK_KINDS, Links
from dptrace.replay.paths.shortening import Shortening

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["NO_MODULE", "ModuleTime", "module_times", "modules_frame"]

NO_MODULE = "(no module)"
"""What is in no module: the optimizer, the time between operators, a step's own calls."""
_KINDS = ("compute", "memory", "transfer", "host")
_MOST_GAINS = 12
"""Modules whose gain is computed: a replay each."""
_COLUMNS = ("module", "path_ns", "share", *(f"{kind}_ns" for kind in _KINDS), "other_ns", "gain_ns")


class ModuleTime(msgspec.Struct, frozen=True):
    """The time of a module on a critical path, in ns."""

    module: str
    path_ns: int
    by_kind: dict[str, int]
    """``compute``, ``memory``, ``transfer`` and ``host``; they and ``other`` add up to ``path_ns``."""
    gain_ns: int | None
    """How much shorter a step would be, by replay, with 10 % less of it; None where it was not computed."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        by_kind = {f"{kind}_ns": ns for kind, ns in self.by_kind.items()}
        return {"module": self.module, "path_ns": self.path_ns, **by_kind, "gain_ns": self.gain_ns}


def module_times(model: Model, links: Links, shortening: Shortening) -> tuple[ModuleTime, ...]:
    """Return the time of a path by module, most first; nothing where no task has a module.

    Raises:
        DptraceError: a file can't be read again.
    """
    modules = modules_of_tasks(model)
    if not modules.names:
        return ()
    count, length = len(modules.names) + 1, links.end_ns - links.start_ns
    # Modules × kinds, in one count; the first row is for what is in no module.
    code = (modules.module[links.task] + 1) * len(LINK_KINDS) + links.kind
    table = np.bincount(code, length, count * len(LINK_KINDS)).astype(np.int64).reshape(count, -1)
    total = table.sum(axis=1)
    found: list[ModuleTime] = []
    for number in np.argsort(-total, kind="stable").tolist():
        if not total[number]:
            break
        by_kind = {kind: int(table[number, LINK_KINDS.index(kind)]) for kind in _KINDS}
        by_kind["other"] = int(total[number]) - sum(by_kind.values())
        wanted = number > 0 and sum(one.gain_ns is not None for one in found) < _MOST_GAINS
        gain = shortening.of_tasks(modules.module == number - 1) if wanted else None
        name = modules.names[number - 1] if number else NO_MODULE
        found.append(ModuleTime(name, int(total[number]), by_kind, gain))
    return tuple(found)


def modules_frame(modules: Sequence[ModuleTime], length_ns: int) -> pd.DataFrame:
    """Return the times as a frame, with their share of a step of *length_ns*."""
    import pandas as pd

    rows = [{**one.to_dict(), "share": one.path_ns / max(1, length_ns)} for one in modules]
    return pd.DataFrame(rows, columns=list(_COLUMNS)).astype({"gain_ns": "Int64"})
