"""On one machine, nothing that a recording starts listens to other machines."""

from __future__ import annotations

import argparse
import subprocess
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from tests.support.forking import start_python
from tests.support.processes import wait_until
from tests.support.recordings import environment

torch = pytest.importorskip("torch")

SCRIPT = """
import os, signal, sys
from pathlib import Path
import torch, torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    model(torch.ones(2, 8)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    if step == 5:
        Path(f"here{dist.get_rank()}").touch()
        while not Path("go").exists():
            signal.sigtimedwait([signal.SIGCHLD], 0.02)
    if step == 8 and dist.get_rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
"""


def _listening(launcher: int) -> set[str]:
    """Return the addresses at which a process and its descendants listen."""
    parent = psutil.Process(launcher)
    return {
        connection.laddr.ip
        for process in (parent, *parent.children(recursive=True))
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }


@pytest.mark.slow
@pytest.mark.spawn
def test_a_recording_listens_on_loopback_only_and_restarts_there(tmp_path: Path) -> None:
    """The launcher, torchrun and the ranks listen on 127.0.0.1; a killed rank's peers start again with a new store."""
    (tmp_path / "train.py").write_text(SCRIPT)
    schedule = ["--gpus", "2", "--steps", "2", "--warmup", "2", "--wait", "2", "--max-restarts", "1"]
    words = ("-m", "dptrace", "record", "-q", *schedule, "train.py")
    launcher = start_python(*words, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True)
    wait_until(lambda: launcher.poll() is not None or len(list(tmp_path.glob("here*"))) == 2)
    addresses = _listening(launcher.pid)
    (tmp_path / "go").touch()
    errors = launcher.communicate(timeout=120)[1]

    assert {"127.0.0.1"} == addresses
    assert 0 == launcher.returncode, errors
    assert (tmp_path / "runs" / "train" / "run.json").exists()


def test_the_store_of_an_agent_is_bound_to_loopback() -> None:
    """The store answers on 127.0.0.1 and on no other address of the machine."""
    from dptrace.record.launch.loopback import loopback_store

    store = loopback_store()
    store.set("key", "value")
    client = torch.distributed.TCPStore("127.0.0.1", store.port, is_master=False, timeout=timedelta(seconds=30))

    assert b"value" == client.get("key")
    here = {c.laddr.ip for c in psutil.Process().net_connections("inet") if c.laddr.port == store.port}
    assert {"127.0.0.1"} == here


def test_a_torch_without_bound_sockets_keeps_its_own_rendezvous(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch cannot use a bound socket, and for jobs on several machines, the arguments stay as they are."""
    from dptrace.record.launch import loopback

    def refuse() -> None:
        raise TypeError("unknown argument master_listen_fd")

    monkeypatch.setattr(loopback, "loopback_store", refuse)
    alone = argparse.Namespace(standalone=True, rdzv_backend="static", rdzv_endpoint="", node_rank=0, rdzv_id="none")
    several = argparse.Namespace(standalone=False, rdzv_backend="static", rdzv_endpoint="host0:29400", node_rank=1)
    for arguments in (alone, several):
        before = dict(vars(arguments))
        loopback.listen_on_loopback(arguments)
        assert before == vars(arguments)
