"""One declaration: the file, the flags, their help and the page that are made of it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from runpy import run_path
from typing import Annotated, Any, Literal, Self

import pytest
import typer
from pydantic import Field, model_validator
from typer.main import get_group
from typer.testing import CliRunner

from labelveil.common.config import Section, Words, load_config, one_of, setting
from labelveil.common.config.declare import declared
from labelveil.common.config.options import UncheckedConfig, with_options
from labelveil.common.config.template import commented_toml, write_config
from labelveil.common.errors import ConfigError
from tests.imports import ROOT

Name = Annotated[str, Field(pattern="^[a-z]+$"), Words("a name of small letters")]


class Budget(Section):
    """What may be spent."""

    epsilon: float = setting(..., "What a run reveals. Less is better.", gt=0, le=40, example=1.0)
    total: float | None = setting(None, "What all reveal.", gt=0, example=3.5)
    way: Literal["one", "many"] = setting("one", "How they add up.")
    rows: Annotated[int, Field(ge=2)] | Literal["auto"] = setting("auto", "Rows at a time.")


class Place(Section):
    """Where things are."""

    folder: Path = setting(Path("out"), "Where all goes.", flag="--folder -o")
    names: list[Name] = setting(list, "Who comes.", example=["ann"])
    colour: Annotated[str, one_of(("red", "blue"))] = setting("red", "Of the door.")
    wait: float = setting(2.0, "Time between looks.", unit="seconds", gt=0)
    listen: str | None = setting(None, "Where to listen.", example="host:1", write=True)
    quick: bool = setting(False, "Whether to hurry.")


class File(Section):
    budget: Budget
    place: Place = setting(Place)


class Own(Section):
    """A command's own flags."""

    k: int | None = setting(None, "How many.", ge=1)
    as_json: bool = setting(False, "Print JSON.", flag="--json")
    column: list[str] = setting(list, "Columns; repeatable.", metavar="NAME")
    most: int = setting(20, "At most so many.", ge=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.as_json and self.k == 13:
            raise ConfigError("--k 13 does not go with --json")
        return self


def bounds(name: str) -> str:
    return next(one.bounds for one in declared(File) if one.name == name)


def test_bounds_are_words() -> None:
    assert bounds("budget.epsilon") == "a number above 0 and at most 40"
    assert bounds("budget.total") == "a number above 0"
    assert bounds("budget.way") == '"one" or "many"'
    assert bounds("budget.rows") == '"auto" or a whole number of at least 2'
    assert bounds("place.names") == "a list, each a name of small letters"
    assert bounds("place.colour") == '"red" or "blue"'
    assert bounds("place.wait") == "a number above 0, in seconds"
    assert bounds("place.quick") == "true or false"


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("budget.epsilon", -1, "epsilon=-1 must be a number above 0 and at most 40; set [budget]"),
        ("budget.rows", 1, 'rows=1 must be "auto" or a whole number of at least 2'),
        ("budget.rows", "all", "rows='all' must be \"auto\" or a whole number of at least 2"),
        ("budget.way", "two", 'way=\'two\' must be "one" or "many"; set [budget] way'),
        ("place.names", ["ann", "B"], "names=['ann', 'B'] must be a list, each a name of small"),
        ("place.colour", "green", 'colour=\'green\' must be "red" or "blue"; set [place] colour'),
        ("place.wait", 0, "wait=0 must be a number above 0, in seconds; set [place] wait"),
        ("place.wait", float("inf"), "wait=inf must be a finite number above 0"),
    ],
)
def test_a_mistake_names_value_bound_and_remedy(key: str, value: Any, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(File, None, {"budget.epsilon": 1, key: value})
    assert str(caught.value).startswith(line)


def test_the_file_shows_every_setting_and_loads(tmp_path: Path) -> None:
    text = commented_toml(File, "A file.", {"place.folder": Path("a b"), "budget.total": None})
    assert text.startswith("# A file.\n\n# What may be spent.\n[budget]\n# What a run reveals.")
    assert "Less is better. Value: a number above 0 and at most 40.\nepsilon = 1.0\n" in text
    assert "# Whether to hurry.\nquick = false\n" in text
    for line in ("# total = 3.5", 'way = "one"', 'rows = "auto"', '# names = ["ann"]'):
        assert f"\n{line}\n" in text
    nothing = commented_toml(File, "A file.", {"place.names": [], "budget.rows": 2})
    assert "\nnames = []\n" in nothing  # was chosen, too
    path = tmp_path / "file.toml"
    loaded = write_config(path, File, "A file.", {"place.folder": Path("a b")})
    assert path.read_text() == text
    assert load_config(File, path) == loaded
    assert loaded.place.folder == Path("a b")
    assert loaded.place.listen == "host:1"
    every = text.replace("\n# total", "\ntotal").replace("\n# names", "\nnames")
    assert load_config(
        File,
        None,
        {},
        [
            f"{s}.{k}={v!r}"
            for s, t in tomllib.loads(every).items()
            for k, v in t.items()
            if not isinstance(v, bool)
        ],
    )
    with pytest.raises(ConfigError, match="--force"):
        write_config(path, File, "A file.")


def program(seen: list[Any], optional: bool = False) -> typer.Typer:
    app = typer.Typer(name="program")

    @with_options(
        File,
        "budget.epsilon",
        "budget.rows",
        "place.folder",
        file=Path("file.toml"),
        optional=optional,
    )
    def run(config: File, own: Own, loud: Annotated[bool, typer.Option("--loud")] = False) -> None:
        """Run it."""
        seen.extend([config, own, loud])

    @with_options(File, "budget.epsilon", file=Path("file.toml"))
    def init(given: UncheckedConfig) -> None:
        """Write it."""
        seen.append(given)

    app.command()(run)
    app.command()(init)
    return app


def test_flags_are_made_of_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file.toml").write_text("[budget]\nepsilon = 2\n")
    seen: list[Any] = []
    app = program(seen)
    line = "run --rows 7 -o 3 --set place.wait=4 --k 2 --json --column a --column b --loud"
    done = CliRunner().invoke(app, line.split(), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    config, own, loud = seen
    assert (config.budget.epsilon, config.budget.rows, config.place.wait) == (2, 7, 4)
    assert config.place.folder == Path("3")
    assert own == Own(k=2, as_json=True, column=["a", "b"])
    assert loud
    seen.clear()
    assert CliRunner().invoke(app, ["init", "-c", "new.toml", "--epsilon", "0.5"]).exit_code == 0
    assert seen[0].path == Path("new.toml")
    assert seen[0].values == {"budget.epsilon": 0.5}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--epsilon=-1", r"epsilon=-1 must be .* set \[budget\] epsilon in file\.toml"),
        ("--epsilon much", "epsilon='much' must be a number above 0"),
        ("--k 0", "^--k=0 must be a whole number of at least 1$"),
        ("--k many", "^--k='many' must be a whole number of at least 1$"),
        ("--k 13 --json", "--k 13 does not go with --json"),
        ("--config none.toml", "none.toml does not exist"),
    ],
)
def test_a_wrong_flag_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file.toml").write_text("[budget]\nepsilon = 2\n")
    with pytest.raises(ConfigError, match=said):
        CliRunner().invoke(program([]), ["run", *line.split()], catch_exceptions=False)


