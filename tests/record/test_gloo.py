"""When gloo's threads are idle, so that a profiler can stop."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="recording needs torch")

import torch.distributed as dist  # noqa: E402

from dptrace.record.gloo import GlooThreads  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what threads do")


@pytest.fixture
def pair() -> list[Any]:
    """Join two ranks of a group, both in this process."""
    store = dist.HashStore()  # type: ignore[attr-defined]

    def join(rank: int) -> Any:
        return dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=60))

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(join, range(2)))


@pytest.mark.heavy
def test_a_collective_that_goes_on_is_waited_for(pair: list[Any]) -> None:
    """One that began since is; its end is seen; what went on before does not count."""
    first, second = pair
    threads = GlooThreads()
    assert threads.wait_until_idle(10)
    work = first.allreduce(torch.ones(4))
    assert not threads.wait_until_idle(0.2)
    assert GlooThreads().wait_until_idle(10)
    second.allreduce(torch.ones(4)).wait()
    work.wait()
    assert threads.wait_until_idle(10)


def test_without_gloo_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread is one of its."""
    monkeypatch.setattr("dptrace.record.gloo.gloo_threads", list)

    assert GlooThreads().wait_until_idle(0)
