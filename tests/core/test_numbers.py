"""Which numbers an option takes, and that Python refuses what the command line refuses."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dptrace
from dptrace.core.numbers import Number
from dptrace.errors import UsageError
from tests.support.kineto_files import KinetoFile, training_step

NAN, INF = float("nan"), float("inf")


def any_value(value: Any) -> Any:
    """Hide the type of a value that a type checker would refuse."""
    return value


@pytest.fixture
def run(tmp_path: Path) -> dptrace.Run:
    return dptrace.open(training_step(KinetoFile(), 1, 0).write(tmp_path / "rank0.json"))


def test_a_number_is_finite_and_within_its_limits() -> None:
    """Of Python or NumPy, however large; texts, truth values and NaN are none."""
    no_numbers = [NAN, INF, -INF, np.float32("nan"), "1", None, True]
    numbers: list[tuple[Number, list[Any], list[Any]]] = [
        (Number(), [0, -1.5, 10**400, np.float32(2), np.int64(3)], no_numbers),
        (Number(1, 9), [1, 9, np.int64(9)], [0.999, 9.001, 10**400, NAN]),
        (Number(above=0, most=1), [5e-324, 1], [0, -0.0, 1.0000001, -INF]),
        (Number(0, whole=True), [0, 1 << 70, np.int32(7)], [-1, 1.0, 1.5, NAN, "1", [1], False]),
    ]
    for number, taken, refused in numbers:
        assert [] == [value for value in taken if number.refusal(value)]
        assert [] == [value for value in refused if not number.refusal(value)]
        for value in refused:
            with pytest.raises(UsageError, match=r"^--option"):
                number.check(value, "--option")


CALLS: list[tuple[Callable[[Any], object], str]] = [
    (lambda run: run.whatif(bandwidth=NAN), "bandwidth"),
    (lambda run: run.whatif(bandwidth=np.float32(0)), "bandwidth"),
    (lambda run: run.whatif(compute=INF), "compute"),
    (lambda run: run.whatif(compute="2x"), "compute"),
    (lambda run: run.whatif(compute=1e-99), "compute"),
    (lambda run: run.whatif(kernels={"gemm": NAN}), "kernels gemm"),
    (lambda run: run.whatif(kernels=["gemm"]), "kernel"),
    (lambda run: run.whatif(straggler={0: 1e9}), "straggler=0"),
    (lambda run: run.whatif(straggler={0: 10**30}), "straggler=0"),
    (lambda run: run.whatif(straggler=0), "straggler"),
    (lambda run: run.whatif(world_size=2.5), "world_size"),
    (lambda run: run.whatif(bucket_cap_mb=NAN), "bucket_cap_mb"),
    (lambda run: run.whatif(accumulate="2"), "accumulate"),
    (lambda run: run.whatif(link=5), "link"),
    (lambda run: run.whatif(link="5us:0GB/s"), "link"),
    (lambda run: run.whatif(latency=5), "latency"),
    (lambda run: run.whatif(compress=16), "compress"),
    (lambda run: run.show(height=NAN), "height"),
    (lambda run: dptrace.figure_svg(run, width=any_value(NAN)), "width"),
    (lambda run: dptrace.figure_svg(run, width=5), "width"),
    (lambda run: dptrace.advise(any_value("none.json")), "'none.json'"),
    (lambda run: run.utilization(parameters=NAN, tokens=1), "parameters"),
    (lambda run: run.utilization(peak_tflops="5"), "peak_tflops"),
    (lambda run: dptrace.open("none.json", jobs=any_value(1.5)), "jobs"),
    (lambda run: dptrace.predict(params=7e9, mfu=NAN), "mfu"),
    (lambda run: dptrace.predict(params=7e9, tokens=INF), "tokens"),
    (lambda run: dptrace.predict(params=NAN), "params"),
    (lambda run: dptrace.predict(params="7B"), "params"),
    (lambda run: dptrace.predict(params=7e9, seq=None), "seq"),
    (lambda run: dptrace.predict(params=7e9, gpu=5), "gpu"),
    (lambda run: dptrace.memory(params=7e9, gpus=0), "gpus"),
    (lambda run: dptrace.memory(params=7e9, batch=512.0), "batch"),
    (lambda run: dptrace.advise(params=7e9, gpu_memory=NAN), "gpu_memory"),
    (lambda run: dptrace.predict_message(NAN), "size_bytes"),
    (lambda run: dptrace.predict_message(1e6, gpus=any_value(2.5)), "gpus"),
    (lambda run: dptrace.predict_message(1e6, gamma_ps=INF), "gamma"),
    (lambda run: dptrace.predict_message(1e6, gamma_ps=any_value(None)), "gamma"),
    (lambda run: dptrace.predict_message(1e6, link=any_value(5)), "link"),
    (lambda run: dptrace.explain("moe", capacity_factor=NAN), "capacity_factor"),
    (lambda run: dptrace.explain("ring", any_value(4.0)), "ranks"),
    (lambda run: dptrace.explain("ring", size_bytes=INF), "size_bytes"),
    (lambda run: dptrace.explain("ring", alpha_us=NAN, bandwidth_gbps=1), "alpha"),
    (lambda run: dptrace.explain("fsdp", layers=0), "layers"),
    (lambda run: dptrace.explain("moe", tokens=any_value(None)), "tokens"),
    (lambda run: dptrace.explain("ring", link=any_value(5)), "link"),
    (lambda run: dptrace.explain(any_value(5)), "'5'"),
]


def test_python_refuses_what_is_no_such_number(run: dptrace.Run) -> None:
    """The message names the keyword; nothing is predicted from NaN."""
    for call, keyword in CALLS:
        with pytest.raises(UsageError, match=f"^{re.escape(keyword)}"):
            call(run)
