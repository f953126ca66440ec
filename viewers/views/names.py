"""The names of all views, each with its module and what it shows: help lists them without importing the views.

A view is a line here, and its ``NAME_VIEW`` in that module.
"""

from __future__ import annotations

from typing import Literal

ViewName = Literal[
    "gantt",
    "summary",
    "nodes",
    "breakdown",
    "heatmap",
    "communication",
    "bandwidth",
    "buckets",
    "kernels",
    "layers",
    "idle",
    "memory",
    "pipeline",
    "roofline",
    "findings",
]
"""The names, for type checkers and editors, which complete them."""
_VIEWS: dict[ViewName, tuple[str, str]] = {
    "gantt": ("timelines", "phases, compute and communication of each GPU over time"),
    "summary": ("steps", "the parts of each rank's mean step"),
    "nodes": ("steps", "the parts of each node's mean step, and its ranks"),
    "breakdown": ("steps", "the parts of each step of each rank"),
    "heatmap": ("steps", "ranks or nodes by steps: wall time, exposed share, idle share"),
    "communication": ("collectives", "each kind of collective: exposed and overlapped"),
    "bandwidth": ("collectives", "each collective's bandwidth by its size, with the fitted line"),
    "buckets": ("collectives", "how long each DDP bucket, or like collectives, took"),
    "kernels": ("compute", "the kernels that take most time, by phase"),
    "layers": ("timelines", "when each layer's forward, backward and collectives ran in a step"),
    "idle": ("steps", "why each rank was idle"),
    "memory": ("timelines", "allocated and reserved memory of each device over time, by kind"),
    "pipeline": ("timelines", "each stage's forward and backward of each micro-batch, and the bubble"),
    "roofline": ("compute", "operators by arithmetic intensity and FLOP/s, under their GPU's limits"),
    "findings": ("steps", "what matters most, by what it costs, and what to do"),
}
NAMES: dict[str, str] = {name: about for name, (_, about) in _VIEWS.items()}
"""What each view shows, by its name, in the order of ``--view list``."""
MODULES: dict[str, str] = {name: f"dptrace.viewers.views.{module}" for name, (module, _) in _VIEWS.items()}
"""The module of each view, by the view's name."""
