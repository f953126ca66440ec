"""The fuzzer, for a moment: see tests/fuzz.py for hours."""

from __future__ import annotations

import random
import time
from itertools import count
from pathlib import Path

import pytest

from tests.support.fuzz import Fuzzer, check_step, examine

SECONDS = 25
"""What each of the two runs takes at most."""


@pytest.mark.parametrize("seed", [1, random.SystemRandom().randrange(1 << 30)], ids=["fixed", "random"])
def test_no_damage_breaks_the_reader(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is done to a trace, it ends in figures that are a partition or in a DptraceError."""
    print(f"seed {seed}")
    monkeypatch.setattr("dptrace.readers.stream.CHUNK", 4 << 20)  # the fuzzer changes it; this puts it back
    fuzzer = Fuzzer(seed)

    found = list(fuzzer.run(count(), time.monotonic() + SECONDS))

    told = [f"seed {finding.seed}, number {finding.number}, {finding.kind}:\n{finding.error}" for finding in found]
    assert not told, "\n".join(told)
    assert {"read", "read and told", "refused"} <= set(fuzzer.results)


def test_files_are_made_again_from_seed_and_number() -> None:
    """A finding can be looked at later."""
    assert [Fuzzer(5).make(n) for n in range(20)] == [Fuzzer(5).make(n) for n in range(20)]


def test_what_the_fuzzer_begins_with_is_sound(tmp_path: Path) -> None:
    """Undamaged, every file is read, and only bare events and no-GPU recordings are remarked upon."""
    path = tmp_path / "rank0.json"
    for text in Fuzzer(1).texts:
        path.write_bytes(text)
        assert examine(path) in ("read", "read and told", "refused")


def test_figures_that_do_not_add_up_are_a_finding() -> None:
    """The fuzzer's own check can fail."""
    names = ("forward", "backward", "optimizer", "other", "exposed_comm", "overlapped_comm", "exposed_memory", "idle")
    step = {f"{name}_ns": 1 for name in names}

    check_step({**step, "wall_ns": 7, "comm": {}})
    for wrong in ({"wall_ns": 8}, {"wall_ns": 5, "idle_ns": -1}):
        with pytest.raises(AssertionError):
            check_step({**step, "comm": {}, **wrong})
