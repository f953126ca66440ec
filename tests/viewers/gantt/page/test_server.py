"""The local server: which requests it answers, its headers, and when it stops."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from dptrace.errors import DptraceError
from dptrace.run.run import Run
from dptrace.viewers.gantt.chart import chart
from dptrace.viewers.gantt.page import document as gantt
from dptrace.viewers.gantt.page import server
from dptrace.viewers.gantt.page.server import PageServer, tunnel
from dptrace.viewers.gantt.tiles.service import TileService
from dptrace.viewers.gantt.tiles.store import build
from tests.support.browser import PATIENCE_S, browser_test, open_page
from tests.support.gantt_page import expected_figures, settle, shown_figures
from tests.support.synthetic import training_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def served() -> Iterator[PageServer]:
    started = PageServer(
        "<p>page</p>", {"details": bytes(range(200))}, TileService(build(chart(training_run(300)), []))
    )
    yield started
    started.close()


def ask(asked: PageServer, path: str, body: bytes | None = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Get a path, or post to it, on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", asked.port, timeout=60)
    connection.request("GET" if body is None else "POST", path, body, headers)
    answer = connection.getresponse()
    result = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    connection.close()
    return result


def root(served: PageServer) -> str:
    return urlsplit(served.url).path


def test_page_and_files_come_by_the_whole_address(served: PageServer) -> None:
    """With their types, their lengths, and no other file."""
    status, headers, body = ask(served, root(served))
    assert (200, b"<p>page</p>") == (status, body)
    assert "text/html; charset=utf-8" == headers["content-type"]
    status, headers, body = ask(served, root(served) + "details")
    assert (200, bytes(range(200))) == (status, body)
    assert "application/json" == headers["content-type"]
    assert 404 == ask(served, root(served) + "other")[0]
    assert 404 == ask(served, root(served) + "../pyproject.toml")[0]


@pytest.mark.heavy
def test_without_the_token_nothing_is_served(served: PageServer) -> None:
    """The response does not contain the page."""
    for path in ("/", "/details", "/view", "/x/", "//"):
        status, _, body = ask(served, path)

        assert 403 == status, path
        assert b"page</p>" not in body, path


@pytest.mark.heavy
def test_the_token_can_not_be_guessed() -> None:
    """Each server has 24 new random bytes."""
    one, two = PageServer("", {}), PageServer("", {})
    try:
        assert root(one) != root(two)
        assert len(root(one)) >= 34
    finally:
        one.close()
        two.close()


@pytest.mark.heavy
def test_a_foreign_name_is_refused(served: PageServer) -> None:
    """DNS rebinding: another site's name resolves to this machine."""
    for host, status in (
        ("127.0.0.1:1", 200),
        ("localhost", 200),
        ("LOCALHOST:8000", 200),
        ("[::1]:80", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example:80", 421),
        ("[bad", 421),
        ("", 421),
        ("10.0.0.1", 421),
    ):
        assert status == ask(served, root(served), Host=host)[0], (host, status)


def test_no_other_page_may_read_or_frame_it(served: PageServer) -> None:
    """All responses forbid CORS, sniffing, frames, referrers and caching."""
    expected = {"x-content-type-options": "nosniff", "cache-control": "no-store", "referrer-policy": "no-referrer"}
    expected |= {"cross-origin-resource-policy": "same-origin", "server": "dptrace"}
    expected |= {"content-security-policy": "frame-ancestors 'none'"}
    for path in (root(served), root(served) + "details", "/"):
        _, headers, _ = ask(served, path, Origin="https://evil.example")

        assert not [name for name in headers if name.startswith("access-control")]
        assert expected == {name: headers[name].strip() for name in expected}, path


def test_it_listens_on_this_machine_only(served: PageServer) -> None:
    """The socket is bound to 127.0.0.1."""
    assert "127.0.0.1" == served._server.socket.getsockname()[0]


@pytest.fixture
def open_files(request: pytest.FixtureRequest) -> Iterator[None]:
    """Hold as many files open as a large run has mapped."""
    with ExitStack() as held:
        try:
            for _ in range(request.param):
                held.enter_context(Path(os.devnull).open())
        except OSError:
            pytest.skip("a process may not open so many files here")
        yield


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize("open_files", [0, 1100], indirect=True)
@pytest.mark.usefixtures("open_files")
def test_it_ends_when_the_tab_is_gone_but_not_while_one_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reload reopens the tab before GRACE_S is over."""
    monkeypatch.setattr(server, "GRACE_S", 0.6)
    started = PageServer("", {})
    tabs = started._server.tabs

    def tab() -> socket.socket:
        line = socket.create_connection(("127.0.0.1", started.port))
        line.sendall(f"GET {root(started)}alive HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        head = b""
        while b"\r\n\r\n" not in head:
            head += line.recv(4096)
        assert b"text/event-stream" in head
        return line

    try:
        time.sleep(0.7)
        assert not tabs.all_closed()
        first = tab()
        time.sleep(0.8)
        assert not tabs.all_closed()
        first.close()
        time.sleep(0.2)
        second = tab()
        time.sleep(0.8)
        assert not tabs.all_closed()
        began = time.monotonic()
        second.close()
        started.wait()
        assert 0.6 <= time.monotonic() - began < 60
    finally:
        started.close()


def test_a_port_in_use_is_an_error(served: PageServer) -> None:
    """The message has the address and names --port."""
    with pytest.raises(DptraceError, match=rf"127\.0\.0\.1:{served.port}: .*--port"):
        PageServer("", {}, port=served.port)


def test_an_unknown_host_is_an_error() -> None:
    """The message has the host and names --host."""
    with pytest.raises(DptraceError, match=r"no\.such\.host\.invalid: .*--host"):
        PageServer("", {}, host="no.such.host.invalid")


@pytest.mark.heavy
def test_at_another_address_it_goes_by_its_number() -> None:
    """A numeric address cannot be DNS rebinding; an unknown name is still refused."""
    started = PageServer("page", {}, host="0.0.0.0")
    try:
        assert 200 == ask(started, root(started), Host="10.1.2.3:99")[0]
        assert 200 == ask(started, root(started), Host=socket.gethostname())[0]
        assert 421 == ask(started, root(started), Host="evil.example")[0]
        assert socket.gethostname() in started.url
    finally:
        started.close()


def test_the_tunnel_is_an_ssh_command() -> None:
    """With the address and port of the SSH session, and the page's port on both ends."""
    assert "ssh -N -L 8000:127.0.0.1:8000 ada@10.0.0.5" == tunnel("10.0.0.9 50000 10.0.0.5 22", "ada", 8000)
    assert "ssh -N -p 2222 -L 8000:127.0.0.1:8000 ada@10.0.0.5" == tunnel("10.0.0.9 50000 10.0.0.5 2222", "ada", 8000)


@pytest.fixture(scope="module")
def run() -> Run:
    return training_run(3_000, ranks=2)


@pytest.mark.slow
@browser_test
def test_a_served_page_shows_the_split_s_figures_and_ends_with_its_tab(
    browser: Browser, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of the server are the same figures under the policy; closing the tab stops the server, a reload does not.
    A connection that breaks is told at once."""
    monkeypatch.setattr(server, "GRACE_S", 1.5)
    drawn = gantt.served(run)
    started = PageServer(drawn.page, drawn.files, TileService(drawn.store))
    try:
        with open_page(browser, started.url) as (page, errors):
            settle(page)
            assert expected_figures(run) == shown_figures(page)
            page.reload()
            page.locator("html[data-ready='1']").wait_for(state="attached", timeout=1000 * PATIENCE_S)
            settle(page)
            assert expected_figures(run) == shown_figures(page)
            for event, shown in (("error", True), ("open", False)):
                page.evaluate("(event) => dptraceOpen.dispatchEvent(new Event(event))", event)
                assert shown == page.locator("#problem", has_text="The server has ended").is_visible()
            assert [] == errors
            assert not started._server.tabs.all_closed()
        began = time.monotonic()
        started.wait()
        assert time.monotonic() - began < 60
    finally:
        started.close()


@pytest.mark.heavy
def test_a_served_page_is_small_for_any_run() -> None:
    """It holds no interval and no name, and may ask its own server only."""
    drawn = gantt.served(training_run(200_000, ranks=2))

    assert len(drawn.page) < 1_850_000  # Bokeh's ids get longer with each page of the process
    assert "connect-src &#39;self&#39;;" in drawn.page
    assert "ampere_bf16" not in drawn.page


def test_requests_are_answered_compressed(served: PageServer) -> None:
    """On a connection that is kept."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    for _ in range(2):
        connection.request("POST", root(served) + "sums", b'{"start": 0, "end": 1e9}')
        answer = connection.getresponse()
        assert (200, "gzip") == (answer.status, answer.getheader("Content-Encoding"))
        assert {"parts", "overlapped", "count"} == set(json.loads(gzip.decompress(answer.read())))
    connection.close()


@pytest.mark.heavy
def test_a_bad_request_is_refused_in_a_sentence(served: PageServer, capsys: pytest.CaptureFixture[str]) -> None:
    """With status 400 and no traceback, however it is wrong."""
    for name, body in (
        ("sums", b""),
        ("sums", b"{"),
        ("sums", b"[" * 100_000),
        ("sums", b'{"start": 5, "end": 5}'),
        ("sums", b'{"start": 0, "end": 1e400}'),
        ("sums", b'{"start": 0, "end": NaN}'),
        ("sums", b'{"start": 0, "end": 1, "more": 2}'),
        ("view", b'{"start": 0, "end": 9, "width": 5, "columns": [99999], "raw": [], "shortest": 0}'),
        ("view", b'{"start": 0, "end": 9, "width": 5, "columns": [-1], "raw": [], "shortest": 0}'),
        ("view", b'{"start": 0, "end": 9, "width": 100000000, "columns": [0], "raw": [], "shortest": 0}'),
        ("tiles", b'{"level": 0, "runs": [[0, 0, 1000000000]]}'),
        ("tiles", b'{"level": 50, "runs": [[0, 1000000000000, 1000000000000]]}'),
        ("rows", b'{"places": [[0, 1000000000]]}'),
        ("at", b'{"lane": 0, "time": "x", "slack": 0}'),
        ("streams", b'{"track": 7}'),
        ("find", b'{"text": "", "start": 0, "end": 9, "width": 5, "lanes": []}'),
        ("other", b"{}"),
    ):
        status, _, shown = ask(served, root(served) + name, body)

        assert 400 == status, shown
        assert b"Traceback" not in shown, (name, body)
        assert ("", "") == tuple(capsys.readouterr()), (name, body)


def test_a_request_that_is_too_large_is_not_read(served: PageServer) -> None:
    """Nor one without a length."""
    assert 413 == ask(served, root(served) + "sums", b"", **{"Content-Length": "999999999999"})[0]
    assert 411 == ask(served, root(served) + "sums", b"", **{"Transfer-Encoding": "chunked", "Content-Length": "x"})[0]


def test_only_the_page_itself_may_ask(served: PageServer) -> None:
    """Not another site's page, which knows neither the token nor has this origin."""
    body, place = b'{"start": 0, "end": 1e9}', root(served) + "sums"
    own = f"http://127.0.0.1:{served.port}"

    assert 200 == ask(served, place, body, Origin=own)[0]
    assert 403 == ask(served, place, body, Origin="https://evil.example")[0]
    assert 403 == ask(served, place, body, Origin="null")[0]
    assert 403 == ask(served, "/wrong/sums", body, Origin=own)[0]
    assert 421 == ask(served, place, body, Host="evil.example")[0]
