"""Settings of all tests."""

from __future__ import annotations

import pytest
from hypothesis import settings

# A busy machine is slow, not wrong.
settings.register_profile("dptrace", deadline=None)
settings.load_profile("dptrace")


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> object:
    """Keep the tests' cache apart from the user's."""
    patch = pytest.MonkeyPatch()
    patch.setenv("DPTRACE_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark hypothesis tests, so that ``-m property`` selects them."""
    for item in items:
        if getattr(getattr(item, "function", None), "is_hypothesis_test", False):
            item.add_marker("property")
