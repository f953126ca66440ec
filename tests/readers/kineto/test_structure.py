"""The structure of JSON text that is not whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrace.readers.kineto.structure import (
    State,
    closing_bracket,
    count_brackets,
    cut_between_events,
    find_list,
    is_list,
)

_TEXTS = st.text(st.sampled_from('ab{}[],:"\\ \n\u00e9'), max_size=6)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS | st.just("traceEvents"), inner, max_size=3),
    max_leaves=8,
)
_EVENTS = st.lists(st.dictionaries(_TEXTS, _VALUES, max_size=3), min_size=2, max_size=6)
_SPELLINGS = st.sampled_from([(None, (",", ":")), (None, (", ", ": ")), (2, (" ,", " : ")), ("\t", (",\n\n", ":\r\n"))])


@pytest.mark.heavy
@given(st.lists(st.tuples(_TEXTS, _VALUES), max_size=4), _EVENTS, _SPELLINGS)
def test_the_list_of_the_document_itself_is_found(
    around: list[tuple[str, Any]], events: list[Any], spelling: tuple[Any, tuple[str, str]]
) -> None:
    """Lists of the same name deeper in the document are passed over, whatever comes before."""
    indent, separators = spelling
    before = {key: value for key, value in around if key not in ("ph", "traceEvents")}
    text = json.dumps(before | {"traceEvents": events}, indent=indent, separators=separators).encode()

    found = find_list(text)

    assert isinstance(found, int)
    assert events == json.loads(text[found - 1 : -1])
    assert all(find_list(text[:end]) is State.MORE for end in range(1, found))


@pytest.mark.parametrize(
    ("text", "state"),
    [
        (b'{"a": {"traceEvents": []}}', State.NONE),
        (b'{"traceEvents": {"a": 1}}\n', State.NONE),
        (b'{"x": 1, "ph": "X"}\n{"ph": "X"}', State.EVENT),
        (b'{"a": "b"c", "traceEvents": []}', State.MORE),
        (b'{"a": 1 "traceEvents" []}', State.MORE),
        (b'{a: 1, "traceEvents": []}', State.BROKEN),
        (b'{"a": 1} x', State.BROKEN),
    ],
)
def test_without_a_list_the_reason_is_known(text: bytes, state: State) -> None:
    """A whole document, an event and damage are told apart."""
    assert state is find_list(text)


def test_a_name_may_be_escaped_and_another_document_come_first() -> None:
    """As JSON spells it; several documents follow each other in files that were joined."""
    text = b'{"a": 1}\n{"trace\\u0045vents": [1]}'

    assert text.index(b"[") + 1 == find_list(text)


@pytest.mark.heavy
@given(_EVENTS, _SPELLINGS, st.data())
def test_a_cut_is_between_two_events(events: list[Any], spelling: tuple[Any, tuple[str, str]], data: Any) -> None:
    """At any key, order, spacing and nesting; there is none only if no event is followed by another.

    The cut is a guess where the arguments of an event hold objects that look like events: then the text before it is no
    list, which decoding shows, and counting the brackets is right.
    """
    indent, separators = spelling
    texts = [json.dumps(event, indent=indent, separators=separators) for event in events]
    text = separators[0].join(texts).encode()
    ends = [len(separators[0].join(texts[: k + 1])) for k in range(len(texts))]
    shown = text[: data.draw(st.integers(0, len(text)))]
    # Another event follows if its brace is there.
    whole = [end - 1 for end in ends[:-1] if b"{" in shown[end:]] or [-1]

    learned = cut_between_events(text[: data.draw(st.integers(0, len(text)))], b"")[1]
    cut, _ = cut_between_events(shown, learned)

    assert cut in whole or (cut >= 0 and not is_list(shown[: cut + 1]))
    assert count_brackets(shown).last_end == whole[-1]


def test_damaged_text_is_cut_where_events_seem_to_meet() -> None:
    """A quotation mark too many hides all structure behind it."""
    text = b'{"a": "x"y"}, {"a": "{1"}, {"a": 2'

    assert (text.rindex(b"}"), b'}, {"a":') == cut_between_events(text, b'}, {"a":')


@pytest.mark.parametrize(
    ("text", "depth", "end"),
    [
        (b"[1, [2]] 3", 0, 8),
        (b'{"a]": "\\"]"} x', 0, 13),
        (b'1, "]", [2]] x', 1, 12),
        (b"[[1]", 0, -1),
        (b'["never ends]', 0, -1),
    ],
)
def test_the_closing_bracket_is_found_by_counting(text: bytes, depth: int, end: int) -> None:
    """Brackets inside strings don't count, whatever is escaped there."""
    assert end == closing_bracket(text, depth)
