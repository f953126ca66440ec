"""SVG text: coordinates, texts that fit, and names that stay text."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from dptrace.viewers.base.marks import Axis, Drawing, Label
from dptrace.viewers.base.svg import WIDTH, Canvas, escape, shorten, svg, text_width
from tests.support.view_cases import PAYLOAD, drawn


def test_names_are_escaped() -> None:
    """Whatever stands in them, the drawing is well-formed and holds them as text."""
    canvas = Canvas(100, 50, PAYLOAD)
    canvas.text(1, 2, PAYLOAD)
    canvas.rect(1, 1, 5, 5, "#FFFFFF", PAYLOAD)
    root = ET.fromstring(canvas.finish())

    assert not list(root.iter("{http://www.w3.org/2000/svg}script"))
    assert 3 == sum("PWN" in (element.text or "") for element in root.iter())
    assert "\\u202e" in escape("\u202e")


def test_a_shortened_name_fits() -> None:
    """In its room, its beginning and its end kept."""
    for room in (10, 60, 200, 1000):
        name = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
        short = shorten(name, room)

        assert text_width(short) <= max(room, text_width("…")), room
        if "…" in short[1:]:
            assert name.startswith(short.split("…")[0]), room
            assert name.endswith(short.split("…")[1]), room


# Drawings as SVG.


def test_a_label_in_the_middle_needs_half_of_its_room_on_each_side() -> None:
    """One over the last point of an axis is whole where half of it fits right of that."""
    label = Label(1.0, 0.5, "131,844/s", side="center", bold=True)

    assert ">131,844/s<" in svg(Drawing("title", "", Axis(0, 1), Axis(1, 0), 200, (label,)))


def test_svg_shows_every_mark() -> None:
    """And writes of a box' texts the first that fits."""
    text = svg(drawn())

    words = "title", "subtitle", "a tip", ">short<", "beside", "before", "row", "rows", "red"
    for shown in (*words, "<circle", "<polygon"):
        assert shown in text
    assert "too long" not in text
    assert ">title</text>" not in svg(drawn(), heading=False)
    assert f'width="{WIDTH}"' in text
    assert 'width="700"' in svg(drawn(), width=700)
