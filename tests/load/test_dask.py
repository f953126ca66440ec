"""Reading a run on a Dask cluster with a real scheduler and two worker processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import dptrace
from dptrace.commands.shared.main import cli
from dptrace.errors import DptraceError
from dptrace.load.dask import read_on_cluster
from dptrace.load.options import ReadOptions
from dptrace.readers.source import Source
from tests.support.kineto_files import KinetoFile, training_step

distributed = pytest.importorskip("distributed")
pytestmark = pytest.mark.spawn


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a scheduler and two workers without nannies, in folders of their own."""
    folder, port = tmp_path_factory.mktemp("dask"), free_port()
    address = f"tcp://127.0.0.1:{port}"
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    dask = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port)]
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--no-nanny", "--nthreads", "1"]
    commands = [[*dask, "--no-dashboard", "--dashboard-address", ":0"], *[[*worker, "--dashboard-address", ":0"]] * 2]
    processes = [
        subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for command in commands
    ]
    # On a busy machine they take longer to start than a command waits for them.
    with distributed.Client(address, timeout=60) as client:
        client.wait_for_workers(2, timeout=60)
    yield address
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for rank in range(4):
        training_step(KinetoFile(rank=rank, world_size=4), 1, rank).write(tmp_path / f"r{rank}.json")
    return tmp_path


def test_figures_come_back_from_the_cluster(address: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--dask` prints what the same command prints without; relative paths hold, though workers live elsewhere."""
    monkeypatch.chdir(folder.parent)
    (folder / "r2.json").write_text("")
    here = CliRunner().invoke(cli, ["analyze", "--json", "--no-gains", folder.name])
    there = CliRunner().invoke(cli, ["analyze", "--json", "--no-gains", folder.name, "--dask", address])

    assert (0, here.stdout) == (there.exit_code, there.stdout)
    assert "r2.json: is empty" in there.stderr


@pytest.mark.slow
def test_a_worker_that_dies_costs_a_retry(address: str, folder: Path) -> None:
    """Killed in the middle, one worker's files are read by the other."""
    sources = [Source.of(path) for path in sorted(folder.glob("*.json"))] * 25
    with distributed.Client(address) as client:
        client.wait_for_workers(2, timeout=60)
        pids = list(client.run(os.getpid).values())
    results = read_on_cluster(sources, ReadOptions(dask=address, figures_only=True, cache=False))
    got = [next(results)]
    os.kill(pids[0], signal.SIGKILL)
    got += list(results)

    assert list(range(100)) == sorted(index for index, _ in got)
    assert not [result for _, result in got if isinstance(result, DptraceError)]


def test_no_scheduler_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address without a scheduler is an error message, after a short time."""
    monkeypatch.setattr("dptrace.load.dask._TIMEOUT", 1)
    begin = time.monotonic()
    with pytest.raises(DptraceError, match=r"no Dask scheduler.*--dask local"):
        list(read_on_cluster([], ReadOptions(dask=f"tcp://127.0.0.1:{free_port()}", figures_only=True)))
    with pytest.raises(DptraceError, match="no Dask scheduler"):
        list(read_on_cluster([], ReadOptions(dask="nonsense://x", figures_only=True)))

    assert time.monotonic() - begin < 20


def test_pictures_cannot_come_from_a_cluster(address: str, folder: Path) -> None:
    """The run has figures; asking for its intervals is an error with the reason."""
    run = dptrace.open(folder, dask=address)

    assert 4 == len(run.steps())
    with pytest.raises(DptraceError, match="figures_only"):
        run.kernels()
