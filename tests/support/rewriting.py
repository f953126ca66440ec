"""Rewrite traces in ways that change no figure, and check that the reader sees no difference.

JSON leaves open how a document is spelled: the order of keys and of events, white space, escapes, numbers. Run it for
longer with ``python -m tests.support.rewriting --count 3000``. Each difference is printed with its seed and number,
which reproduce the file: ``python -m tests.support.rewriting --seed S --first N --count 1 --keep .``
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import dptrace
import dptrace.readers.stream
from tests.support.fuzz import made_by_hand, recordings
from tests.support.real_traces import real_files
from tests.support.silent_damage import figures

_IDS = ("pid", "tid", "id")
_ARGUMENT_IDS = ("correlation", "stream", "device")
_NOISE_KEYS = ("zz", "a{b", 'q"uote', "traceEvents2", "ph2", "Ünknown", "x]y", "")
_LONGEST = 3_000_000
"""Maximum bytes of a text that is rewritten."""


class Rewriter:
    """Rewritten files by number: the same seed, number and traces make the same file."""

    def __init__(self, seed: int, real: bool = False) -> None:
        """Take the project's small traces; with *real*, also the shared ones that a rewriting in Python can handle."""
        self.seed = seed
        texts = [*made_by_hand(), *recordings(), *(_larger() if real else ())]
        documents = [json.loads(text) for text in texts if b'"traceEvents"' in text[:100_000]]
        self.documents = [document for document in documents if isinstance(document.get("traceEvents"), list)]
        self._figures: dict[int, Any] = {}

    def make(self, number: int) -> tuple[int, bytes]:
        """Return which document a file is made from, and its bytes."""
        rng = random.Random(self.seed * 1_000_003 + number)
        chosen = rng.randrange(len(self.documents))
        return chosen, _rewritten(rng, self.documents[chosen])

    def differences(self, numbers: Iterator[int], until: float = float("inf")) -> Iterator[Difference]:
        """Make and read one file after the other; yield those whose figures are others than before the rewriting."""
        with tempfile.TemporaryDirectory() as folder:
            for number in numbers:
                if time.monotonic() > until:
                    return
                chosen, data = self.make(number)
                path = Path(folder, "rank0.json")
                if chosen not in self._figures:
                    path.write_text(json.dumps(self.documents[chosen], ensure_ascii=False))
                    dptrace.readers.stream.CHUNK = 1 << 20
                    self._figures[chosen] = figures(path)
                path.write_bytes(data)
                dptrace.readers.stream.CHUNK = random.Random(number).choice((700, 20_000, 1 << 20))
                if (what := _difference(self._figures[chosen], figures(path))) is not None:
                    yield Difference(number, chosen, what, data)


class Difference(NamedTuple):
    """A file whose figures have changed."""

    number: int
    document: int
    what: str
    data: bytes


