"""``dptrace completion``: the scripts, and that bash's completes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from dptrace.commands.shared.main import COMMANDS, cli


@pytest.mark.parametrize(
    ("shell", "words"), [("bash", "complete -o nosort"), ("zsh", "#compdef"), ("fish", "complete ")]
)
def test_each_shell_has_a_script(shell: str, words: str) -> None:
    """The script asks dptrace itself, by its name."""
    result = CliRunner().invoke(cli, ["completion", shell])

    assert 0 == result.exit_code
    assert words in result.output
    assert f"_DPTRACE_COMPLETE={shell}_complete" in result.output


def test_the_shell_is_guessed() -> None:
    """Without an argument it is the script of $SHELL."""
    runner = CliRunner(env={"SHELL": "/usr/local/bin/fish"})

    assert runner.invoke(cli, ["completion", "fish"]).output == runner.invoke(cli, ["completion"]).output


@pytest.mark.parametrize(("shell", "words"), [("/bin/tcsh", "$SHELL is tcsh"), ("", "$SHELL is not set")])
def test_an_unknown_shell_is_wrong_use(shell: str, words: str) -> None:
    """A shell without a script is told by name with those that have one, exit code 2."""
    result = CliRunner(env={"SHELL": shell}).invoke(cli, ["completion"])

    assert 2 == result.exit_code
    assert words in result.output
    assert "bash, zsh, fish" in result.output


@pytest.fixture
def launcher(tmp_path: Path) -> Path:
    """A command ``dptrace`` on a PATH of its own, as an installation has it."""
    path = tmp_path / "dptrace"
    path.write_text(f"#!{sys.executable}\nfrom dptrace.commands.shared.main import main\nmain()\n")
    path.chmod(0o755)
    return path


@pytest.mark.heavy
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["dptrace", ""], sorted(COMMANDS)),
        (["dptrace", "ex"], ["explain", "export"]),
        (["dptrace", "export", "--fo"], ["--force", "--format"]),
        (["dptrace", "completion", ""], ["bash", "fish", "zsh"]),
    ],
)
def test_bash_completes(launcher: Path, typed: list[str], expected: list[str]) -> None:
    """Bash with the script loaded offers commands, options and choices for what is typed so far."""
    words = " ".join(f'"{word}"' for word in typed)
    script = (
        'eval "$(dptrace completion bash)"\n'
        f"COMP_WORDS=({words}); COMP_CWORD={len(typed) - 1}\n"
        '_dptrace_completion dptrace\nprintf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    environment = os.environ | {"PATH": f"{launcher.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, env=environment, check=True)

    assert expected == sorted(done.stdout.split())
    assert not done.stderr
