"""``dptrace completion``: the script with which a shell completes dptrace's commands and options."""

from __future__ import annotations

import os
from pathlib import PurePath

import click

from dptrace.errors import UsageError

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", required=False, type=click.Choice(SHELLS))
def command(shell: str | None) -> None:
    """Print the completion script of SHELL [default: the current shell, $SHELL].

    To install it for new shells:

    \b
      bash   dptrace completion bash > ~/.local/share/bash-completion/completions/dptrace
      zsh    echo 'eval "$(dptrace completion zsh)"' >> ~/.zshrc
      fish   dptrace completion fish > ~/.config/fish/completions/dptrace.fish

    Create the folder first if it is missing; zsh needs compinit before that line.

    \b
    Example, for this shell only:
      eval "$(dptrace completion bash)"
    """
    from click.shell_completion import get_completion_class

    root = click.get_current_context().find_root().command
    completion_class = get_completion_class(shell or _current_shell())
    assert completion_class is not None
    click.echo(completion_class(root, {}, "dptrace", "_DPTRACE_COMPLETE").source())


def _current_shell() -> str:
    name = PurePath(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        problem = f"$SHELL is {name}, which has no completion script" if name else "$SHELL is not set"
        raise UsageError(f"{problem}: name the shell, one of {', '.join(SHELLS)}.")
    return name
