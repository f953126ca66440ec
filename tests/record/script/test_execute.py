"""A program sees what Python itself would show it."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PROGRAM = """
import json, sys, {inner}
main = sys.modules["__main__"]
seen = {{name: str(getattr(main, name, "missing")) for name in ("__name__", "__file__", "__package__", "__doc__")}}
seen["spec"] = getattr(main.__spec__, "name", None)
seen["loader"] = type(main.__loader__).__name__
seen["own"] = main.__dict__ is globals()
json.dump([sys.argv, sys.path, seen], sys.stdout)
"""
EXECUTE = """
import sys
from dptrace.record.script.execute import execute
is_module = sys.argv[1] == "-m"
sys.argv = sys.argv[1 + is_module :]
execute(sys.argv[0], is_module)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a script, a package, a folder and an archive that print what they see."""
    (tmp_path / "pkg" / "sub").mkdir(parents=True)
    (tmp_path / "app").mkdir()
    for name, inner in (
        ("scripts.py", "os"),
        ("pkg/__init__.py", "os"),
        ("pkg/sub/beside.py", "os"),
        ("pkg/sub/__init__.py", "os"),
        ("pkg/sub/train.py", "pkg.sub.beside"),
        ("pkg/sub/script.py", "beside"),
        ("app/__main__.py", "os"),
    ):
        text = "" if name.endswith(("__init__.py", "beside.py")) else PROGRAM.format(inner=inner)
        (tmp_path / name).write_text(text)
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        archive.writestr("__main__.py", PROGRAM.format(inner="os"))
    (tmp_path / "execute_it.py").write_text(EXECUTE)
    return tmp_path


@pytest.mark.heavy
@pytest.mark.parametrize(
    "program", [["scripts.py"], ["pkg/sub/script.py"], ["-m", "pkg.sub.train"], ["app"], ["app.zip"], ["-m", "app"]]
)
def test_a_program_sees_what_python_shows_it(program: list[str], folder: Path) -> None:
    """Its arguments, its search path, ``__main__`` and its spec are the same, whatever kind of program it is."""

    def seen(*command: str) -> list[object]:
        done = subprocess.run([sys.executable, *command, "a", "-b"], cwd=folder, capture_output=True, text=True)
        assert 0 == done.returncode, done.stderr
        return list(json.loads(done.stdout))

    assert seen(*program) == seen("-m", "execute_it", *program)


@pytest.mark.parametrize("program", ["raise ValueError('boom')\n", "import nothere_at_all\n", "1 +\n"])
def test_a_traceback_begins_in_the_program(program: str, folder: Path) -> None:
    """As Python prints it, also where the program cannot be compiled."""
    from dptrace.record.script.execute import execute, program_frames

    path = folder / "broken.py"
    path.write_text(program)
    before = list(sys.path), sys.modules["__main__"]
    try:
        execute(str(path), False)
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        first = program_frames(trace)
    finally:
        sys.path[:], sys.modules["__main__"] = before

    assert (None if program == "1 +\n" else str(path)) == (first and first.tb_frame.f_code.co_filename)


def test_annotations_of_a_program_stay_values(tmp_path: Path) -> None:
    """The script is compiled as it is, without the future statements of the module that compiles it."""
    (tmp_path / "execute_it.py").write_text(EXECUTE)
    (tmp_path / "typed.py").write_text("x: float = 1.0\nprint(type(__annotations__['x']).__name__)\n")
    command = [sys.executable, "execute_it.py", "typed.py"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    assert ("type\n", 0) == (shown.stdout, shown.returncode), shown.stderr
