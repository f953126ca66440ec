"""The palette: every picture, table and export uses the same color for the same thing.

Chosen by a search over simulated protanopia, deuteranopia and tritanopia for the largest least distance between any
two colors of one row; waiting and exposed communication have patterns as well, so that nothing hangs on color alone. On
a white page a fill must be dark to be seen, on a dark page light: each thing has a color for both
(:func:`dark_color`)."""

from __future__ import annotations

from functools import cache

from dptrace.analysis.per_gpu.causes import IDLE_CAUSES
from dptrace.analysis.per_gpu.split import Part

_LOOKS: dict[Part | str, tuple[str, str, str, str]] = {
    Part.FORWARD: ("#233E9D", "#FFFFFF", "#5584F8", "#000000"),
    Part.BACKWARD: ("#3475B3", "#FFFFFF", "#94C9FF", "#000000"),
    Part.OPTIMIZER: ("#AF7F0C", "#000000", "#FDD370", "#000000"),
    Part.OTHER: ("#785652", "#FFFFFF", "#88736E", "#000000"),
    Part.EXPOSED_COMM: ("#B42814", "#FFFFFF", "#D75433", "#000000"),
    Part.EXPOSED_MEMORY: ("#4A1F38", "#FFFFFF", "#FB81C8", "#000000"),
    Part.IDLE: ("#ECEFF1", "#4B5563", "#262C35", "#B6BFCC"),
    "overlapped": ("#4B9858", "#000000", "#68B87B", "#000000"),
    "waiting": ("#71767A", "#FFFFFF", "#899096", "#000000"),
    **{cause.name: cause.look for cause in IDLE_CAUSES},
}
"""Parts, overlapped communication and causes of idle time: the color and the color of text on it on a light page, then
the same two on a dark page. ``python -m benchmarks.palette`` prints what the tests hold: text has a contrast of at
least 4.5:1, a fill of at least 3:1 against page and idle time, and what one row can hold differs for every kind of
color vision, and in a grey print by lightness or pattern."""

ALGORITHM_STYLES = {
    "ring": ("#0072B2", "circle"),
    "tree": ("#009E73", "square"),
    "halving-doubling": ("#D55E00", "triangle"),
    "hierarchical": ("#A8438A", "diamond"),
    "naive": ("#B58900", "circle"),
}
"""Color and shape of the points of each all-reduce algorithm."""

GLYPHS = {
    "forward_ns": ("F", "white on blue"),
    "backward_ns": ("B", "black on cyan"),
    "optimizer_ns": ("O", "black on yellow"),
    "other_ns": ("C", "black on white"),
    "compute_ns": ("C", "black on white"),
    "exposed_comm_ns": ("X", "white on red"),
    "exposed_transfer_ns": ("X", "white on red"),
    "exposed_unmatched_ns": ("U", "white on red"),
    "exposed_wait_ns": ("W", "black on bright_black"),
    "exposed_memory_ns": ("M", "white on magenta"),
    "idle_ns": ("·", ""),
}
"""A letter of each figure, and its style on a terminal of sixteen colors."""
PART_COLORS: dict[Part, str] = {part: look[0] for part, look in _LOOKS.items() if isinstance(part, Part)}

PART_ORDER: tuple[Part, ...] = tuple(PART_COLORS)
"""The parts in the order of bars and legends: as a step runs, not by precedence."""

EXPOSED = PART_COLORS[Part.EXPOSED_COMM]
OVERLAPPED = _LOOKS["overlapped"][0]
"""Communication under compute."""
WAITING = _LOOKS["waiting"][0]
"""Exposed communication that is waiting for later ranks."""
MEMORY = PART_COLORS[Part.EXPOSED_MEMORY]
"""Copies and sets, exposed or not."""
IDLE = PART_COLORS[Part.IDLE]

CAUSE_COLORS: dict[str, str] = {cause.name: cause.look[0] for cause in IDLE_CAUSES}
"""Colors of the causes of idle time."""

