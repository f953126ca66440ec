"""Signals that end a launcher: noted anywhere, raised where it is safe."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from dptrace.record.launch.signals import Interrupted, catch_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_raised_where_it_is_looked_for(number: signal.Signals) -> None:
    """Code in between runs on, and the handlers that were there before return."""
    before = signal.getsignal(number)
    with catch_signals() as signals:
        signals.check()
        os.kill(os.getpid(), number)
        assert not signals.again
        with pytest.raises(Interrupted) as stopped:
            signals.check()
        os.kill(os.getpid(), number)
        assert signals.again

    assert 128 + number == stopped.value.exit_code
    assert before == signal.getsignal(number)


def test_an_inner_block_knows_what_the_outer_one_has_noted() -> None:
    """The launcher is entered with signals that arrived while torch was imported."""
    with catch_signals() as outer:
        os.kill(os.getpid(), signal.SIGTERM)
        with catch_signals() as inner, pytest.raises(Interrupted):
            inner.check()
        assert [signal.SIGTERM] == outer.numbers


def test_other_threads_catch_nothing() -> None:
    """Only the main thread may set handlers."""
    numbers: list[list[int]] = []

    def look() -> None:
        with catch_signals() as signals:
            numbers.append(signals.numbers)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()

    assert [[]] == numbers
