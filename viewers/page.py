"""A page that is one file: scripts, styles and data inlined, and a policy that lets nothing else run.

Names in traces are hostile until shown otherwise. They enter a page by two doors only: Jinja's autoescape, and
JSON islands that no browser executes; the scripts put them on the screen with textContent and fillText.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import Any

from bokeh.resources import Resources
from jinja2 import Environment
from markupsafe import Markup

from dptrace import __version__
from dptrace.viewers.headline import Headline

__all__ = ["bundle", "policy", "render", "static"]

_IMPORT = re.compile(r'^import .* from "\./([\w.]+)";\n', re.MULTILINE)
_NOTHING = Markup("")
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const)\b)", re.MULTILINE)


def static(name: str) -> str:
    """Read a file of static/."""
    return (files("dptrace.viewers") / "static" / name).read_text(encoding="utf-8")


@cache
def bundle(entry: str) -> str:
    """Join a module of static/ and all it imports into one script.

    Modules in a page opened from a disk would need a server or blob URLs, which the policy forbids. So they are
    joined in the order of their imports, inside one function; two of them must not use one name at top level.
    """
    joined: dict[str, str] = {}

    def add(name: str) -> None:
        if name not in joined:
            joined[name] = ""
            source = static(name)
            for imported in _IMPORT.findall(source):
                add(imported)
            # Taken out and put back, so that a module stands after those that it needs.
            del joined[name]
            joined[name] = _EXPORT.sub("", _IMPORT.sub("", source))

    add(entry)
    return '(() => {\n"use strict";\n' + "\n".join(joined.values()) + "})();\n"


def policy(scripts: list[str]) -> str:
    """Give the content security policy that runs these scripts and no other, without eval and without network."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii") for script in scripts]
    allowed = " ".join(f"'sha256-{value}'" for value in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "connect-src data:; base-uri 'none'; form-action 'none'"
    )


def render(head: Headline, scene: dict[str, Any], plot: Any, above: Markup = _NOTHING, below: Markup = _NOTHING) -> str:
    """Fill the template: *scene* and *plot* become JSON islands, *plot* being Bokeh's ``json_item``.

    Args:
        above, below: what stands over and under the picture; HTML, so everything in it must be escaped already.
    """
    scripts = [
        *Resources(mode="inline", components=["bokeh"], minified=True, log_level="error").js_raw,
        bundle("gantt.js"),
    ]
    environment = Environment(autoescape=True)
    # Bokeh's document defines a model where it first stands and refers to it later: the order of keys matters.
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False, "separators": (",", ":")}
    template = environment.from_string(static("gantt.html"))
    return template.render(
        head=head,
        scene=scene,
        plot=plot,
        above=above,
        below=below,
        version=__version__,
        policy=policy(scripts),
        styles=Markup(static("gantt.css")),
        scripts=[Markup(script) for script in scripts],
    )
