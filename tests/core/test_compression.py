"""The exceptions of damaged compressed data."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable

import pytest

from dptrace.core.compression import DAMAGE

TEXT = bytes(range(256)) * 100


def damaged(packed: bytes) -> bytes:
    middle = len(packed) // 2
    return packed[:middle] + bytes(8) + packed[middle + 8 :]


@pytest.mark.parametrize(
    ("pack", "unpack"),
    [
        (gzip.compress, gzip.decompress),
        (zlib.compress, zlib.decompress),
        (bz2.compress, bz2.decompress),
        (lzma.compress, lzma.decompress),
    ],
)
def test_damage_in_any_compression_is_one_of_them(
    pack: Callable[[bytes], bytes], unpack: Callable[[bytes], bytes]
) -> None:
    """Whatever module decompresses."""
    with pytest.raises(DAMAGE):
        unpack(damaged(pack(TEXT)))
