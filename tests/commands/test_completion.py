"""``dptrace completion``: the scripts, and that bash's completes."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from dptrace.commands.shared.main import COMMANDS, cli


def test_each_shell_has_a_script() -> None:
    """Which asks dptrace itself, by its name; of $SHELL where none is named. Others are wrong use."""
    for arguments, shell, code, words in (
        ("bash", "", 0, ("complete -o nosort", "_DPTRACE_COMPLETE=bash_complete")),
        ("zsh", "", 0, ("#compdef", "_DPTRACE_COMPLETE=zsh_complete")),
        ("fish", "", 0, ("complete ", "_DPTRACE_COMPLETE=fish_complete")),
        ("", "/usr/local/bin/fish", 0, ("complete ", "_DPTRACE_COMPLETE=fish_complete")),
        ("", "/bin/tcsh", 2, ("$SHELL is tcsh", "bash, zsh, fish")),
        ("", "", 2, ("$SHELL is not set", "bash, zsh, fish")),
    ):
        result = CliRunner(env={"SHELL": shell}).invoke(cli, ["completion", *arguments.split()])

        assert (code, [*words]) == (result.exit_code, [word for word in words if word in result.output]), arguments


@pytest.fixture
def launcher(tmp_path: Path) -> Path:
    """A command ``dptrace`` on a PATH of its own, as an installation has it."""
    path = tmp_path / "dptrace"
    path.write_text(f"#!{sys.executable}\nfrom dptrace.commands.shared.main import main\nmain()\n")
    path.chmod(0o755)
    return path


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes(launcher: Path) -> None:
    """Bash with the script loaded offers commands, options and choices for what is typed so far."""
    environment = os.environ | {"PATH": f"{launcher.parent}{os.pathsep}{os.environ['PATH']}"}
    for typed, expected in (
        ("", sorted(COMMANDS)),
        ("ex", ["explain", "export"]),
        ("export --fo", ["--force", "--format"]),
        ("completion ", ["bash", "fish", "zsh"]),
    ):
        words = ["dptrace", *typed.split(" ")]
        script = (
            'eval "$(dptrace completion bash)"\n'
            f"COMP_WORDS=({' '.join(map(shlex.quote, words))}); COMP_CWORD={len(words) - 1}\n"
            '_dptrace_completion dptrace\nprintf "%s\\n" "${COMPREPLY[@]}"\n'
        )
        bash = ["bash", "--norc", "-c", script]
        done = subprocess.run(bash, capture_output=True, text=True, env=environment, check=True)

        assert (expected, "") == (sorted(done.stdout.split()), done.stderr), typed
