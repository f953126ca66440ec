"""``python -m dptrace`` is the command ``dptrace``."""

from dptrace.cli import main

main()
