"""Simulated meshes with a known fault: whether findings name the culprit, and the size within 10 % of the truth.

    PYTHONPATH=. python benchmarks/meshes.py

Each has a slow GPU, a slow host, a slow node or two of them at once, in some beside a rank that is missing, cut or has
no step marks. The truth is the same simulation without the fault. Six more have none: there no finding may claim 3 %.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import dptrace
from dptrace.analysis.findings.evidence import Straggler
from dptrace.replay.findings import findings_of
from tests.support.mesh import Mesh

_SIZES = ((4, 2), (4, 4), (8, 8))
_SPOILED: tuple[Mapping[str, Any], ...] = ({}, {"missing": (2,)}, {"cut": (3,)}, {"unmarked": (1,)})


def cases() -> Iterator[tuple[str, Mesh, Mapping[str, Any], tuple[set[int], ...]]]:
    """Yield a name, the mesh, what is spoiled, and the ranks of each fault."""
    for tp, dp in _SIZES:
        mesh, node = Mesh(tp=tp, dp=dp, node=4), set(range(4, 8))
        for spoiled in _SPOILED:
            how = f"{tp * dp} ranks" + "".join(f", rank {ranks[0]} {word}" for word, ranks in spoiled.items())
            yield f"slow rank, {how}", replace(mesh, slow={5: 1.35}), spoiled, ({5},)
        yield f"late host, {tp * dp} ranks", replace(mesh, late_us={6: 700}), {}, ({6},)
        yield f"slow node, {tp * dp} ranks", replace(mesh, slow=dict.fromkeys(node, 1.3)), {}, (node,)
        yield (
            f"slow node, {tp * dp} ranks, one missing",
            replace(mesh, slow=dict.fromkeys(node, 1.3)),
            _SPOILED[1],
            (node,),
        )
        both = replace(mesh, slow={5: 1.35}, late_us={1: 900})
        yield f"slow rank and late host, {tp * dp} ranks", both, {}, ({5}, {1})
    for seed in range(6):
        yield f"none, {8 * (seed + 1)} ranks", Mesh(tp=4, dp=2 * (seed + 1)), {}, ()


def main() -> None:
    """Print a row for each mesh, and how many are right."""
    right = total = clean = 0
    for name, mesh, spoiled, faults in cases():
        with tempfile.TemporaryDirectory() as folder:
            run = dptrace.open(mesh.write(Path(folder, "run"), **spoiled), cache=False)
            late = [finding for finding in findings_of(run) if isinstance(finding.evidence, Straggler)]
        step, truth = mesh.step_us(), replace(mesh, slow={}, late_us={}).step_us()
        named = [set(one.evidence.ranks) for one in late if isinstance(one.evidence, Straggler) and not one.is_minor]
        gained = sum(one.gain.marginal_ns or 0 for one in late) / 1000
        if faults:
            off = gained / (step - truth) - 1
            good = all(fault in named for fault in faults) and abs(off) <= 0.1
            right, total = right + good, total + 1
        else:
            good = gained <= 0.03 * step
            clean += good
        found = f"{gained:6.0f} of {step - truth:6.0f} µs"
        print(f"{'ok ' if good else 'NO '} {name:42} {found}  {[sorted(ranks) for ranks in named]}", flush=True)
    print(f"{right} of {total} named, with their size within 10 %; {clean} of 6 without a fault claim less than 3 %")


if __name__ == "__main__":
    main()
