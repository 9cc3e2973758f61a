"""Read a page's template: one HTML file that shares its style with the others."""

from __future__ import annotations

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, Template


def page_template(package: str, name: str) -> Template:
    """Return a template of a package; it may include what lies in ``common/report``."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package, "."), PackageLoader("common.report", ".")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)
