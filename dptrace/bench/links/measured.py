"""The link that a file of ``dptrace links -o`` measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar, cast

from dptrace.bench.links.launch import read_links
from dptrace.errors import DptraceError
from dptrace.model.training.communication import Link

__all__ = ["measured_link", "with_measured_link"]

Options = TypeVar("Options", bound=Mapping[str, object])


def with_measured_link(options: Options) -> Options:
    """Return options whose ``link`` is the link in the file that it named."""
    link = options.get("link")
    return cast(Options, {**options, "link": measured_link(link)}) if isinstance(link, str) else options


def measured_link(text: str) -> Link | str:
    """Return the link of a file of ``dptrace links -o``, or the text where it is no such file's name.

    Raises:
        DptraceError: the file has no line of all_reduce.
    """
    path = Path(text)
    if path.suffix != ".json":
        return text
    link = (read_links(path)["collectives"].get("all_reduce") or {}).get("link")
    if not link or link["beta_s_per_byte"] <= 0:
        raise DptraceError(f"{path}: has no line of all_reduce; measure one with: dptrace links -o {path}")
    return Link(path.name, link["alpha_s"], 1 / link["beta_s_per_byte"])
