"""The classes that hold a rank's memory."""

from __future__ import annotations

from pathlib import Path

from dptrace.analysis.memory.usage import KIND_LABELS, MemoryKind, MemoryUse
from dptrace.core.array_file import dumps, loads
from tests.support.memory_files import training_file, use_of


def test_memory_comes_back_from_the_cache(tmp_path: Path) -> None:
    """Every column survives the cache's format."""
    use = use_of(training_file().write(tmp_path / "a.json"))
    again = loads(b"".join(map(bytes, dumps(use))), MemoryUse)

    assert len(use) == len(again) > 0
    assert use.names == again.names
    assert use.devices[0].kind.tolist() == again.devices[0].kind.tolist()
    assert use.devices[0].baseline_bytes == again.devices[0].baseline_bytes == 1000


def test_every_kind_has_a_label() -> None:
    """No kind is shown as a number."""
    assert set(MemoryKind) == set(KIND_LABELS)
