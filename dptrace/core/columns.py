"""Structs of columns: rows held as arrays of one length, an entry per row in each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

if TYPE_CHECKING:
    from typing_extensions import Self


class Columns(msgspec.Struct, frozen=True):
    """Arrays with an entry per row; the first field is one of them, and what is no array belongs to all rows."""

    def __len__(self) -> int:
        return len(getattr(self, self.__struct_fields__[0]))

    def take(self, rows: slice | NDArray[Any]) -> Self:
        """Select or reorder rows, by a mask, indices or a slice."""
        columns = {name: getattr(self, name) for name in self.__struct_fields__}
        return replace(
            self, **{name: column[rows] for name, column in columns.items() if isinstance(column, np.ndarray)}
        )

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Return the rows of all parts, of which there is at least one, in their order."""
        columns = {name: getattr(parts[0], name) for name in cls.__struct_fields__}
        return replace(
            parts[0],
            **{
                name: np.concatenate([getattr(part, name) for part in parts])
                for name, column in columns.items()
                if isinstance(column, np.ndarray)
            },
        )

    @classmethod
    def empty(cls) -> Self:
        """Return no rows; other fields have their defaults."""
        return cls(**{name: np.empty(0, dtype) for name, dtype in _dtypes(cls).items()})


@cache
def _dtypes(columns: type[Columns]) -> dict[str, Any]:
    """Return the names and types of the arrays of such a struct."""
    hints = {name: hint for name, hint in get_type_hints(columns).items() if get_origin(hint) is np.ndarray}
    return {name: get_args(get_args(hint)[1])[0] for name, hint in hints.items()}


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal in all that they hold: arrays entry by entry, of structs each field.

    >>> same({"a": (np.arange(2), "x")}, {"a": (np.arange(2), "x")})
    True
    """
    if one is other:
        return True
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    if isinstance(one, msgspec.Struct):
        return type(one) is type(other) and all(
            same(getattr(one, name), getattr(other, name)) for name in one.__struct_fields__
        )
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(same(value, other[key]) for key, value in one.items())
        )
    if isinstance(one, tuple | list):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
