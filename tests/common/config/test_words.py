"""Values in words and in TOML, names, and the lines and documents of commands."""

from __future__ import annotations

import json
import math
import tomllib
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError

from labelveil.common.config import Section, Sections, Words, one_of, setting
from labelveil.common.config.answers import Json, json_text, print_json
from labelveil.common.config.declare import declared, doc, sections
from labelveil.common.config.examination import Finding, NotYetThere, answer, examine, verified
from labelveil.common.config.load import parse_settings, parse_value
from labelveil.common.config.names import Name, NameOrLatest, bounded_column
from labelveil.common.config.template import Explained, commented_toml, write_config
from labelveil.common.config.wording import arms, as_toml, as_toml_key, in_words, metavar
from labelveil.common.errors import ConfigError, DataError

Few = Annotated[list[str], Field(min_length=1)]


@pytest.mark.parametrize(
    ("kind", "words", "shown"),
    [
        (int, "a whole number", "INTEGER"),
        (float, "a number", "NUMBER"),
        (bool, "true or false", "BOOLEAN"),
        (str, "text", "TEXT"),
        (Path, "a path", "PATH"),
        (date, "a value", "VALUE"),
        (int | None, "a whole number", "INTEGER"),
        (Path | str, "a path or text", "PATH|TEXT"),
        (dict, "a table", "VALUE"),
        (dict[str, int], "a table", "VALUE"),
        (list[int], "a list, each a whole number", "VALUE"),
        (Few, "a list of at least one, each text", "VALUE"),
        (Annotated[list[str], Field(max_length=9)], "a list of at most 9, each text", "VALUE"),
        (Literal["a"], '"a"', "a"),
        (Literal["a", "b", 3], '"a", "b" or 3', "a|b|3"),
        (Literal["auto"] | int, '"auto" or a whole number', "auto|INTEGER"),
        (int | Literal["auto"], '"auto" or a whole number', "INTEGER|auto"),
        (Annotated[int, Field(ge=2)], "a whole number of at least 2", "INTEGER"),
        (Annotated[int, Field(ge=2, le=5000)], "a whole number from 2 to 5,000", "INTEGER"),
        (Annotated[float, Field(gt=0)], "a number above 0", "NUMBER"),
        (Annotated[float, Field(gt=0, lt=1.5)], "a number above 0 and below 1.5", "NUMBER"),
        (Annotated[float, Field(le=4.0)], "a number of at most 4", "NUMBER"),
        (Annotated[float, Field(ge=0.0, lt=1.0)], "a number of at least 0 and below 1", "NUMBER"),
        (Annotated[str, Field(min_length=1)], "text of at least 1 character", "TEXT"),
        (Annotated[str, Field(min_length=2)], "text of at least 2 characters", "TEXT"),
        (Annotated[str, Field(min_length=1, max_length=2000)], "text of 1 to 2,000 characters",
         "TEXT"),
        (Annotated[str, Field(max_length=3)], "text of 0 to 3 characters", "TEXT"),
        (Annotated[str, Words("a colour")], "a colour", "TEXT"),
        (list[Annotated[str, Words("a colour")]], "a list, each a colour", "VALUE"),
    ],
)  # fmt: skip
def test_what_a_value_may_be_is_said_in_words(kind: Any, words: str, shown: str) -> None:
    assert in_words(kind) == words
    assert metavar(kind) == shown


def test_alternatives_are_without_none_and_notes() -> None:
    assert arms(Annotated[int, Field(ge=1)] | Literal["x"] | None) == [int, Literal["x"]]
    assert arms(type(None)) == []


@pytest.mark.parametrize(
    "value",
    [
        *("a", 'q"\\', "ü\n\t\x7f\x00", True, False, 3, -2.5, 1e300, 5e-324, [], [1, "a", [True]]),
        *({}, {"a": 1, "b c": [2], "ü": {"x-y_1": "z"}}),
    ],
)
def test_toml_reads_what_was_written(value: Any) -> None:
    assert tomllib.loads(f"x = {as_toml(value)}") == {"x": value}
    assert parse_value(as_toml(value)) == value


def test_keys_are_quoted_where_they_must_be() -> None:
    assert [as_toml_key(name) for name in ("a-B_1", "a.b", "", "ü")] == [
        "a-B_1",
        '"a.b"',
        '""',
        '"ü"',
    ]
    assert as_toml(Path("a b")) == '"a b"'
    assert as_toml((1, 2)) == "[1, 2]"
    assert as_toml({}) == "{}"
    with pytest.raises(ConfigError, match="is not UTF-8, and cannot stand in a configuration"):
        as_toml("\udcff")


class Names(BaseModel):
    name: Name = "a"
    latest: NameOrLatest = ""
    colour: Annotated[str, one_of(("red", "blue"))] = "red"
    even: Annotated[int, Words("even", lambda number: number % 2 == 0)] = 0


