"""Memory snapshots: the JSON form is read, a pickle is never loaded."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from dptrace.errors import TraceError
from dptrace.readers.kineto.reader import read_trace
from dptrace.readers.memory_snapshot import is_snapshot, read_snapshot
from dptrace.readers.source import Source
from tests.support.kineto_files import KinetoFile
from tests.support.snapshot_files import SNAPSHOT


class _Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return (exit, ("loaded",))


@pytest.mark.parametrize("packed", [False, True])
def test_the_json_form_is_read(tmp_path: Path, packed: bool) -> None:
    """Segments, blocks with their stacks, and the history; gzipped as well."""
    data = json.dumps(SNAPSHOT).encode()
    path = tmp_path / "snapshot.json"
    path.write_bytes(gzip.compress(data) if packed else data)
    snapshot = read_snapshot(Source.of(path))

    assert is_snapshot(Source.of(path))
    assert [2048, 4096, 512] == [segment.total_size for segment in snapshot.segments]
    assert "train.py" == snapshot.segments[0].blocks[0].frames[1].filename
    assert [7, 0] == list(map(len, snapshot.device_traces))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_is_not_loaded(tmp_path: Path, protocol: int) -> None:
    """Whoever reads it; the message says how to write JSON."""
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(_Harmful(), protocol))

    assert is_snapshot(Source.of(path))
    for read in (read_snapshot, read_trace):
        with pytest.raises(TraceError, match=r"json\.dump\(torch"):
            read(Source.of(path))


@pytest.mark.parametrize("text", ['{"segments": 3}', '{"segments": [', '{"segments": [{"total_size": "large"}]}'])
def test_damaged_snapshots_are_refused(tmp_path: Path, text: str) -> None:
    """The message names the file."""
    path = tmp_path / "snapshot.json"
    path.write_text(text)

    with pytest.raises(TraceError, match=r"snapshot\.json"):
        read_snapshot(Source.of(path))


def test_a_trace_is_no_snapshot(tmp_path: Path) -> None:
    """Nor is a file that is not there, or one that can be read only once."""
    path = KinetoFile().op("aten::add", 1, 2).write(tmp_path / "a.json")

    assert [False] * 3 == [is_snapshot(Source.of(where)) for where in (path, tmp_path / "none.json", "-")]
