"""What `pip install` brings."""

from __future__ import annotations

import importlib.metadata
import os
import re
import zipfile
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).resolve().parents[1]


def test_the_wheel_holds_trainers_and_viewers_as_plain_files(tmp_path: Path) -> None:
    """The links become folders, the page's scripts and styles travel, and no bare package name is taken."""
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])

    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {"dptrace/trainers/ddp.py", "dptrace/viewers/gantt/page.py", "dptrace/commands/shared/main.py"} <= set(names)
    for file in (ROOT / "viewers").glob("*/static/*"):
        assert f"dptrace/{file.relative_to(ROOT)}" in names
    assert {"dptrace"} == {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert os.path.getsize(wheel) < 1_000_000


def test_the_core_stays_light() -> None:
    """Without an extra, neither torch nor Jupyter nor Holistic Trace Analysis is asked for."""
    needed = [text for text in importlib.metadata.requires("dptrace") or [] if "extra ==" not in text]
    names = {re.split(r"[^A-Za-z0-9_-]", text)[0].lower() for text in needed}

    light = {"bokeh", "click", "isal", "jinja2", "msgspec", "numpy", "pandas", "perfetto", "platformdirs", "protobuf"}
    assert names <= {*light, "rich"}
