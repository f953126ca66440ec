"""Compare FLOPs, bytes and times of operators with TraceLens' own tables: ``python -m tests.support.tracelens FOLDER``.

A folder holds a trace and beside it GEMM.csv, SDPA_fwd.csv …, as TraceLens writes them.
"""

from __future__ import annotations

import ast
import csv
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dptrace.model.operator_costs import cost
from tests.support.operator_calls import PlainOperator, owners, read_operators

TABLES = ("GEMM", "SDPA_fwd", "SDPA_bwd", "CONV_fwd", "CONV_bwd")
_COLUMNS = {
    "GFLOPs": "GFLOPS_first",
    "MB": "Data Moved (MB)_first",
    "time (µs)": "Kernel Time (µs)_sum",
    "TFLOP/s": "TFLOPS/s_mean",
    "TB/s": "TB/s_mean",
}
"""Our names of their columns. Their MB are 2²⁰ bytes, and their rates are means of each call's rate."""
_TOLERANCE = 1e-3


class Row:
    """One row of their tables: an operator with the sizes of its inputs."""

    def __init__(self, table: str, line: dict[str, str], calls: list[PlainOperator]) -> None:
        self.table, self.name, self.dims = table, line["name"], line["Input Dims_first"]
        self.calls = calls
        wanted = {name: line[column] for name, column in _COLUMNS.items() if line.get(column)}
        self.theirs = {"count": float(line["name_count"])} | {name: float(text) for name, text in wanted.items()}
        self.ours = _figures(calls) if calls else {}

    @property
    def differing(self) -> dict[str, tuple[float, float]]:
        """The figures that differ by more than 0.1 %: ours, theirs."""
        return {
            name: (self.ours.get(name, 0.0), theirs)
            for name, theirs in self.theirs.items()
            if abs(self.ours.get(name, 0.0) - theirs) > _TOLERANCE * abs(theirs)
        }


def _figures(calls: list[PlainOperator]) -> dict[str, float]:
    costs = [cost(call.call()) for call in calls]
    times = [call.device_ns() for call in calls]
    known = [(c.flops or 0, c.bytes or 0, ns) for c, ns in zip(costs, times, strict=True) if c is not None and ns]
    if not known:
        return {"count": len(calls)}
    return {
        "count": len(calls),
        "GFLOPs": known[0][0] / 1e9,
        "MB": known[0][1] / 2**20,
        "time (µs)": sum(times) / 1e3,
        "TFLOP/s": sum(flops / ns for flops, _, ns in known) / len(known) / 1e3,
        "TB/s": sum(size / ns for _, size, ns in known) / len(known) / 1e3,
    }


def compare(folder: Path) -> Iterator[Row]:
    """Yield each row of the tables in a folder, with what dptrace computes of the trace beside them."""
    (trace,) = (path for path in sorted(folder.iterdir()) if ".json" in path.name)
    by_shape: dict[tuple[str, str], list[PlainOperator]] = {}
    for operator in owners(read_operators(trace)):
        by_shape.setdefault((operator.name, json.dumps(operator.call().dims)), []).append(operator)
    csv.field_size_limit(1 << 30)
    for table in TABLES:
        path = folder / f"{table}.csv"
        if path.exists():
            with path.open(newline="") as file:
                for line in csv.DictReader(file):
                    yield Row(table, line, _calls_of(line, by_shape))


def _calls_of(line: dict[str, str], by_shape: dict[tuple[str, str], list[PlainOperator]]) -> list[PlainOperator]:
    """Return the calls of a row; rows of equal sizes differ in strides or in scalars."""
    calls = by_shape.get((line["name"], json.dumps(ast.literal_eval(line["Input Dims_first"]))), [])
    if len(calls) == int(line["name_count"]):
        return calls

    def text(call: PlainOperator, key: str) -> Any:
        value = call.args.get(key)
        return str(ast.literal_eval(value) if isinstance(value, str) else value)

    keys = ("Concrete Inputs", "Input Strides")
    alike = [call for call in calls if all(text(call, key) == line.get(f"{key}_first") for key in keys)]
    return alike or calls


def main(folders: list[str]) -> None:
    """Print the rows that are equal by table and figure, and each row that is not."""
    for folder in folders:
        total: Counter[tuple[str, str]] = Counter()
        equal: Counter[tuple[str, str]] = Counter()
        for row in compare(Path(folder)):
            total.update((row.table, name) for name in row.theirs)
            equal.update((row.table, name) for name in row.theirs if name not in row.differing)
            if row.differing:
                print(f"differs: {row.table} {row.name} {row.dims}: {row.differing}")
        for table, name in total:
            print(f"{Path(folder).name:24} {table:9} {name:10} {equal[table, name]} of {total[table, name]}")


if __name__ == "__main__":
    main(sys.argv[1:])
