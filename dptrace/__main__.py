"""The command ``dptrace``, which is also ``python -m dptrace``."""

from __future__ import annotations

import os


def main() -> None:
    """Run the command line; Ctrl-C ends it with exit code 130, also during the imports that take most of its start."""
    try:
        from dptrace.core.termination import exit_on_interrupt

        with exit_on_interrupt():
            from dptrace.commands.shared.main import main as run
        run()
    except KeyboardInterrupt:
        os._exit(130)


if __name__ == "__main__":
    main()
