"""The commented TOML file that ``init`` writes."""

from __future__ import annotations

import textwrap
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from labelveil.common.config.declare import Setting, declared, doc, sections
from labelveil.common.config.load import load_config
from labelveil.common.config.wording import as_toml
from labelveil.common.errors import ConfigError, printable
from labelveil.common.files import appearing, file_errors
from labelveil.common.outputs import check_output

ModelT = TypeVar("ModelT", bound=BaseModel)


@dataclass(frozen=True)
class Explained:
    """A value, and why it was chosen, which stands behind it."""

    value: Any
    reason: str


def commented_toml(
    model: type[BaseModel],
    head: str,
    values: Mapping[str, Any] | None = None,
    without: Collection[str] = (),
) -> str:
    """Return a file with every setting, its description above it, below a comment ``head``.

    ``values`` by dotted key, where they are not the default or the example; None is left out. Of a
    table that may stand several times its name to a list of tables. Sections, and dotted keys,
    ``without`` which the file is to be.
    """
    chosen = {key: value for key, value in (values or {}).items() if value is not None}
    blocks = [_comment(head)]
    for name, section in sections(model):
        if name in without:
            continue
        here = [option for option in declared(model) if option.section == name]
        shown = [option for option in here if option.name not in without]
        lines = [_comment(doc(section)), f"[{name}]"] if name else []
        if name and model.model_fields[name].default_factory is list:
            blocks += _tables(name, lines[0], shown, chosen.get(name, []))
            continue
        tables = [option for option in shown if isinstance(chosen.get(option.name), dict)]
        for option in shown:
            if option not in tables:
                lines += _lines(option, chosen, option.written or option.example is None)
        blocks.append("\n".join(line for line in lines if line))
        for option in tables:  # behind the section's own keys, a line an entry
            entries = (f"{as_toml(k)} = {_written(v)}" for k, v in chosen[option.name].items())
            blocks.append("\n".join([_about(option), f"[{option.name}]", *entries]))
    return "\n\n".join(blocks) + "\n"


def _tables(
    name: str, head: str, options: Sequence[Setting], tables: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Yield tables of one name; the first explains every key, as a comment if there is none."""
    first, *others = tables or [{}]
    values = {f"{name}.{key}": value for key, value in first.items()}
    lines = [line for option in options for line in _lines(option, values, live=False)]
    yield "\n".join([head, f"{'' if tables else '# '}[[{name}]]", *filter(None, lines)])
    for table in others:
        yield "\n".join([f"[[{name}]]", *(f"{k} = {_written(v)}" for k, v in table.items())])


def write_config(
    path: Path,
    model: type[ModelT],
    head: str,
    values: Mapping[str, Any] | None = None,
    without: Collection[str] = (),
    *,
    force: bool = False,
    check: Callable[[ModelT], None] = lambda config: None,
) -> ModelT:
    """Write the file, unless there is one or it would be refused, and return what it says.

    ``check`` is given what it will say before anything is written, and may refuse it, too.
    """
    text = commented_toml(model, head, values, without)
    config = load_config(model, None, tomllib.loads(text))
    if path.exists() and not force:
        raise ConfigError(f"{path} exists already; pass --force to overwrite it")
    check_output("--config", path)
    check(config)
    with (
        file_errors(ConfigError, f"{path} cannot be written"),
        appearing(path, mode=0o644) as file,
    ):
        file.write(text.encode())
    return config


def _lines(option: Setting, values: Mapping[str, Any], live: bool) -> Iterator[str]:
    """Yield its description and the setting, as a comment unless it is live or has a value."""
    yield _about(option)
    value = values.get(option.name)
    if value is None:
        value = option.default if option.example is None else option.example
    yield f"{'' if live or option.name in values else '# '}{option.key} = {_written(value)}"


def _about(option: Setting) -> str:
    bounds = f" Value: {option.bounds}." if option.says_more_than_its_type else ""
    return _comment(option.description + bounds)


def _written(value: Any) -> str:
    if isinstance(value, Explained):
        return f"{as_toml(value.value)}  # {printable(value.reason)}"
    return as_toml(value)


def _comment(text: str) -> str:
    return textwrap.fill(
        " ".join(text.split()),
        width=100,
        initial_indent="# ",
        subsequent_indent="# ",
        break_long_words=False,
        break_on_hyphens=False,
    )
