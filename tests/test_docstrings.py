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


@pytest.mark.heavy
def test_the_examples_of_a_module_hold() -> None:
    """At least one example is run, and none fails."""
    for module in MODULES:
        result = doctest.testmod(import_module(module.removesuffix(".__init__")))
        assert result.attempted > 0, module
        assert result.failed == 0, module
