"""Configuration: a TOML file, checked by pydantic, every key overridable on the command line."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from common.errors import ConfigError

ModelT = TypeVar("ModelT", bound=BaseModel)


class Section(BaseModel):
    """Base of every section: unknown keys, NaN and infinity are errors, values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def load_config(
    model: type[ModelT],
    path: Path | None,
    overrides: Mapping[str, Any] | None = None,
    settings: Iterable[str] = (),
) -> ModelT:
    """Read and check a configuration.

    Parameters
    ----------
    model
        The pydantic model of the whole file.
    path
        The TOML file; None for defaults and overrides alone.
    overrides
        Dotted key to value, from dedicated command-line options; None values are left out.
    settings
        ``section.key=value`` strings from a repeatable ``--set`` option; values in TOML notation,
        bare words being taken as text. They win over the file, and ``overrides`` over them.

    Raises
    ------
    ConfigError
        One line naming the file, the key, the value, the bound and the remedy.
    """
    data = _read(path) if path is not None else {}
    _apply(data, settings)
    for key, value in (overrides or {}).items():
        if value is not None:
            _assign(data, key, value)
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_first_problem(error, path)) from error


def parse_settings(settings: Iterable[str]) -> dict[str, Any]:
    """Read ``section.key=value`` strings alone, as nested dictionaries."""
    data: dict[str, Any] = {}
    _apply(data, settings)
    return data


def _apply(data: dict[str, Any], settings: Iterable[str]) -> None:
    for setting in settings:
        key, separator, text = setting.partition("=")
        if not separator or not key.strip():
            raise ConfigError(f"setting {setting!r} must look like section.key=value")
        _assign(data, key.strip(), _value(text.strip()))


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path} does not exist; write one with the init command, or name another with --config"
        ) from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # ValueError: also an integer of thousands of digits
        return text


def _assign(data: dict[str, Any], dotted: str, value: Any) -> None:
    *sections, key = dotted.split(".")
    for section in sections:
        inner = data.setdefault(section, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{dotted}: {section} is a value, not a section")
        data = inner
    data[key] = value


def _first_problem(error: ValidationError, path: Path | None) -> str:
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"])
    source = f"{path}: " if path else ""
    if problem["type"] == "extra_forbidden":
        return f"{source}{where} is not a known setting; remove it or correct its name"
    if problem["type"] == "missing":
        return f"{source}{where} is missing; set it in the file or with --set {where}=…"
    message = problem["msg"].removeprefix("Value error, ")
    if not where:  # a rule about several settings; its message names them
        return f"{source}{message}"
    if problem["type"] in ("model_type", "model_attributes_type"):
        return f"{source}{where} is a section; write [{where}] and its settings below"
    return f"{source}{where}={problem.get('input')!r:.200}: {message}"
