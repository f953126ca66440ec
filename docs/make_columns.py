"""Write the tables of columns in docs/reference/json.md, from their declarations: ``python docs/make_columns.py``."""

from __future__ import annotations

import re
from pathlib import Path

from dptrace.core.table import markdown
from dptrace.run import columns

PAGE = Path(__file__).resolve().parent / "reference" / "json.md"
TABLES = {
    "steps": columns.STEPS[3:],
    "calls": columns.CALLS[2:],
    "idle": columns.IDLE[3:-1],
    "matched": columns.MATCHED,
    "members": columns.MEMBERS,
    "clocks": columns.CLOCKS,
    "stragglers": columns.STRAGGLERS,
    "findings": columns.FINDINGS,
    "memory peaks": columns.MEMORY_PEAKS[2:],
    "memory use": columns.MEMORY_USE[2:],
    "blocks": columns.BLOCKS[2:],
    "allocator calls": columns.ALLOCATOR_CALLS[1:],
    "utilization": columns.UTILIZATION,
    "kernels": columns.KERNELS[2:-1],
    "launches": columns.LAUNCHES,
}
"""The tables by the names in the page's comments."""
_BLOCK = re.compile(r"(<!-- columns: ([\w ]+) -->\n).*?(<!-- end of columns -->)", re.S)


def filled(page: str) -> str:
    """Return the page with its tables of columns as they are declared."""
    return _BLOCK.sub(lambda block: f"{block[1]}\n{markdown(TABLES[block[2]])}\n{block[3]}", page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
