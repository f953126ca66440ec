"""Stacks as faulthandler writes them, in the user's terms."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptrace.record.failures import stack_text
from dptrace.record.failures.stack_text import Frame, main_thread, place_of

TORCH = "/opt/venv/lib/python3.12/site-packages/torch"
OWN = Path(stack_text.__file__).parents[2]
HEAD = "Thread 0x00007fc14cdd8b80 (most recent call first):\n"
SCRIPT = '  File "/home/me/train.py", line 33 in step\n  File "/home/me/train.py", line 90 in <module>\n'
RUNNER = (
    '  File "/usr/lib/python3.12/runpy.py", line 88 in _run_code\n'
    f'  File "{OWN}/record/script/runner.py", line 60 in _run\n'
)


def place(*calls: str, head: str = HEAD) -> str:
    """Return where a thread is that runs the script, which makes *calls*, the most recent first."""
    found = place_of(main_thread(head + "".join(f'  File "{call}\n' for call in calls) + SCRIPT + RUNNER))
    assert found is not None
    return f"{found.doing} @ {found.location}"


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        (
            (
                f'{TORCH}/distributed/distributed_c10d.py", line 3252 in all_reduce',
                f'{TORCH}/distributed/c10d_logger.py", line 83 in wrapper',
            ),
            "waits in all_reduce",
        ),
        ((f'{TORCH}/cuda/__init__.py", line 1040 in synchronize',), "waits for the GPU"),
        (
            (
                '/usr/lib/python3.12/selectors.py", line 415 in select',
                f'{TORCH}/utils/data/dataloader.py", line 1133 in _try_get_data',
            ),
            "waits for the DataLoader",
        ),
        (
            (
                f'{TORCH}/autograd/graph.py", line 825 in _engine_run_backward',
                f'{TORCH}/_tensor.py", line 581 in backward',
            ),
            "is in backward",
        ),
        ((f'{OWN}/record/ranks/distributed.py", line 276 in barrier',), "waits for the other ranks"),
        (
            (
                '/usr/lib/python3.12/socket.py", line 707 in readinto',
                '/opt/venv/lib/python3.12/site-packages/requests/api.py", line 73 in get',
            ),
            "is in get",
        ),
        ((), "is in step"),
    ],
)
def test_the_users_line_and_what_it_waits_for(calls: tuple[str, ...], expected: str) -> None:
    """The line is the script's, whatever lies above and below it; collectives and common waits have their words."""
    found = place(*calls)

    assert found.startswith(expected)
    assert found.endswith("@ train.py:33")


def test_code_of_the_line_is_shown(tmp_path: Path) -> None:
    """If the rank is in the user's line itself, its code tells more than its number."""
    script = tmp_path / "train.py"
    script.write_text("def load_batch():\n    time.sleep(600)  # a slow disk\n")
    found = place_of(main_thread(f'{HEAD}  File "{script}", line 2 in load_batch\n'))

    assert found is not None
    assert ("is in load_batch", "train.py:2: time.sleep(600)  # a slow disk") == (found.doing, found.location)
    assert not found.waits


@pytest.mark.parametrize(
    "head", [HEAD, HEAD.replace("80 (", "80 [python] ("), HEAD.replace("Thread", "Current thread")]
)
def test_the_main_thread_of_the_latest_dump_counts(head: str) -> None:
    """Of several threads and dumps the last stack counts, in the formats of Python 3.10 to 3.14."""
    older = HEAD + '  File "/home/me/train.py", line 1 in other\n\n'

    found = main_thread(f"# process 12\n{older}{older}{head}{SCRIPT}")

    assert [33, 90] == [frame.line for frame in found]


def test_a_framework_without_a_script_is_named() -> None:
    """Where a package's command runs the training, its own line stands for the script's."""
    package = "/opt/venv/lib/python3.12/site-packages/axolotl/train.py"
    found = place_of(
        (
            Frame(f"{TORCH}/cuda/__init__.py", 9, "synchronize"),
            Frame(package, 7, "train"),
            Frame("<frozen runpy>", 1, "x"),
        )
    )

    assert found is not None
    assert ("waits for the GPU", "train.py:7") == (found.doing, found.location)


def test_trainers_of_dptrace_count_as_scripts() -> None:
    """A trainer's line is shown, the recorder's lines are not."""
    trainer, recorder = OWN / "trainers/ddp.py", OWN / "record/recording.py"

    assert Frame(str(trainer), 1, "train").is_users
    assert not Frame(str(recorder), 1, "step").is_users


def test_no_stack_is_no_place() -> None:
    """A rank that could not answer leaves only the header."""
    assert place_of(main_thread("# process 12\n")) is None
