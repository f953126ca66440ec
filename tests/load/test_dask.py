"""Reading a run on a Dask cluster with a real scheduler and two worker processes."""

from __future__ import annotations

import os
import re
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
from dptrace.errors import DptraceError, UsageError
from dptrace.load.dask import read_on_cluster
from dptrace.load.open import collect_results
from dptrace.load.options import ReadOptions
from dptrace.readers.discovery import Sources
from dptrace.readers.source import Source
from tests.support.kineto_files import KinetoFile, training_step

distributed = pytest.importorskip("distributed")
pytestmark = pytest.mark.spawn


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def of_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the workers of the module's cluster live."""
    return tmp_path_factory.mktemp("dask")


@pytest.fixture(scope="module")
def address(of_workers: Path) -> Iterator[str]:
    """A scheduler with two workers; their cache is the folder "cache" in that of the fixture ``of_workers``."""
    with cluster(of_workers, [sys.executable], [sys.executable]) as address:
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
    own = {"DPTRACE_CACHE": str(folder / "cache")}
    processes = [
        subprocess.Popen([*command, "--dashboard-address", ":0"], env=os.environ | own | {"PYTHONPATH": path}, **quiet)
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


def test_figures_come_back_from_the_cluster(
    address: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--dask` prints what the same command prints without; relative paths hold, though workers live elsewhere."""
    monkeypatch.chdir(folder.parent)
    (folder / "r2.json").write_text("")
    words = ["analyze", "--json", folder.name]
    here, there = both(words, address, monkeypatch, tmp_path)

    assert (0, here.stdout) == (there.exit_code, there.stdout)
    assert "r2.json: is empty" in there.stderr


REAL = Path(__file__).parents[2] / "traces"
VERBS = [
    "analyze --json --steps 11:12",
    "analyze --memory --json",
    "kernels --json --by operator",
    "whatif --json --perfect-overlap",
    "critical-path --json",
    "advise --json",
    "predict --json",
    "export -o OUT.json",
    "view -o OUT.html",
    "view -o OUT.svg --view memory",
    "report -o OUT.html",
    f"diff --json {REAL / 'interleaved_cpu_2ranks'}",
]


def both(words: list[str], address: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> tuple[Any, Any]:
    """Run a command here, and with the cluster; each with an empty cache."""
    answers = []
    for name, more in ("here", []), ("there", ["--dask", address]):
        monkeypatch.setenv("DPTRACE_CACHE", str(folder / name))
        answers.append(CliRunner().invoke(cli, [*words, *more]))
    return answers[0], answers[1]


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_answers_as_without_a_cluster(
    verb: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text, JSON and files are equal byte for byte, though this machine parses no trace for its figures."""
    out = tmp_path / "out"
    words = [*verb.replace("OUT", str(out)).split(), str(REAL / "naive_cpu_2ranks")]
    words += ["--force"] * ("OUT" in verb)
    written = []
    for name, more in ("here", []), ("there", ["--dask", address]):
        monkeypatch.setenv("DPTRACE_CACHE", str(tmp_path / name))
        if more:
            monkeypatch.setattr("dptrace.load.rank_file.read_trace", None)
        answer = CliRunner().invoke(cli, [*words, *more])
        files = [_numbered_anew(path.read_bytes()) for path in sorted(tmp_path.glob("out.*"))]
        written.append((answer.exit_code, answer.stdout, files))

    assert (0, True) == (written[0][0], any((written[0][1], written[0][2])))
    assert written[0] == written[1]


def _numbered_anew(page: bytes) -> bytes:
    """Return a page with Bokeh's ids, which count on in one process, in the order of their first use."""
    ids: dict[bytes, bytes] = {}
    return re.sub(rb'"p\d{4,}"', lambda match: ids.setdefault(match[0], b'"p%d"' % len(ids)), page)


@pytest.mark.heavy
@pytest.mark.parametrize("verb", ["whatif --json --perfect-overlap", "kernels --json --by operator"])
def test_intervals_stay_in_a_cache_that_workers_share(
    verb: str, address: str, of_workers: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where both have one cache folder, nothing is sent or stored again, and the answer is that of this machine."""
    words = [*verb.split(), str(REAL / "interleaved_cpu_2ranks")]
    monkeypatch.setenv("DPTRACE_CACHE", str(tmp_path / "here"))
    here = CliRunner().invoke(cli, words)
    monkeypatch.setenv("DPTRACE_CACHE", str(of_workers / "cache"))
    for stored_here in "_store", "read_trace":
        monkeypatch.setattr(f"dptrace.load.rank_file.{stored_here}", None)
    there = CliRunner().invoke(cli, [*words, "--dask", address])

    assert (0, here.stdout) == (there.exit_code, there.stdout), there.exception
    assert not list((of_workers / "cache").glob("*.part"))


@pytest.mark.slow
def test_a_worker_that_cannot_read_is_named(folder: Path, tmp_path: Path) -> None:
    """One without dptrace, before anything is read."""
    with (
        cluster(tmp_path, [sys.executable, "-S"]) as address,
        pytest.raises(DptraceError, match="cannot import dptrace") as caught,
    ):
        dptrace.open(folder, dask=address, figures_only=True)
    assert "tcp://" in str(caught.value)


def test_a_worker_that_lacks_a_file_is_named(address: str, folder: Path) -> None:
    """The file may be there for this machine and the other workers."""
    sources = [Source.of(folder / name) for name in ("r0.json", "r9.json")]
    found = dict(read_on_cluster(sources, ReadOptions(dask=address, figures_only=True, cache=False)))

    assert not isinstance(found[0], DptraceError)
    assert re.search(r"r9\.json: no such file\. The Dask worker tcp://127\.0\.0\.1:\d+ ", str(found[1]))


@pytest.mark.slow
def test_a_scheduler_without_workers_or_that_dies_is_one_error(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It dies while files are read, and while a worker is waited for; Dask's own log stays out."""
    sources = [Source.of(path) for path in sorted(folder.glob("*.json"))] * 10
    for workers in ([[sys.executable]], []):
        with cluster(tmp_path, *workers) as address, distributed.Client(address) as client:
            if not workers:
                with monkeypatch.context() as patch, pytest.raises(DptraceError, match="no workers") as caught:
                    patch.setattr("dptrace.load.dask._TIMEOUT", 1)
                    dptrace.open(folder, dask=address, figures_only=True)
                assert "tcp://" in str(caught.value)
            scheduler = client.run_on_scheduler(os.getpid)
            client.close()
            end = threading.Timer(3, os.kill, (scheduler, signal.SIGKILL))
            with pytest.raises(DptraceError, match="the Dask scheduler ended"):
                end.start()
                while True:
                    list(read_on_cluster(sources, ReadOptions(dask=address, figures_only=True, cache=False)))
            end.join()
    said = capfd.readouterr().err
    assert (True, False) == ("waiting 1 s" in said, "Traceback" in said)


@pytest.mark.slow
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
        collect_results(Sources(tuple(map(Source.of, files)), frozenset(), {}, ()), found)
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


@pytest.mark.slow
def test_no_scheduler_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address without a scheduler is an error message, after a short time."""
    monkeypatch.setattr("dptrace.load.dask._ANSWER", 1)
    begin = time.monotonic()
    with pytest.raises(DptraceError, match=r"no Dask scheduler.*--dask local"):
        list(read_on_cluster([], ReadOptions(dask=f"tcp://127.0.0.1:{free_port()}", figures_only=True)))
    with pytest.raises(DptraceError, match="no Dask scheduler"):
        list(read_on_cluster([], ReadOptions(dask="nonsense://x", figures_only=True)))

    assert time.monotonic() - begin < 20


def test_python_gets_intervals_or_figures(address: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that a cluster read answers as any; figures_only keeps it small, and says what it lacks."""
    monkeypatch.setattr("dptrace.load.rank_file.read_trace", None)

    assert 0 < len(dptrace.open(folder, dask=address).kernels())
    run = dptrace.open(folder, dask=address, figures_only=True, cache=False)
    assert 4 == len(run.steps())
    with pytest.raises(DptraceError, match="figures_only"):
        run.kernels()
    with pytest.raises(UsageError, match="leave cache=False out"):
        dptrace.open(folder, dask=address, cache=False)
