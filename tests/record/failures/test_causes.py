"""The causes of errors that many scripts meet."""

from __future__ import annotations

import os

import pytest

from dptrace.record.failures.causes import explain
from dptrace.record.run_folder.messages import error_text


@pytest.mark.parametrize(
    "message",
    [
        "AssertionError: Torch not compiled with CUDA enabled",
        "RuntimeError: No CUDA GPUs are available",
        "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU …",
        "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
        "DistBackendError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
        "RuntimeError: Distributed package doesn't have NCCL built in",
        "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False.",
    ],
)
def test_a_script_that_wants_a_gpu_learns_that_there_is_none(message: str) -> None:
    """Whatever torch calls it; torch's own words follow."""
    told = explain(message)

    assert told.startswith("this script asks for CUDA; there is none here")
    assert told.endswith(f"({message})")


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("ModuleNotFoundError: No module named 'tiktoken'", "pip install tiktoken"),
        ("ModuleNotFoundError: No module named 'sklearn.svm'", "pip install scikit-learn"),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: 'data/a.bin'",
            f"data/a.bin, which is missing in {os.getcwd()}",
        ),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/a.bin'", "/data/a.bin, which is missing ("),
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "memory is full"),
        (
            "AcceleratorError: CUDA error: invalid device ordinal\nCUDA kernel errors might",
            "GPU that this machine does",
        ),
        ("DistNetworkError: … port: 12355, … EADDRINUSE", "12355"),
        (error_text(KeyError("LOCAL_RANK")), "dptrace record torchrun --nproc-per-node 1"),
        ("ValueError: … environment variable RANK expected, but not set", "dptrace record torchrun --nproc-per-node 1"),
        (error_text(SystemExit(2)), "refused its arguments"),
    ],
)
def test_a_known_error_says_what_to_do(message: str, says: str) -> None:
    """The sentence comes first, and is one line."""
    told = explain(message)

    assert says in told
    assert 1 == len(told.splitlines())


@pytest.mark.parametrize("message", ["ValueError: boom", "FileNotFoundError: no shard", "killed by SIGKILL", ""])
def test_an_unknown_error_stays_as_it_is(message: str) -> None:
    """No guess takes the place of the script's own words."""
    assert message == explain(message)
