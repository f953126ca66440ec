"""The first machine begins before the others, and the end of one is noticed by the others."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from dptrace.errors import RecordingError
from dptrace.record.launch import machines
from dptrace.record.launch.machines import EndedElsewhere, wait_for_first_machine


def test_a_machine_waits_until_the_first_one_listens() -> None:
    """It returns once the port is open, which happens after the wait has begun; a closed port is told."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(RecordingError, match=endpoint):
            wait_for_first_machine(endpoint, timeout_s=0.1)
        waiting = threading.Thread(target=wait_for_first_machine, args=(endpoint,))
        waiting.start()
        listener.listen()
        waiting.join(60)

    assert not waiting.is_alive()


@pytest.mark.parametrize("how", ["failed", "renamed"])
def test_the_end_of_another_machine_is_noticed_after_a_grace(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its list of failed ranks, or a folder that the first machine has renamed, end this one; its own list does not."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    folder = tmp_path / "staging"
    folder.mkdir()
    ended = EndedElsewhere(folder, 1)
    (folder / "agent1.json").write_text("[]")
    assert not ended
    if how == "failed":
        (folder / "agent0.json").write_text("[]")
    else:
        folder.rename(tmp_path / "done")
    now[0] += 2
    assert not ended
    now[0] += machines._GRACE_S + 1
    assert ended
