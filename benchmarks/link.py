"""A slow link for benchmarks: a proxy on this machine with a rate and a delay."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

RATE, DELAY_S = 100e6 / 8, 0.02
"""Bytes a second, and seconds in each direction."""


class _Direction:
    """One direction of the link, which all connections share."""

    def __init__(self) -> None:
        self._free = 0.0

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Deliver what is read when a link would, in order."""
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        delivery = asyncio.ensure_future(self._deliver(queue, writer))
        loop = asyncio.get_running_loop()
        data = b"-"
        while data:
            try:
                data = await reader.read(8192)
            except OSError:
                data = b""
            self._free = max(self._free, loop.time()) + len(data) / RATE
            queue.put_nowait((self._free + DELAY_S, data))
        await delivery

    async def _deliver(self, queue: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while True:
            time, data = await queue.get()
            await asyncio.sleep(max(0.0, time - loop.time()))
            try:
                if not data:
                    writer.close()
                    return
                writer.write(data)
                await writer.drain()
            except OSError:
                return


@contextmanager
def shaped(port: int) -> Iterator[int]:
    """Put the link before a server on this machine; yields the port of its other end."""
    loop = asyncio.new_event_loop()
    up, down = _Direction(), _Direction()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(2 * DELAY_S)
        back, forth = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(up.carry(reader, forth), down.carry(back, writer))

    server = loop.run_until_complete(asyncio.start_server(connect, "127.0.0.1", 0))
    thread = Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
