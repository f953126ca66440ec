"""The option -o: a file to write, and its type."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

__all__ = ["OutputFile"]


class OutputFile(click.Path):
    """The type of -o: a path, or "-" for standard output where the command allows it, which is no path."""

    def __init__(self, dash: bool = False) -> None:
        super().__init__(path_type=Path)
        self.dash = dash

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse what names a folder, whether it is there or not."""
        if value == "-" and not self.dash:
            self.fail("this can't go to standard output; name a file.", param, ctx)
        if str(value).endswith(tuple(filter(None, (os.sep, os.altsep)))):
            self.fail(f"{value} names a folder; name a file.", param, ctx)
        return None if value == "-" else super().convert(value, param, ctx)
