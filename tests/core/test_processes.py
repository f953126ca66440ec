"""Python subprocesses."""

from __future__ import annotations

import os
import sys

from dptrace.core.subprocess_pool import start_python


def test_it_finds_our_packages_and_has_pipes_descriptors_and_a_session_of_its_own() -> None:
    """It answers through its pipes and descriptors, with the modules that this process would import."""
    read, write = os.pipe()
    code = f"import os, dptrace; print(dptrace.__file__, os.getsid(0) == os.getpid(), input()); os.write({write}, b'!')"
    with start_python(code, (write,)) as process:
        answer, _ = process.communicate(b"asked\n", timeout=60)

    assert [sys.modules["dptrace"].__file__, "True", "asked"] == answer.decode().split()
    assert b"!" == os.read(read, 1)
    os.close(read)
    os.close(write)
