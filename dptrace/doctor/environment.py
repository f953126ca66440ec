"""Check what dptrace needs on this machine, and which commands will work."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import platform
import re
import shutil
import sys
import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from dptrace.core.subprocess_pool import available_cores, command_output
from dptrace.core.units import plural
from dptrace.errors import install_command
from dptrace.record.accelerator import ACCELERATORS, available_accelerator
from dptrace.version import __version__

OLDEST_TORCH = (2, 4)
CORE = ("numpy", "pandas", "bokeh", "jinja2", "click", "rich", "msgspec", "perfetto", "google.protobuf")
DISTRIBUTIONS = (*CORE[:-1], "protobuf", "isal", "traceinsight", "HolisticTraceAnalysis")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as torch sees it."""

    index: int
    name: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Torch:
    """The facts about PyTorch that a recording depends on."""

    version: str
    built_for: str
    """``CUDA 12.4``, ``ROCm 6.2``, or ``CPU only``."""
    gpus: tuple[Gpu, ...] = ()
    backend_version: str | None = None
    """Version of the GPUs' communication backend; None for a build without it, or where no GPU is found."""
    gloo: bool = False
    activities: tuple[str, ...] = ()
    """What torch.profiler can record here: CPU, CUDA …"""
    problem: str | None = None
    """Torch's own warning about GPUs; None without one."""
    backend: str = ACCELERATORS[0].backend
    """The GPUs' communication backend."""
    activity: str = ACCELERATORS[0].activity_name
    """What the profiler must be able to record for kernels."""


@dataclass(frozen=True, slots=True)
class Capability:
    """One use of dptrace: whether it works on this machine, and how or why not."""

    works: bool
    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that ``dptrace doctor`` reports."""

    dptrace: str
    python: str
    executable: str
    platform: str
    cpus: int
    torch: Torch | None
    torch_problem: str | None
    """Why torch is missing: not installed, or the error of its import; None where it is there."""
    driver: str | None
    """Version of the NVIDIA driver; None where nvidia-smi is missing or fails."""
    driver_gpus: int
    links: dict[str, str]
    """The link between two GPUs, by pairs such as ``0-1``, in nvidia-smi's terms: NV12, PIX, SYS …"""
    versions: dict[str, str]
    broken: dict[str, str]
    """Core packages that cannot be imported, with the error of the import."""
    browser: str | None
    verdicts: tuple[Capability, ...] = ()

    @property
    def records(self) -> bool:
        """Whether a recording of some kind works."""
        return any(verdict.works and "record" in verdict.what for verdict in self.verdicts)


def examine() -> Report:
    """Examine this machine; imports torch if it is installed."""
    torch, torch_problem = _torch()
    versions, broken = _packages()
    driver = command_output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split()
    report = Report(
        dptrace=__version__,
        python=platform.python_version(),
        executable=sys.executable,
        platform=platform.platform(),
        cpus=available_cores(),
        torch=torch,
        torch_problem=torch_problem,
        driver=driver[0] if driver else None,
        driver_gpus=len(driver),
        links=parse_links(command_output("nvidia-smi", "topo", "-m")) if len(driver) > 1 else {},
        versions=versions,
        broken=broken,
        browser=next(filter(None, map(shutil.which, BROWSERS)), None),
    )
    return replace(report, verdicts=judge(report))


def _packages() -> tuple[dict[str, str], dict[str, str]]:
    """Return the versions of the packages, and the errors of those that cannot be imported."""
    versions, broken = {}, {}
    for name in DISTRIBUTIONS:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    for name in CORE:
        try:
            importlib.import_module(name)
        except Exception as error:  # a broken package may raise anything
            broken[name] = _first_line(error)
    return versions, broken


def _first_line(message: object) -> str:
    return (str(message).strip().splitlines() or [""])[0]


def _torch() -> tuple[Torch | None, str | None]:
    try:
        import torch
    except Exception as error:  # a torch with the wrong CUDA libraries raises OSError and others
        installed = isinstance(error, ImportError) and error.name != "torch"
        return None, f"it cannot be imported: {_first_line(error)}" if installed else "it is not installed"
    with warnings.catch_warnings(record=True) as caught:
        # CUDA reports start-up problems (driver too old, no device node) as warnings.
        warnings.simplefilter("always")
        description = _describe(torch)
    problem = _first_line(caught[0].message) if caught and not description.gpus else None
    return replace(description, problem=problem), None


