"""The command line of accelerate launch."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptrace.errors import UsageError
from dptrace.record.options.accelerate_command import parse_accelerate


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give accelerate a home without settings."""
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    return tmp_path


def test_plain_options_become_processes_and_variables() -> None:
    """Accelerator() reads these variables."""
    words = "--multi_gpu --num-processes 4 --mixed_precision bf16 --cpu train.py --cpu no"
    found = parse_accelerate(words.split())

    assert ("train.py", "4", ("--cpu", "no")) == (found.script, found.processes, found.arguments)
    assert {"ACCELERATE_MIXED_PRECISION": "bf16", "ACCELERATE_USE_CPU": "true"} == found.environment
    assert () == found.notes


@pytest.mark.parametrize("words", ["--use_fsdp train.py", "--config_file a.yaml train.py", "--num_proc 2 train.py", ""])
def test_other_options_are_refused_with_what_to_do(words: str) -> None:
    """Ignored, they would record another training than the one that was meant."""
    with pytest.raises(UsageError, match="dptrace record --gpus N"):
        parse_accelerate(words.split())


def test_settings_that_are_not_read_are_reported(home: Path) -> None:
    """accelerate would have read them."""
    (home / "accelerate").mkdir()
    (home / "accelerate" / "default_config.yaml").write_text("")

    assert str(home) in " ".join(parse_accelerate(["train.py"]).notes)
