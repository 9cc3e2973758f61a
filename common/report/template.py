"""Read a page's template: one HTML file that shares its style with the others, or a Markdown one.

All that a template shows is text: of HTML by its escapes, of Markdown by its own; control
characters, which would turn the order of letters around, are shown as escapes in both.
"""

from __future__ import annotations

from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from labelveil.common.errors import printable
from labelveil.common.report.markdown import markdown


def page_template(package: str, name: str) -> Template:
    """Return a template of a package; it may include what lies in ``common/report``."""
    environment = Environment(
        loader=ChoiceLoader(
            [PackageLoader(package, "."), PackageLoader("labelveil.common.report", ".")]
        ),
        autoescape=True,
        finalize=_as_markdown if name.endswith(".md.j2") else _as_text,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def _as_text(value: Any) -> Any:
    return value if isinstance(value, Markup) else printable(str(value), lines=True)


def _as_markdown(value: Any) -> Any:
    return value if isinstance(value, Markup) else Markup(markdown(str(value)))