def _describe(torch: Any) -> Torch:
    version = torch.version
    rocm = getattr(version, "hip", None)
    built_for = f"ROCm {rocm}" if rocm else f"CUDA {version.cuda}" if version.cuda else "CPU only"
    accelerator, gpus, backend_version = available_accelerator(), [], None
    if accelerator is not None:
        for index in range(accelerator.module.device_count()):
            properties = accelerator.module.get_device_properties(index)
            gpus.append(Gpu(index, properties.name, properties.total_memory))
        backend_version = accelerator.backend_version() or None
    kind = accelerator or ACCELERATORS[0]
    activities = sorted(activity.name for activity in torch.profiler.supported_activities())
    gloo = torch.distributed.is_available() and torch.distributed.is_gloo_available()
    return Torch(
        torch.__version__,
        built_for,
        tuple(gpus),
        backend_version,
        gloo,
        tuple(activities),
        backend=kind.backend,
        activity=kind.activity_name,
    )


def parse_links(matrix: str) -> dict[str, str]:
    """Read the table of ``nvidia-smi topo -m``: the link between each two GPUs, by pairs such as ``0-1``."""
    rows = [re.sub(r"\x1b\[[0-9;]*m", "", line).split("\t") for line in matrix.splitlines()]
    heads = [cell.strip() for cell in rows[0]] if rows else []
    links = {}
    for row in rows[1:]:
        first = re.fullmatch(r"GPU(\d+)", row[0].strip())
        for head, cell in zip(heads, row, strict=False):
            second = re.fullmatch(r"GPU(\d+)", head)
            if first and second and int(first[1]) < int(second[1]):
                links[f"{first[1]}-{second[1]}"] = cell.strip()
    return links


def reinstall_command(report: Report) -> str:
    """Return the command that installs the broken packages again."""
    return f"pip install --force-reinstall {' '.join(name.removeprefix('google.') for name in report.broken)}"


def judge(report: Report) -> tuple[Capability, ...]:
    """Conclude from the facts what will work on this machine, and how or why not."""
    return (_analysis(report), *_recording(report), _page(report))


def _analysis(report: Report) -> Capability:
    what = "dptrace analyze, view, export"
    if report.broken:
        problems = "; ".join(f"{name}: {problem}" for name, problem in report.broken.items())
        why = f"packages that dptrace needs are broken ({problems}): {reinstall_command(report)}"
        return Capability(False, what, why)
    return Capability(True, what, "traces of torch.profiler from any machine; needs no GPU and no torch")


def _recording(report: Report) -> list[Capability]:
    torch = report.torch
    if torch is None:
        why = f"torch: {report.torch_problem}. Install it with: {install_command('record')}"
        return [Capability(False, "dptrace record", why)]
    numbers = tuple(map(int, re.findall(r"\d+", torch.version)[:2]))
    if numbers < OLDEST_TORCH:
        why = f"torch {torch.version} is older than {'.'.join(map(str, OLDEST_TORCH))}: pip install -U torch"
        return [Capability(False, "dptrace record", why)]
    if torch.gpus:
        return [_on_gpus(torch)]
    return [_without_gpu(report, torch), _on_cpu(report, torch)]


def _on_gpus(torch: Torch) -> Capability:
    count = len(torch.gpus)
    what, backend = f"dptrace record --gpus {count}", torch.backend.upper()
    if not torch.backend_version:
        why = f"{plural(count, 'GPU')}, but torch {torch.version} has no {backend}, which training on GPUs needs"
    elif torch.activity not in torch.activities:
        library = " (CUPTI)" if torch.activity == "CUDA" else ""
        why = (
            f"torch {torch.version} cannot record GPU kernels: its profiler was built without {torch.activity}{library}"
        )
    elif count == 1:
        why = "1 GPU, with --mode single; to record several ranks on CPU, set CUDA_VISIBLE_DEVICES= to hide the GPU"
    else:
        why = (
            f"{plural(count, 'GPU')} with {backend} {torch.backend_version}, one process per GPU; --gpus sets a "
            "smaller number"
        )
    return Capability(bool(torch.backend_version) and torch.activity in torch.activities, what, why)


def _without_gpu(report: Report, torch: Torch) -> Capability:
    what = "dptrace record on GPUs"
    if not report.driver_gpus:
        return Capability(False, what, torch.problem or "no GPU found")
    if torch.built_for == "CPU only":
        why = f"nvidia-smi sees {report.driver_gpus}, but torch {torch.version} is built for CPU only: "
        return Capability(False, what, why + "install one for CUDA, see https://pytorch.org/get-started")
    problem = torch.problem or "check CUDA_VISIBLE_DEVICES"
    return Capability(False, what, f"nvidia-smi sees {report.driver_gpus}, torch none: {problem}")


def _on_cpu(report: Report, torch: Torch) -> Capability:
    if not torch.gloo:
        return Capability(False, "dptrace record on CPU", f"torch {torch.version} is built without gloo")
    count = max(2, report.cpus)
    why = f"on CPU with gloo, one process per rank; more than {report.cpus} would share this machine's cores"
    return Capability(True, f"dptrace record --gpus {count}", why)


def _page(report: Report) -> Capability:
    why = f"with {report.browser}" if report.browser else "skipped: no chromium found. Pages open in any browser"
    return Capability(bool(report.browser), "make test's browser tests", why)
