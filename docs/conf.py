"""Configuration of the documentation: ``make docs`` builds it with Sphinx, and treats every warning as an error."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS), str(DOCS.parent)]

import dptrace  # noqa: E402 - found through the path above

project = "dptrace"
author = "The dptrace developers"
copyright = author
version = release = dptrace.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "click_reference"]
exclude_patterns = ["examples"]

# Headings get the anchors that GitHub gives them, so that links work in the plain files too.
myst_heading_anchors = 4

# "--mode" must not become "–mode".
smartquotes = False

html_theme = "furo"
html_title = f"dptrace {version}"
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
# Names as the code writes them (`str | None`, `pd.DataFrame`), without importing pandas or torch to resolve them.
autodoc_mock_imports = ["torch", "transformers"]
napoleon_google_docstring = True
napoleon_numpy_docstring = False
copybutton_exclude = ".linenos, .gp, .go"


def list_columns(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Turn the section "Columns:" of a docstring into a list; Sphinx knows "Args:" and "Raises:", not this one."""
    if "Columns:" not in lines:
        return
    start = lines.index("Columns:")
    end = next((i for i in range(start + 1, len(lines)) if lines[i][:1].strip()), len(lines))
    listed = ["**Columns**", ""]
    for line in filter(str.strip, lines[start + 1 : end]):
        if line.startswith(" " * 8):
            listed.append(f"  {line.strip()}")
        else:
            names, colon, about = line.strip().partition(": ")
            listed.append("* " + re.sub(r"(?<![\w(])([a-z]\w*)(?=,| \()", r"``\1``", names) + colon + about)
    lines[start:end] = [*listed, ""]


def skip_internals(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leave out what dir(run) leaves out."""
    from dptrace.api import INTERNAL

    return True if what == "class" and name in INTERNAL and "inherited-members" in options else None


def setup(app: Sphinx) -> None:
    """Register what the configuration adds; before napoleon, which reads docstrings at 500."""
    app.connect("autodoc-skip-member", skip_internals)
    app.connect("autodoc-process-docstring", list_columns, priority=400)
