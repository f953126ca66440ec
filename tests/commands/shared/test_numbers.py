"""Numbers, sizes, times and lists of them on the command line: what is none is wrong use, on every verb."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from dptrace.commands.shared.main import cli
from dptrace.commands.shared.numbers import Amount, NumberType, Whole
from tests.support.kineto_files import KinetoFile, training_step

DIGITS = "9" * 5000
"""More than Python's int() reads."""


def test_a_number_is_read() -> None:
    """As it is usually written, also by those who do not write in ASCII."""
    for kind, text, value in (
        (Whole(1), " 12 ", 12),
        (Whole(), "٣", 3),
        (NumberType(), "-1e3", -1000.0),
        (Amount(), "350M", 350e6),
        (Amount(), "80GB", 80e9),
        (Amount(), "1_000,000", 1e6),
    ):
        assert value == kind.convert(text, None, None), kind


def test_what_is_no_number_is_refused() -> None:
    """Neither NaN nor infinity is one, whatever their spelling."""
    for kind in (Whole(1, 9), NumberType(1, 9), Amount(1, 9)):
        for text in ("", "x", "nan", "inf", "-inf", "1e400", DIGITS, "0", "10", "²", "1 2", "0x1", "--1"):
            with pytest.raises(click.BadParameter):
                kind.convert(text, None, None)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace, an empty folder, and tables for bench --from."""
    monkeypatch.chdir(tmp_path)
    training_step(training_step(KinetoFile(rank=0, world_size=1), 4, 0), 5, 100).write(tmp_path / "RUN.json")
    (tmp_path / "folder").mkdir()
    for name, row in {"huge": "1,1e400,", "many": "1e400,2,", "params": "1,2,1e400"}.items():
        (tmp_path / f"{name}.csv").write_text(f"model,mode,gpus,epoch_s,parameters\nm,ddp,{row}\n")


_REFUSED = (
    ("whatif RUN.json --straggler 0=1e30s", 2, "0=1e30s: must be from 0 ns to 86,400 s"),
    ("whatif none.json --bandwidth -2x", 2, "must not be negative"),
    ("whatif none.json --latency -5us", 2, "must not be negative"),
    ("whatif none.json --bucket-cap-mb 1,-4", 2, "must not be negative"),
    ("whatif none.json --accumulate -1", 2, "--accumulate -1: must be from 1"),
    ("analyze RUN.json --peak-tflops -5", 2, "above 0"),
    ("whatif RUN.json --straggler 0=1ms --straggler 0=2ms", 2, "twice"),
    ("whatif RUN.json --straggler 0=-1ms", 2, "--straggler"),
    ("whatif none.json --compute=", 2, "--compute"),
    ("whatif none.json --compute 1e-99x", 2, "--compute"),
    ("whatif none.json --compute nan", 2, "--compute"),
    ("whatif none.json --bandwidth 1e-99GBps", 2, "--bandwidth"),
    ("whatif none.json --latency 1e30ms", 2, "--latency"),
    ("whatif none.json --kernel gemm=1e99x", 2, "--kernel gemm"),
    ("whatif none.json --kernel gemm=1x --kernel gemm=2x", 2, "twice"),
    ("whatif none.json --bucket-cap-mb nan", 2, "--bucket-cap-mb"),
    ("whatif none.json --bucket-cap-mb 1,inf", 2, "--bucket-cap-mb"),
    ("whatif none.json --world-size 2,1", 2, "--world-size"),
    ("whatif none.json --accumulate 0", 2, "--accumulate"),
    (f"whatif none.json --link 5us:{DIGITS}GB/s", 2, "--link"),
    ("whatif none.json --link 5us:0GB/s", 2, "--link"),
    ("explain moe --capacity-factor nan", 2, "--capacity-factor"),
    ("explain ring --bytes 1e400", 2, "--bytes"),
    ("explain ring --bytes 1.2.3", 2, "--bytes"),
    ("explain ring --alpha inf --bandwidth 1", 2, "--alpha"),
    ("explain fsdp --layers 0", 2, "--layers"),
    ("explain ring --link=", 2, "nvlink4"),
    ("advise --params 7B --mfu nan", 2, "--mfu"),
    ("predict --params 7B --mfu nan", 2, "--mfu"),
    ("predict --params 7B --mfu 1e-400", 2, "--mfu"),
    ("predict --params 7B --gpus 1048577", 2, "--gpus"),
    ("predict --bytes 1MB --gamma nan", 2, "--gamma"),
    (f"predict --params 7B --link 5us:{DIGITS}GB/s", 2, "--link"),
    ("predict --memory --params nan", 2, "--params"),
    ("predict --memory --params 7B --gpu-memory 1e400", 2, "--gpu-memory"),
    ("analyze RUN.json --params nan", 2, "--params"),
    ("analyze RUN.json --peak-tflops 1,5", 2, "--peak-tflops"),
    ("view RUN.json --figure -o x.svg --figure-width 5", 2, "--figure-width"),
    ("kernels RUN.json --top nan", 2, "--top"),
    ("analyze RUN.json --jobs 0", 2, "--jobs"),
    ("sweep --micro-batches 1,x", 2, "--micro-batches"),
    ("sweep --bucket-cap-mb 1,x", 2, "--bucket-cap-mb"),
    ("sweep --bucket-cap-mb 1,2 --inference x", 2, "--inference"),
    ("record --mode ddp --steps x", 2, "--steps"),
    ("explain ring --ranks x", 2, "--ranks"),
    (f"kernels RUN.json --top {DIGITS}", 2, "--top"),
    ("links --budget nan", 2, "--budget"),
    ("links --budget 1e30", 2, "--budget"),
    (f"links --max-bytes {DIGITS}", 2, "--max-bytes"),
    ("record --duration nan train.py", 2, "--duration"),
    ("record --timeout inf train.py", 2, "--timeout"),
    ("record --timeout 1e30 train.py", 2, "--timeout"),
    ("record --trigger= -m json.tool", 2, "--trigger"),
    (f"record --mode ddp --wait {'9' * 30}", 2, "--wait"),
    (f"record {DIGITS}", 2, "too long"),
    (f"sweep --bucket-cap-mb 1,2 --data {DIGITS}", 2, "too long"),
    (f"bench --modes single -o {DIGITS}", 2, "too long"),
    ("bench --timeout inf", 2, "--timeout"),
    ("bench --from huge.csv -o folder", 1, "huge.csv"),
    ("bench --from many.csv -o folder", 1, "many.csv"),
    ("bench --from params.csv -o folder", 1, "params.csv"),
)
"""What is wrong use or a bad file, the exit code, and a fact of the message."""


@pytest.mark.heavy
@pytest.mark.usefixtures("files")
def test_a_number_that_can_not_be_meant_is_refused() -> None:
    """The option or the file, and the exit code, before a run is read; no names of Python's or click's types."""
    for line, code, fact in _REFUSED:
        result = CliRunner().invoke(cli, line.split())

        assert (code, None) == (
            result.exit_code,
            None if isinstance(result.exception, SystemExit) else result.exception,
        ), line
        assert fact in result.output, line
        assert not [word for word in ("integer", "float", "literal", "x>=", "<=x") if word in result.output], (
            result.output
        )
