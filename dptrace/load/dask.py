"""Read a run on a Dask cluster: the workers read the files, and what is asked of each.

Figures are small and sent. Intervals and further readings stay in the cache where the workers' cache folder is this
machine's, as on a shared home folder; else they are sent, and put into the cache here.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from dptrace.core.files import cache_folder, open_part
from dptrace.core.subprocess_pool import available_cores
from dptrace.errors import AccessError, DptraceError, MissingExtraError, TraceError, UsageError
from dptrace.load.options import ReadOptions
from dptrace.load.rank_file import SentFile, entries_of, keep_sent, read_to_send
from dptrace.load.stored_file import RankFile
from dptrace.readers.source import Source
from dptrace.readers.storage import file_identity
from dptrace.version import __version__

if TYPE_CHECKING:
    from distributed import Client, Future

LOCAL = "local"
"""Instead of a scheduler's address: a temporary cluster on this machine's cores."""

_ANSWER, _TIMEOUT = 5, 30
"""Seconds for a scheduler to answer, and for a cluster to have its first worker."""


def read_on_cluster(
    sources: Sequence[Source], read_options: ReadOptions
) -> Iterator[tuple[int, RankFile | DptraceError]]:
    """Read the files on the workers of ``read_options.dask``; yield each file's index and result as they arrive.

    When a worker dies, another worker reads its files again.

    Raises:
        DptraceError: there is no scheduler or no worker, the scheduler ends, or the workers have no dptrace.
        UsageError: intervals are to be read without a cache.
    """
    assert read_options.dask is not None
    if not (read_options.figures_only or read_options.cache):
        raise UsageError("What Dask workers read comes back through the cache: leave --no-cache out.")
    with _reached(read_options.dask), _client(read_options.dask) as client, _mark(read_options) as mark:
        from distributed import as_completed

        # The workers' current folder is not this process's.
        remote = [source.absolute() for source in sources]
        entries = [[entry.name for entry in entries_of(source, read_options)] for source in sources]
        options: dict[str, Any] = {"read_options": read_options, "mark": mark, "pure": False}
        futures = client.map(_read_there, remote, entries, **options)
        index = {future.key: number for number, future in enumerate(futures)}
        for future in as_completed(futures):
            number = index[future.key]
            result = _result(future, sources[number])
            if result is None or isinstance(result, SentFile):
                result = keep_sent(sources[number], read_options, result)
            yield number, _with_user_path(result, remote[number].address, sources[number].address)
            future.release()


def _read_there(
    source: Source, entries: Sequence[str], read_options: ReadOptions, mark: str
) -> RankFile | DptraceError | SentFile | None:
    """Read a file on a worker; an error names the worker that does not see the file."""
    result = read_to_send(source, entries, read_options, mark)
    if type(result) is TraceError and file_identity(source) is None:
        from distributed import get_worker

        result.args = (f"{result} The Dask worker {get_worker().address} looked for it.",)
    return result


@contextmanager
def _reached(address: str) -> Iterator[None]:
    """Turn what Dask raises after its scheduler ended into one error, and its log of it into nothing."""
    try:
        from distributed import CancelledError
        from distributed.comm import CommClosedError
    except ImportError:
        raise MissingExtraError("Reading on a Dask cluster needs dask.distributed", "dask") from None
    log = logging.getLogger("distributed.client")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    except (CommClosedError, CancelledError, TimeoutError):
        raise _lost(address) from None
    finally:
        log.setLevel(level)


def _lost(address: str) -> DptraceError:
    return DptraceError(
        f"{address}: the Dask scheduler ended, or can't be reached any more. Start it again, with its workers; what "
        "was read until then is in the cache."
    )


@contextmanager
def _mark(read_options: ReadOptions) -> Iterator[str]:
    """Create a file in the cache folder by which workers see whether theirs is the same; yield its name."""
    with ExitStack() as stack:
        name = "none"  # no file has this name: everything is sent
        with suppress(OSError):
            if not read_options.figures_only:
                cache_folder().mkdir(parents=True, exist_ok=True, mode=0o700)
                mark, file = open_part(cache_folder())
                stack.callback(mark.unlink, missing_ok=True)
                stack.enter_context(file)
                name = mark.name
        yield name


def _with_user_path(result: RankFile | DptraceError, absolute: str, given: str) -> RankFile | DptraceError:
    """Replace the absolute path of the file with the one that the user gave."""
    if isinstance(result, RankFile):
        return result.with_path(given)
    lacks = " The Dask workers read it, and need them, too." if isinstance(result, AccessError) else ""
    result.args = (str(result).replace(absolute, given) + lacks,)
    return result


@contextmanager
def _client(address: str) -> Iterator[Client]:
    from distributed import Client, LocalCluster

    if address == LOCAL:
        with _local(LocalCluster) as cluster, Client(cluster) as client:
            yield client
        return
    try:
        client = Client(address, timeout=_ANSWER)
    except (OSError, ValueError, TimeoutError) as error:
        raise DptraceError(
            f"{address}: no Dask scheduler answers ({error}). The scheduler prints its address when it starts, such as "
            "tcp://host:8786. To start a cluster on this machine, use --dask local."
        ) from None
    with client:
        if not client.scheduler_info()["workers"]:
            print(f"{address}: the Dask scheduler has no workers; waiting {_TIMEOUT} s for one …", file=sys.stderr)
        try:
            client.wait_for_workers(1, timeout=_TIMEOUT)
        except TimeoutError:
            raise DptraceError(
                f"{address}: the Dask scheduler has no workers. Start one: dask worker {address}"
            ) from None
        except OSError:  # Dask's "Timed out trying to connect" is no TimeoutError
            raise _lost(address) from None
        _check_workers(client)
        yield client


def _check_workers(client: Client) -> None:
    """Raise an error that names a worker without this dptrace; eval is what a worker without it has, too."""
    version = "__import__('dptrace').__version__"
    for worker, found in client.run(eval, version, on_error="return").items():
        if found != __version__:
            why = f"has dptrace {found}" if isinstance(found, str) else f"cannot import dptrace ({found})"
            raise DptraceError(
                f"The Dask worker {worker} {why}. Install version {__version__} there, with the same extras as here."
            )


def _local(cluster: Callable[..., Any]) -> Any:
    """Start a cluster on this machine's cores that only this machine can reach."""
    try:
        return cluster(
            n_workers=available_cores(), threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0"
        )
    except RuntimeError as error:
        raise DptraceError(
            f"Cannot start a local Dask cluster: {error} In a script, put the code under "
            '`if __name__ == "__main__":`, since the workers import the script.'
        ) from None


def _result(future: Future, source: Source) -> RankFile | DptraceError | SentFile | None:
    from distributed import KilledWorker

    try:
        result = future.result()
    except KilledWorker:
        return DptraceError(
            f"{source.address}: every worker that read it died, maybe out of memory; the figures of other files are "
            "not affected. Give the workers more memory."
        )
    except ImportError as error:
        raise DptraceError(f"A Dask worker cannot import what dptrace needs: {error}. Install it there.") from None
    assert result is None or isinstance(result, RankFile | DptraceError | SentFile)
    return result