@pytest.mark.parametrize("name", ["a", "A" * 64, "0", "a.b-c_d", "2024-06-02"])
def test_names_are_taken(name: str) -> None:
    assert Names(name=name).name == Names(latest=name).latest == name


@pytest.mark.parametrize("name", ["A" * 65, "-a", ".a", "_a", "a b", "a/b", "ä", "a\n"])
def test_other_names_are_refused(name: str) -> None:
    for key in ("name", "latest"):
        with pytest.raises(ValidationError):
            Names(**{key: name})
    with pytest.raises(ValidationError):
        Names(name="")


def test_what_looks_like_a_name_is_one() -> None:
    assert Names(name=2).name == "2"  # type: ignore[arg-type]
    assert Names(latest=date(2024, 6, 2)).latest == "2024-06-02"  # type: ignore[arg-type]
    assert Names(latest="").latest == ""
    for wrong in ({"name": True}, {"name": 2.0}, {"colour": "green"}, {"even": 3}):
        with pytest.raises(ValidationError):
            Names(**wrong)
    with pytest.raises(ValidationError, match="must be even"):
        Names(even=3)
    assert Names(even=4, colour="blue").even == 4


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("a:0:1", ("a", 0, 1, False)),
        ("a:b:-1.5:1e3", ("a:b", -1.5, 1000, False)),
        ("a:0:1:whole", ("a", 0, 1, True)),
        ("whole:0:1", ("whole", 0, 1, False)),
    ],
)
def test_a_column_with_its_bounds_is_read(text: str, read: tuple[str, float, float, bool]) -> None:
    assert bounded_column("--x", text) == read


@pytest.mark.parametrize("text", ["a", "a:0", ":0:1", "a:0:x", "a:0:1:full", "", ":whole"])
def test_a_column_without_bounds_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--x .* must be COLUMN:LOWER:UPPER"):
        bounded_column("--x", text)


def test_json_has_null_for_what_is_not_finite(capsys: pytest.CaptureFixture[str]) -> None:
    document = {"a": math.nan, "b": [math.inf, 1.5, (2, -math.inf)], "c": {"d": "ü"}, "e": None}
    assert json.loads(json_text(document)) == {
        "a": None, "b": [None, 1.5, [2, None]], "c": {"d": "ü"}, "e": None,
    }  # fmt: skip
    assert json_text({"a": "ü"}) == '{\n  "a": "ü"\n}'
    assert json_text({"a": 1}, indent=None) == '{"a": 1}'
    print_json({"a": Path("x")})
    assert json.loads(capsys.readouterr().out) == {"a": "x"}
    Json(as_json=False).answer({"a": 1}, "one", "two\x1b")
    assert capsys.readouterr().out.splitlines()[0] == "one"
    Json(as_json=True).answer({"a": 1}, "one")
    assert json.loads(capsys.readouterr().out) == {"a": 1}


def test_checks_go_on_whatever_became_of_those_before(capsys: pytest.CaptureFixture[str]) -> None:
    def raising(error: Exception) -> str:
        raise error

    checks = {
        "one": lambda: "fine",
        "two": lambda: raising(NotYetThere("not yet")),
        "three": lambda: raising(DataError("wrong")),
        "four": lambda: raising(ZeroDivisionError("73571")),
    }
    found = [*examine(checks)]
    assert found == [
        Finding("one", "ok", "fine"),
        Finding("two", "open", "not yet"),
        Finding("three", "failed", "wrong"),
        Finding("four", "failed", "ZeroDivisionError; -v shows where it arose"),
    ]
    with pytest.raises(ConfigError, match=r"^2 of 4 checks failed: three, four$"):
        answer(found, Json(as_json=False))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["ok      one           fine", "open    two           not yet"]
    with pytest.raises(ConfigError):
        answer(found, Json(as_json=True))
    assert json.loads(capsys.readouterr().out)[2] == {
        "check": "three",
        "state": "failed",
        "line": "wrong",
    }
    answer(found[:2], Json(as_json=True))
    assert len(json.loads(capsys.readouterr().out)) == 2


def test_what_could_not_be_verified_is_noted_or_refused() -> None:
    noted: list[str] = []
    for unverified in (False, True):
        with verified(unverified, noted):
            raise NotYetThere("later")
    with verified(True, noted):
        raise DataError("wrong")
    assert noted == ["later", "later", "wrong"]
    with pytest.raises(DataError, match="wrong; nothing was written; with --unverified"), verified(False, noted):  # fmt: skip  # noqa: E501
        raise DataError("wrong")
    assert len(noted) == 3


class Label(Section):
    """One of several."""

    name: str = setting(..., "What it is called.", example="amount")
    weight: float = setting(1.0, "What it counts for.", gt=0)


