"""A short run of the fuzzer; tests/support/fuzz.py runs it for hours."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from dptrace.readers.kineto.reader import read_trace
from tests.support.fuzz import Fuzzer, check_step, examine
from tests.support.fuzz_formats import archived
from tests.support.kineto_files import KinetoFile, training_step
from tests.support.silent_damage import check_silence

FILES = 25
"""How many each of the two runs reads."""

made = cache(Fuzzer)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, random.SystemRandom().randrange(1 << 30)], ids=["fixed", "random"])
def test_no_damage_breaks_the_reader(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any damaged trace leads to figures that are a partition, or to a DptraceError."""
    print(f"seed {seed}")
    monkeypatch.setattr("dptrace.readers.stream.CHUNK", 4 << 20)  # the fuzzer changes it; monkeypatch restores it
    fuzzer = made(seed)

    found = list(fuzzer.run(iter(range(FILES))))

    reports = [f"seed {finding.seed}, number {finding.number}, {finding.kind}:\n{finding.error}" for finding in found]
    assert not reports, "\n".join(reports)
    # A few of 25 files are damaged where nothing is read: of the fixed seed, four are.
    assert {"read with damage", "refused"} | ({"read"} if seed == 1 else set()) <= set(fuzzer.results)


@pytest.mark.slow
def test_files_are_made_again_from_seed_and_number() -> None:
    """A finding can be reproduced."""
    assert [made(1).make(n) for n in range(8)] == [Fuzzer(1).make(n) for n in range(8)]


@pytest.mark.slow
@pytest.mark.heavy
def test_the_fuzzers_undamaged_files_are_readable(tmp_path: Path) -> None:
    """Every undamaged file is read or refused with an error."""
    path = tmp_path / "rank0.json"
    for text in made(1).texts:
        path.write_bytes(text)
        assert examine(path) in ("read", "read with damage", "refused")


def test_a_changed_figure_without_a_note_is_a_finding(tmp_path: Path) -> None:
    """But for a change that leaves sound JSON, which no reader can tell from the truth."""
    file = training_step(KinetoFile(), 0, 0)
    before = file.text().encode()
    file.events[-1]["dur"] += 5
    path = tmp_path / "rank0.json"

    path.write_text(file.text())
    check_silence(path, before)
    path.write_text(file.text() + "]")
    with pytest.raises(AssertionError, match="without a note"):
        check_silence(path, before)


@pytest.mark.slow
def test_the_fuzzers_files_of_other_formats_are_good(tmp_path: Path) -> None:
    """Undamaged, Perfetto traces lose no event whose category they show, and are read from archives of both kinds."""
    found = Counter[str]()
    for number, data in enumerate(made(1).binaries):
        path = tmp_path / "rank0.pftrace"
        path.write_bytes(data)
        suffix, archive = archived(random.Random(number), path.name, data)
        packed = path.with_suffix(suffix)
        packed.write_bytes(archive)
        # Torch wrote no categories at first, and an event made by hand may lack the args that show it.
        damage = [sentence for sentence in map(str, read_trace(path).damage) if "category (cat)" not in sentence]
        found += Counter([examine(packed), suffix, *damage])

    assert {".zip", ".tar"} < set(found) <= {".zip", ".tar", "read", "read with damage"}


def test_figures_that_do_not_add_up_are_a_finding() -> None:
    """The fuzzer's own check can fail."""
    names = ("forward", "backward", "optimizer", "other", "exposed_comm", "overlapped_comm", "exposed_memory", "idle")
    step = {f"{name}_ns": 1 for name in names}

    check_step({**step, "wall_ns": 7, "comm": {}})
    for wrong in ({"wall_ns": 8}, {"wall_ns": 5, "idle_ns": -1}):
        with pytest.raises(AssertionError):
            check_step({**step, "comm": {}, **wrong})
