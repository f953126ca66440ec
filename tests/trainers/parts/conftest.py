"""A process group for the tests of the trainers' parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def alone() -> Iterator[Any]:
    """Join a process group of one."""
    dist = pytest.importorskip("torch").distributed
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()