class Main(Section):
    """What   is
    said."""

    epsilon: float = setting(..., "How much. More of it.", gt=0, example=1.5, unit="units")
    columns: dict[str, float] = setting(dict, "Of each.", example={"a": 1.0})
    note: str | None = setting(None, "A note.", example="x")
    seen: str | None = setting(None, "Seen.", example="y", write=True)
    loud: bool = setting(False, "Loud.", flag="--loud -l")


class Whole(Section):
    top: int = setting(3, "Outside.")
    main: Main
    label: Sections[Label] = setting(list)


def test_a_declaration_says_all_that_is_shown_of_it() -> None:
    options = {each.name: each for each in declared(Whole)}
    assert [*options] == [
        "top", "main.epsilon", "main.columns", "main.note", "main.seen", "main.loud", "label.name",
        "label.weight",
    ]  # fmt: skip
    assert [name for name, _ in sections(Whole)] == ["", "main", "label"]
    epsilon, loud, top = options["main.epsilon"], options["main.loud"], options["top"]
    assert (epsilon.place, epsilon.bounds) == ("[main] epsilon", "a number above 0, in units")
    assert (epsilon.summary, epsilon.required, epsilon.written) == ("How much", True, True)
    assert (epsilon.default, epsilon.example, epsilon.flags) == (None, 1.5, ("--epsilon",))
    assert (loud.flags, loud.flags_are_named, epsilon.flags_are_named) == (
        ("--loud", "-l"),
        True,
        False,
    )
    assert (top.place, top.default, top.says_more_than_its_type) == ("top", 3, False)
    assert epsilon.says_more_than_its_type
    assert (options["main.note"].written, options["main.seen"].written) == (False, True)
    assert options["main.columns"].bounds_of_entry == "a number"
    assert (options["main.note"].takes_text, top.takes_text) == (True, False)
    assert options["main.note"].kind is str
    assert top.metavar == "INTEGER"
    assert doc(Main) == "What   is\nsaid."


def test_the_file_has_every_table_as_it_was_chosen(tmp_path: Path) -> None:
    chosen = {
        "main.epsilon": Explained(2.0, "as was agreed"),
        "main.columns": {"b c": 3.0},
        "label": [{"name": "one"}, {"name": "two", "weight": 2.0}],
    }
    text = commented_toml(Whole, "A  head.", chosen)
    assert (
        text
        == """\
# A head.

# Outside.
top = 3

# What is said.
[main]
# How much. More of it. Value: a number above 0, in units.
epsilon = 2.0  # as was agreed
# A note.
# note = "x"
# Seen.
seen = "y"
# Loud.
loud = false

# Of each.
[main.columns]
"b c" = 3.0

# One of several.
[[label]]
# What it is called.
name = "one"
# What it counts for. Value: a number above 0.
# weight = 1.0

[[label]]
name = "two"
weight = 2.0
"""
    )
    bare = commented_toml(Whole, "x", {"main.seen": None}, ["label", "main.note"])
    assert "[[label]]" not in bare
    assert "note" not in bare
    assert "epsilon = 1.5\n" in bare
    assert "# columns = { a = 1.0 }\n" in bare
    assert "# [[label]]\n" in commented_toml(Whole, "x")
    path, seen = tmp_path / "x.toml", list[float]()
    made = write_config(
        path, Whole, "A  head.", chosen, check=lambda x: seen.append(x.main.epsilon)
    )
    assert path.read_text() == text
    assert (made.main.epsilon, seen) == (2.0, [2.0])
    assert path.stat().st_mode & 0o777 == 0o644
    with pytest.raises(ConfigError, match="exists already; pass --force to overwrite it"):
        write_config(path, Whole, "other", chosen)
    assert path.read_text() == text
    write_config(path, Whole, "other", chosen, force=True)
    assert path.read_text().startswith("# other\n")


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (["a.b=1"], {"a": {"b": 1}}),
        (["a.b=x y"], {"a": {"b": "x y"}}),
        (["a.b = 1.5 "], {"a": {"b": 1.5}}),
        (['a."b.c"=true'], {"a": {"b.c": True}}),
        (["a.b=1", "a.c=2", "a.b=3"], {"a": {"b": 3, "c": 2}}),
        (["a=[1, 'x']"], {"a": [1, "x"]}),
        (["a={b = 2}"], {"a": {"b": 2}}),
        (["a=x=y"], {"a": "x=y"}),
    ],
)
def test_settings_are_read_as_toml_or_text(given: list[str], read: dict[str, Any]) -> None:
    assert parse_settings(given) == read


@pytest.mark.parametrize("given", ["a", "=1", "a..b=1", ".a=1", "a b", ""])
def test_what_is_no_setting_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match=r"must look like section\.key=value"):
        parse_settings([given])