_PATTERNS: dict[Part | str, str] = {
    Part.EXPOSED_COMM: "hatch",
    "waiting": "back",
    **{cause.name: cause.pattern for cause in IDLE_CAUSES if cause.pattern},
}
PATTERNS: dict[str, str] = {color: pattern for look, pattern in _PATTERNS.items() for color in _LOOKS[look][::2]}
"""Patterns of the colors that have one, light and dark: ``hatch`` rises to the right, ``back`` falls, ``bars`` are
upright and ``rails`` level."""

_INKS: dict[str, str] = {look[0]: look[1] for look in _LOOKS.values()}

DARK: dict[str, tuple[str, str]] = {look[0]: (look[2], look[3]) for look in _LOOKS.values()}
"""Color and text color on a dark page, by the color on a light page."""

_CHROME = {
    "paper": ("#FFFFFF", "#12161C"),
    "raised": ("#F8FAFC", "#1A2029"),
    "text": ("#111827", "#E6E9EE"),
    "quiet": ("#5B6472", "#9AA5B4"),
    "line": ("#D5DAE1", "#353D49"),
    "strong-line": ("#9AA5B4", "#667284"),
    "grid": ("#E3E7EC", "#222933"),
    "baseline": ("#DFE2E6", "#2B323C"),
    "edge": ("#8593A8", "#6B788C"),
    "strip": ("#E4E9F0", "#2A323E"),
    "strip-odd": ("#D3DBE7", "#363F4D"),
    "strip-ink": ("#2B3544", "#D5DCE6"),
    "alarm": ("#C4281A", "#FF7A6B"),
    "warn": ("#FFF7E0", "#2C2612"),
    "warn-line": ("#ECD28A", "#6A5A22"),
    "focus": ("#1B4F9C", "#7FB2F5"),
    "saved": ("#0B7A50", "#4CCB97"),
    "lost": ("#B3261E", "#FF8A7A"),
    "mark": ("#B4007A", "#FF6AC1"),
    "tip": ("#111827", "#232B36"),
    "tip-text": ("#F4F6F8", "#F4F6F8"),
    "tip-quiet": ("#B3BCC8", "#B3BCC8"),
    "tip-line": ("#111827", "#4A5565"),
}
CHROME: dict[str, dict[str, str]] = {
    name: {purpose: colors[at] for purpose, colors in _CHROME.items()} for at, name in enumerate(("light", "dark"))
}
"""Colors of the page itself, on a light and on a dark page, by purpose."""


def ink_on(color: str) -> str:
    """Return the text color for *color*, a color of the palette."""
    return _INKS[color]


def css() -> str:
    """Return the page's colors as CSS custom properties: dark where the page, or else the system asks for it."""
    light, dark = (
        f"color-scheme: {name}; " + " ".join(f"--{key}: {value};" for key, value in colors.items())
        for name, colors in CHROME.items()
    )
    by_system = f"@media screen and (prefers-color-scheme: dark) {{ :root:not([data-theme]) {{ {dark} }} }}"
    return f":root {{ {light} }}\n:root[data-theme=dark] {{ {dark} }}\n{by_system}\n"


_LIGHT, _DARK = CHROME["light"], CHROME["dark"]
_NIGHT = {
    **{_LIGHT[name]: _DARK[name] for name in ("paper", "text", "quiet", "grid", "strip", "strip-odd", "edge")},
    **{light: dark for light, (dark, _) in DARK.items()},
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
    """Return the color to use on a dark page."""
    return _NIGHT.get(color, color)


@cache
def picture_css() -> str:
    """Return style sheets that recolor a page's SVG pictures where the page is dark; alone, a picture is light.

    A box with colors of its own for a dark page carries them in the property --dark.
    """
    rules = [(f'[{what}="{light}"]', what, dark) for light, dark in _NIGHT.items() for what in ("fill", "stroke")]
    # Text is white only on a fill of the palette, whose dark twin takes black text.
    rules += [
        (f'text[fill="{_LIGHT["paper"]}"]', "fill", "#000000"),
        (':is(rect, text)[style*="--dark"]', "fill", "var(--dark)"),
    ]
    by_page, by_system = (
        "\n".join(f"{root} .picture {mark} {{ {what}: {dark}; }}" for mark, what, dark in rules)
        for root in (":root[data-theme=dark]", ":root:not([data-theme])")
    )
    return f"{by_page}\n@media screen and (prefers-color-scheme: dark) {{\n{by_system}\n}}\n"
