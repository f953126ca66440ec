"""The user's folders, and what takes their place."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dptrace.core.home import cache_folder, ensure_home
from tests.support.kineto_files import KinetoFile, training_step
from tests.support.paths import ROOT


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the system's folder for temporary files be one of the test's."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("DPTRACE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return tmp_path


@pytest.fixture
def homeless(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be a user without HOME and without an entry in passwd."""

    def unknown(user: int) -> None:
        raise KeyError(user)

    monkeypatch.setenv("HOME", "/nowhere")  # so that it is restored
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    return temporary


def test_a_user_without_a_home_gets_a_private_temporary_one(homeless: Path) -> None:
    """The same each time, with the cache in it; nobody else may enter."""
    without = cache_folder()
    ensure_home()
    home = Path.home()

    assert homeless == home.parent
    assert 0o700 == home.stat().st_mode & 0o777
    assert home / ".cache" / "dptrace" == without == cache_folder()


def test_a_home_that_exists_stays(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cache is used even before it exists, and nothing temporary is made."""
    monkeypatch.setenv("HOME", str(temporary / "home"))
    ensure_home()

    assert temporary / "home" / ".cache" / "dptrace" == cache_folder()
    assert [] == list(temporary.iterdir())


def test_a_home_that_can_not_be_written_has_its_cache_elsewhere(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as / for a container's user, or the file /dev/null: the cache is in the folder for temporary files."""
    (home := temporary / "home").write_text("")
    monkeypatch.setenv("HOME", str(home))

    assert temporary / f"dptrace-{os.getuid()}" / ".cache" / "dptrace" == cache_folder()


@pytest.mark.parametrize("kind", ["open", "link", "file"])
def test_a_folder_that_is_not_private_is_not_trusted(homeless: Path, kind: str) -> None:
    """Someone else may have made it: the home is then the root folder, and nothing is cached in it."""
    place = homeless / f"dptrace-{os.getuid()}"
    if kind == "open":
        place.mkdir()
        place.chmod(0o777)
    elif kind == "link":
        (homeless / "theirs").mkdir(mode=0o700)
        place.symlink_to("theirs")
    else:
        place.write_text("")
    ensure_home()

    assert Path("/") == Path.home()
    assert not cache_folder().is_relative_to(homeless)


@pytest.mark.heavy
def test_a_page_is_drawn_without_a_home(tmp_path: Path) -> None:
    """Bokeh, which looks for its settings in the home folder when it is imported, is content with the other one."""
    trace = training_step(KinetoFile(), 1, 0).write(tmp_path / "rank0.json")
    code = "import pwd; del pwd.getpwuid; pwd.getpwuid = {}.__getitem__; from dptrace.__main__ import main; main()"
    kept = {
        name: value for name, value in os.environ.items() if name not in ("HOME", "DPTRACE_CACHE", "XDG_CACHE_HOME")
    }
    done = subprocess.run(
        [sys.executable, "-c", code, "view", str(trace), "--no-browser"],
        env={**kept, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )

    assert 0 == done.returncode, done.stderr
    assert 1 == len(list(tmp_path.glob(f"dptrace-{os.getuid()}/.cache/dptrace/pages/*.html")))
