"""Reading a run on a Dask cluster with a real scheduler and two worker processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import dptrace
from dptrace.commands.shared.main import cli
from dptrace.errors import DptraceError
from dptrace.load.dask import read_on_cluster
from dptrace.load.options import ReadOptions
from dptrace.readers.discovery import Sources, without_errors
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
    """A scheduler with two workers."""
    with cluster(tmp_path_factory.mktemp("dask"), [sys.executable], [sys.executable]) as address:
        yield address


@contextmanager
def cluster(folder: Path, *workers: Sequence[str]) -> Iterator[str]:
    """Start a scheduler and workers without nannies, in folders of their own; each worker by its words for Python."""
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    dask = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port)]
    worker = ["-m", "distributed.cli.dask_worker", address, "--no-nanny", "--nthreads", "1"]
    commands = [[*dask, "--no-dashboard"], *([*python, *worker] for python in workers)]
    # Without site, Python does not look for packages that are installed in place, as dptrace is.
    packages = str(Path(distributed.__file__).parents[1])
    paths = [packages if "-S" in command else str(Path(__file__).parents[2]) for command in commands]
    quiet: Any = {"cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    processes = [
        subprocess.Popen([*command, "--dashboard-address", ":0"], env=os.environ | {"PYTHONPATH": path}, **quiet)
        for command, path in zip(commands, paths, strict=True)
    ]
    # On a busy machine they take longer to start than a command waits for them.
    with distributed.Client(address, timeout=60) as client:
        if workers:
            client.wait_for_workers(len(workers), timeout=60)
    try:
        yield address
    finally:
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
    words = ["diff", "--json", folder.name, folder.name]
    here, there = (CliRunner().invoke(cli, [*words, *more]) for more in ([], ["--dask", address]))
    assert json.loads(here.stdout)["figures"] == json.loads(there.stdout)["figures"]
    refused = CliRunner().invoke(cli, [*words[:1], *words[2:], "--csv", "kernels", "--dask", address])
    assert (2, True) == (refused.exit_code, "figures only" in refused.stderr)


def test_workers_that_cannot_read_are_named(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    """One without dptrace, before anything is read, and a cluster without any, while it is waited for."""
    monkeypatch.setattr("dptrace.load.dask._TIMEOUT", 1)
    for workers, says in ([[sys.executable, "-S"]], "cannot import dptrace"), ([], "no workers"):
        with (
            cluster(tmp_path_factory.mktemp("dask"), *workers) as address,
            pytest.raises(DptraceError, match=says) as caught,
        ):
            dptrace.open(folder, dask=address, figures_only=True)
        assert "tcp://" in str(caught.value)
    assert "waiting 1 s" in capfd.readouterr().err


def test_workers_without_credentials_are_said_to_need_them(address: str) -> None:
    """One sentence for all files; the machine that asks may well have credentials."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Denying) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        files = [f"http://127.0.0.1:{server.server_port}/rank{rank}.json" for rank in range(3)]
        found = dict(
            read_on_cluster(
                [Source.of(file) for file in files], ReadOptions(dask=address, figures_only=True, cache=False)
            )
        )
        server.shutdown()

    with pytest.raises(DptraceError, match=r"rank0.json and 2 more files: access denied.*Dask workers") as caught:
        without_errors(Sources(tuple(map(Source.of, files)), frozenset(), {}, ()), found)
    assert 1 == str(caught.value).count("denied")


class _Denying(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(403)

    do_HEAD = do_GET

    def log_message(self, *args: object) -> None:
        pass


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
    monkeypatch.setattr("dptrace.load.dask._ANSWER", 1)
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
