"""The examples in docstrings give what they show."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest

from tests.support.paths import ROOT

MODULES = [
    path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
    for folder in ("dptrace", "viewers", "trainers")  # links to the others are not followed
    for path in sorted((ROOT / folder).rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("module", [name.removesuffix(".__init__") for name in MODULES])
def test_the_examples_of_a_module_hold(module: str) -> None:
    """At least one example is run, and none fails."""
    result = doctest.testmod(import_module(module))
    assert result.attempted > 0
    assert result.failed == 0
