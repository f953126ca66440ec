"""The colours of drawings on a dark page: for each of a light one's, what is seen as well on a dark ground."""

from __future__ import annotations

from dptrace.viewers import theme

__all__ = ["at_night", "ink_at_night"]

_LIGHT, _DARK = theme.CHROME["light"], theme.CHROME["dark"]
_NIGHT = {
    **{_LIGHT[name]: _DARK[name] for name in ("paper", "text", "quiet", "grid", "strip", "strip-odd", "edge")},
    **{light: dark for light, (dark, _) in theme.DARK.items()},
    _LIGHT["strip-ink"]: _DARK["strip-ink"],
    "#374151": _DARK["text"],
    "#9CA3AF": _DARK["strong-line"],
    # Dots by kind: as far apart from each other as on white.
    "#0072B2": "#4AA8E8",
    "#D55E00": "#F07C22",
    "#009E73": "#22C495",
    "#AA4499": "#D77BBB",
    "#332288": "#9C8CF0",
    "#8A6D00": "#CDAA2E",
    "#4B5563": "#B3BCC8",
    # Of sweeps.
    "#A8438A": "#D77BBB",
    "#B58900": "#CDAA2E",
    "#57606a": "#B3BCC8",
}


def at_night(color: str) -> str:
    """Give the colour that stands for one on a dark page; most of the data's are the same there."""
    return _NIGHT.get(color, color)


def ink_at_night(color: str, ink: str) -> str:
    """Give the colour of a text on a box of *color*, where it is *ink* on a light page."""
    return theme.DARK[color][1] if color in theme.DARK else ink
