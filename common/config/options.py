"""Command-line options made of declared settings.

    class PlotOptions(Section):
        plot: Path | None = setting(None, "Draw the table to this picture.")
        as_json: bool = setting(False, "Print JSON, not a table.", flag="--json")

    @with_options(LabelPartyConfig, "privacy.epsilon", "store.directory", file=DEFAULT_CONFIG)
    def plan(config: LabelPartyConfig, shown: PlotOptions) -> None: ...

``config`` becomes ``--config``, ``--set`` and one flag for each of the named settings; the command
gets the checked configuration, or as an :class:`UncheckedConfig` what was typed, for ``init`` to
write. A parameter that is another section becomes one flag for each of its fields, checked
likewise; its lists are repeatable flags, its booleans switches. Every other parameter is Typer's
own, as are arguments. ``with_options()`` alone, without a file, is for commands that have flags
only.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from inspect import Parameter, Signature, signature
from operator import itemgetter
from pathlib import Path
from typing import Any, get_origin

import typer
from pydantic import BaseModel

from labelveil.common.config.declare import Section, Setting, declared
from labelveil.common.config.load import checked, load_config, parse_value
from labelveil.common.errors import ConfigError

Made = tuple[list[Parameter], Callable[[Mapping[str, Any]], Any]]
"""Options of a command, and what they become together."""


@dataclass(frozen=True, eq=False)
class UncheckedConfig:
    """A configuration file that a command line names, and settings for it, not yet checked."""

    path: Path
    values: Mapping[str, Any]  # by dotted key
    usual: Path  # what is read where a command line names none

    def again(self, command: str) -> str:
        """A command that reads the same file, as a shell takes it."""
        if self.path == self.usual:
            return command
        return f"{command} {shlex.quote(f'--config={self.path}')}"


Around = Callable[[Path, Any], AbstractContextManager[None]]
"""What a command runs within, given its configuration's file and the configuration."""


def with_options(
    model: type[BaseModel] | None = None,
    *names: str,
    file: Path = Path(),
    optional: bool = False,
    around: Around | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command options for its configuration and for its own sections.

    ``names`` are those of its settings, ``section.key``, that have flags of their own here.
    ``file`` is read if ``--config`` does not say; where that is ``optional`` it may be missing, so
    that defaults and flags are all. A command that gets the checked configuration runs within
    ``around``.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        made: dict[str, Made] = {}
        for name, parameter in signature(function, eval_str=True).parameters.items():
            kind = parameter.annotation
            if model and kind in (model, UncheckedConfig):
                made[name] = _file_options(model, names, file, optional, kind is model)
            elif isinstance(kind, type) and issubclass(kind, Section):
                made[name] = _flag_options(kind)
            else:
                own = parameter.replace(kind=Parameter.KEYWORD_ONLY)
                made[name] = [own], itemgetter(name)

        def command(**values: Any) -> None:
            if _is_for_a_command_below(values):
                return
            built = {name: build(values) for name, (_, build) in made.items()}
            with ExitStack() as within:
                for config in built.values():
                    if around is not None and model is not None and isinstance(config, model):
                        within.enter_context(around(values["config"] or file, config))
                function(**built)

        command.__name__, command.__doc__ = function.__name__, function.__doc__
        options = [option for parameters, _ in made.values() for option in parameters]
        command.__dict__["__signature__"] = Signature(options)
        command.__annotations__ = {option.name: option.annotation for option in options}
        return command

    return decorate


def _is_for_a_command_below(values: Mapping[str, Any]) -> bool:
    """Whether a group is only passed through; options before its command would go unread."""
    contexts = [value for value in values.values() if hasattr(value, "invoked_subcommand")]
    below = contexts[0].invoked_subcommand if contexts else None
    if below is None:
        return False
    if any(value and value not in contexts for value in values.values()):
        raise ConfigError(f"options before {below!r} would be ignored; put them behind it")
    return True


def _file_options(
    model: type[BaseModel], names: tuple[str, ...], file: Path, optional: bool, read: bool
) -> Made:
    settings = {option.name: option for option in declared(model)}
    chosen = {name.replace(".", "__"): settings[name] for name in names}

    def build(values: Mapping[str, Any]) -> Any:
        path = values["config"] or file
        overrides = {
            option.name: _value(option, values[name])
            for name, option in chosen.items()
            if values[name] is not None
        }
        if not read:
            return UncheckedConfig(path, overrides, file)
        absent = optional and values["config"] is None and not file.is_file()
        return load_config(model, None if absent else path, overrides, values["set"] or ())

    config_help, set_help = f"Configuration file; default {file}.", "Override one key; repeatable."
    config = typer.Option(None, "--config", "-c", metavar="PATH", help=config_help)
    sets = typer.Option(None, "--set", metavar="SECTION.KEY=VALUE", help=set_help)
    return [
        _parameter("config", Path | None, config),
        *([_parameter("set", list[str] | None, sets)] if read else []),
        *(_parameter(name, str | None, _option(option, None)) for name, option in chosen.items()),
    ], build


def _flag_options(model: type[Section]) -> Made:
    options = list(declared(model))

    def build(values: Mapping[str, Any]) -> Any:
        given = [option for option in options if values[option.key] is not None]
        return checked(model, {option.key: _value(option, values[option.key]) for option in given})

    def parameter(option: Setting) -> Parameter:
        if option.kind is bool:
            flags = option.flags if option.flags_are_named else ()
            about = option.description
            switch = typer.Option(option.default, *flags, help=about, show_default=False)
            return _parameter(option.key, bool, switch)
        default = ... if option.required else None
        kind = list[str] if get_origin(option.kind) is list else str
        optional = kind if option.required else kind | None
        return _parameter(option.key, optional, _option(option, default))

    return list(map(parameter, options)), build


def _option(option: Setting, default: Any) -> Any:
    facts = [option.bounds] if option.says_more_than_its_type else []
    if option.default not in (None, "", [], {}):
        facts.append(f"default {option.default}")
    text, bounds = option.description, "; ".join(facts)
    if option.section:
        text, bounds = f"{option.summary}.", ": ".join(filter(None, [option.name, bounds]))
    text += f" [{bounds}]" if bounds else ""
    metavar = option.metavar
    return typer.Option(default, *option.flags, metavar=metavar, help=text, show_default=False)


def _value(option: Setting, typed: Any) -> Any:
    """Read what was typed; switches and repeatable flags are values already."""
    return parse_value(typed) if isinstance(typed, str) and not option.takes_text else typed


def _parameter(name: str, kind: Any, option: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=option, annotation=kind)
