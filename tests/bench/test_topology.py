"""The connections of a machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dptrace.bench.measure_links import describe_machine

MATRIX = "\tGPU0\tGPU1\nGPU0\t X \tNV18\nGPU1\tNV18\t X \n"


def nvidia_smi(folder: Path, does: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program named nvidia-smi first on the path."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{does}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_numa_nodes_are_listed_by_number(tmp_path: Path) -> None:
    """Node 10 follows node 2; other files are ignored."""
    for node, cores in (("node10", "8-15"), ("node2", "0-7"), ("nodes", "x")):
        (tmp_path / node).mkdir()
        (tmp_path / node / "cpulist").write_text(f"{cores}\n")
    (tmp_path / "node3").mkdir()  # without a list of cores

    assert [{"node": "2", "cores": "0-7"}, {"node": "10", "cores": "8-15"}] == describe_machine(0, tmp_path)["numa"]
    assert [] == describe_machine(0, tmp_path / "none")["numa"]


def test_the_matrix_of_links_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The matrix is what nvidia-smi prints; host and cores are listed too."""
    nvidia_smi(tmp_path, f"printf '{MATRIX}'", monkeypatch)
    machine = describe_machine(3)

    assert (3, MATRIX) == (machine["node"], machine["gpu_matrix"])
    assert machine["host"]
    assert machine["cores"] >= 1


def test_a_failing_or_missing_nvidia_smi_shows_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error output is not used as the matrix."""
    nvidia_smi(tmp_path, "echo no driver; exit 9", monkeypatch)
    assert "" == describe_machine(0)["gpu_matrix"]

    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert "" == describe_machine(0)["gpu_matrix"]
