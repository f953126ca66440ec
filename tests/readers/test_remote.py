"""Traces at URLs: fsspec's memory file system, and an HTTP server on this machine."""

from __future__ import annotations

import gzip
import json
import re
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dptrace.commands.shared.main import cli
from dptrace.errors import MissingExtraError, TraceError
from dptrace.load.open import open_run
from dptrace.load.options import ReadOptions
from dptrace.readers.discovery import find
from dptrace.readers.kineto.reader import read_trace
from dptrace.readers.source import Source
from dptrace.readers.storage import file_identity
from tests.support.kineto_files import KinetoFile, training_step

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
pytest.importorskip("aiohttp", reason="aiohttp is not installed")


def trace(rank: int) -> bytes:
    file = KinetoFile(rank=rank, world_size=2)
    for step in range(3):
        training_step(file, step, 1000.0 + 100 * step)
    return gzip.compress(file.text().encode())


@pytest.fixture
def memory() -> Iterator[str]:
    system = fsspec.filesystem("memory")
    for rank in (0, 1):
        system.pipe(f"/runs/naive/rank{rank}.json.gz", trace(rank))
    system.pipe("/runs/naive/run.json", b'{"mode": "naive"}')
    yield "memory://runs"
    system.rm("/runs", recursive=True)


class _Handler(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        known = re.match(r"/(\d{3})\.json", self.path)
        if known:
            self.send_error(int(known[1]))
        elif self.path.startswith("/loop"):
            self.send_response(302)
            self.send_header("Location", self.path)
            self.end_headers()
        elif self.path.startswith("/cut"):
            data = trace(0)
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
        else:
            super().do_GET()

    def log_message(self, *args: object) -> None:
        pass

    def copyfile(self, source: Any, outputfile: Any) -> None:
        with suppress(ConnectionError):  # the reader closed the connection after the headers
            super().copyfile(source, outputfile)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "run").mkdir()
    for rank in (0, 1):
        (tmp_path / "run" / f"rank{rank}.json.gz").write_bytes(trace(rank))
    (tmp_path / "run" / "run.json").write_text('{"mode": "naive"}')
    http = ThreadingHTTPServer(("127.0.0.1", 0), lambda *args: _Handler(*args, directory=str(tmp_path)))
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{http.server_port}"
    http.shutdown()
    thread.join()
    http.server_close()


def test_a_prefix_or_a_pattern_gives_its_traces(memory: str) -> None:
    """As a local folder or glob would, with run.json."""
    for end in ("/naive", "/naive/", "", "/naive/rank*.json.gz", "/**/*.gz", "/naive/run.json"):
        found = find([memory + end])
        assert ["rank0.json.gz", "rank1.json.gz"] == [file.name for file in found.files]
        assert all(file.address.startswith("memory://runs/naive/rank") for file in found.files)
        assert ({} if "*" in end else {"mode": "naive"}) == found.metadata


def test_a_run_behind_a_url_has_the_figures_of_the_run_here(memory: str, tmp_path: Path) -> None:
    """The same bytes, the same split."""
    for rank in (0, 1):
        (tmp_path / f"rank{rank}.json.gz").write_bytes(trace(rank))

    there = open_run([memory + "/naive"], ReadOptions(cache=False, jobs=1))
    here = open_run([str(tmp_path)], ReadOptions(cache=False, jobs=1))

    assert here.steps().equals(there.steps())
    assert "memory://runs/naive" == there.path


def test_a_zip_behind_a_url_is_read_in_parts(memory: str, tmp_path: Path) -> None:
    """Its members are traces as in a local zip."""
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("rank0.json.gz", trace(0))
    fsspec.filesystem("memory").pipe("/runs/all.zip", (tmp_path / "all.zip").read_bytes())

    (file,) = find([memory + "/all.zip"]).files

    assert "memory://runs/all.zip!rank0.json.gz" == file.address
    assert 0 == read_trace(file).rank


