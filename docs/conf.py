"""Configuration of the documentation: ``make docs`` builds it with Sphinx, and treats every warning as an error."""

from __future__ import annotations

import sys
from pathlib import Path

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
autodoc_mock_imports = ["torch"]
napoleon_google_docstring = True
napoleon_numpy_docstring = False
copybutton_exclude = ".linenos, .gp, .go"
