"""Take evidence of 16 kinds from real recordings: each figure must stay, or be unknown, or be a bound that holds.

python -m benchmarks.evidence FILE.json.gz …
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.support.evidence import answers, read


def main(paths: list[str]) -> int:
    """Print a line for each kind of evidence and the number of figures that are equal, unknown and wrong."""
    equal, unsure, wrong = Counter[str](), Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        for path in paths:
            for name, same, unknown, faults in answers(read(Path(path)), Path(folder)):
                equal[name] += same
                unsure[name] += unknown
                wrong[name] += len(faults)
                for fault in faults:
                    print(f"{Path(path).name} without {name}: {fault}")
    for name in equal:
        print(f"{name}: {equal[name]} equal, {unsure[name]} unknown or bounds, {wrong[name]} wrong")
    print(f"all: {equal.total()} equal, {unsure.total()} unknown or bounds, {wrong.total()} wrong")
    return min(wrong.total(), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
