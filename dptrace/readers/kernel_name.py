"""A kernel's own name, out of the signature that a trace records."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

_INNERMOST = re.compile(r"<[^<>]*>")
_IDENTIFIER = re.compile(r"\d+")
_ENDS_OF_NAME = ("(", "<", " [")
_PHRASE = re.compile(r"(?!void |const |unsigned |signed |static |inline )[^(<\[ ]+( [^(<\[ ]+)+")
"""A name in words, which no signature is: ``TorchDynamo Cache Lookup``."""


def own_name(name: str) -> str:
    """Return a kernel's qualified name without its return type, template arguments and parameters.

    >>> own_name("void at::native::foo<ncclFoo<float>, 4>(float*, int)")
    'at::native::foo'
    >>> own_name("void (anonymous namespace)::bar<c10::BFloat16>(c10::BFloat16*)"), own_name("triton_poi_fused_add_0")
    ('::bar', 'triton_poi_fused_add_0')
    >>> own_name("_ZN7deep_ep9intranode8dispatchILi8EEEvPi")
    'deep_ep::intranode::dispatch'
    >>> own_name("Torch-Compiled Region: 0/0")
    'Torch-Compiled Region: 0/0'
    """
    if _PHRASE.fullmatch(name):
        return name
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


# Short names of kernels: what one reads in a table, out of signatures of a thousand characters.

_MAX_NAME = 56
"""Characters of a short name."""
_MAX_IDENTIFIER = 80
"""A GEMM's name without blanks and brackets says its types, tile and layout from start to end."""
_NO_SIGNATURE = re.compile(r"</|\s<(?!unnamed>)|<[\w ,]*>[A-Za-z]|^(?!void )[^>(:]*<[^>(:]*$")
"""What no C++ name has: brackets as in markup or a comparison, ``loss<1``, which are not template arguments."""
_WORD = re.compile(r"[^\W_]+")
_COMMON_WORDS = {"void", "at", "native", "c10", "std", "detail", "unsigned", "const", "anonymous", "namespace"}
"""Words that distinguish kernels but carry no meaning."""
_TYPES = {
    "c10::BFloat16": "bf16",
    "__nv_bfloat16": "bf16",
    "cutlass::bfloat16_t": "bf16",
    "c10::Half": "half",
    "__half": "half",
    "cutlass::half_t": "half",
    "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e5m2": "fp8",
    **{name: name for name in ("float", "double", "long", "int", "short", "bool", "unsigned char", "signed char")},
}
_GENERIC = re.compile(r"elementwise_kernel|reduce_kernel|multi_tensor_apply_kernel|gpu_index_kernel|_for_each|apply_")
"""Kernels that carry what they compute as a template argument."""
_WRAPPER = re.compile(
    r"^(?:void )?(?:\w+::)*(?:gpu_kernel_impl\w*|gpu_kernel\w*|ReduceOp|func_wrapper_t|\w*UnaryFunctor|BinaryFunctor|"
    r"device_kernel|enable_\w+|GemmUniversal|Kernel2?)<"
)
_NO_FUNCTOR = re.compile(
    r"^(?:-?\d+\w*|true|false|(?:at::detail::|std::)?[Aa]rray\b.*|.*(?:ListMetadata|ListScalarListMetadata)\b.*|"
    r".*OffsetCalculator\b.*|at::native::memory::.*|unsigned .*|\(.*\)\d+)$"
)
_LAMBDA = re.compile(r"\{lambda\((?P<type>[\w:]+)[^)]*\)#\d+\}")
_CUT = (
    # What follows the tile of a GEMM are its stages, warps and stores.
    re.compile(r"^(?P<kept>(?:sm\d+_xmma|\w*implicit_gemm)\w*?tilesize\d+x\d+x\d+)_\w+$"),
    re.compile(r"^(?P<kept>igemm_\w+?_bt\d+x\d+x\d+)_\w+$"),
)
_CIJK = re.compile(r"^(?P<layout>Cijk_\w+?_\w+?_[A-Z0-9]+)_\w*?(?P<tile>MT\d+x\d+x\d+)")
_TRITON = re.compile(r"^(?P<kind>triton_[a-z]+_fused)_(?P<operators>\w+)_(?P<number>\d+)$")


@lru_cache(maxsize=100_000)
def short_name(name: str, cut: bool = True) -> str:
    """Return what a kernel is, in at most some 56 characters unless *cut* is false.

    >>> short_name("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, A>(int, B)")
    'vectorized_elementwise_kernel(FillFunctor<float>)'
    >>> short_name("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_64x64_tn_align8>(X::Params)")
    'cutlass_80_tensorop_bf16_s16816gemm_64x64_tn_align8'
    >>> short_name("triton_poi_fused_add_3"), short_name("Memcpy DtoD (Device -> Device)")
    ('triton_poi_fused_add_3', 'Memcpy DtoD (Device -> Device)')
    """
    if name.startswith(("Memcpy ", "Memset ", "aten::")):
        return name
    if _NO_SIGNATURE.search(name):
        return _shortened(name, cut)
    text = name.replace("(anonymous namespace)::", "")
    own = own_name(text)
    base = _unqualified(own)
    if _WRAPPER.match(f"{own}<") and (inner := _functor(text)):
        return _shortened(inner if inner.startswith("cutlass_") else _qualified_name(inner), cut)
    if _GENERIC.search(base) and (inner := _functor(text)):
        return _shortened(f"{base}({_with_type(inner, text)})", cut, _MAX_NAME + 24)
    return _shortened(_gemm(base) or _qualified_name(own) or name, cut)


