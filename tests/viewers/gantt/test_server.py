"""The local server: who is answered, what else is said, and when it ends."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from dptrace.errors import DptraceError
from dptrace.run.run import Run
from dptrace.viewers.gantt import page as gantt
from dptrace.viewers.gantt import server
from dptrace.viewers.gantt.server import PageServer, tunnel
from tests.support.browser import browser_test, chromium, open_page
from tests.support.gantt_page import expected_figures, settle, shown_figures
from tests.support.synthetic import training_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture
def served() -> Iterator[PageServer]:
    made = PageServer("<p>page</p>", {"delta": bytes(range(200))})
    yield made
    made.close()


def ask(at: PageServer, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", at.port, timeout=10)
    connection.putrequest("GET", path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    told = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    connection.close()
    return told


def root(at: PageServer) -> str:
    return urlsplit(at.url).path


def test_page_and_columns_come_by_the_whole_address(served: PageServer) -> None:
    """With their types, their lengths, and no other column."""
    status, headers, body = ask(served, root(served))
    assert (200, b"<p>page</p>") == (status, body)
    assert "text/html; charset=utf-8" == headers["content-type"]
    status, headers, body = ask(served, root(served) + "columns/delta")
    assert (200, bytes(range(200))) == (status, body)
    assert "application/octet-stream" == headers["content-type"]
    assert 404 == ask(served, root(served) + "columns/other")[0]
    assert 404 == ask(served, root(served) + "../pyproject.toml")[0]


@pytest.mark.parametrize("path", ["/", "/columns/delta", "/x/", "//"])
def test_without_the_token_nothing_is_told(served: PageServer, path: str) -> None:
    """Neither the page nor that there is one."""
    status, _, body = ask(served, path)

    assert 403 == status
    assert b"page</p>" not in body


def test_the_token_can_not_be_guessed() -> None:
    """24 random bytes, anew for each server."""
    one, two = PageServer("", {}), PageServer("", {})
    try:
        assert root(one) != root(two)
        assert len(root(one)) >= 34
    finally:
        one.close()
        two.close()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:1", 200),
        ("localhost", 200),
        ("LOCALHOST:8000", 200),
        ("[::1]:80", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example:80", 421),
        ("[bad", 421),
        ("", 421),
        ("10.0.0.1", 421),
    ],
)
def test_a_foreign_name_is_refused(served: PageServer, host: str, status: int) -> None:
    """DNS rebinding: a page of another site whose name was made to lead here."""
    assert status == ask(served, root(served), Host=host)[0]


def test_no_other_page_may_read_or_frame_it(served: PageServer) -> None:
    """On answers and on refusals alike: no CORS, no sniffing, no frames, no referrer, nothing kept."""
    for path in (root(served), root(served) + "columns/delta", "/"):
        _, headers, _ = ask(served, path, Origin="https://evil.example")

        assert not [name for name in headers if name.startswith("access-control")]
        assert "nosniff" == headers["x-content-type-options"]
        assert "no-store" == headers["cache-control"]
        assert "no-referrer" == headers["referrer-policy"]
        assert "same-origin" == headers["cross-origin-resource-policy"]
        assert "frame-ancestors 'none'" == headers["content-security-policy"]
        assert "dptrace" == headers["server"].strip()


def test_it_listens_on_this_machine_only(served: PageServer) -> None:
    """The socket is bound to 127.0.0.1, so that no other address reaches it."""
    assert "127.0.0.1" == served._server.socket.getsockname()[0]


def test_it_ends_when_the_tab_is_gone_but_not_while_one_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reload is a tab that is back before the grace is over."""
    monkeypatch.setattr(server, "GRACE_S", 0.6)
    made = PageServer("", {})
    tabs = made._server.tabs

    def tab() -> socket.socket:
        line = socket.create_connection(("127.0.0.1", made.port))
        line.sendall(f"GET {root(made)}alive HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        assert b"text/event-stream" in line.recv(4096)
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
        second.close()
        began = time.monotonic()
        made.wait()
        assert 0.5 < time.monotonic() - began < 5
    finally:
        made.close()


def test_a_port_that_is_taken_is_told(served: PageServer) -> None:
    """And what helps."""
    with pytest.raises(DptraceError, match=rf"127\.0\.0\.1:{served.port}: .*Leave --port out"):
        PageServer("", {}, port=served.port)


def test_a_host_that_is_none_is_told() -> None:
    """One sentence."""
    with pytest.raises(
        DptraceError, match=r"Can't serve at no\.such\.host\.invalid: no such address. Leave --host out"
    ):
        PageServer("", {}, host="no.such.host.invalid")


def test_at_another_address_it_goes_by_its_number() -> None:
    """An address in numbers can't be a trick with names; a foreign name still is refused."""
    made = PageServer("page", {}, host="0.0.0.0")
    try:
        assert 200 == ask(made, root(made), Host="10.1.2.3:99")[0]
        assert 200 == ask(made, root(made), Host=socket.gethostname())[0]
        assert 421 == ask(made, root(made), Host="evil.example")[0]
        assert socket.gethostname() in made.url
    finally:
        made.close()


def test_the_tunnel_is_a_line_to_type() -> None:
    """The address and the port by which the session came, and the page's port on both ends."""
    assert "ssh -N -L 8000:127.0.0.1:8000 ada@10.0.0.5" == tunnel("10.0.0.9 50000 10.0.0.5 22", "ada", 8000)
    assert "ssh -N -p 2222 -L 8000:127.0.0.1:8000 ada@10.0.0.5" == tunnel("10.0.0.9 50000 10.0.0.5 2222", "ada", 8000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def run() -> Run:
    return training_run(3_000, ranks=2)


@browser_test
def test_a_served_page_shows_the_split_s_figures_and_ends_with_its_tab(
    browser: Browser, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fetched columns give the same figures, under a policy that is kept; a reload does not end it, closing does."""
    monkeypatch.setattr(server, "GRACE_S", 1.5)
    page_text, columns = gantt.served(run)
    made = PageServer(page_text, columns)
    try:
        with open_page(browser, made.url) as (page, errors):
            settle(page)
            assert expected_figures(run) == shown_figures(page)
            page.reload()
            page.locator("html[data-ready='1']").wait_for(state="attached", timeout=20_000)
            settle(page)
            assert expected_figures(run) == shown_figures(page)
            assert [] == errors
            assert not made._server.tabs.all_closed()
        began = time.monotonic()
        made.wait()
        assert time.monotonic() - began < 20
    finally:
        made.close()


def test_columns_stand_beside_a_served_page() -> None:
    """The page itself stays small, and may ask only where it comes from."""
    run = training_run(200_000, ranks=2)
    page, columns = gantt.served(run)

    assert len(page) < 1_700_000
    assert "connect-src &#39;self&#39;;" in page
    assert {"delta", "duration", "category", "name", "stream", "exposed"} == set(columns)
    assert sum(map(len, columns.values())) < 13 * 200_000 * 2
