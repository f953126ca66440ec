"""Make a run of many ranks from the eight real ones of a recording, on nodes whose clocks differ.

    python benchmarks/many_ranks.py sharded_h100_8ranks FOLDER --ranks 512

Each node of eight repeats the recording, on a clock of its own that is up to 5 ms off. Only the node in the middle has
the recording's slow rank; in the others, a quick rank takes its place. So there is one rank that all others wait for.
"""

from __future__ import annotations

import argparse
import gzip
import random
import re
from collections.abc import Mapping
from pathlib import Path

NODE = 8
"""Ranks of a node, and of the recording."""
SLOW, QUICK = 1, 2
"""The recording's rank that the others wait for, and the one that stands in for it on the other nodes."""
MAX_OFFSET_NS = 5_000_000
_LISTED = 30
"""Ranks of a group that torch writes into a trace; of a larger group it leaves the others out."""


def main() -> None:
    """Write the traces."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recording", type=Path, help="folder with traces of eight ranks, whose names hold the rank")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=512, help="a multiple of eight [512]")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    files = {int(re.findall(r"rank(\d+)", path.name)[0]): path for path in given.recording.glob("*.json.gz")}
    traces = {rank: in_group(gzip.decompress(path.read_bytes()), given.ranks) for rank, path in files.items()}
    for node in range(given.ranks // NODE):
        write_node(given.folder, node, traces, slow=node == given.ranks // NODE // 2)


def in_group(trace: bytes, ranks: int) -> bytes:
    """Return a trace as of a group of *ranks*."""
    listed = ", ".join(map(str, range(min(ranks, _LISTED)))) + ", ..." * (ranks > _LISTED)
    everyone = ", ".join(map(str, range(ranks)))
    for old, new in (
        (rb'"Group size": \d+', f'"Group size": {ranks}'),
        (rb'"Process Group Ranks": "[^"]*"', f'"Process Group Ranks": "[{listed}]"'),
        (rb'"world_size": \d+', f'"world_size": {ranks}'),
        (rb'"pg_size": \d+, "ranks": \[[^\]]*\]', f'"pg_size": {ranks}, "ranks": [{everyone}]'),
    ):
        trace = re.sub(old, new.encode(), trace)
    return trace


def write_node(folder: Path, node: int, traces: Mapping[int, bytes], slow: bool) -> None:
    """Write the traces of one node, named as torch's tensorboard_trace_handler does."""
    offset = random.Random(node).randint(-MAX_OFFSET_NS, MAX_OFFSET_NS) if node else 0
    for place in range(NODE):
        rank, source = NODE * node + place, place if slow or place != SLOW else QUICK
        trace = re.sub(rb'("[Rr]ank": )\d+', rb"\g<1>%d" % rank, traces[source])
        base = re.search(rb'"baseTimeNanoseconds": (\d+)', trace)
        assert base is not None
        moved = b'"host_name": "node-%03d", "baseTimeNanoseconds": %d' % (node, int(base[1]) + offset)
        trace = trace[: base.start()] + moved + trace[base.end() :]
        name = f"node-{node:03d}_{1000 + place}.rank{rank}.pt.trace.json.gz"
        (folder / name).write_bytes(gzip.compress(trace, 1, mtime=0))


if __name__ == "__main__":
    main()
