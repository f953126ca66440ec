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
_LOCAL_NAMES = (_ADDRESS, "localhost")
_TIMEOUT_S = 900
"""How long the launchers of one machine wait for each other."""
_LIBUV_TAKES_SOCKETS = (2, 8)
"""The torch version from which the default server of a store accepts a bound socket; the older server always did."""


def listen_on_loopback(arguments: argparse.Namespace) -> None:
    """Change torchrun's parsed arguments, if the job is on one machine, so that its store listens on 127.0.0.1.

    Where this torch does not allow it, they stay as they are: torchrun's own rendezvous on all interfaces.
    """
    host, _, port = arguments.rdzv_endpoint.rpartition(":")
    if not arguments.standalone and (arguments.rdzv_backend != "static" or host not in _LOCAL_NAMES):
        return
    rank = 0 if arguments.standalone else int(arguments.node_rank)
    first = None
    if rank == 0:
        try:
            first = loopback_store(0 if arguments.standalone else int(port))
        except (RuntimeError, TypeError, OSError):
            return
        port = str(first.port)
    create: Callable[[RendezvousParameters], LoopbackRendezvous] = lambda parameters: LoopbackRendezvous(  # noqa: E731
        int(port), rank, parameters.max_nodes, parameters.run_id, first
    )
    rendezvous_handler_registry.register(_BACKEND, create)
    if arguments.standalone:
        arguments.rdzv_id = str(uuid.uuid4())
    arguments.standalone = False
    arguments.rdzv_backend, arguments.rdzv_endpoint = _BACKEND, f"{_ADDRESS}:{port}"


def loopback_store(port: int) -> TCPStore:
    """Return a store that this process serves on 127.0.0.1.

    Args:
        port: 0 for any that is free.

    Raises:
        RuntimeError, TypeError: this torch cannot use a socket that is already bound.
        OSError: the port is taken.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((_ADDRESS, port))
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
    """A rendezvous of launchers on one machine, nearly always a single one.

    Args:
        first: the store that the launcher 0 serves; None for the others, which connect to it.
    """

    def __init__(self, port: int, rank: int, world_size: int, run_id: str, first: TCPStore | None) -> None:
        super().__init__(_ADDRESS, port, rank, world_size, run_id, _TIMEOUT_S)
        self._next = first

    def get_backend(self) -> str:
        """Return the name under which it is registered; torch compares it."""
        return _BACKEND

    def next_rendezvous(self) -> RendezvousInfo:
        """Return a store that no rank has used: restarted ranks must not find what the previous ones left there."""
        if self.rank == 0:
            self._store = self._next or loopback_store(0)
            self._next = None
        else:
            self._store = TCPStore(_ADDRESS, self.master_port, is_master=False, timeout=self.timeout)
        self.master_port = self._store.port
        bootstrap = RendezvousStoreInfo(_ADDRESS, self.master_port)
        return RendezvousInfo(PrefixStore(self.run_id, self._store), self.rank, self.world_size, bootstrap)
