"""The calls of a rank with the inputs and numbers of its operators are read once more, and cached."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dptrace.load.open import open_run
from dptrace.readers.kineto import reader
from dptrace.timeline.operator_calls import OPERATOR_CALLS, OperatorCalls
from tests.support.layered_files import layered_file


def read(folder: Path) -> OperatorCalls:
    run = open_run([str(folder)])
    found = run.read_again(run.timelines[0], OPERATOR_CALLS)
    assert found is not None
    return found


def test_only_operators_have_inputs(tmp_path: Path) -> None:
    """Labels and launches are calls too."""
    layered_file(steps=1).write(tmp_path / "rank0.json")
    found = read(tmp_path)
    names = {found.calls.names[name] for name in found.calls.name[found.is_operator]}

    assert {"aten::linear", "aten::mm", "aten::relu", "aten::add_", "MmBackward0"} < names
    assert not {"cudaLaunchKernel", "ProfilerStep#0", "nn.Module: Block_0", "Optimizer.step#SGD.step"} & names


def test_a_second_look_comes_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal in every column; the file is not decoded again."""
    layered_file().write(tmp_path / "rank0.json")
    first = read(tmp_path)
    run = open_run([str(tmp_path)])
    monkeypatch.setattr(reader, "read_trace", None)
    second = run.read_again(run.timelines[0], OPERATOR_CALLS)

    assert second is not None
    assert first.table == second.table
    for column in ("inputs", "sequence", "forward_thread"):
        assert np.array_equal(getattr(first, column), getattr(second, column)), column
