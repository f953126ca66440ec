"""Print what the palette's colors are like to see: contrast, lightness, and distances for each kind of color vision.

After each page, it proposes a color for one more cause of idle time.

    python -m benchmarks.palette

The limits are those of ``tests/viewers/base/test_theme.py``; the formulas and their sources are in
``tests/support/color_vision.py``.
"""

from __future__ import annotations

from tests.support.color_vision import VISIONS, contrast, lightness
from tests.support.palette import ROWS, apart, looks, proposed


def main() -> None:
    """Print a table of contrasts and one of distances for the light and the dark page."""
    for name in ("light", "dark"):
        print(f"{name} page\n{'':24}{'fill':10}{'pattern':9}{'text':>6}{'page':>7}{'idle':>7}{'L*':>6}")
        for look in looks(name):
            shades = contrast(look.color, look.ink), contrast(look.color, look.paper), contrast(look.color, look.idle)
            figures = "".join(f"{shade:7.2f}" for shade in shades)
            print(f"{look.name:24}{look.color:10}{look.pattern:8}{figures}{lightness(look.color):6.0f}")
        print(f"\n{'least CIEDE2000 in':24}" + "".join(f"{vision:>14}" for vision in VISIONS))
        for row in ROWS:
            least = (apart(name, row, vision) for vision in VISIONS)
            print(f"{row:24}" + "".join(f"{min(found.values()):14.1f}" for found in least))
        color, ink, far = proposed(name, "idle causes")
        print(f"\none more idle cause: {color}, text {ink}, {far:.1f} from the others without a pattern\n")


if __name__ == "__main__":
    main()
