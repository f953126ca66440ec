"""The description that a package index shows: README.md, whose relative links point into the repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class ReadmeHook(MetadataHookInterface):
    """Fill in ``readme``, with links to the files of this version's tag."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Replace each relative link of README.md; a picture's leads to the file itself."""
        base = f"{metadata['urls']['Repository']}/{{}}/v{metadata['version']}/"
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = re.sub(r"(?<=\]\()(?![a-z]+:|#)", base.format("blob"), text)
        text = re.sub(r"(!\[[^]]*\]\([^)]*)/blob/", r"\1/raw/", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
