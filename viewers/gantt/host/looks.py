"""Names and colors of host events by kind; allocator calls and synchronization stand out."""

from __future__ import annotations

from typing import Any

from dptrace.timeline.host_calls import CallKind

__all__ = ["kind_looks"]

_LOOKS: dict[CallKind, tuple[str, str, str, str, str]] = {
    CallKind.OPERATOR: ("Operator", "#7C8DA6", "#0B1220", "#5F7391", "#FFFFFF"),
    CallKind.RUNTIME: ("Runtime call", "#35757C", "#FFFFFF", "#5BA3AB", "#06181A"),
    CallKind.ALLOCATOR: ("Allocator call", "#B84E14", "#FFFFFF", "#E8843F", "#2B1600"),
    CallKind.SYNCHRONIZING: ("Synchronization", "#A3197F", "#FFFFFF", "#E06BC4", "#24041C"),
    CallKind.ANNOTATION: ("Annotation", "#5A5FB0", "#FFFFFF", "#8F95E8", "#0B0D2E"),
    CallKind.MODULE: ("Module", "#7A5CA8", "#FFFFFF", "#B49BE0", "#1A0D33"),
    CallKind.PYTHON: ("Python function", "#6B7280", "#FFFFFF", "#8A94A3", "#10141A"),
}
"""Label; color and color of text on it, on a light page, then on a dark one."""


def kind_looks() -> list[dict[str, Any]]:
    """Return label and colors of each kind, in the order of :class:`CallKind`, as data of the page."""
    return [
        {"label": label, "color": color, "ink": ink, "dark": {"color": dark, "ink": dark_ink}}
        for label, color, ink, dark, dark_ink in (_LOOKS[kind] for kind in CallKind)
    ]
