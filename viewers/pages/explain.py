"""An explanation as an animated page: one file that loads nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dptrace.analysis.per_gpu.split import Part
from dptrace.core.units import plural
from dptrace.simulate.explanation import Cost, Explanation, Step, megabytes, to_dict
from dptrace.viewers.base.headline import Headline
from dptrace.viewers.base.page import bundle, notebook_frame, page, static
from dptrace.viewers.base.theme import DARK, OVERLAPPED, PART_COLORS, ink_on
from dptrace.viewers.terminal.explain import cost_rows, lines

_KINDS = {
    "forward": ("forward", PART_COLORS[Part.FORWARD]),
    "backward": ("backward", PART_COLORS[Part.BACKWARD]),
    "weight": ("gradient of the weights", PART_COLORS[Part.BACKWARD]),
    "optimizer": ("optimizer", PART_COLORS[Part.OPTIMIZER]),
    "communication": ("communication", OVERLAPPED),
    "other": ("other compute", PART_COLORS[Part.OTHER]),
}
"""What each kind of work is called, and its color on a light page: those of the Gantt chart."""
_STATES = {
    "empty": "holds nothing",
    "own": "its own data",
    "partial": "sum of some ranks",
    "copy": "another rank's data",
    "done": "result",
}


def document(explanation: Explanation, step: int = 0) -> str:
    """Draw an explanation as one HTML page, with controls to step and play.

    Args:
        step: the step to open it at, from 1; 0 is the start.
    """
    work = {one.kind for one in explanation.work}
    states = {cell.state for step in explanation.steps for row in (*step.before, *step.after) for cell in row}
    facts = (f"{explanation.ranks} ranks", f"{plural(len(explanation.steps), 'step')}", *_options(explanation))
    return page(
        Headline(explanation.title, "", facts, ()),
        _colors() + static("base", "plain.css") + static("explain", "explain.css"),
        [bundle("explain", "explain.js")],
        "explain/explain.html",
        explanation=_compact(explanation),
        kinds=[kind for kind in _KINDS if kind in work],
        kind_names={kind: name for kind, (name, _) in _KINDS.items()},
        states=[state for state in _STATES if state in states],
        state_names=_STATES,
        cost=cost_rows(explanation),
        step=step,
    )


def _compact(explanation: Explanation) -> dict[str, Any]:
    """Return the data of the page; what a step begins with is what the one before it left."""
    content = to_dict(explanation)
    for step in content["steps"][1:]:
        del step["before"]
    return content


def _options(explanation: Explanation) -> list[str]:
    return [
        f"{name.replace('_', ' ')} {megabytes(value) if name.endswith('bytes') else f'{value:g}'}"
        for name, value in explanation.options.items()
    ]


def _colors() -> str:
    """Return the colors of kinds of work and of results, for light and dark pages, as CSS."""
    looks: list[str] = []
    for dark, root in ((False, ""), (True, ":root[data-theme=dark] "), (True, ":root:not([data-theme]) ")):
        rules = []
        for kind, (_, color) in _KINDS.items():
            shown, ink = DARK[color] if dark else (color, ink_on(color))
            names = f"{root}.{kind}" + f", {root}.done" * (kind == "communication")
            rules.append(f"{names} {{ --kind: {shown}; --ink: {ink}; }}")
        looks.append("\n".join(rules))
    light, chosen, system = looks
    return f"{light}\n{chosen}\n@media screen and (prefers-color-scheme: dark) {{\n{system}\n}}\n"


# An explanation in Python and notebooks: its steps, its page, and the same text as in the terminal.


_WIDTH, _HEIGHT = 80, 760
"""Columns of the text, and pixels of the page in a notebook."""


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
        return notebook_frame(document(self.explanation), self.explanation.title, _HEIGHT)
