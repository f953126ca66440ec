"""``dptrace completion``: the script that lets a shell complete dptrace's commands and options."""

from __future__ import annotations

import os
from pathlib import PurePath

import click

from dptrace.errors import UsageError

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", required=False, type=click.Choice(SHELLS))
def command(shell: str | None) -> None:
    """Print the completion script of SHELL; without it, of the shell you are in ($SHELL).

    Once for good, in a new shell:

    \b
      bash   dptrace completion bash > ~/.local/share/bash-completion/completions/dptrace
      zsh    echo 'eval "$(dptrace completion zsh)"' >> ~/.zshrc
      fish   dptrace completion fish > ~/.config/fish/completions/dptrace.fish

    Make the folder first where it is missing; zsh needs compinit before that line.

    \b
    Example, for this shell only:
      eval "$(dptrace completion bash)"
    """
    from click.shell_completion import get_completion_class

    root = click.get_current_context().find_root().command
    found = get_completion_class(shell or _here())
    assert found is not None
    click.echo(found(root, {}, "dptrace", "_DPTRACE_COMPLETE").source())


def _here() -> str:
    name = PurePath(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        seen = f"$SHELL is {name}, which has no script" if name else "$SHELL is not set"
        raise UsageError(f"{seen}: name the shell, one of {', '.join(SHELLS)}.")
    return name
