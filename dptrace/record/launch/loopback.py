"""torchrun's rendezvous on one machine, with a key-value store that listens on 127.0.0.1 only.

torch's own rendezvous open the store on all interfaces, where everyone who reaches the machine can read and write it. A
store takes a socket that is already bound, so the agent binds one to the loopback address.
"""

from __future__ import annotations

import argparse
import socket
import uuid
from collections.abc import Callable

import torch
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # documented, not in __all__
from torch.distributed.elastic.rendezvous import (
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

_BACKEND = "dptrace-loopback"
_ADDRESS = "127.0.0.1"
_LIBUV_TAKES_SOCKETS = (2, 8)
"""The torch version from which the default server of a store accepts a bound socket; the older server always did."""


def listen_on_loopback(arguments: argparse.Namespace) -> None:
    """Change torchrun's parsed arguments, if the job is on one machine, so that its store listens on 127.0.0.1.

    Where this torch does not allow it, they stay as they are: torchrun's own rendezvous on all interfaces.
    """
    if not arguments.standalone:
        return
    try:
        first = loopback_store()
    except (RuntimeError, TypeError, OSError):
        return
    create: Callable[[RendezvousParameters], LoopbackRendezvous] = lambda parameters: LoopbackRendezvous(  # noqa: E731
        parameters.run_id, first
    )
    rendezvous_handler_registry.register(_BACKEND, create)
    arguments.standalone, arguments.rdzv_id = False, str(uuid.uuid4())
    arguments.rdzv_backend, arguments.rdzv_endpoint = _BACKEND, f"{_ADDRESS}:{first.port}"


def loopback_store() -> TCPStore:
    """Return a store that this process serves on 127.0.0.1, at a port that is free.

    Raises:
        RuntimeError, TypeError: this torch cannot use a socket that is already bound.
    """
    with socket.socket() as listener:
        listener.bind((_ADDRESS, 0))
        listener.listen(socket.SOMAXCONN)
        port = listener.getsockname()[1]
        version = tuple(int(part) for part in torch.__version__.split(".")[:2])
        # wait_for_workers: all ranks connect as clients, and none of them hosts the store.
        return TCPStore(
            _ADDRESS,
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
            use_libuv=version >= _LIBUV_TAKES_SOCKETS,
        )


class LoopbackRendezvous(StaticTCPRendezvous):
    """A rendezvous of the only launcher of a job.

    Args:
        first: the store that it serves.
    """

    def __init__(self, run_id: str, first: TCPStore) -> None:
        super().__init__(_ADDRESS, first.port, 0, 1, run_id, timeout=0)  # it waits for nobody
        self._next: TCPStore | None = first

    def get_backend(self) -> str:
        """Return the name under which it is registered; torch compares it."""
        return _BACKEND

    def next_rendezvous(self) -> RendezvousInfo:
        """Return a store that no rank has used: restarted ranks must not find what the previous ones left there."""
        self._store, self._next = self._next or loopback_store(), None
        self.master_port = self._store.port
        bootstrap = RendezvousStoreInfo(_ADDRESS, self.master_port)
        return RendezvousInfo(PrefixStore(self.run_id, self._store), self.rank, self.world_size, bootstrap)
