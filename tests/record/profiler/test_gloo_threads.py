"""The ids of gloo's threads."""

from __future__ import annotations

from pathlib import Path

from dptrace.record.profiler.gloo_threads import gloo_threads


def test_threads_come_in_the_order_of_their_making(tmp_path: Path) -> None:
    """Sorted by start time, then by id, since ids wrap around; other and unreadable threads are left out."""
    threads = {7: ("pt_gloo_runloop", 500), 9: ("pt_gloo_runloop", 400), 8: ("pt_gloo_runloop", 400), 6: ("python3", 1)}
    for thread, (name, began) in threads.items():
        task = tmp_path / str(thread)
        task.mkdir()
        (task / "comm").write_text(f"{name}\n")
        (task / "stat").write_text(f"{thread} (a ) name) S " + " ".join(["0"] * 18 + [str(began), "0"]))
    (tmp_path / "10").mkdir()

    assert [8, 9, 7] == gloo_threads(tmp_path)


def test_a_system_that_does_not_show_has_none(tmp_path: Path) -> None:
    """Only Linux lists threads as files; elsewhere the result is empty."""
    assert [] == gloo_threads(tmp_path / "absent")
