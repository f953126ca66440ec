"""Errors survive the way from one process to another."""

from __future__ import annotations

import pickle

from dptrace.errors import MissingExtraError, TraceError


def test_errors_survive_a_pickle() -> None:
    """A worker's error has its message, and its type, in the process that reports it."""
    for error in (MissingExtraError("Reading hf://", "huggingface"), TraceError("a.json: is empty.")):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(error), str(error)) == (type(copy), str(copy))
