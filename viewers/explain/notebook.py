"""An explanation in Python and notebooks: its steps, its page, and the same text as in the terminal."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from dptrace.core.units import plural
from dptrace.simulate.explanation import Cost, Explanation, Step, to_dict
from dptrace.viewers.explain.page import document
from dptrace.viewers.explain.terminal import lines

__all__ = ["Explained"]

_WIDTH, _HEIGHT = 80, 760


@dataclass(frozen=True)
class Explained:
    """An algorithm step by step, computed by a simulation; a notebook shows it as an animation.

    ``print`` shows the text that ``dptrace explain`` prints.
    """

    explanation: Explanation

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps, each with ``messages``, ``work``, and the ranks' content ``before`` and ``after``."""
        return self.explanation.steps

    @property
    def cost(self) -> Cost:
        """Volume and time: ``sent_bytes`` by rank, ``seconds``, ``formula`` and the same with ``numbers``."""
        return self.explanation.cost

    @property
    def checked(self) -> str:
        """What was compared with NumPy's result, and found equal."""
        return self.explanation.checked

    def to_dict(self) -> dict[str, Any]:
        """Return what ``dptrace explain --json`` prints."""
        return to_dict(self.explanation)

    def save(self, path: str | Path) -> None:
        """Write the animated page to a file, replacing an existing one."""
        Path(path).write_text(document(self.explanation), encoding="utf-8")

    def __str__(self) -> str:
        return "\n".join(lines(self.explanation, _WIDTH))

    def __repr__(self) -> str:
        one = self.explanation
        return (
            f"{one.title}: {one.ranks} ranks, {plural(len(one.steps), 'step')}; a notebook shows it, save(path) "
            "writes it."
        )

    def _repr_html_(self) -> str:
        # Without allow-same-origin the page's scripts can't reach the notebook.
        page = escape(document(self.explanation))
        return (
            f'<iframe sandbox="allow-scripts" srcdoc="{page}" width="100%" height="{_HEIGHT}" '
            f'title="{escape(self.explanation.title)}" style="border:1px solid #d5dae1;border-radius:6px"></iframe>'
        )
