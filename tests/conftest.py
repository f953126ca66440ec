"""Settings of all tests."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from dptrace.core import checks
from tests.support import forking

checks.raises = True

# Two processes test at a time, on two cores: threads of torch that wait for each other would burn both.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A busy machine is slow, not wrong. Each run of the tests draws other examples.
settings.register_profile("dptrace", deadline=None, max_examples=40)
settings.load_profile("dptrace")


_LIMIT_S, _SLOW_LIMIT_S = 120, 400
_COSTS = {"slow": 20, "spawn": 10, "browser": 5, "heavy": 1, "limit": 50}
"""What a test of each mark takes, about, in seconds of a core: files are begun in the order of their sums."""
_errors = -1
"""Standard error of the process that the tests run in: while one runs, pytest keeps what it writes there."""


def pytest_configure(config: pytest.Config) -> None:
    """Keep standard error, for the stacks of a test that takes too long; catch Ctrl+C also as a background job."""
    global _errors
    _errors = os.dup(2)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell lets its background jobs ignore it
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for no cycles among what stays: all imports and 9,000 items, of whose time that would take a third."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


@pytest.hookimpl(hookwrapper=True, trylast=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """End the process with the stacks of all its threads if a test takes too long; xdist goes on with another one.

    A thread in C does that, whatever the test waits for; a signal handler of Python would wait with it.
    """
    marker = item.get_closest_marker("limit")
    limit = marker.args[0] if marker else _SLOW_LIMIT_S if item.get_closest_marker("slow") else _LIMIT_S
    forking.limit_s = limit
    faulthandler.dump_traceback_later(limit, exit=True, file=_errors)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> object:
    """Keep the tests' cache apart from the user's."""
    patch = pytest.MonkeyPatch()
    patch.setenv("DPTRACE_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark hypothesis tests, so that ``-m property`` selects them, and begin with the files that take longest.

    A worker has a file's tests to itself: one that began a long file last would leave the other one idle.
    """
    costs: Counter[Path] = Counter()
    for item in items:
        if getattr(getattr(item, "function", None), "is_hypothesis_test", False):
            item.add_marker("property")
        costs[item.path] += sum(cost for name, cost in _COSTS.items() if item.get_closest_marker(name))
    items.sort(key=lambda item: -costs[item.path])  # stable: a file's tests keep their order
