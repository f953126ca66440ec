"""The lines of epochs, read while another process writes them."""

from __future__ import annotations

import tempfile

from dptrace.bench.epoch_lines import EpochLines


def test_epochs_are_reported_once_and_whole() -> None:
    """Half a line waits for its other half; what the writer writes next is not moved by the reading."""
    told: list[object] = []
    with tempfile.TemporaryFile("w+") as file:
        lines = EpochLines(file, told.append)
        for text in (
            'noise\nEPOCH_JSON: {"epoch": 1}\nEPOCH_JSON: {"ep',
            'och": 2}\n',
            "EPOCH_JSON: [1]\n",
            "EPOCH_JSON: {\n",
        ):
            file.write(text)
            file.flush()
            lines.read()
        lines.read()
        file.seek(0)

        assert [{"epoch": 1}, {"epoch": 2}] == told
        assert file.read().startswith("noise\nEPOCH")
