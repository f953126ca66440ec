"""``python -m dptrace`` is the command ``dptrace``."""

from dptrace.commands.shared.main import main

main()
