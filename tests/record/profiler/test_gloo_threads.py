"""The ids of gloo's threads."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import pytest

from dptrace.record.profiler.gloo_threads import gloo_threads

LAST_ID = Path("/proc/sys/kernel/ns_last_pid")
LARGEST_ID = Path("/proc/sys/kernel/pid_max")


def _threads_in_order(count: int) -> tuple[list[int], list[int]]:
    """Start threads that are named as gloo's, one after the other; return their ids, and what is found of them."""
    ids: list[int] = []
    end = threading.Event()

    def run(named: threading.Event) -> None:
        number = threading.get_native_id()
        Path(f"/proc/self/task/{number}/comm").write_text("pt_gloo_runloop")
        ids.append(number)
        named.set()
        end.wait()

    threads = []
    for _ in range(count):
        threads.append(threading.Thread(target=run, args=[named := threading.Event()]))
        threads[-1].start()
        named.wait()
    found = [thread for thread in gloo_threads() if thread in ids]  # other tests of this process may have left some
    end.set()
    for thread in threads:
        thread.join()
    return ids, found


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux")
def test_threads_come_in_the_order_of_their_creation() -> None:
    """Threads of one hundredth of a second stay in order, also when their ids begin again at the smallest."""
    for _ in range(20):
        with suppress(OSError):  # only root may choose the next id
            LAST_ID.write_text(str(int(LARGEST_ID.read_text()) - 4))
        ids, found = _threads_in_order(8)
        assert ids == found
        if ids != sorted(ids):
            return
    pytest.skip("ids cannot be made to begin again here")


def test_other_and_unreadable_threads_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not gloo's, has ended meanwhile or has no number; the order is that of the system's list."""
    names = {"9": "pt_gloo_runloop", "6": "python3", "self": "pt_gloo_runloop", "7": "pt_gloo_runloop"}
    for thread, name in names.items():
        (tmp_path / thread).mkdir()
        (tmp_path / thread / "comm").write_text(f"{name}\n")
    monkeypatch.setattr("os.listdir", lambda folder: [*names, "10"] if folder == tmp_path else [])

    assert [9, 7] == gloo_threads(tmp_path)


def test_a_system_that_does_not_show_has_none(tmp_path: Path) -> None:
    """Only Linux lists threads as files; elsewhere the result is empty."""
    assert [] == gloo_threads(tmp_path / "absent")
