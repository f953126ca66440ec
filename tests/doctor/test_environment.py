"""The doctor's facts and what it concludes from them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dptrace.doctor.environment import Gpu, Report, Torch, examine, judge, parse_links

BARE = Report(
    dptrace="0.1.0",
    python="3.12.1",
    executable="/usr/bin/python",
    platform="Linux",
    cpus=8,
    torch=None,
    torch_problem="it is not installed",
    driver="",
    driver_gpus=0,
    links={},
    versions={},
    broken={},
    browser="",
)
ON_CPU = Torch("2.13.0+cpu", "CPU only", gloo=True, activities=("CPU",))
A100 = "NVIDIA A100 80GB PCIe"
ON_GPUS = Torch(
    "2.4.1+cu124",
    "CUDA 12.4",
    tuple(Gpu(k, A100, 85_100_000_000) for k in range(4)),
    "2.20.5",
    gloo=True,
    activities=("CPU", "CUDA"),
)


@pytest.mark.parametrize(
    ("changes", "works", "words"),
    [
        ({}, False, "pip install 'torch>=2.4'"),
        ({"torch_problem": "it can't be imported: libcudart.so.12: cannot open"}, False, "libcudart.so.12"),
        ({"torch": replace(ON_CPU, version="2.1.0")}, False, "older than 2.4"),
        ({"torch": ON_CPU}, True, "record --gpus 8: on CPU with gloo"),
        ({"torch": replace(ON_CPU, gloo=False)}, False, "without gloo"),
        ({"torch": ON_GPUS}, True, "record --gpus 4: 4 GPUs with NCCL 2.20.5"),
        ({"torch": replace(ON_GPUS, gpus=ON_GPUS.gpus[:1])}, True, "1 GPU, with --mode single"),
        ({"torch": replace(ON_GPUS, backend_version="")}, False, "has no NCCL"),
        ({"torch": replace(ON_GPUS, activities=("CPU",))}, False, "without CUDA (CUPTI)"),
    ],
)
def test_recording_is_judged(changes: dict[str, Any], works: bool, words: str) -> None:
    """For each kind of machine the doctor reports whether recording works, and the command or what to do."""
    verdicts = [verdict for verdict in judge(replace(BARE, **changes)) if verdict.what.startswith("dptrace record")]

    assert works == any(verdict.works for verdict in verdicts)
    assert any(words in f"{verdict.what}: {verdict.why}" for verdict in verdicts)


@pytest.mark.parametrize(
    ("torch", "words"),
    [
        (ON_CPU, "built for CPU only: install one for CUDA"),
        (replace(ON_GPUS, gpus=()), "CUDA_VISIBLE_DEVICES"),
        (replace(ON_GPUS, gpus=(), problem="The NVIDIA driver is too old"), "torch none: The NVIDIA driver is too old"),
    ],
)
def test_gpus_that_torch_cannot_use_are_explained(torch: Torch, words: str) -> None:
    """When the driver shows GPUs and torch does not, the reason is given, and the way to record on CPU."""
    verdicts = judge(replace(BARE, torch=torch, driver="550.54", driver_gpus=2))

    assert any(not verdict.works and words in verdict.why for verdict in verdicts)
    assert any(verdict.works and "gloo" in verdict.why for verdict in verdicts)


def test_links_are_read_from_the_topology() -> None:
    """Each pair of GPUs is found once in nvidia-smi's table, whatever else it contains: NICs, affinity, underlining."""
    table = (
        "\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
        "GPU0\t X \tNV12\tSYS\tPXB\t0-31\t0\t\tN/A\n"
        "GPU1\tNV12\t X \tSYS\tPXB\t0-31\t0\t\tN/A\n"
        "GPU2\tSYS\tSYS\t X \tSYS\t32-63\t1\t\tN/A\n"
        "NIC0\tPXB\tPXB\tSYS\t X \n\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing NVLinks\n"
    )

    assert {"0-1": "NV12", "0-2": "SYS", "1-2": "SYS"} == parse_links(table)
    assert {} == parse_links("")


def test_gpus_are_described(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From torch come names, memory, NCCL; from nvidia-smi the driver and the links."""
    gpu = SimpleNamespace(name=A100, total_memory=85_100_000_000)
    torch = SimpleNamespace(
        __version__="2.4.1+cu124",
        version=SimpleNamespace(cuda="12.4", hip=None),
        cuda=SimpleNamespace(
            is_available=lambda: True,
            device_count=lambda: 2,
            get_device_properties=lambda index: gpu,
            nccl=SimpleNamespace(version=lambda: (2, 20, 5)),
        ),
        distributed=SimpleNamespace(
            is_available=lambda: True, is_nccl_available=lambda: True, is_gloo_available=lambda: True
        ),
        profiler=SimpleNamespace(
            supported_activities=lambda: [SimpleNamespace(name="CUDA"), SimpleNamespace(name="CPU")]
        ),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        "#!/bin/sh\nif [ $1 = topo ]; then printf '\\tGPU0\\tGPU1\\nGPU0\\t X \\tPIX\\nGPU1\\tPIX\\t X \\n'\n"
        "else printf '550.54.15\\n550.54.15\\n'; fi\n"
    )
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    report = examine()

    gpus = (Gpu(0, A100, 85_100_000_000), Gpu(1, A100, 85_100_000_000))
    assert Torch("2.4.1+cu124", "CUDA 12.4", gpus, "2.20.5", True, ("CPU", "CUDA")) == report.torch
    assert ("550.54.15", 2, {"0-1": "PIX"}) == (report.driver, report.driver_gpus, report.links)
    assert "2 GPUs with NCCL 2.20.5" in report.verdicts[1].why


@pytest.mark.heavy
@pytest.mark.parametrize(("missing", "code"), [(("torch",), 0), (("torch", "msgspec"), 1)])
def test_it_works_without_packages(missing: tuple[str, ...], code: int) -> None:
    """Without torch it succeeds and prints the pip command; without a package of dptrace's own the exit code is 1."""
    text = f"import sys\nfor name in {missing!r}: sys.modules[name] = None\n"
    text += "from dptrace.commands.shared.main import main\nmain()"
    command = [sys.executable, "-c", text, "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    report = json.loads(done.stdout)
    assert (code, None, "it is not installed") == (done.returncode, report["torch"], report["torch_problem"])
    assert any("pip install 'torch>=2.4'" in verdict["why"] for verdict in report["verdicts"])
    assert list(missing[1:]) == list(report["broken"])
    assert report["verdicts"][0]["works"] == (code == 0)
    assert code == 0 or "msgspec: " in report["verdicts"][0]["why"]
    assert "Traceback" not in done.stderr
