"""A page too large for one file, from a small server on this machine: it ends when the page's tab is closed.

What a recording tells can be confidential, and other pages in the same browser can ask this machine's ports: so only
who knows a random token in the address is answered, only under the names of this machine, and no other site's page
may read the answer.
"""

from __future__ import annotations

import ipaddress
import secrets
import select
import socket
import sys
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from dptrace.errors import DptraceError
from dptrace.viewers.gantt.column_packing import ColumnStore

__all__ = ["LOOPBACK", "PageServer", "tunnel"]

LOOPBACK = "127.0.0.1"
_OWN_NAMES = frozenset((LOOPBACK, "localhost", "::1"))

GRACE_S = 5.0
"""Seconds without a tab after which it ends: a tab that is loaded anew is back before."""
_HEARTBEAT_S = 15.0
"""Seconds between two signs that a proxy or a tunnel may want to keep a connection."""
_POLL_S = 0.2

_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    # The page has its own policy; this is what one in the page can't say, and holds for all else that is served.
    "Content-Security-Policy": "frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
}


class _Tabs:
    """How many pages are open, told by the connections they hold."""

    def __init__(self) -> None:
        self._lock, self._open, self._left = threading.Lock(), 0, None

    _left: float | None

    def changed(self, by: int) -> None:
        with self._lock:
            self._open += by
            self._left = None if self._open else time.monotonic()

    def all_closed(self) -> bool:
        """Tell whether there was one, and none has been for a while."""
        with self._lock:
            return self._left is not None and time.monotonic() - self._left > GRACE_S


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], files: dict[str, tuple[str, bytes]]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.files, self.tabs, self.token = files, _Tabs(), secrets.token_urlsafe(24)
        self.names = _names(address[0])
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a browser that went away in the middle of an answer."""
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

    def do_GET(self) -> None:
        """Answer with a file, or hold the line that tells of an open tab."""
        token, _, name = self.path.removeprefix("/").partition("/")
        if not self._host_is_allowed():
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "Ask by the address that dptrace printed.")
        elif not secrets.compare_digest(token.encode(), self.server.token.encode()):
            self._refuse(HTTPStatus.FORBIDDEN, "The address is not complete: use the one that dptrace printed.")
        elif name == "alive":
            self._hold()
        elif name in self.server.files:
            self._send(HTTPStatus.OK, *self.server.files[name])
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "There is nothing here.")

    def _host_is_allowed(self) -> bool:
        """Tell whether the request names this machine: a foreign name that leads here is somebody's trick."""
        try:
            name = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
        except ValueError:
            return False
        if self.server.names != _OWN_NAMES and _is_number(name):
            return True
        return name in self.server.names

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self._send(status, "text/plain; charset=utf-8", why.encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self._begin(status, kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _begin(self, status: HTTPStatus, kind: str) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Type": kind}.items():
            self.send_header(name, value)

    def _hold(self) -> None:
        """Keep an event stream open until the tab closes it."""
        self._begin(HTTPStatus.OK, "text/event-stream")
        self.end_headers()
        self.server.tabs.changed(+1)
        try:
            while True:
                self.wfile.write(b":\n\n")
                ready, _, _ = select.select([self.connection], [], [], _HEARTBEAT_S)
                if ready and not self.connection.recv(1024):
                    return
        finally:
            self.server.tabs.changed(-1)

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the terminal for what the command says."""


def _is_number(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class PageServer:
    """Serve a page and the columns that it fetches, from when it is made; :meth:`wait` until nobody looks any more.

    Raises:
        DptraceError: the address can't be listened at.
    """

    def __init__(self, page: str, columns: ColumnStore, host: str = LOOPBACK, port: int = 0) -> None:
        files = {"": ("text/html; charset=utf-8", page.encode())}
        files |= {f"columns/{name}": ("application/octet-stream", data) for name, data in columns.items()}
        try:
            self._server = _Server((host, port), files)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise DptraceError(_refused(host, port, str(reason), isinstance(error, socket.gaierror))) from None
        self.host, self.port = host, int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_POLL_S,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Give the address with its token; at 0.0.0.0 this machine's name stands for all its addresses."""
        anywhere = self.host in ("0.0.0.0", "::")
        name = socket.gethostname() if anywhere else f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{name}:{self.port}/{self._server.token}/"

    def wait(self) -> None:
        """Return when the last tab was closed; KeyboardInterrupt passes."""
        while not self._server.tabs.all_closed():
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _refused(host: str, port: int, reason: str, nowhere: bool) -> str:
    """Say what was wrong with the address, in terms of what was given of it."""
    if nowhere or not port:
        usual = f"Leave --host out for {LOOPBACK}, this machine itself, or name an address of this machine."
        return f"Can't serve at {host}: {'no such address' if nowhere else reason}. {usual}"
    return f"Can't serve at {host}:{port}: {reason}. Leave --port out, and a free one is found."


def tunnel(connection: str, user: str, port: int) -> str:
    """Give the line that reaches a server here from the machine that an SSH session came from.

    Args:
        connection: the session's ``SSH_CONNECTION``: client's address and port, this machine's address and port.
    """
    parts = connection.split()
    host, own_port = (parts[2], parts[3]) if len(parts) == 4 else (socket.gethostname(), "22")
    through = "" if own_port == "22" else f" -p {own_port}"
    return f"ssh -N{through} -L {port}:{LOOPBACK}:{port} {user}@{host}"
