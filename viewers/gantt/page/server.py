"""A local server for pages that are too large for one file; it stops when the page's last tab is closed.

Traces can be confidential, and other pages in the same browser can send requests to local ports. So requests need a
random token in the address and a host name of this machine, and pages of other sites cannot read the responses.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from dptrace.errors import DptraceError
from dptrace.viewers.gantt.tiles.requests import MAX_BODY, BadRequest, compressed
from dptrace.viewers.gantt.tiles.service import TileService

LOOPBACK = "127.0.0.1"
_OWN_NAMES = frozenset((LOOPBACK, "localhost", "::1"))

Answers: TypeAlias = Mapping[str, Callable[[str], "bytes | None"]]
"""What answers further requests, by the first part of their address; None where a request is not valid."""

_HTML, _JSON = "text/html; charset=utf-8", "application/json"
_PAGES = "steps"
"""The answers that are pages; the others are JSON."""

GRACE_S = 5.0
"""Seconds without an open tab before the server stops; longer than a reload takes."""
_HEARTBEAT_S = 15.0
"""Seconds between two bytes that keep a connection alive through proxies and tunnels."""
_POLL_S = 0.2
"""How often the server is asked to end."""

_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    # In addition to the page's own policy, which cannot contain frame-ancestors; also for the other responses.
    "Content-Security-Policy": "frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
}


class _Tabs:
    """Counts the open pages by their connections."""

    def __init__(self) -> None:
        self._lock, self._open, self._left = threading.Lock(), 0, None

    _left: float | None

    def changed(self, by: int) -> None:
        with self._lock:
            self._open += by
            self._left = None if self._open else time.monotonic()

    def all_closed(self) -> bool:
        """Whether all tabs have been closed for GRACE_S, after at least one was open."""
        with self._lock:
            return self._left is not None and time.monotonic() - self._left > GRACE_S


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(
        self,
        address: tuple[str, int],
        files: dict[str, tuple[str, bytes]],
        service: TileService | None,
        answers: Answers,
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.files = {name: (kind, body, compressed(body)) for name, (kind, body) in files.items()}
        self.service, self.answers, self.tabs, self.token = service, answers, _Tabs(), secrets.token_urlsafe(24)
        self.names = _names(address[0])
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of closed connections."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def _names(host: str) -> frozenset[str]:
    if host in _OWN_NAMES:
        return _OWN_NAMES
    return _OWN_NAMES | {host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "dptrace", ""
    timeout = 60
    # Connections are kept. Head and body leave in one write: Nagle's algorithm would hold back the second.
    protocol_version, disable_nagle_algorithm, wbufsize = "HTTP/1.1", True, 1 << 16

    def do_GET(self) -> None:
        """Send a file, or keep the connection of an open tab."""
        name = self._asked()
        if name is None:
            return
        if name == "alive":
            self._hold()
        elif name in self.server.files:
            kind, body, packed = self.server.files[name]
            accepted = "gzip" in self.headers.get("Accept-Encoding", "")
            self._send(HTTPStatus.OK, kind, packed if accepted else body, packed=accepted)
        elif (answer := self._found(name)) is not None:
            kind = _HTML if name.startswith(f"{_PAGES}/") else _JSON
            self._send(HTTPStatus.OK, kind, compressed(answer), packed=True)
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "Not found.")

    def do_POST(self) -> None:
        """Answer a request of the page."""
        length = self.headers.get("Content-Length", "")
        # Unread, the body would be taken for the next request.
        self.close_connection = True
        name = self._asked()
        if name is None:
            return
        if not self._is_own_origin():
            self._refuse(HTTPStatus.FORBIDDEN, "Only the page of this server may ask.")
        elif self.server.service is None:
            self._refuse(HTTPStatus.NOT_FOUND, "Not found.")
        elif not (length.isascii() and length.isdecimal()):
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "The length of the request is missing.")
        elif len(length) > 9 or int(length) > MAX_BODY:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The request is too large.")
        else:
            body = self.rfile.read(int(length))
            self.close_connection = self.headers.get("Connection", "").lower() == "close"
            self._answer(self.server.service, name, body)

    def _answer(self, service: TileService, name: str, body: bytes) -> None:
        try:
            kind, answer = service.answer(name, body)
        except BadRequest as error:
            self._refuse(HTTPStatus.BAD_REQUEST, f"{error}.")
        else:
            self._send(HTTPStatus.OK, kind, compressed(answer), packed=True)

    def _asked(self) -> str | None:
        """Return what is asked for; without the token or at a foreign name, refuse and return None."""
        token, _, name = self.path.removeprefix("/").partition("/")
        if not self._host_is_allowed():
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "Use the address that dptrace printed.")
        elif not secrets.compare_digest(token.encode(), self.server.token.encode()):
            self._refuse(HTTPStatus.FORBIDDEN, "The address is incomplete. Use the one that dptrace printed.")
        else:
            return name
        return None

    def _is_own_origin(self) -> bool:
        """Whether a page of this server asks, or something that is no browser."""
        origin = self.headers.get("Origin")
        return origin is None or origin == f"http://{self.headers.get('Host', '')}"

    def _found(self, name: str) -> bytes | None:
        """Return what the page's data source answers to a request ``SOURCE/REST``, if there is one."""
        source, _, rest = name.partition("/")
        return self.server.answers[source](rest) if source in self.server.answers else None

    def _host_is_allowed(self) -> bool:
        """Whether the Host header names this machine; another name indicates DNS rebinding."""
        try:
            name = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
        except ValueError:
            return False
        if self.server.names != _OWN_NAMES and _is_number(name):
            return True
        return name in self.server.names

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        self._send(status, "text/plain; charset=utf-8", reason.encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes, packed: bool = False) -> None:
        self._begin(status, kind)
        if packed:
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def _begin(self, status: HTTPStatus, kind: str) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Type": kind}.items():
            self.send_header(name, value)

    def _hold(self) -> None:
        """Keep an event stream open until the tab closes it."""
        self.close_connection = True
        self._begin(HTTPStatus.OK, "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.connection.settimeout(_HEARTBEAT_S)
        self.server.tabs.changed(+1)
        try:
            while True:
                self.wfile.write(b":\n\n")
                self.wfile.flush()
                # select refuses descriptors from 1024 on, and each mapped file of a large run has one.
                with suppress(TimeoutError):
                    if not self.connection.recv(1024):
                        return
        finally:
            self.server.tabs.changed(-1)

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log requests to the terminal."""


def _is_number(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class PageServer:
    """Serve a page and what it asks for as soon as it is created; :meth:`wait` returns when all tabs are closed.

    Args:
        files: further files in JSON, by name.
        service: answers the page's requests.

    Raises:
        DptraceError: the server cannot listen at the address.
    """

    def __init__(
        self,
        page: str,
        files: dict[str, bytes] | None = None,
        service: TileService | None = None,
        host: str = LOOPBACK,
        port: int = 0,
        answers: Answers | None = None,
    ) -> None:
        served = {"": (_HTML, page.encode())}
        served |= {name: (_JSON, data) for name, data in (files or {}).items()}
        try:
            self._server = _Server((host, port), served, service, answers or {})
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise DptraceError(_refused(host, port, str(reason), isinstance(error, socket.gaierror))) from None
        self.host, self.port = host, int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_POLL_S,), daemon=True)
        self._thread.start()

    def replace(self, page: str) -> None:
        """Serve another page from now on."""
        self._server.files[""] = (_HTML, page.encode(), compressed(page.encode()))

    @property
    def url(self) -> str:
        """The address with the token; for 0.0.0.0 it contains this machine's name."""
        anywhere = self.host in ("0.0.0.0", "::")
        name = socket.gethostname() if anywhere else f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{name}:{self.port}/{self._server.token}/"

    def wait(self) -> None:
        """Block until the last tab is closed; KeyboardInterrupt is not caught."""
        while not self._server.tabs.all_closed():
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _refused(host: str, port: int, reason: str, unknown_host: bool) -> str:
    """Return the message for an address at which the server cannot listen."""
    if unknown_host or not port:
        advice = f"Omit --host to use {LOOPBACK}, or pass an address of this machine."
        return f"Cannot serve at {host}: {'unknown host' if unknown_host else reason}. {advice}"
    return f"Cannot serve at {host}:{port}: {reason}. Omit --port to use a free one."


def tunnel(connection: str, user: str, port: int) -> str:
    """Return the ssh command that forwards a local port to the server on this machine.

    Args:
        connection: the SSH session's ``SSH_CONNECTION``: address and port of the client and of this machine.
    """
    parts = connection.split()
    host, ssh_port = (parts[2], parts[3]) if len(parts) == 4 else (socket.gethostname(), "22")
    option = "" if ssh_port == "22" else f" -p {ssh_port}"
    return f"ssh -N{option} -L {port}:{LOOPBACK}:{port} {user}@{host}"
