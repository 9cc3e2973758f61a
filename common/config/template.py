"""The commented TOML file that ``init`` writes."""

from __future__ import annotations

import os
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from common.config.declare import Setting, declared, doc, sections
from common.config.load import load_config
from common.config.wording import as_toml
from common.errors import ConfigError

ModelT = TypeVar("ModelT", bound=BaseModel)


def commented_toml(
    model: type[BaseModel], head: str, values: Mapping[str, Any] | None = None
) -> str:
    """Return a file with every setting, its description above it.

    Parameters
    ----------
    model
        The whole file.
    head
        What stands above it all.
    values
        Dotted key to value, where it is not the default or the example; None is left out.
    """
    chosen = {key: value for key, value in (values or {}).items() if value is not None}
    blocks = [_comment(head)]
    for name, section in sections(model):
        lines = [_comment(doc(section)), f"[{name}]"] if name else []
        left_out = name and model.model_fields[name].default_factory is list
        if left_out:  # a table that may stand several times, and need not stand at all
            lines[1] = f"# [[{name}]]"
        for one in declared(model):
            if one.section == name:
                lines += _lines(one, chosen, shown=bool(left_out))
        blocks.append("\n".join(line for line in lines if line))
    return "\n\n".join(blocks) + "\n"


def write_config(
    path: Path,
    model: type[ModelT],
    head: str,
    values: Mapping[str, Any] | None = None,
    *,
    force: bool = False,
) -> ModelT:
    """Write the file, unless there is one or it would be refused, and return what it says."""
    text = commented_toml(model, head, values)
    config = load_config(model, None, tomllib.loads(text))
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if force else os.O_EXCL)
    try:
        descriptor = os.open(path, flags, 0o644)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise ConfigError(f"{path} exists already; pass --force to overwrite it") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
    return config


def _lines(one: Setting, values: Mapping[str, Any], *, shown: bool) -> Iterator[str]:
    text = one.description
    if one.says_more_than_its_type:
        text += f" Value: {one.bounds}."
    yield _comment(text)
    value = values.get(one.name)
    if value is None:
        value = one.default if one.example is None else one.example
    live = not shown and (one.name in values or one.written or one.example is None)
    yield f"{'' if live else '# '}{one.key} = {as_toml(value)}"


def _comment(text: str) -> str:
    return textwrap.fill(
        " ".join(text.split()),
        width=100,
        initial_indent="# ",
        subsequent_indent="# ",
        break_long_words=False,
        break_on_hyphens=False,
    )
