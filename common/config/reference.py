"""The reference page of a configuration file, and of the flags that set it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from pydantic import BaseModel
from typer.core import TyperGroup, TyperOption

from common.config.declare import Setting, declared, doc, sections
from common.config.wording import as_toml


def reference(model: type[BaseModel], program: TyperGroup) -> str:
    """Return a page's part in Markdown: one table for each section, and the commands' own flags.

    Options of ``program`` that are named ``section__key`` set those of the file.
    """
    setters: dict[str, list[str]] = defaultdict(list)
    for command, option in _options(program):
        setters[(option.name or "").replace("__", ".")].append(command)
    parts = []
    for name, section in sections(model):
        options = [option for option in declared(model) if option.section == name]
        rows = [_row(option, setters[option.name]) for option in options]
        parts += [f"### `[{name}]`" if name else "### Outside all sections", doc(section)]
        parts.append(_table(("setting", "value", "default", "meaning"), rows))
    parts += [f"### Flags of `{program.name}` that set nothing in the file"]
    parts.append(flags(program))
    return "\n\n".join(part for part in parts if part)


def flags(program: TyperGroup) -> str:
    """Return the table of all flags that set nothing in a file."""
    rows: list[tuple[str, ...]] = [
        (f"`{command}`", f"`{'`, `'.join(option.opts)}`", option.help or "")
        for command, option in _options(program)
        if "__" not in (option.name or "") and option.name not in ("config", "set", "help")
    ]
    return _table(("command", "flag", "meaning"), rows)


def _options(group: TyperGroup, within: str = "") -> Iterator[tuple[str, TyperOption]]:
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from _options(command, f"{within}{name} ")
        for option in command.params:
            if isinstance(option, TyperOption):
                yield f"{within}{name}", option


def _row(option: Setting, commands: list[str]) -> tuple[str, ...]:
    default = "" if option.default is None else f"`{as_toml(option.default)}`"
    meaning = option.description
    if option.example is not None:
        meaning += f" Example: `{as_toml(option.example)}`."
    if commands:
        meaning += f" Flag: `{'`, `'.join(option.flags)}` of {', '.join(commands)}."
    return f"`{option.key}`", option.bounds, "required" if option.required else default, meaning


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )
