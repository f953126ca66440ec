"""What holds for all tests."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> object:
    """Keep the tests' cache apart from the user's."""
    patch = pytest.MonkeyPatch()
    patch.setenv("DPTRACE_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()
