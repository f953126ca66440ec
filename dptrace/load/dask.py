"""A run read by a Dask cluster: each worker reads the files it is given where they lie, and figures come back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dptrace.core.subprocess_pool import available_cores
from dptrace.errors import DptraceError, MissingExtraError
from dptrace.load.options import ReadOptions
from dptrace.load.rank_file import RankFile, load_rank_file
from dptrace.readers.sources.source import Source

if TYPE_CHECKING:
    from distributed import Client, Future

__all__ = ["LOCAL", "read_on_cluster", "read_on_worker"]

LOCAL = "local"
"""Instead of a scheduler's address: a cluster of this machine's cores, for as long as the reading takes."""

_PATIENCE = 30
"""Seconds within which a scheduler answers and a cluster has its first worker."""


def read_on_cluster(
    sources: Sequence[Source], read_options: ReadOptions
) -> Iterator[tuple[int, RankFile | DptraceError]]:
    """Read the files on the workers of ``reading.dask``; give each one's index and figures as they come.

    A worker that dies costs the files it was at another try on another worker.

    Raises:
        DptraceError: no scheduler or no worker is there, or the cluster's workers lack dptrace.
    """
    assert read_options.dask is not None
    with _client(read_options.dask) as client:
        from distributed import as_completed

        # Their own folder is not this one.
        there = [source.absolute() for source in sources]
        futures = client.map(read_on_worker, there, read_options=read_options, pure=False)
        index = {future.key: number for number, future in enumerate(futures)}
        for future in as_completed(futures):
            number = index[future.key]
            yield number, _as_named(_result(future, sources[number]), there[number].address, sources[number].address)
            future.release()


def read_on_worker(source: Source, read_options: ReadOptions) -> RankFile | DptraceError:
    """Read one file on a worker; what is wrong with it is an answer, not a failure that is tried again."""
    try:
        return load_rank_file(source, read_options)[0].only_communication()
    except DptraceError as error:
        return error


def _as_named(result: RankFile | DptraceError, there: str, here: str) -> RankFile | DptraceError:
    """Call the file what the user calls it."""
    if isinstance(result, RankFile):
        return result.with_path(here)
    result.args = (str(result).replace(there, here),)
    return result


@contextmanager
def _client(address: str) -> Iterator[Client]:
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        raise MissingExtraError("Reading on a Dask cluster needs dask.distributed", "dask") from None
    if address == LOCAL:
        with _local(LocalCluster) as cluster, Client(cluster) as client:
            yield client
        return
    try:
        client = Client(address, timeout=_PATIENCE)
    except (OSError, ValueError, TimeoutError) as error:
        raise DptraceError(
            f"{address}: no Dask scheduler answers there ({error}). Its address is in the scheduler's first lines, as "
            "tcp://host:8786; --dask local starts a cluster on this machine."
        ) from None
    with client:
        try:
            client.wait_for_workers(1, timeout=_PATIENCE)
        except TimeoutError:
            raise DptraceError(f"{address}: the Dask scheduler has no workers. Start: dask worker {address}") from None
        yield client


def _local(make: Callable[..., Any]) -> Any:
    """Start a cluster of this machine's cores, which nobody else can reach."""
    try:
        return make(
            n_workers=available_cores(), threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0"
        )
    except RuntimeError as error:
        raise DptraceError(
            f"A Dask cluster can't be started here: {error} A script that starts one must keep what it does under "
            '`if __name__ == "__main__":`, since the workers run it again.'
        ) from None


def _result(future: Future, source: Source) -> RankFile | DptraceError:
    from distributed import KilledWorker

    try:
        result = future.result()
    except KilledWorker:
        return DptraceError(
            f"{source.address}: every worker that read it died (out of memory?); the others' figures stand."
        )
    except ImportError as error:
        raise DptraceError(f"The Dask workers can't read: {error}. Install there: pip install dptrace") from None
    assert isinstance(result, RankFile | DptraceError)
    return result
