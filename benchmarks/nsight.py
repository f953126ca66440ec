"""How fast an export of Nsight Systems is read: processor time of a million kernels with their calls and ranges.

    python benchmarks/nsight.py [KERNELS]

The columns of numbers are also read by way of rows, as sqlite3 returns them, for comparison.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import dptrace
from dptrace.readers.nsight import read_export
from dptrace.readers.nsight_export import KERNELS, opened
from dptrace.readers.source import Source

_TABLES = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER,
    streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER,
    gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER,
    correlationId INTEGER, nameId INTEGER, returnValue INTEGER);
CREATE TEMP TABLE number AS
    WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT {count}) SELECT i FROM n;
INSERT INTO StringIds SELECT i, 'void kernel_' || i || '<float>(int)' FROM number WHERE i < 200;
INSERT INTO StringIds VALUES (1000, 'cudaLaunchKernel_v7000');
INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL SELECT 10000 * i + 5000, 10000 * i + 12000, 0, 1, 7 + i % 3, i + 1, {process},
    i % 200, i % 200, 8, 1, 1, 256, 1, 1 FROM number;
INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME SELECT 10000 * i + 1000, 10000 * i + 3000, 0, {process} + 1, i + 1, 1000, 0
    FROM number;
"""
_RANGES = """
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER);
INSERT INTO NVTX_EVENTS SELECT 10000 * i, 10000 * i + 9000, 59,
    'aten::op' || (i % 50) || ', seq = ' || i || ', op_id = ' || (2 * i), {process} + 1, NULL FROM number;
"""
_COLUMNS = ("start", "end", "deviceId", "streamId", "correlationId", "demangledName")


def measure(what: str, action: Callable[[], object]) -> None:
    """Print the processor time of an action."""
    begun = time.process_time()
    action()
    print(f"{what:<60}{time.process_time() - begun:7.2f} s", flush=True)


def by_rows(path: Path) -> object:
    """Read the columns of kernels as rows."""
    with closing(sqlite3.connect(path)) as database:
        names = ", ".join(f'"{name}"' for name in _COLUMNS)
        rows = database.execute(f"SELECT {names} FROM {KERNELS}").fetchall()
        return np.fromiter(chain.from_iterable(rows), np.int64).reshape(-1, len(_COLUMNS))


def by_columns(path: Path) -> object:
    """Read them as the reader does."""
    with opened(Source(str(path))) as export:
        return export.rows(KERNELS, [export.column(KERNELS, name) for name in _COLUMNS])


def main() -> None:
    """Measure a file of as many kernels as the command line says."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with TemporaryDirectory() as folder:
        path = Path(folder, "report.sqlite")
        with closing(sqlite3.connect(path)) as database:
            database.executescript(_TABLES.format(count=count, process=100 << 24))
            database.commit()
            print(f"{count:,} kernels, calls and ranges", flush=True)
            measure(f"six columns of kernels as rows (sqlite3 {sqlite3.sqlite_version})", lambda: by_rows(path))
            measure("the same by SQLite's group_concat and NumPy", lambda: by_columns(path))
            measure("a rank's columns: kernels and calls", lambda: read_export(Source(str(path))))
            database.executescript(_RANGES.format(process=100 << 24))
            database.commit()
        measure("a rank's columns: kernels, calls, ranges", lambda: read_export(Source(str(path))))
        measure("dptrace.open: with the split and idle causes", lambda: dptrace.open(path, cache=False))


if __name__ == "__main__":
    main()
