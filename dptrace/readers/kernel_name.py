"""A kernel's own name, out of the signature that a trace records."""

from __future__ import annotations

import re

__all__ = ["own_name"]

_INNERMOST = re.compile(r"<[^<>]*>")
_IDENTIFIER = re.compile(r"\d+")
_ENDS_OF_NAME = ("(", "<", " [")


def own_name(name: str) -> str:
    """Return a kernel's qualified name without its return type, template arguments and parameters.

    >>> own_name("void at::native::foo<ncclFoo<float>, 4>(float*, int)")
    'at::native::foo'
    >>> own_name("void (anonymous namespace)::bar<c10::BFloat16>(c10::BFloat16*)"), own_name("triton_poi_fused_add_0")
    ('::bar', 'triton_poi_fused_add_0')
    >>> own_name("_ZN7deep_ep9intranode8dispatchILi8EEEvPi")
    'deep_ep::intranode::dispatch'
    """
    if name.startswith("_Z"):
        return _qualified(name) or name
    # Namespaces without a name contain brackets themselves.
    name = name.replace("(anonymous namespace)", "").replace("->", ".")
    shorter = _INNERMOST.sub("", name) if "<" in name else name
    while shorter != name:
        name, shorter = shorter, _INNERMOST.sub("", shorter)
    for end in _ENDS_OF_NAME:
        name = name.partition(end)[0]
    return name.strip().rpartition(" ")[2].removesuffix(".kd")


def _qualified(mangled: str) -> str:
    """Return the qualified name at the start of a name in the Itanium ABI's form; empty where there is none.

    Each part is its length and its letters: ``_ZN`` 7``deep_ep`` 9``intranode`` … up to template arguments or the end.
    """
    parts, at = [], 2
    while at < len(mangled) and mangled[at] in "NKL":
        at += 1
    while found := _IDENTIFIER.match(mangled, at):
        at = found.end() + int(found[0])
        parts.append(mangled[found.end() : at])
    return "::".join("" if part.startswith("_GLOBAL__N_") else part for part in parts)
