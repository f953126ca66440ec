"""Read a pickle of plain data; whatever else a pickle can do is refused, and nothing in it is executed."""

from __future__ import annotations

import io
import pickle
import pickletools
import struct
from collections.abc import Callable
from typing import Any, ClassVar

_PLAIN = (
    *("PROTO", "FRAME", "STOP", "MARK", "BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT", "MEMOIZE", "NONE"),
    *("NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE"),
    *("BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "EMPTY_DICT", "SETITEM", "SETITEMS", "EMPTY_LIST"),
    *("APPEND", "APPENDS", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_SET", "ADDITEMS"),
)
"""The opcodes of dicts, lists, tuples, sets, texts, bytes, numbers, booleans and None."""
_CODES = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}
# The unpickler written in Python: it has a table of opcodes, and believes no length before the data are there.
_Unpickler: Any = pickle._Unpickler


class RefusedPickleError(Exception):
    """The pickle holds more than plain data; the message says what."""


class DamagedPickleError(Exception):
    """The pickle ends too early, or contradicts itself."""


def _without_tuples(load: Callable[[Any], None], keys: slice) -> Callable[[Any], None]:
    """Check keys: Python takes the hash of nested tuples on the stack of C, which their depth can overflow."""

    def load_checked(unpickler: Any) -> None:
        if any(isinstance(key, tuple) for key in unpickler.stack[keys]):
            raise RefusedPickleError("has a tuple as a key")
        load(unpickler)

    return load_checked


class _PlainUnpickler(_Unpickler):  # type: ignore[misc]
    """Knows the opcodes of plain data, and no others."""

    dispatch: ClassVar[dict[int, Any]] = {
        **{code: load for code, load in _Unpickler.dispatch.items() if _CODES.get(code) in _PLAIN},
        pickle.SETITEM[0]: _without_tuples(_Unpickler.load_setitem, slice(-2, -1)),
        pickle.SETITEMS[0]: _without_tuples(_Unpickler.load_setitems, slice(0, None, 2)),
        pickle.ADDITEMS[0]: _without_tuples(_Unpickler.load_additems, slice(0, None)),
    }


def load_plain(data: bytes) -> Any:
    """Return the data of a pickle of protocol 2 or later, as torch and Python write it.

    Raises:
        RefusedPickleError: it has an opcode that plain data do not need, such as those that import and call.
        DamagedPickleError: it ends too early, or contradicts itself.
    """
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except KeyError as error:
        name = _CODES.get(error.args[0], "an unknown one")
        raise RefusedPickleError(f"has opcode {name}, which plain data do not need") from None
    except (EOFError, ValueError, IndexError, TypeError, AttributeError, struct.error, pickle.UnpicklingError):
        raise DamagedPickleError from None