def _difference(before: Any, after: Any, at: str = "") -> str | None:
    """Return where two JSON values differ first; None if they are equal."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            if (found := _difference(before.get(key), after.get(key), f"{at}.{key}")) is not None:
                return found
        return None
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return next((found for i, pair in pairs if (found := _difference(*pair, f"{at}[{i}]")) is not None), None)
    return None if before == after else f"{at}: {str(before)[:300]} became {str(after)[:300]}"


def _larger() -> Iterator[bytes]:
    for path in real_files():
        text = gzip.decompress(path.read_bytes())
        if 60_000 <= path.stat().st_size and len(text) <= _LONGEST:
            yield text


def _rewritten(rng: random.Random, document: dict[str, Any]) -> bytes:
    """Return a spelling of a document."""
    write = _Writer(rng)
    events = list(document["traceEvents"])
    if rng.random() < 0.5:
        rng.shuffle(events)
    if rng.random() < 0.3:
        others = [event for event in events if isinstance(event, dict) and event.get("ph") == "M"]
        events[:0] = others[:20]
    text = write.document(document | {"traceEvents": events})
    data = text.encode("utf-8", "surrogatepass")
    blank = rng.choice((b"", b"", b"\n", b" " * 3000, b"\n" * 3000, b"\xef\xbb\xbf", b"\r\n\t"))
    data = blank + data + rng.choice((b"", b"\n", b" \r\n" * 500))
    return gzip.compress(data, 1, mtime=0) if rng.random() < 0.2 else data


class _Writer:
    """Writes JSON with the liberties that it chooses once for a file."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.shuffles = rng.random() < 0.6
        self.noise = rng.choice((0.0, 0.0, 0.05, 0.6))
        self.duplicates = rng.choice((0.0, 0.0, 0.1))
        self.spells_numbers = rng.choice((0.0, 0.0, 0.3))
        self.ids: Callable[[int], Any] = rng.choice((int, int, float, str))
        self.escapes = rng.choice((0.0, 0.0, 0.1))
        self.ascii = rng.random() < 0.5
        self.blanks = rng.choice((("",), ("",), (" ",), ("", " ", "\n", "\t\r\n  ")))

    def blank(self) -> str:
        """Return white space, or none."""
        return self.blanks[0] if len(self.blanks) == 1 else self.rng.choice(self.blanks)

    def document(self, document: dict[str, Any]) -> str:
        """Write the document around its events, and these one by one."""
        pairs = [(key, self.value(value)) for key, value in document.items() if key != "traceEvents"]
        events = ("," + self.blank()).join(self.event(event) for event in document["traceEvents"])
        pairs.append(("traceEvents", "[" + self.blank() + events + self.blank() + "]"))
        pairs += [(key, text) for key, text in pairs if key != "traceEvents" and self.happens(self.duplicates)]
        if self.happens(0.3):
            decoy: Any = self.rng.choice(({"traceEvents": []}, {"x": [{"traceEvents": [{"ph": "X"}]}]}))
            pairs.append(("decoy", self.value(decoy)))
        if self.shuffles:
            self.rng.shuffle(pairs)
        return self.object(pairs)

    def event(self, event: Any) -> str:
        """Write an event, with further keys and values that a reader must pass over."""
        if not isinstance(event, dict):
            return self.value(event)
        pairs = [(key, self.field(key, value, _IDS)) for key, value in event.items()]
        if self.shuffles:
            self.rng.shuffle(pairs)
        if self.happens(self.noise):
            used = {key for key, _ in pairs}
            key = self.rng.choice([key for key in _NOISE_KEYS if key not in used])
            pairs.insert(self.rng.choice((0, len(pairs))), (key, self.value(self.nested())))
        if self.happens(self.duplicates):
            # JSON's readers take the last of several values.
            key = self.rng.choice([key for key, _ in pairs])
            pairs.insert(0, (key, self.rng.choice(("null", '"other"', "17", "[1]"))))
        return self.object(pairs)

    def field(self, key: str, value: Any, ids: tuple[str, ...]) -> str:
        """Write the value of a key of an event or of its arguments."""
        if key == "args" and isinstance(value, dict):
            pairs = [(name, self.field(name, inner, _ARGUMENT_IDS)) for name, inner in value.items()]
            if self.shuffles:
                self.rng.shuffle(pairs)
            return self.object(pairs)
        if key in ids and type(value) is int and abs(value) < 1 << 53:
            return self.value(self.ids(value))
        return self.value(value)

    def nested(self) -> Any:
        """Return a value that looks like events."""
        event = {"ph": "X", "cat": "kernel", "name": "} , {", "ts": 1, "dur": 2}
        return self.rng.choice((event, [event, event], {"args": [event, {"traceEvents": [event]}]}, "}, {", [[], {}]))

    def object(self, pairs: list[tuple[str, str]]) -> str:
        """Write an object from its keys and written values."""
        inside = ",".join(
            f"{self.blank()}{self.text(k)}{self.blank()}:{self.blank()}{v}{self.blank()}" for k, v in pairs
        )
        return "{" + inside + "}"

    def value(self, value: Any) -> str:
        """Write any value."""
        if isinstance(value, dict):
            pairs = [(key, self.value(inner)) for key, inner in value.items()]
            return self.object(pairs)
        if isinstance(value, list):
            return "[" + ("," + self.blank()).join(map(self.value, value)) + "]"
        if isinstance(value, str):
            return self.text(value)
        if type(value) is int and abs(value) < 1 << 53 and self.happens(self.spells_numbers):
            return self.rng.choice((f"{value}.0", f"{value}e0", f"{value}E+00", f"{value}0e-1" if value else "0"))
        if type(value) is float and self.happens(self.spells_numbers):
            return self.rng.choice((f"{value!r}0" if "e" not in repr(value) else repr(value), f"{value:.17e}"))
        return json.dumps(value)

    def text(self, text: str) -> str:
        """Write a string, some characters of it escaped."""
        written = json.dumps(text, ensure_ascii=self.ascii)
        if not self.happens(self.escapes) or "\\" in written:
            return written
        at = self.rng.randrange(len(text)) if text else 0
        if not text or ord(text[at]) > 0xFFFF:
            return written
        before, after = (json.dumps(part, ensure_ascii=self.ascii)[1:-1] for part in (text[:at], text[at + 1 :]))
        return f'"{before}\\u{ord(text[at]):04{self.rng.choice("xX")}}{after}"'

    def happens(self, chance: float) -> bool:
        """Return whether something of this probability happens."""
        return chance > 0 and self.rng.random() < chance


def main() -> int:
    """Rewrite and compare from the command line; print the differences."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.rewriting", description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for the files whose figures have changed")
    chosen = parser.parse_args()
    rewriter, found, begin = Rewriter(chosen.seed, real=True), 0, time.monotonic()
    for difference in rewriter.differences(iter(range(chosen.first, chosen.first + chosen.count))):
        found += 1
        print(
            f"seed {chosen.seed}, number {difference.number}, document {difference.document}: {difference.what}",
            flush=True,
        )
        if chosen.keep is not None:
            (chosen.keep / f"rewritten-{chosen.seed}-{difference.number}.json").write_bytes(difference.data)
    files = f"{chosen.count:,} files from {len(rewriter.documents)} traces"
    print(f"{files} in {time.monotonic() - begin:.0f} s: {found:,} with other figures")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
