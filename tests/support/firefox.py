"""Open pages in headless Firefox over WebDriver BiDi, a WebSocket protocol that needs no driver."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tornado.websocket import WebSocketClientConnection, websocket_connect

FIREFOX = next(filter(None, map(shutil.which, ("firefox-esr", "firefox"))), None)
_TIMEOUT_S = 60
"""Seconds for the browser to start, or to respond."""

_PREFERENCES = {
    "app.update.enabled": False,
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "remote.prefs.recommended": True,
    "toolkit.startup.max_resumed_crashes": -1,
}


def firefox_test(function: Any) -> Any:
    """Mark a test that opens a page in Firefox; it is skipped without Firefox."""
    skip = pytest.mark.skipif(FIREFOX is None, reason="Firefox is not installed (Debian: apt-get install firefox-esr)")
    return pytest.mark.browser(skip(function))


class FirefoxPage:
    """One tab: user actions and collected errors."""

    def __init__(self, loop: asyncio.AbstractEventLoop, socket: WebSocketClientConnection) -> None:
        self._loop, self._socket, self._last = loop, socket, 0
        self.context = ""
        self.errors: list[str] = []
        """Exceptions, console errors and warnings, policy violations, network requests."""

    def send(self, method: str, **parameters: Any) -> Any:
        """Send a command and wait for its result.

        Raises:
            RuntimeError: the browser reports an error.
        """
        return self._loop.run_until_complete(asyncio.wait_for(self._send(method, parameters), _TIMEOUT_S))

    async def _send(self, method: str, parameters: dict[str, Any]) -> Any:
        self._last += 1
        await self._socket.write_message(json.dumps({"id": self._last, "method": method, "params": parameters}))
        while True:
            text = await self._socket.read_message()
            if text is None:
                raise RuntimeError(f"Firefox closed the connection at {method}")
            answer = json.loads(text)
            if answer.get("id") == self._last:
                if answer["type"] == "error":
                    raise RuntimeError(f"{method}: {answer['message']}")
                return answer["result"]
            self._event(answer)

    def _event(self, event: dict[str, Any]) -> None:
        details = event.get("params", {})
        if event.get("method") == "log.entryAdded" and details["level"] in ("error", "warn"):
            self.errors.append(f"{details['type']}: {details['text']}")
        elif event.get("method") == "network.beforeRequestSent":
            url = details["request"]["url"]
            self.errors += [] if url.startswith(("file:", "data:", "blob:", "about:")) else [url]

    def close(self) -> None:
        """Close the connection."""

        async def close() -> None:
            # Tornado's close needs a running loop: another test's asyncio.run leaves none to this thread.
            self._socket.close()
            await asyncio.sleep(0.1)

        self._loop.run_until_complete(close())

    def evaluate(self, expression: str) -> Any:
        """Evaluate JavaScript to a JSON-serializable value; the page's policy does not forbid this."""
        wrapped = f"Promise.resolve({expression}).then((value) => JSON.stringify(value ?? null))"
        found = self.send("script.evaluate", expression=wrapped, target={"context": self.context}, awaitPromise=True)
        if found["type"] != "success":
            raise RuntimeError(found["exceptionDetails"]["text"])
        return json.loads(found["result"]["value"])

    def open(self, path: Path) -> None:
        """Open a file and wait until the page is drawn."""
        self.send("browsingContext.navigate", context=self.context, url=path.as_uri(), wait="complete")
        self.wait("document.documentElement.dataset.ready === '1'")

    def wait(self, condition: str, seconds: float = 60) -> None:
        """Wait until an expression is true."""
        until = time.monotonic() + seconds
        while not self.evaluate(condition):
            assert time.monotonic() < until, f"not true in time: {condition}; {self.errors}"
            time.sleep(0.03)

    def press(self, key: str) -> None:
        """Press and release a key."""
        actions = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        self._act({"type": "key", "id": "keyboard", "actions": actions})

    def wheel(self, x: float, y: float, ticks: int, by: int = -120, pause_ms: int = 16) -> None:
        """Turn the wheel over a point, negative to zoom in."""
        turn = {"type": "scroll", "x": round(x), "y": round(y), "deltaX": 0, "deltaY": by}
        self._act({"type": "wheel", "id": "wheel", "actions": [turn, {"type": "pause", "duration": pause_ms}] * ticks})

    def move(self, x: float, y: float) -> None:
        """Move the pointer."""
        self._act(
            {"type": "pointer", "id": "mouse", "actions": [{"type": "pointerMove", "x": round(x), "y": round(y)}]}
        )

    def _act(self, source: dict[str, Any]) -> None:
        self.send("input.performActions", context=self.context, actions=[source])

    def screenshot(self) -> str:
        """Return a PNG of the viewport in base64."""
        data: str = self.send("browsingContext.captureScreenshot", context=self.context)["data"]
        return data


@contextmanager
def firefox(size: tuple[int, int] = (1440, 900)) -> Iterator[FirefoxPage]:
    """Start a browser with a fresh profile and one tab."""
    if FIREFOX is None:
        pytest.skip("Firefox is not installed (Debian: apt-get install firefox-esr)")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        lines = (f"user_pref({json.dumps(name)}, {json.dumps(value)});" for name, value in _PREFERENCES.items())
        (Path(folder) / "user.js").write_text("\n".join(lines), encoding="utf-8")
        command = [FIREFOX, "--headless", "--no-remote", "--profile", folder, "--remote-debugging-port", "0"]
        log = Path(folder) / "stderr.txt"
        with log.open("wb") as stderr:
            process = subprocess.Popen([*command, "about:blank"], stdout=subprocess.DEVNULL, stderr=stderr)
        loop = asyncio.new_event_loop()
        page = None
        try:
            page = _connected(loop, _address(process, log), size)
            yield page
        finally:
            if page is not None:
                page.close()
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Wait for the browser's WebSocket address."""
    until = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < until and process.poll() is None:
        if found := re.search(r"WebDriver BiDi listening on (ws://\S+)", log.read_text(errors="replace")):
            return found[1]
        time.sleep(0.1)
    raise RuntimeError(f"Firefox did not start: {log.read_text(errors='replace')[-500:]}")


def _connected(loop: asyncio.AbstractEventLoop, address: str, size: tuple[int, int]) -> FirefoxPage:
    async def connect() -> WebSocketClientConnection:
        return await websocket_connect(f"{address}/session", max_message_size=2**28)

    page = FirefoxPage(loop, loop.run_until_complete(asyncio.wait_for(connect(), _TIMEOUT_S)))
    page.send("session.new", capabilities={})
    page.context = page.send("browsingContext.getTree")["contexts"][0]["context"]
    page.send("session.subscribe", events=["log.entryAdded", "network.beforeRequestSent"])
    listens = "() => addEventListener('securitypolicyviolation', e => console.error('policy: ' + e.violatedDirective))"
    page.send("script.addPreloadScript", functionDeclaration=listens)
    page.send("browsingContext.setViewport", context=page.context, viewport={"width": size[0], "height": size[1]})
    return page