def test_what_is_missing_is_named(memory: str) -> None:
    """The error names the address."""
    missing = (("/none.json", "no such file"), ("/none*.json", "nothing matches"), ("/empty", "no such file"))
    for end, message in missing:
        with pytest.raises(Exception, match=rf"memory://runs{re.escape(end)}: .*{message}"):
            open_run([memory + end])


def test_an_identity_changes_with_the_file(memory: str) -> None:
    """A cache can tell; a missing file has no identity."""
    source = Source.of(memory + "/naive/rank0.json.gz")
    before = file_identity(source)
    fsspec.filesystem("memory").pipe("/runs/naive/rank0.json.gz", trace(0) + b"\0")

    assert before is not None
    assert before != file_identity(source)
    assert file_identity(Source.of(memory + "/none")) is None


@pytest.mark.heavy
def test_the_command_line_reads_from_a_web_server(server: str) -> None:
    """A file, a folder as the server lists it, and a glob; the address keeps its slashes."""
    for end in ("/run/rank0.json.gz", "/run/", "/run", "/run/*.json.gz"):
        result = CliRunner().invoke(cli, ["analyze", server + end, "--json", "--no-cache", "--jobs", "1"])
        assert 0 == result.exit_code, result.output
        document = json.loads(result.stdout)
        assert server + end == document["run"]
        assert f"{server}/run/rank0.json.gz" == document["ranks"][0]["file"]


@pytest.mark.heavy
def test_secrets_in_an_address_work_and_are_not_shown(server: str) -> None:
    """A signature reaches the server, but no message, table or file."""
    url = server.replace("://", "://me:hush@") + "/run/rank0.json.gz?X-Amz-Signature=hush"

    result = CliRunner().invoke(cli, ["analyze", url, "--no-cache"])
    missing = CliRunner().invoke(cli, ["analyze", url.replace("rank0", "rank9"), "--no-cache"])

    assert 0 == result.exit_code, result.output
    assert 1 == missing.exit_code
    assert "hush" not in result.output + missing.output
    assert "rank9.json.gz?X-Amz-Signature=…: no such file" in missing.output


def test_a_missing_server_and_an_unknown_scheme_are_named() -> None:
    """Port 1 of this machine does not answer."""
    for url, message in (
        ("http://127.0.0.1:1/rank0.json", "can't be reached"),
        ("foo://bar/rank0.json", "can't be read: Protocol not known"),
    ):
        with pytest.raises(TraceError, match=rf"{url}: {message}"):
            read_trace(Source.of(url))


@pytest.mark.heavy
def test_server_errors_are_reported(server: str) -> None:
    """A broken connection is an error, not the end of the file."""
    for end, message in (
        ("/404.json", "no such file"),
        ("/loop.json", "from one to another without end"),
        ("/403.json", "403.*credentials"),
        ("/500.json", "status 500.*try again"),
        ("/cut.json.gz", "ended the transfer; try again"),
    ):
        with pytest.raises(TraceError, match=rf"{re.escape(server + end)}: .*{message}") as caught:
            read_trace(Source.of(server + end))
        assert caught.value.__suppress_context__


@pytest.mark.heavy
def test_an_archive_needs_a_server_that_gives_parts(server: str, tmp_path: Path) -> None:
    """Python's own server does not."""
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("rank0.json", b"[]" + b" " * 3_000_000)
    with pytest.raises(TraceError, match="whole files only"):
        find([f"{server}/all.zip"])


@pytest.mark.parametrize(("url", "package"), [("s3://b/rank0.json", "s3fs"), ("https://h/rank0.json", "fsspec")])
def test_a_missing_package_is_named_with_its_command(url: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For fsspec and each of its packages."""
    monkeypatch.setitem(sys.modules, package, None)
    if package == "fsspec":
        monkeypatch.setitem(sys.modules, "fsspec.core", None)

    with pytest.raises(MissingExtraError, match=rf"needs {package}.*pip install .*'{package}>="):
        read_trace(Source.of(url))
