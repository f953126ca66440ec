"""Statements that hold of every answer. Where one does not, the answer is unknown; in tests, it is an error."""

from __future__ import annotations

raises = False
"""Whether a statement that does not hold is an error; tests set it."""


def holds(condition: object, what: str) -> bool:
    """Return whether a statement holds.

    Args:
        condition: whether it does.
        what: the statement, for the error.

    Raises:
        AssertionError: it does not, in a test.
    """
    if raises and not condition:
        raise AssertionError(f"not so: {what}")
    return bool(condition)
