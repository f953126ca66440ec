"""Python subprocesses."""

from __future__ import annotations

import os
import sys

import dptrace
from dptrace.core.subprocess_pool import PythonProcess, serve


def report(connection: int, write: int) -> None:
    """Answer one kind of message, and write to an inherited descriptor."""
    os.write(write, b"!")
    serve(connection, lambda asked: (dptrace.__file__, os.getsid(0) == os.getpid(), asked))


def test_it_finds_our_packages_and_has_a_connection_descriptors_and_a_session_of_its_own() -> None:
    """It answers through its connection and descriptors, with the modules that this process would import."""
    read, write = os.pipe()
    process = PythonProcess("tests.core.test_processes:report", write)
    try:
        process.connection.send("asked")
        assert (sys.modules["dptrace"].__file__, True, "asked") == process.connection.recv()
        assert b"!" == os.read(read, 1)
    finally:
        process.stop()
        os.close(read)
        os.close(write)
    assert process.process.poll() is not None