def test_a_file_may_be_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    seen: list[Any] = []
    runner, app = CliRunner(), program(seen, optional=True)
    assert runner.invoke(app, ["run", "--epsilon", "3"]).exit_code == 0
    assert seen[0].budget.epsilon == 3
    with pytest.raises(ConfigError, match="does not exist"):
        runner.invoke(app, ["run", "--config", "none.toml"], catch_exceptions=False)
    with pytest.raises(ConfigError, match="does not exist"):
        runner.invoke(program([]), ["run", "--epsilon", "3"], catch_exceptions=False)


def test_help_and_page_say_what_the_field_says() -> None:
    group = get_group(program([]))
    helps = {param.opts[0]: param.help for param in group.commands["run"].params}
    assert (
        helps["--epsilon"]
        == "What a run reveals. [budget.epsilon: a number above 0 and at most 40]"
    )
    assert helps["--rows"].endswith(
        '[budget.rows: "auto" or a whole number of at least 2; default auto]'
    )
    assert helps["--most"] == "At most so many. [a whole number of at least 1; default 20]"
    page = run_path(str(ROOT / "docs" / "write_configuration.py"))["reference"](File, group)
    assert (
        "| `epsilon` | a number above 0 and at most 40 | required | What a run reveals. Less"
        in page
    )
    assert "Flag: `--epsilon` of run, init." in page
    assert "| `run` | `--json` | Print JSON. |" in page


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[budget]\nepsilon = true\n", "epsilon=True must be a number, and not true or false"),
        ("[budget]\nepsilon = 1\nrows = false\n", "rows=False must be a number, and not"),
        ('[budget]\nepsilon = 1\n[place]\nfolder = "a\\u0000b"\n', "holds a NUL character"),
    ],
)
def test_a_switch_is_no_number_and_a_name_of_a_file_has_no_nul(
    tmp_path: Path, text: str, said: str
) -> None:
    (path := tmp_path / "x.toml").write_text(text)
    with pytest.raises(ConfigError, match=said):
        load_config(File, path, {}, [])
    path.write_text("[budget]\nepsilon = 1\n[place]\nquick = true\n")
    assert load_config(File, path, {}, []).place.quick is True
