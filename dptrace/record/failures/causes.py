"""Explain in one sentence why a script died, for errors that many scripts meet."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

__all__ = ["explain"]

_CUDA_ADVICE = (
    "this script asks for CUDA; there is none here. Run it on a machine with a GPU, or let it choose the CPU (device "
    '"cpu", backend "gloo")'
)
_PIP_NAMES = {
    "PIL": "pillow",
    "cv2": "opencv-python",
    "google.protobuf": "protobuf",
    "pytorch_lightning": "pytorch-lightning",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}


def _missing_module(match: re.Match[str]) -> str:
    module = match["name"]
    top = module.partition(".")[0]
    package = _PIP_NAMES.get(module) or _PIP_NAMES.get(top, top)
    return f"the script imports {module}, which is not installed here: pip install {package}"


def _missing_file(match: re.Match[str]) -> str:
    path = match["path"]
    where = "" if os.path.isabs(path) else f" in {os.getcwd()}, where it looks for it"
    return f"the script needs {path}, which is missing{where}"


_CAUSES: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (
        (
            r"Torch not compiled with CUDA"
            r"|module 'torch\._C' has no attribute '_cuda_"
            r"|No CUDA GPUs are available"
            r"|Found no NVIDIA driver"
            r"|ProcessGroupNCCL is only supported with GPUs"
            r"|Distributed package doesn't have NCCL"
            r"|torch\.cuda\.is_available\(\) is False"
            r"|(?:Cannot access|no) accelerator device when none is available"
            r"|CUDA driver initialization failed"
        ),
        _CUDA_ADVICE,
    ),
    (
        r"(?:CUDA|HIP) error: invalid device ordinal",
        (
            "a rank asks for a GPU that this machine does not have: start one process per GPU (--gpus), and use "
            "LOCAL_RANK as the device's number"
        ),
    ),
    (
        r"OutOfMemoryError|CUDA out of memory",
        "the GPU's memory is full: use a smaller batch, or close other programs on this GPU",
    ),
    (
        r"EADDRINUSE|[Aa]ddress already in use",
        "the port that the ranks meet at is in use: another job runs, or has not ended; choose another MASTER_PORT",
    ),
    (r"^ModuleNotFoundError: No module named '(?P<name>[^']+)'", _missing_module),
    (r"^FileNotFoundError: \[Errno 2\] No such file or directory: '(?P<path>[^']+)'", _missing_file),
    (
        r"environment variable (?:RANK|WORLD_SIZE|MASTER_\w+) expected|^KeyError: '(?:LOCAL_)?(?:RANK|WORLD_SIZE)'$",
        (
            "the script expects a launcher, and dptrace starts a single process without one: dptrace record torchrun "
            "--nproc-per-node 1 train.py …"
        ),
    ),
    (
        r"^exit code 2$",
        "the script refused its arguments, which are the words after its name",
    ),
)
_PATTERNS = [(re.compile(pattern), cause) for pattern, cause in _CAUSES]


def explain(message: str) -> str:
    """Return the message of an error, after its cause if that is known.

    Args:
        message: class and text of the exception that ended a rank.
    """
    for pattern, cause in _PATTERNS:
        match = pattern.search(message)
        if match is not None:
            sentence = cause if isinstance(cause, str) else cause(match)
            return f"{sentence} ({message.strip().splitlines()[0]})"
    return message
