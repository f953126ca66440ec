"""Inputs of operators and autograd's numbers are read where a command needs them, and change nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dptrace.readers.kineto.reader import read_trace
from dptrace.readers.trace import Category, Trace
from dptrace.timeline.build import build_timelines
from dptrace.timeline.model import COLUMNS
from tests.support.kineto_files import KinetoFile
from tests.support.layered_files import MM, layered_file
from tests.support.real_traces import needs_real_traces, real


def read(file: KinetoFile, folder: Path) -> Trace:
    return read_trace(file.write(folder / "rank0.json"), operators=True)


def numbered(number: object, thread: object = 0) -> dict[str, Any]:
    return {"Sequence number": number, "Fwd thread id": thread}


def test_inputs_are_kept_as_the_file_has_them(tmp_path: Path) -> None:
    """Calls with equal inputs share an entry; events that are no operators have none."""
    trace = read(layered_file(steps=2), tmp_path)
    assert trace.operators is not None
    products = np.flatnonzero(trace.named("aten::mm"))
    (entry,) = set(trace.operators.inputs[products].tolist())

    assert 4 == len(products)
    assert list(MM.values()) == [
        json.loads(getattr(trace.operators.table[entry], column))
        for column in ("dims", "dtypes", "concrete", "strides")
    ]
    assert {-1} == set(trace.operators.inputs[trace.named("gemm_kernel", "ProfilerStep#")].tolist())


def test_numbers_tie_backward_to_forward(tmp_path: Path) -> None:
    """Operators have autograd's number, backward functions the forward thread's too."""
    trace = read(layered_file(steps=1), tmp_path)
    assert trace.operators is not None
    numbered = np.flatnonzero(trace.operators.sequence >= 0)
    found = [
        (trace.names[trace.name[i]].rpartition(" ")[2], trace.operators.sequence[i], trace.operators.forward_thread[i])
        for i in numbered
    ]

    assert [
        ("aten::linear", 7, 0),
        ("aten::mm", 7, 0),
        ("aten::relu", 8, 0),
        ("MmBackward0", 7, 1),
        ("MmBackward0", 7, 1),
    ] == found


@pytest.mark.parametrize("value", ["7", 7.0])
def test_a_number_may_be_spelled_otherwise(tmp_path: Path, value: object) -> None:
    """As a text or with a decimal point, as for every other number."""
    file = KinetoFile().op("aten::mm", 0, 5, **numbered(value)).kernel("gemm", 6, 7, 1)
    trace = read(file, tmp_path)
    assert trace.operators is not None

    assert 7 == trace.operators.sequence.max()


@pytest.mark.parametrize("value", ["many", -3, None, [1], 1 << 70])
def test_what_is_no_number_counts_as_none(tmp_path: Path, value: object) -> None:
    """The event stays."""
    file = KinetoFile().op("aten::mm", 0, 5, **numbered(value, value))
    trace = read(file.kernel("gemm", 6, 7, 1), tmp_path)
    assert trace.operators is not None

    assert [-1, 0] == [trace.operators.sequence.max(), trace.operators.forward_thread.max()]


def test_short_modules_are_kept(tmp_path: Path) -> None:
    """A layer of a small model takes less time than the shortest Python function that is read."""
    file = KinetoFile().event("python_function", "nn.Module: Linear_0", 1, 2)
    file.event("python_function", "torch/nn/functional.py(12): relu", 3, 4).kernel("gemm", 6, 7, 1)

    trace = read(file, tmp_path)

    assert ["nn.Module: Linear_0"] == [trace.names[name] for name in trace.name[trace.category == Category.PYTHON]]


@pytest.mark.heavy
@needs_real_traces
@pytest.mark.parametrize(
    "name", ["ddp_mi300_rank0of8/resnet_act_checkpoint.json.gz", "compute/h100_bert_small/trace.json.gz"]
)
def test_figures_of_such_a_reading_are_the_same(name: str) -> None:
    """One reading can serve both."""
    (plain,), (detailed,) = (build_timelines(read_trace(Path(real(name)), operators=more), 0) for more in (False, True))

    for column in COLUMNS:
        assert np.array_equal(getattr(plain, column), getattr(detailed, column)), column
    for column in plain.host.__struct_fields__:
        assert np.array_equal(getattr(plain.host, column), getattr(detailed.host, column)), column
