"""What a reader sees of a color: contrast, lightness, and distances for three kinds of color blindness.

Sources:
    contrast: WCAG 2.2, definition of the contrast ratio, https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio
    color blindness: G. M. Machado, M. M. Oliveira, L. A. F. Fernandes, A Physiologically-based Model for Simulation of
        Color Vision Deficiency, IEEE TVCG 15 (2009), matrices of severity 1.0, for linear RGB
    distance: G. Sharma, W. Wu, E. N. Dalal, The CIEDE2000 Color-Difference Formula, Color Research & Application 30
        (2005); a distance of 1 is just noticeable side by side
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

VISIONS: dict[str, Floats] = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
"""By kind of color vision, what becomes of linear RGB."""

_TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
_WHITE = _TO_XYZ.sum(axis=1)


def linear_rgb(color: str) -> Floats:
    """Return the linear RGB of ``#RRGGBB``, each channel from 0 to 1."""
    channels = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def luminance(color: str) -> float:
    """Return the relative luminance of WCAG 2."""
    return float(linear_rgb(color) @ (0.2126, 0.7152, 0.0722))


def contrast(a: str, b: str) -> float:
    """Return the contrast ratio of WCAG 2."""
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def seen(rgb: ArrayLike, vision: str) -> Floats:
    """Return what linear RGB looks like to a kind of color vision."""
    simulated: Floats = np.clip(np.asarray(rgb) @ VISIONS[vision].T, 0, 1)
    return simulated


def lab(rgb: ArrayLike) -> Floats:
    """Return CIELAB (D65) of linear RGB."""
    ratio = np.asarray(rgb) @ _TO_XYZ.T / _WHITE
    root = np.where(ratio > 216 / 24389, np.cbrt(ratio), (24389 / 27 * ratio + 16) / 116)
    x, y, z = np.moveaxis(root, -1, 0)
    return np.stack((116 * y - 16, 500 * (x - y), 200 * (y - z)), axis=-1)


def lightness(color: str) -> float:
    """Return L* from 0 (black) to 100 (white): what remains in a grey print."""
    return float(lab(linear_rgb(color))[0])


def distance(a: ArrayLike, b: ArrayLike) -> Floats:
    """Return the CIEDE2000 distance of two colors in CIELAB."""
    (l1, a1, b1), (l2, a2, b2) = (np.moveaxis(np.asarray(one, float), -1, 0) for one in (a, b))
    mean7 = ((np.hypot(a1, b1) + np.hypot(a2, b2)) / 2) ** 7
    stretch = 1.5 - 0.5 * np.sqrt(mean7 / (mean7 + 25.0**7))
    c1, c2 = np.hypot(stretch * a1, b1), np.hypot(stretch * a2, b2)
    h1, h2 = (np.degrees(np.arctan2(y, stretch * x)) % 360 for x, y in ((a1, b1), (a2, b2)))
    grey = c1 * c2 == 0
    turn = np.where(grey, 0, (h2 - h1 + 180) % 360 - 180)
    # Exactly opposite hues: the formula's sign, as in the paper's test data.
    turn = np.where((turn == -180) & (h2 > h1), 180, turn)
    hue = np.where(grey, h1 + h2, np.where(np.abs(h1 - h2) <= 180, (h1 + h2) / 2, (h1 + h2 + 360) / 2))
    hue = np.where(~grey & (np.abs(h1 - h2) > 180) & (h1 + h2 >= 360), (h1 + h2 - 360) / 2, hue)
    dl, dc, dh = l2 - l1, c2 - c1, 2 * np.sqrt(c1 * c2) * np.sin(np.radians(turn) / 2)
    light, chroma = (l1 + l2) / 2, (c1 + c2) / 2
    t = 1 - 0.17 * _cos(hue - 30) + 0.24 * _cos(2 * hue) + 0.32 * _cos(3 * hue + 6) - 0.20 * _cos(4 * hue - 63)
    sl = 1 + 0.015 * (light - 50) ** 2 / np.sqrt(20 + (light - 50) ** 2)
    sc, sh = 1 + 0.045 * chroma, 1 + 0.015 * chroma * t
    blue = np.radians(60 * np.exp(-(((hue - 275) / 25) ** 2)))
    rotation = -2 * np.sqrt(chroma**7 / (chroma**7 + 25.0**7)) * np.sin(blue)
    found: Floats = np.sqrt((dl / sl) ** 2 + (dc / sc) ** 2 + (dh / sh) ** 2 + rotation * dc / sc * dh / sh)
    return found


def _cos(degrees: Floats) -> Floats:
    cosine: Floats = np.cos(np.radians(degrees))
    return cosine
