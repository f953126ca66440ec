"""The recorder harms no training: it ends as the plain script, whatever the script does and the recorder fails at."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dptrace.record import safety
from dptrace.record.safety import harmless, is_own, replace, say
from tests.support.unharmed import TRAININGS, End, ends, script, with_api

torch = pytest.importorskip("torch", reason="recording needs torch")

PARAMETERS = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(16, 16); data = torch.randn(8, 16); optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-5)
for step in range(20):
    optimizer.zero_grad(); loss = model(data).pow(2).mean(); loss.backward(); optimizer.step()
"""
END = """
{end}
"""
EXITS = {
    "another BaseException": """
class Stop(BaseException): pass
raise Stop("stop early")
""",
    "a hook of its own": """
import sys
sys.excepthook = lambda kind, error, trace: print("own hook:", error, flush=True)
raise ValueError("boom")
""",
    "a hook that fails": """
import sys
sys.excepthook = lambda kind, error, trace: print(1 / 0)
raise ValueError("boom")
""",
    "a negative code": "import sys; sys.exit(-1)",
    "a code beyond a byte": "import sys; sys.exit(256)",
    "an object": "import sys; sys.exit(('no', 'code'))",
    "a text": "import sys; sys.exit('the end')",
    "an error without a text": "raise MemoryError",
}


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Hold the parts of this test only."""
    known: dict[str, Any] = {}
    monkeypatch.setattr(safety, "parts", known)
    monkeypatch.setattr(safety, "on_failure", [])
    return known


def test_a_part_that_fails_is_off_and_says_so_once(parts: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """The caller gets the default; Ctrl-C and the end of the process are no failures; what is needed ends the run."""
    calls: list[BaseException | None] = []
    told: list[str] = []
    safety.on_failure.append(told.append)

    @harmless("counting \x1b[31msheep", otherwise=7, is_needed=True)
    def count(error: BaseException | None) -> int:
        calls.append(error)
        if error is not None:
            raise error
        return 1

    with pytest.raises(KeyboardInterrupt):
        count(KeyboardInterrupt())
    with pytest.raises(SystemExit):
        count(SystemExit(143))
    assert [1, 7, 7] == [count(None), count(ValueError("boom")), count(None)]

    (part,) = parts.values()
    said = capsys.readouterr().err
    assert (4, True) == (len(calls), part.failed)
    assert (1, 1, False) == (said.count("sheep"), said.count("boom"), "\x1b" in said)
    assert 1 == len(told)


def test_a_closed_standard_error_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing goes to standard output instead."""
    monkeypatch.setattr(sys, "stderr", None)
    say("lost")

    assert "" == capsys.readouterr().out


def test_what_others_wrap_stays() -> None:
    """A function that was put in place of another is taken away only where it still is."""

    class Owner:
        @staticmethod
        def name() -> int:
            return 1

    undo = replace((Owner,), "name", lambda: 2)
    assert 2 == Owner.name()
    Owner.name = lambda: 3  # type: ignore[method-assign]
    undo()
    assert 3 == Owner.name()


def test_an_error_in_the_recorder_is_known() -> None:
    """By the frame that raised it, which neither the script's nor a trainer's is."""
    from dptrace.record import windows

    def trace_of(function: Callable[[], object]) -> Any:
        try:
            function()
        except Exception as error:
            return error.__traceback__

    assert is_own(trace_of(lambda: windows.steps_in(1, "no number")))  # type: ignore[arg-type]
    assert not is_own(trace_of(lambda: 1 / 0))
    assert not is_own(None)


def case(text: str, how: str = "plain", **more: Any) -> dict[str, Any]:
    """Return a case for ``ends``."""
    return {"script": text, "how": how} | more


@pytest.mark.slow
@pytest.mark.spawn
@pytest.mark.parametrize("name", TRAININGS)
def test_a_recorded_training_is_the_plain_one(name: str, tmp_path: Path) -> None:
    """Its last line, exit code, parameters and random numbers; it is recorded whole, also by its own loop."""
    ranks, text = (2 if name == "ranks" else 1), script(name)
    cases = [case(text, ranks=ranks), case(text, "rank", ranks=ranks)]
    if name != "own ranks":
        cases.append(case(with_api(text), ranks=ranks))
    plain, *recorded = ends(tmp_path, cases)

    assert [plain.training] * len(recorded) == [end.training for end in recorded], recorded
    assert all(end.recorded for end in recorded), recorded


@pytest.mark.slow
@pytest.mark.spawn
def test_a_script_ends_as_python_ends_it(tmp_path: Path) -> None:
    """By any exception, hook and exit code, with what it prints; the run is complete."""
    texts = [PARAMETERS + end for end in EXITS.values()]
    found = ends(tmp_path, [case(text, how) for text in texts for how in ("plain", "rank")])

    for name, plain, recorded in zip(EXITS, found[::2], found[1::2], strict=True):
        assert plain.training == recorded.training, recorded
        assert recorded.recorded or "Kept" in recorded.said, name  # it may end while its trace is written
        assert all(line in recorded.said for line in plain.said.splitlines()[-1:]), (name, plain.said, recorded.said)


def _broken(name: str, folder: Path) -> tuple[End, End, dict[str, End]]:
    """Return a training's plain end, that with all parts broken which it does not reach, and those with each other.

    What a recording does not call can not change how it ends; all at once, should another one call it.
    """
    import dptrace.record.script.runner  # noqa: F401  # all parts that surround a script

    about: dict[str, Any] = {"ranks": 2 if name == "ranks" else 1}
    plain, whole = ends(
        folder / "reached", [case(script(name), **about), case(script(name), "rank", reached=True, **about)]
    )
    others = [part for part in safety.parts if part not in whole.reached]
    broken = [
        case(script(name), "rank", broken=parts, **about) for parts in (others, *([part] for part in whole.reached))
    ]
    unreached, *each = ends(folder / "broken", broken)
    return plain, unreached, dict(zip(whole.reached, each, strict=True))


@pytest.mark.slow
@pytest.mark.spawn
@pytest.mark.parametrize("name", ["loop", "closure", "optimizer in backward", "own profiler", "ranks", "own ranks"])
def test_no_part_of_the_recorder_can_harm_a_training(name: str, tmp_path: Path) -> None:
    """Each one fails in its turn: the end is the plain one, and each process says once what failed."""
    plain, unreached, broken = _broken(name, tmp_path)

    assert len(safety.parts) > 20
    assert plain.training == unreached.training, unreached
    assert {} == {part: end for part, end in broken.items() if end.training != plain.training}
    said = {part: end.said.count("broken for a test") for part, end in broken.items()}
    assert max(said.values()) <= {"ranks": 2, "own ranks": 3}.get(name, 1), said
    assert all(said.values()), said
    assert len(said) >= 4, said
