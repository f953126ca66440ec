"""Labels of parts and causes."""

from __future__ import annotations

from dptrace.analysis.per_gpu.idle import CAUSES
from dptrace.analysis.per_gpu.labels import CAUSE_LABELS, PART_LABELS
from dptrace.analysis.per_gpu.split import Part


def test_every_part_and_cause_has_its_own_name() -> None:
    """Every part and cause has a label, and no two share one."""
    assert set(Part) == set(PART_LABELS)
    assert list(CAUSES) == list(CAUSE_LABELS)
    names = [*PART_LABELS.values(), *CAUSE_LABELS.values()]
    assert len(names) == len(set(names))
