"""What verbs refuse: options that do not go together, values that are none, and files that are there."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dptrace.commands.shared.main import cli

TRACES = Path(__file__).resolve().parents[2] / "traces"
PLACES = {"RUN": str(TRACES / "naive_cpu_2ranks"), "OTHER": str(TRACES / "interleaved_cpu_2ranks")}

REFUSED: dict[str, list[tuple[str, int, str]]] = {
    "analyze": [
        ("", 2, "Missing argument"),
        ("RUN --json --csv", 2, "one of --json and --csv"),
        ("RUN --json --collectives", 2, "--collectives"),
        ("RUN --json -o no/x.json", 2, "create it first"),
        ("RUN --comm-pattern (", 2, "--comm-pattern"),
        ("RUN --csv --no-align", 2, "--no-align"),
        ("RUN --memory --no-align", 2, "--no-align"),
        ("RUN --memory --collectives", 2, "--memory"),
        ("RUN --memory --hta-compat", 2, "--memory"),
        ("RUN --steps 10 --no-cache --dask local", 2, "--no-cache"),
        ("RUN --jobs 2 --dask local", 2, "--dask"),
        *((f"RUN --{option}", 2, "No such option") for option in ("gains", "no-gains")),
        *((f"RUN --hta-compat {other}", 2, "--hta-compat") for other in ("--collectives", "--dask local", "--jobs 2")),
    ],
    "kernels": [
        ("RUN --match (", 2, "--match"),
        ("RUN --json --csv", 2, "one of --json and --csv"),
        ("RUN --by nothing", 2, "operator-shape"),
        ("RUN --sort tflops", 2, "--by operator-shape"),
        ("RUN --peak-tflops 5", 2, "--by operator-shape"),
        ("RUN --json --full-names", 2, "--full-names"),
        ("RUN --top 0", 2, "--top"),
        ("RUN --sort self", 2, "--by host"),
        ("RUN --by host --kind compute", 2, "--kind"),
        ("RUN --by host --sort delay", 2, "sort by self"),
        ("RUN --csv --no-findings", 2, "--no-findings"),
        ("RUN --provenance there", 2, "add --by source"),
        ("RUN --by source", 2, "--by source --provenance FOLDER"),
        ("RUN --by source --provenance there", 1, "there: no such file or folder"),
    ],
    "critical-path": [
        ("RUN --step 77", 2, "77"),
        ("RUN --json --csv", 2, "one of --json and --csv"),
        ("RUN --by module", 2, "--csv"),
        ("RUN -o path.svg", 2, ".html"),
        ("RUN --csv -o path.html", 2, ".csv"),
    ],
    "whatif": [
        ("RUN --compute fast", 2, "--compute fast"),
        ("RUN --compute 0x", 2, "--compute 0x"),
        ("RUN --kernel gemm", 2, "REGEX=FACTOR"),
        ("RUN --straggler 0=20", 2, "RANK=TIME"),
        ("RUN --straggler 9=20ms", 2, "9"),
        ("RUN -o predicted.xml", 2, ".pftrace"),
        ("RUN -o answer.svg", 2, "answer.svg"),
        ("RUN --json --csv", 2, "one of --json and --csv"),
        ("RUN --bucket-cap-mb 1,2 --csv", 2, "--csv"),
        ("RUN --bucket-cap-mb 1,2 -o predicted.pftrace", 2, "trace"),
        ("RUN --bucket-cap-mb 1,2 --json -o a.html", 2, "--json"),
        ("RUN --bucket-cap-mb 4 --csv -o a.html", 2, "--csv"),
        ("RUN --schedule magic", 2, "magic"),
        ("RUN -o all.csv -o all.csv", 2, "two files"),
        ("RUN --json -o - -o all.html --csv", 2, "one of --json and --csv"),
        ("RUN --bucket-cap-mb 1,x", 2, "--bucket-cap-mb"),
        ("RUN --world-size 1.5,2", 2, "--world-size"),
        ("RUN --bucket-cap-mb 1,2 --world-size 2,4", 2, "--world-size"),
    ],
    "diff": [
        ("RUN RUN -o x.png", 2, "dptrace view"),
        ("", 2, "Missing argument 'A'"),
        ("RUN", 2, "No baseline is in use"),
        ("RUN nowhere", 1, "nowhere"),
        ("RUN RUN --json --csv", 2, "one of --json and --csv"),
        ("RUN RUN --csv tables", 2, "figures"),
        ("RUN RUN --fail-if speed>5%", 2, "FIGURE > +5%"),
        ("RUN RUN --html-steps 1", 2, "add -o FILE.html"),
        ("RUN RUN -o x.html --html-steps a", 2, "for example 11:12"),
        ("RUN RUN --ranks 7", 2, "Choose from 0, 1"),
        ("RUN RUN -o x.html -o ./x.html", 2, "two files"),
        ("RUN RUN -o - -o -", 2, "two files"),
        ("RUN RUN -o x.html -o x.gif", 2, "x.gif"),
        ("RUN RUN -o x.xml", 2, "--fail-if"),
        ("RUN RUN -o none/x.html", 2, "create it first"),
        ("--before RUN", 2, "--before needs --after"),
        ("--after RUN", 2, "No baseline is in use"),
        ("--before --after RUN", 2, "--before"),
        ("RUN --before RUN --after OTHER", 2, "not both"),
        ("--before RUN OTHER --after OTHER", 2, "on both sides"),
        ("--before RUN --after RUN", 2, "--before-steps 4:9 --after-steps 10:15"),
        ("--before RUN RUN --after OTHER", 2, "given twice"),
        ("RUN RUN --before-steps 11:13 --after-steps 12:14", 2, "on both sides"),
        ("RUN RUN --before-steps 1:2 --after-steps 13:14", 2, "no step has a number from 1 to 2"),
        ("RUN OTHER --after-steps 99", 2, "The run has ProfilerStep#10"),
        ("RUN OTHER --before-steps x", 2, "--before-steps x: expected"),
        ("RUN OTHER --steps 11 --after-steps 12", 2, "--steps chooses the steps of both"),
        ("--before RUN nowhere --after OTHER", 1, "nowhere"),
        ("RUN OTHER third", 2, "--against third"),
        ("RUN OTHER --baseline main", 2, "name B alone"),
        ("--before RUN --after OTHER --baseline main", 2, "name B alone"),
        ("--baseline main RUN", 1, "no such file"),
        ("RUN --steps 1:2", 2, "dptrace baseline save"),
    ],
    "baseline": [
        ("save", 2, "Missing argument 'NAME'"),
        ("save main", 2, "Missing argument 'RUN'"),
        ("save ../main RUN", 2, "not a name of a baseline"),
        ("use main RUN", 2, "takes no run"),
        ("use main", 1, "no such file"),
        ("list main", 2, "takes no name"),
    ],
    "history": [("nothing", 1, "no such file")],
    "explain": [
        ("rnig", 2, "Did you mean ring"),
        ("ring --ranks 1", 2, "from 2 to"),
        ("ring --step 7", 2, "6 steps"),
        ("ring --step 0", 2, "6 steps"),
        ("ring --micro-batches 4", 2, "no meaning for ring"),
        ("1f1b --chunks 3", 2, "it is for interleaved"),
        ("ring --bytes much", 2, "208MB"),
        ("ring --alpha 3", 2, "give both"),
        ("gpipe --micro-batches 0", 2, "from 1 to 64"),
        ("ring --link warp", 2, "nvlink4"),
        ("ring -o nowhere/ring.html", 2, "nowhere"),
    ],
    "record": [
        ("--mode ddp --node-rank 1", 2, "add --nnodes"),
        ("--mode ddp --nnodes 2 --node-rank 0", 2, "--rdzv-endpoint"),
        ("--mode ddp --nnodes 1:2", 2, "--nnodes 2"),
        ("--mode naive --lr fast", 2, "'--lr': fast is not a number"),
        ("--mode naive --weight-decay -1", 2, "'--weight-decay': -1 is not 0 or above"),
        *((f"--mode naive --lr {value}", 2, f"'--lr': {value} is not 0 or above") for value in ("nan", "inf", "-1")),
        *((f"--mode naive --clip-grad {value}", 2, f"{value} is not above 0") for value in ("nan", "inf", "0", "-2")),
    ],
    "view": [
        ("RUN --annotate", 2, "add --figure"),
        ("RUN --figure-width 500", 2, "add --figure"),
        ("RUN --figure", 2, "-o FILE.svg"),
        ("RUN --figure -o x.html", 2, "-o FILE.svg"),
        ("RUN --figure -o x.gif", 2, ".svg, .png or .pdf"),
        ("RUN --figure -o x.png --size 800x600", 2, "-o FILE.svg"),
        ("RUN --figure -o x.svg --text", 2, "leave"),
        ("RUN --figure -o x.svg --figure-width 12", 2, "2,000"),
        ("RUN --figure x.svg --against RUN", 2, "leave"),
        ("nowhere --view pie", 2, "'gantt', 'summary'"),
        ("nowhere --size 10x10 -o x.png", 2, "for example 1600x900"),
        ("nowhere --size 800x600 -o x.svg", 2, "-o FILE.png"),
        ("nowhere --png x.jpg", 2, "name the file .png"),
        ("nowhere --svg x.PNG", 2, "name the file .svg"),
        ("nowhere --svg x.svg -o x.svg", 2, "two files"),
        ("nowhere --text -o x.txt", 2, ".html, .svg, .png or .pdf"),
        ("nowhere -o -", 2, "name a file"),
        ("nowhere -o none/out.html", 2, "create it first"),
        ("RUN --align start", 2, "--against RUN"),
        ("RUN --against OTHER --view breakdown", 2, "--view"),
        ("RUN --against nowhere --text", 1, "nowhere: no such file"),
        ("RUN --ranks 7", 2, "Choose from 0, 1"),
        ("RUN --steps 90:91", 2, "ProfilerStep#10 to"),
        ("RUN --ranks x", 2, "for example 0,1"),
        ("RUN --steps 5:4", 2, "for example 4:6"),
        *(
            (f"RUN --critical-path {other}", 2, "--critical-path")
            for other in ("--text", "--serve", "-o a.svg", "--view idle", "--against b")
        ),
        *(
            (f"nowhere {asked} {other}", 2, "Gantt page of one run")
            for asked in ("--serve", "--port 8000", "--host ::1")
            for other in ("-o x.html", "--text", "--against y", "-o x.svg", "--view heatmap")
        ),
    ],
    "export": [("RUN -o all.txt", 2, ".pftrace"), ("nowhere -o all.json", 1, "nowhere")],
    "report": [("nowhere", 1, "nowhere"), ("RUN --ranks 7", 2, "Choose from 0, 1")],
    "completion": [("tcsh", 2, "bash")],
    "cp": [("nayve .", 2, "interleaved"), ("naive nowhere", 2, ".py"), ("naive nowhere/x.py", 2, "create it first")],
}
"""By verb: the arguments, the exit code, and what the message has."""

WRITES = (
    *("analyze RUN --json -o", "analyze RUN --csv -o", "analyze RUN --all -o", "kernels RUN --json -o"),
    *("critical-path RUN -o", "whatif RUN --json -o", "whatif RUN --export", "diff RUN OTHER --csv -o"),
    *("diff RUN OTHER --html", "view RUN -o", "view RUN --svg", "view RUN --figure -o", "report RUN -o"),
    "export RUN -o",
)
_SUFFIXES = {"--csv": ".csv", "--html": ".html", "--svg": ".svg", "--figure": ".svg", "--all": ".txt"}
_PAGES = "critical-path RUN -o", "view RUN -o", "report RUN -o"


@pytest.fixture(autouse=True)
def _empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(line: str) -> Result:
    words = [PLACES.get(word, word) for word in line.split()]
    return CliRunner(env={"COLUMNS": "100"}).invoke(cli, words)


@pytest.mark.heavy
def test_what_can_not_work_is_refused_with_advice(tmp_path: Path) -> None:
    """With the exit code of wrong use or of bad input, no traceback, and no file."""
    for line, code, fact in (
        (f"{verb} {arguments}".strip(), code, fact) for verb in REFUSED for arguments, code, fact in REFUSED[verb]
    ):
        result = run(line)

        assert code == result.exit_code, result.output
        assert fact in " ".join(result.stderr.split()), line
        assert "Traceback" not in result.output, line
        assert [] == list(tmp_path.iterdir()), line


@pytest.mark.heavy
@pytest.mark.parametrize("line", WRITES)
def test_a_file_is_replaced_only_when_forced(line: str, tmp_path: Path) -> None:
    """It is kept before anything is read; --force replaces it, and leaves no other file."""
    suffix = (
        ".html"
        if line in _PAGES
        else _SUFFIXES.get(line.split()[-1])
        or next((_SUFFIXES[word] for word in line.split() if word in _SUFFIXES), ".json")
    )
    path = tmp_path / f"mine{suffix}"
    path.write_text("mine")
    refused = run(f"{line} {path.name}".replace("RUN", "nowhere"))

    assert (2, "mine") == (refused.exit_code, path.read_text())
    assert "--force" in refused.stderr
    done = run(f"{line} {path.name} --force")
    assert 0 == done.exit_code, done.output
    assert "mine" != path.read_text(encoding="utf-8")
    assert [path] == list(tmp_path.iterdir())
