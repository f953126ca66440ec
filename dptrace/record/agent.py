"""torchrun, and a note of which ranks failed: ``python -m dptrace.record.agent NOTE [torchrun's arguments]``."""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from dptrace.record.notes import write_json
from dptrace.record.tether import end_with_parent

__all__ = ["main"]


def main() -> int:
    """Run torchrun; give 1 when a rank failed."""
    end_with_parent(signal.SIGTERM)
    if "LOGLEVEL" not in os.environ:
        # The launcher says what happened, once and shorter.
        logging.disable(logging.ERROR)
    note, *arguments = sys.argv[1:]
    try:
        run.run(run.parse_args(arguments))
    except ChildFailedError as error:
        failures = sorted(error.failures.items(), key=lambda item: item[1].timestamp)
        write_json(Path(note), [{"rank": rank, "exit_code": failure.exitcode} for rank, failure in failures])
        return 1
    except SignalException as stopped:
        return 128 + int(stopped.sigval)
    return 0


if __name__ == "__main__":
    sys.exit(main())
