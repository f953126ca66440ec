"""The palette: every picture, table and export uses the same color for the same thing.

Chosen by a search over simulated protanopia, deuteranopia and tritanopia for the least distance between any
two colors of one lane; exposed communication is hatched as well, so that nothing hangs on color alone.


A dark page replaces the colors that would be hard to see on it (:func:`dark_color`)."""

from __future__ import annotations

from dptrace.analysis.per_gpu.split import Part
from dptrace.viewers.base import theme

__all__ = [
    "CAUSE_COLORS",
    "CHROME",
    "DARK",
    "EXPOSED",
    "IDLE",
    "INK",
    "MEMORY",
    "OVERLAPPED",
    "PART_COLORS",
    "PART_ORDER",
    "css",
    "dark_color",
    "dark_ink",
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


PART_ORDER: tuple[Part, ...] = tuple(PART_COLORS)
"""The parts in the order of bars and legends: as a step runs, not by precedence."""

EXPOSED = PART_COLORS[Part.EXPOSED_COMM]
OVERLAPPED = "#3ECF8E"
"""Communication under compute."""
MEMORY = PART_COLORS[Part.EXPOSED_MEMORY]
"""Copies and sets, exposed or not."""
IDLE = PART_COLORS[Part.IDLE]

CAUSE_COLORS: dict[str, str] = {
    "data_loading_ns": "#6A4C93",
    "allocator_ns": "#B08968",
    "synchronizing_ns": "#8A9A3A",
    "host_bound_ns": "#D9822B",
    "launch_latency_ns": "#9FD8CB",
    "waiting_ns": "#8A94A3",
    "bubble_ns": "#C86FA8",
}
"""Colors of the causes of idle time, by ``idle.CAUSES``; each also has a pattern where it is drawn."""


INK: dict[str, str] = {
    PART_COLORS[Part.FORWARD]: "#FFFFFF",
    PART_COLORS[Part.BACKWARD]: "#0B2540",
    PART_COLORS[Part.OPTIMIZER]: "#3A2E00",
    PART_COLORS[Part.OTHER]: "#14110E",
    EXPOSED: "#FFFFFF",
    OVERLAPPED: "#06351F",
    MEMORY: "#FFFFFF",
    IDLE: "#4B5563",
    CAUSE_COLORS["data_loading_ns"]: "#FFFFFF",
    CAUSE_COLORS["allocator_ns"]: "#1E1206",
    CAUSE_COLORS["synchronizing_ns"]: "#10140A",
    CAUSE_COLORS["host_bound_ns"]: "#2B1600",
    CAUSE_COLORS["launch_latency_ns"]: "#0C332B",
    CAUSE_COLORS["waiting_ns"]: "#10141A",
    CAUSE_COLORS["bubble_ns"]: "#1F0617",
}
"""Text color on each color, with a contrast of at least 4.5:1."""

DARK: dict[str, tuple[str, str]] = {
    PART_COLORS[Part.FORWARD]: ("#356BBF", "#FFFFFF"),
    PART_COLORS[Part.OTHER]: ("#9A9085", "#14110E"),
    MEMORY: ("#A8487F", "#FFFFFF"),
    IDLE: ("#262C35", "#B6BFCC"),
    CAUSE_COLORS["data_loading_ns"]: ("#7E5CB5", "#FFFFFF"),
}
"""Color and text color on a dark page, for those of the above that are hard to see there; others stay the same."""

CHROME: dict[str, dict[str, str]] = {
    "light": {
        "paper": "#FFFFFF",
        "raised": "#F8FAFC",
        "text": "#111827",
        "quiet": "#5B6472",
        "line": "#D5DAE1",
        "strong-line": "#9AA5B4",
        "grid": "#E3E7EC",
        "band": "#F5F7FA",
        "baseline": "#DFE2E6",
        "edge": "#8593A8",
        "strip": "#E4E9F0",
        "strip-odd": "#D3DBE7",
        "strip-ink": "#2B3544",
        "alarm": "#C4281A",
        "warn": "#FFF7E0",
        "warn-line": "#ECD28A",
        "focus": "#1B4F9C",
        "saved": "#0B7A50",
        "lost": "#B3261E",
        "mark": "#B4007A",
        "tip": "#111827",
        "tip-text": "#F4F6F8",
        "tip-quiet": "#B3BCC8",
        "tip-line": "#111827",
    },
    "dark": {
        "paper": "#12161C",
        "raised": "#1A2029",
        "text": "#E6E9EE",
        "quiet": "#9AA5B4",
        "line": "#353D49",
        "strong-line": "#667284",
        "grid": "#222933",
        "band": "#171C24",
        "baseline": "#2B323C",
        "edge": "#6B788C",
        "strip": "#2A323E",
        "strip-odd": "#363F4D",
        "strip-ink": "#D5DCE6",
        "alarm": "#FF7A6B",
        "warn": "#2C2612",
        "warn-line": "#6A5A22",
        "focus": "#7FB2F5",
        "saved": "#4CCB97",
        "lost": "#FF8A7A",
        "mark": "#FF6AC1",
        "tip": "#232B36",
        "tip-text": "#F4F6F8",
        "tip-quiet": "#B3BCC8",
        "tip-line": "#4A5565",
    },
}
"""Colors of the page itself, by purpose."""


def ink_on(color: str) -> str:
    """Return the text color for *color*, a color of the palette."""
    return INK[color]


def css() -> str:
    """Return the page's colors as CSS custom properties: light, and dark where the page or the system asks for it."""
    light, dark = (
        f"color-scheme: {name}; " + " ".join(f"--{key}: {value};" for key, value in colors.items())
        for name, colors in CHROME.items()
    )
    return f":root {{ {light} }}\n:root[data-theme=dark] {{ {dark} }}\n"


_LIGHT, _DARK = theme.CHROME["light"], theme.CHROME["dark"]
_NIGHT = {
    **{_LIGHT[name]: _DARK[name] for name in ("paper", "text", "quiet", "grid", "strip", "strip-odd", "edge")},
    **{light: dark for light, (dark, _) in theme.DARK.items()},
    _LIGHT["strip-ink"]: _DARK["strip-ink"],
    "#374151": _DARK["text"],
    "#9CA3AF": _DARK["strong-line"],
    # Dots by kind: as distinguishable as on white.
    "#0072B2": "#4AA8E8",
    "#D55E00": "#F07C22",
    "#009E73": "#22C495",
    "#AA4499": "#D77BBB",
    "#332288": "#9C8CF0",
    "#8A6D00": "#CDAA2E",
    "#4B5563": "#B3BCC8",
    # Sweeps.
    "#A8438A": "#D77BBB",
    "#B58900": "#CDAA2E",
    "#57606A": "#B3BCC8",
    # Benchmarks.
    "#3A7D44": "#66B874",
    "#9AA5B4": "#667284",
}


def dark_color(color: str) -> str:
    """Return the color to use on a dark page; most data colors are the same there."""
    return _NIGHT.get(color, color)


def dark_ink(color: str, ink: str) -> str:
    """Return the text color on a box of *color* on a dark page, where it is *ink* on a light page."""
    return theme.DARK[color][1] if color in theme.DARK else ink
