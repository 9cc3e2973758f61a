"""The reference page of a configuration file, and of the flags that set it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from pydantic import BaseModel
from typer.core import TyperGroup, TyperOption

from common.config.declare import Setting, declared, doc, sections
from common.config.wording import as_toml

_OF_EVERY_PROGRAM = ("config", "set", "help", "install_completion", "show_completion")


def reference(model: type[BaseModel], program: TyperGroup) -> str:
    """Return a page's part in Markdown: one table for each section, and the commands' own flags.

    Options of ``program`` that are named ``section__key`` set those of the file.
    """
    setters: dict[str, list[str]] = defaultdict(list)
    for command, option in _options(program):
        setters[(option.name or "").replace("__", ".")].append(command)
    tables = {section: name for name, section in sections(model)}
    parts = []
    for section, name in tables.items():
        parts += [f"### `[{name}]`" if name else "### Outside all sections", doc(section)]
        options = [option for option in declared(model) if option.section == name]
        if base := next((base for base in section.__mro__[1:] if base in tables), None):
            inherited = [key for key in base.model_fields if key not in section.__annotations__]
            parts.append(f"{_code(inherited)} are as in `[{tables[base]}]`.")
            options = [option for option in options if option.key not in inherited]
        rows = [_row(option, setters[option.name]) for option in options]
        parts.append(_table(("setting", "value", "default", "meaning"), rows))
    parts += [f"### Flags of `{program.name}` that set nothing in the file"]
    parts.append(flags(program))
    return "\n\n".join(part for part in parts if part)


def flags(program: TyperGroup) -> str:
    """Return the table of all flags that set nothing in a file, those of several commands first."""
    options = [pair for pair in _options(program) if pair[1].name not in _OF_EVERY_PROGRAM]
    every = {command for command, _ in options}
    commands: dict[tuple[str, str], list[str]] = defaultdict(list)
    for command, option in options:
        if "__" not in (option.name or ""):
            commands[_code(option.opts), option.help or ""].append(command)
    shared = sorted(commands.items(), key=lambda item: len(item[1]) == 1)
    rows: list[tuple[str, ...]] = [
        ("every command" if {*names} == every else _code(names), flag, meaning)
        for (flag, meaning), names in shared
    ]
    return _table(("command", "flag", "meaning"), rows)


def _code(words: Iterable[str]) -> str:
    return f"`{'`, `'.join(words)}`"


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
        meaning += f" Flag: {_code(option.flags)} of {', '.join(commands)}."
    return f"`{option.key}`", option.bounds, "required" if option.required else default, meaning


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )
