"""The help of dptrace record, and where its options end."""

from __future__ import annotations

import re
from typing import Any

import click
import pytest
from click.testing import CliRunner

from dptrace.commands.recording.help import SCRIPT_OPTIONS, RecordCommand
from dptrace.commands.recording.record import command
from dptrace.record.options.catalog import OPTIONS
from dptrace.record.options.modes import MODES


def _help(option: str) -> str:
    return CliRunner().invoke(command, [option], terminal_width=100).output


def _options(text: str) -> list[str]:
    return re.findall(r"^  (?:-\w, )?--([\w-]+)", text, re.MULTILINE)


def test_help_begins_with_what_concerns_a_script() -> None:
    """How to name it, which steps are recorded, then the options; the trainers' are not among them."""
    text = _help("--help")
    trainers = {option.name for option in OPTIONS if option.field not in SCRIPT_OPTIONS}

    assert text.index("-m MODULE") < text.index("recorded") < text.index("--steps N") < text.index("--help-trainers")
    assert ["gpus", "steps", "warmup", "wait"] == _options(text)[:4]
    assert not trainers & set(_options(text))
    assert "dptrace record torchrun --nproc-per-node 4 train.py" in text


def test_every_option_is_in_one_of_the_two_helps_once() -> None:
    """No option is forgotten, and every mode is described."""
    shown = [*_options(_help("--help")), *_options(_help("--help-trainers"))]
    declared = [
        parameter.opts[-1].removeprefix("--") if not parameter.opts[0].startswith("--") else parameter.opts[0][2:]
        for parameter in command.get_params(click.Context(command))
        if isinstance(parameter, click.Option)
    ]

    assert sorted(declared) == sorted(shown)
    assert all(f"\n  {mode} " in _help("--help-trainers") for mode in MODES)


@click.command(cls=RecordCommand, context_settings={"allow_interspersed_args": False})
@click.option("-o", "--out")
@click.option("-q", "--quiet", is_flag=True)
@click.argument("script", nargs=-1, type=click.UNPROCESSED)
def _echo(**values: Any) -> None:
    click.echo(repr((values["out"], values["quiet"], values["script"])))


@pytest.mark.parametrize(
    ("words", "read"),
    [
        ("-q -m pkg.train -q --out x", (None, True, ("-m", "pkg.train", "-q", "--out", "x"))),
        ("-mpkg.train -q", (None, False, ("-m", "pkg.train", "-q"))),
        ("-o -m train.py -m", ("-m", False, ("train.py", "-m"))),
        ("--out -m train.py", ("-m", False, ("train.py",))),
        ("-qo x -m pkg", ("x", True, ("-m", "pkg"))),
        ("-oq -m pkg", ("q", False, ("-m", "pkg"))),
        ("--out=x -m pkg", ("x", False, ("-m", "pkg"))),
        ("-- python -m pkg", (None, False, ("python", "-m", "pkg"))),
        ("train.py -m pkg", (None, False, ("train.py", "-m", "pkg"))),
    ],
)
def test_the_options_end_at_m(words: str, read: tuple[str | None, bool, tuple[str, ...]]) -> None:
    """As for python: what follows -m belongs to the module, unless -m is an option's value or after the script."""
    assert f"{read!r}\n" == CliRunner().invoke(_echo, words.split()).output