def short_names(names: Iterable[str], cut: bool = True) -> dict[str, str]:
    """Return the short name of each name; where several have the same, what distinguishes them is added."""
    alike: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        alike.setdefault(short_name(name, cut), []).append(name)
    found: dict[str, str] = {}
    for short, several in alike.items():
        found |= {several[0]: short} if len(several) == 1 else _distinct_names(short, sorted(several))
    return found


def _distinct_names(short: str, names: list[str]) -> dict[str, str]:
    """Add the first words that differ, or a number where they do not suffice: ``copy [4]``, ``copy [8] #2``."""
    words = [[word for word in _WORD.findall(name) if word not in _COMMON_WORDS] for name in names]
    shared = set(words[0]).intersection(*map(set, words))
    found: dict[str, str] = {}
    for number, (name, own) in enumerate(zip(names, words, strict=True), 1):
        differing = [word for word in dict.fromkeys(own) if word not in shared]
        differing = differing or [word for place, word in enumerate(own) if _differs(words, place)]
        longer = f"{short} [{' '.join(word[:24] for word in differing[:2])}]" if differing else short
        found[name] = longer if differing and longer not in found.values() else f"{longer} #{number}"
    return found


def _differs(words: list[list[str]], place: int) -> bool:
    return len({own[place] if place < len(own) else "" for own in words}) > 1


def _arguments(text: str) -> list[str]:
    """Split the template arguments of the first ``<…>`` of a name."""
    begin = text.find("<")
    found: list[str] = []
    depth, start = 0, begin + 1
    for place in range(begin, len(text) if begin >= 0 else 0):
        letter = text[place]
        if letter in "<({" and not text.startswith(("<=", "<<"), place):
            depth += 1
        elif letter in ")}" or (letter == ">" and text[place - 1] != "-"):
            depth -= 1
        if depth == 0 or (depth == 1 and letter == ","):
            found.append(text[start:place].strip())
            start = place + 1
        if depth == 0:
            break
    return [argument for argument in found if argument]


def _functor(text: str) -> str:
    """Return the template argument that says what a generic kernel computes; empty without one."""
    for _ in range(8):
        chosen = [one for one in _arguments(text) if not _NO_FUNCTOR.match(one)]
        # Types come first; the operation follows them.
        operations = [one for one in chosen if one not in _TYPES]
        if not operations:
            return ""
        text = operations[-1] if "Functor<" in text.split(",")[0] and len(chosen) > 1 else operations[0]
        if not _WRAPPER.match(text):
            return text
    return text


def _with_type(functor: str, whole: str) -> str:
    """Return the name of a functor with the type that it works on."""
    label = _unqualified(re.split(r"[<(]", functor.removeprefix("void "), maxsplit=1)[0])
    label = label.removesuffix("_kernel_cuda").removesuffix("_cuda")
    lambdas = _LAMBDA.findall(functor)
    types = [_TYPES[one] for one in [*lambdas[-1:], *_arguments(functor), *_arguments(whole)] if one in _TYPES]
    return f"{label}<{types[0]}>" if types else label


def _unqualified(name: str) -> str:
    return name.rpartition("::")[2]


def _qualified_name(name: str) -> str:
    """Return a name with its innermost namespace, which torch's own kernels do not need."""
    parts = re.split(r"[<(]", name, maxsplit=1)[0].removeprefix("void ").removeprefix("at::native::").split("::")
    return "::".join(part for part in parts[-2:] if part)


def _gemm(base: str) -> str:
    """Return a GEMM's or convolution's name up to its tile; empty for others."""
    if match := _CIJK.match(base):
        return f"{match['layout']}_{match['tile']}"
    matches = (pattern.match(base) for pattern in _CUT)
    return next((match["kept"] for match in matches if match), "")


def _shortened(text: str, cut: bool, longest: int = 0) -> str:
    if not cut:
        return text
    if match := _TRITON.match(text):
        longest = _MAX_NAME
    longest = longest or (_MAX_IDENTIFIER if re.fullmatch(r"[\w.]+", text) else _MAX_NAME)
    if len(text) <= longest:
        return text
    if match:
        kept = match["operators"][: longest - len(match["kind"]) - len(match["number"]) - 3]
        return f"{match['kind']}_{kept}…_{match['number']}"
    return f"{text[: longest - 13]}…{text[-12:]}"
