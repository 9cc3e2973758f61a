"""The programs' command lines: commands that are imported when they are called, one-line errors."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup
from typer.main import get_command

from labelveil.common.errors import OutputFailed
from labelveil.common.signals import Terminated
from labelveil.common.streams import flush_output, one_line, open_streams, say

EXIT_ERROR = 1
EXIT_INTERRUPTED, EXIT_TERMINATED = 130, 143
EXIT_CODES = (
    "Exit codes: 0 done; 1 refused or failed, in one line on standard error; 2 the command line is"
    f" not understood; {EXIT_INTERRUPTED} interrupted by ^C, {EXIT_TERMINATED} by SIGTERM."
)
TRACEBACK = "LABELVEIL_TRACEBACK"
NOTHING_DONE = "nothing was done yet"


@dataclass(frozen=True)
class Command:
    """Where a command is, and what help says of it, so that a program's imports none."""

    target: str  # ``module:name`` of a function, or of a :class:`typer.Typer` of commands
    summary: str  # its line in the program's help, and the first of its own
    epilog: str = ""  # examples, below its own help
    details: str = ""  # below the summary in its own help
    # what ^C leaves behind, and how to go on
    kept: str = "nothing half done is left; the same command starts over"

    def load(self, name: str) -> Any:
        module, _, attribute = self.target.partition(":")
        app = getattr(import_module(module), attribute)
        if not isinstance(app, typer.Typer):
            function, app = app, typer.Typer(add_completion=False, rich_markup_mode=None)
            app.command(name, epilog=self.epilog)(function)
        command = get_command(app)
        command.help = "\n\n".join(filter(None, (self.summary, self.details)))
        return _with_switches(command)


def _with_switches(command: Any) -> Any:
    """Give a command, and all below it, ``-q`` beside ``--quiet``, and ``-v``."""
    below = getattr(command, "commands", {})
    for inner in below.values():
        _with_switches(inner)
    for parameter in command.params:
        if "--quiet" in parameter.opts:
            parameter.opts.insert(0, "-q")
    if not below or command.invoke_without_command:
        command.params.append(_verbose_option())
    return command


def _verbose_option() -> Any:
    """The option alone, made by typer as it makes all others."""

    def command(
        verbose: Annotated[
            bool,
            typer.Option(
                "-v",
                "--verbose",
                callback=_be_verbose,
                expose_value=False,
                help="Log to standard error, and show where in the code an error arose.",
            ),
        ] = False,
    ) -> None:
        """Do nothing."""

    app = typer.Typer(add_completion=False)
    app.command()(command)
    return get_command(app).params[0]


def _be_verbose(wanted: bool) -> None:
    if wanted:
        os.environ[TRACEBACK] = "1"
        logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")


class _Loading(Mapping[str, Any]):
    """Commands by name, each imported when it is looked up."""

    def __init__(self, table: Mapping[str, Command]) -> None:
        self._table = table

    def __getitem__(self, name: str) -> Any:
        return self._table[name].load(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


def program(purpose: str, table: Mapping[str, Command]) -> typer.Typer:
    """Return a command line of these commands, with ``-h`` and ``--version``."""

    class Commands(TyperGroup):
        def __init__(self, **arguments: Any) -> None:
            super().__init__(**{**arguments, "commands": _Loading(table)})

        def invoke(self, ctx: Any) -> Any:
            try:
                return super().invoke(ctx)
            except (Exception, KeyboardInterrupt) as error:
                if (interrupt := interrupt_behind(error)) is None:
                    raise
                command = table.get(ctx.invoked_subcommand)
                interrupted(command.kept if command else NOTHING_DONE, interrupt)

        def list_commands(self, ctx: Any) -> list[str]:
            return list(table)

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            with formatter.section("Commands"):
                formatter.write_dl([(name, command.summary) for name, command in table.items()])

    app = typer.Typer(
        cls=Commands,
        help=purpose,
        epilog=EXIT_CODES,
        context_settings={"help_option_names": ["-h", "--help"]},
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_options)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        from labelveil.common.version import __version__

        print(f"labelveil {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


def run(app: typer.Typer) -> NoReturn:
    """Run a command line; a :class:`LabelveilError` becomes one line and exit code 1.

    So does a file that cannot be read or written, and a package that an extra would bring. With
    ``-v`` or ``LABELVEIL_TRACEBACK=1`` the traceback of such an error is seen.
    """
    open_streams()
    try:
        _run(app)
    except Exception as error:
        line = one_line(error)
        if os.environ.get(TRACEBACK) or line is None:
            raise
        fail(line)
    except KeyboardInterrupt as interrupt:
        interrupted(NOTHING_DONE, interrupt)
    finally:
        with suppress(OutputFailed):  # it is said already, or another error is
            flush_output()
    raise SystemExit(0)


def _run(app: typer.Typer) -> None:
    """Run it until all that it has to say is written."""
    try:
        app()
    except SystemExit as end:
        if end.code:
            raise
    flush_output()


def interrupt_behind(error: BaseException) -> KeyboardInterrupt | None:
    """The interrupt that an error is, or that Python or a compiled module has made one of: a class
    that is being made a ``RuntimeError``, an import an ``ImportError``."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__
    return cause


def interrupted(kept: str, interrupt: KeyboardInterrupt) -> NoReturn:
    """Say what ^C or SIGTERM leaves behind, and leave."""
    say(f"interrupted; {kept}")
    code = EXIT_TERMINATED if isinstance(interrupt, Terminated) else EXIT_INTERRUPTED
    raise SystemExit(code) from None


def fail(message: str) -> NoReturn:
    """Print one error line and leave with exit code 1."""
    say(f"error: {' '.join(message.split())}")
    raise SystemExit(EXIT_ERROR)
