"""What commands say of recordings without a GPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from dptrace.commands.shared.main import cli

TRACES = Path(__file__).parents[2] / "traces"
DENIALS = ("No GPU work here", "operators, not kernels", "dptrace kernels")
"""What says that there is none, and the name of a command."""


@pytest.mark.slow
def test_no_gpu_is_spoken_of_where_there_is_none() -> None:
    """Nor what only a GPU has."""
    for command in ("analyze --all", "kernels", "advise", "critical-path", "diff"):
        for run in ("ddp_cpu_2ranks", "single_cpu"):
            paths = [str(TRACES / run)] + [str(TRACES / "naive_cpu_2ranks")] * (command == "diff")
            result = CliRunner(env={"COLUMNS": "200"}).invoke(cli, [*command.split(), *paths])

            assert 0 == result.exit_code, result.output
            text = result.stdout
            for denial in DENIALS:
                text = text.replace(denial, "")
            assert not re.findall(r".*(?:GPU|kernel|CUDA|cuda|NCCL|NVLink|nvidia).*", text), (command, run)
