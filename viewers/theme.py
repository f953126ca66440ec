"""The palette, once: every picture, table and export colours the same thing the same way.

Chosen by a search over simulated protanopia, deuteranopia and tritanopia for the least distance between any
two colours of one lane; exposed communication is hatched as well, so that nothing hangs on colour alone.
"""

from __future__ import annotations

from dptrace.split import Part

__all__ = [
    "EXPOSED",
    "IDLE",
    "INK",
    "MEMORY",
    "OVERLAPPED",
    "OVERLAPPED_LABEL",
    "PART_COLORS",
    "PART_LABELS",
    "PART_ORDER",
    "ink_on",
]

PART_COLORS: dict[Part, str] = {
    Part.FORWARD: "#1B4F9C",
    Part.BACKWARD: "#74B3E8",
    Part.OPTIMIZER: "#EFCB3A",
    Part.OTHER: "#857B70",
    Part.EXPOSED_COMM: "#D62F1F",
    Part.EXPOSED_MEMORY: "#602047",
    Part.IDLE: "#ECEFF1",
}

PART_LABELS: dict[Part, str] = {
    Part.FORWARD: "Forward",
    Part.BACKWARD: "Backward",
    Part.OPTIMIZER: "Optimizer",
    Part.OTHER: "Other compute",
    Part.EXPOSED_COMM: "Exposed communication",
    Part.EXPOSED_MEMORY: "Exposed memory",
    Part.IDLE: "Idle",
}

PART_ORDER: tuple[Part, ...] = tuple(PART_COLORS)
"""The parts in the order of bars and legends: as a step runs, not as an instant is claimed."""

EXPOSED = PART_COLORS[Part.EXPOSED_COMM]
OVERLAPPED = "#3ECF8E"
"""Communication under compute."""
OVERLAPPED_LABEL = "Overlapped communication"
MEMORY = PART_COLORS[Part.EXPOSED_MEMORY]
"""Copies and sets, exposed or not."""
IDLE = PART_COLORS[Part.IDLE]

INK: dict[str, str] = {
    PART_COLORS[Part.FORWARD]: "#FFFFFF",
    PART_COLORS[Part.BACKWARD]: "#0B2540",
    PART_COLORS[Part.OPTIMIZER]: "#3A2E00",
    PART_COLORS[Part.OTHER]: "#FFFFFF",
    EXPOSED: "#FFFFFF",
    OVERLAPPED: "#06351F",
    MEMORY: "#FFFFFF",
    IDLE: "#4B5563",
}
"""The colour of text on each colour."""


def ink_on(color: str) -> str:
    """Give the colour of text that stands on *color*, one of the palette's."""
    return INK[color]
