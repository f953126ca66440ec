"""An explanation as plain values, for JSON and for pages."""

from __future__ import annotations

from typing import Any

import msgspec

from dptrace.simulate.explanation import Explanation

__all__ = ["SCHEMA", "to_dict"]

SCHEMA = 1


def to_dict(explanation: Explanation, step: int | None = None) -> dict[str, Any]:
    """Return an explanation with every step and message.

    Args:
        step: the number of the only step to keep.
    """
    content = msgspec.to_builtins(explanation)
    if step is not None:
        content["steps"] = [content["steps"][step - 1]]
    return {"schema": SCHEMA, **content}
