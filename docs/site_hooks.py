"""What `make docs` adds to the pages here: the repository's other pages, references, figures.

MkDocs calls the functions named ``on_…``.
"""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from runpy import run_path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer import Context
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

import labelveil.commands.cli
import labelveil.feature_party.commands.cli
import labelveil.label_party.commands.cli
from labelveil.common.command_line import EXIT_CODES

ROOT = Path(__file__).parents[1]
ELSEWHERE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",
    "deploy/RUNBOOK.md": "runbook.md",
}
"""Pages that do not lie in docs/, and their names in the site."""

ROOMS = {
    "exact": ("No rounding error", "labelveil.exact"),
    "guarantees": ("Guarantees, and how they compose", "labelveil.accounting"),
    "randomizers": ("Label randomizers", "labelveil.randomizers"),
    "mechanisms": ("Other mechanisms", "the module of their subject, such as labelveil.selection"),
}
"""The mathematics of ``common``: the title of its page of reference, and where to import from."""

APPS = {
    "labelveil": labelveil.commands.cli.app,
    "label-party": labelveil.label_party.commands.cli.app,
    "feature-party": labelveil.feature_party.commands.cli.app,
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are written here."""
    written = {name: (ROOT / source).read_text("utf-8") for source, name in ELSEWHERE.items()}
    written["commands.md"] = commands_page()
    written["colours.css"] = colours()
    written["tutorial.ipynb"] = notebook((ROOT / "docs" / "tutorial.md").read_text("utf-8"))
    for room, (title, face) in ROOMS.items():
        head = f"# {title}\n\nImport these names from {face}.\n\n"
        written[f"python/{room}.md"] = f"{head}::: labelveil.common.{room}\n{OPTIONS_OF_A_ROOM}"
    for name, text in written.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links between pages hold in the site as they do in the repository; list the face."""
    del config, files
    sources = {name: source for source, name in ELSEWHERE.items()}
    source = PurePosixPath(sources.get(page.file.src_uri, f"docs/{page.file.src_uri}"))

    def link(found: re.Match[str]) -> str:
        before, name, hash_, anchor = found.groups()
        if not name or "://" in name:
            return found[0]
        target = os.path.normpath(source.parent / name)
        there = ELSEWHERE.get(target, os.path.relpath(target, "docs"))
        here = os.path.relpath(there, PurePosixPath(page.file.src_uri).parent)
        return f"{before}{here}{hash_ or ''}{anchor or ''}"

    def module(found: re.Match[str]) -> str:
        """A link to source is one to its reference, where it has one."""
        target = os.path.normpath(source.parent / found[2]).removesuffix(".py").replace("/", ".")
        documented = target.startswith(tuple(f"labelveil.common.{room}." for room in ROOMS))
        return f"[{found[1]}][{target}]" if documented else found[1]

    markdown = re.sub(r"\[([^\[\]]+)\]\(([^)\s]+\.py)\)", module, markdown)
    markdown = re.sub(r"(\]\()([^)\s#]*)(#?)([^)\s]*)(?=\))", link, markdown)
    markdown = re.sub(r'((?:src|srcset)=")([^"#]+)()()(?=")', link, markdown)
    return markdown.replace("<!-- every name of labelveil -->", "\n".join(names_of_the_face()))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Draw figures where a page asks for them."""
    del page, config, files

    def figure(found: re.Match[str]) -> str:
        return str(run_path(str(ROOT / "docs" / "figures.py"))[found[1]]())

    return re.sub(r"<!-- figure: (\w+) -->", figure, html)


OPTIONS_OF_A_ROOM = """\
    options:
      show_submodules: true
      show_root_heading: false
      show_root_toc_entry: false
      heading_level: 2
"""


def colours() -> str:
    """Return the reports' colours for the site's two schemes."""
    css = (ROOT / "common" / "report" / "page.css").read_text("utf-8")
    light, dark, *_ = re.findall(r":root \{(.*?)\}", css, flags=re.S)
    return (
        f':root, [data-md-color-scheme="default"] {{{light}}}\n'
        f'[data-md-color-scheme="slate"] {{{dark}}}\n'
    )


def names_of_the_face() -> Iterator[str]:
    """Yield, for each name that ``import labelveil`` gives, its documentation or where that is."""
    stub = ast.parse((ROOT / "labelveil" / "__init__.pyi").read_text("utf-8"))
    for statement in stub.body:
        subjects = isinstance(statement, ast.ImportFrom) and statement.module == "labelveil"
        for name in (
            statement.names if isinstance(statement, ast.ImportFrom) and not subjects else ()
        ):
            whole = f"{statement.module}.{name.name}"
            shown_with_its_room = whole.startswith(
                tuple(f"labelveil.common.{room}." for room in ROOMS)
            )
            yield f"[`{name.name}`][{whole}]\n" if shown_with_its_room else f"::: {whole}\n"


def commands_page() -> str:
    """Return the page of commands: what `--help` says of each."""
    parts = ["# Commands", f"What `--help` says of each. {EXIT_CODES}"]
    for program, app in APPS.items():
        group = get_command(app)
        parts.append(f"## {program}")
        for name, command in below(group, program):
            context = Context(command, info_name=name, terminal_width=80, max_content_width=80)
            parts.append(f"### `{name}`\n\n```text\n{command.get_help(context)}\n```")
    return "\n\n".join(parts) + "\n"


def below(command: TyperCommand | TyperGroup, name: str) -> Iterator[tuple[str, TyperCommand]]:
    """Yield every command under a program, with its whole name."""
    if isinstance(command, TyperGroup):
        for word, inner in command.commands.items():
            yield from below(inner, f"{name} {word}")
    else:
        yield name, command


def notebook(page: str) -> str:
    """Return a page as a Jupyter notebook: its Python blocks are the cells of code."""
    cells = []
    for index, part in enumerate(re.split(r"^```python\n(.*?)^```\n", page, flags=re.M | re.S)):
        kind = ("markdown", "code")[index % 2]
        cell = {"cell_type": kind, "id": f"cell-{index}", "metadata": {}, "source": part.strip()}
        if kind == "code":
            cell |= {"execution_count": None, "outputs": []}
        cells.append(cell)
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return json.dumps({"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5})
