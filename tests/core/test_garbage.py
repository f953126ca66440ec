"""The garbage collector of reference cycles."""

from __future__ import annotations

import gc

import pytest

from dptrace.core.garbage import collection_paused


def test_collection_is_paused_and_goes_on_afterwards() -> None:
    """Also after an error."""
    with pytest.raises(ValueError, match="x"), collection_paused():
        assert not gc.isenabled()
        raise ValueError("x")

    assert gc.isenabled()


def test_a_caller_that_disabled_collection_finds_it_disabled() -> None:
    """It is the caller's choice."""
    gc.disable()
    try:
        with collection_paused():
            pass

        assert not gc.isenabled()
    finally:
        gc.enable()
