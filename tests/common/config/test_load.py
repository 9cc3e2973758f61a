"""Configuration: overrides in order, and one helpful line for every mistake."""

from __future__ import annotations

import sys
import tomllib
from math import nextafter
from pathlib import Path
from sys import float_info

import pytest
from pydantic import Field, field_validator, model_validator

from labelveil.common.config import Section, load_config
from labelveil.common.config.load import MOST_BYTES, parse_toml
from labelveil.common.config.wording import as_toml
from labelveil.common.errors import ConfigError
from labelveil.feature_party.config.sections import FeaturePartyConfig
from labelveil.label_party.config.sections import LabelPartyConfig


class Privacy(Section):
    epsilon: float = Field(default=1.0, gt=0)
    unit: str = "record"

    @field_validator("unit")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in ("record", "user"):
            raise ValueError("must be record or user")
        return value


class File(Section):
    key: str
    privacy: Privacy = Privacy()

    @model_validator(mode="after")
    def _together(self) -> File:
        if self.key == "bad" and self.privacy.epsilon > 5:
            raise ValueError("epsilon above 5 does not go with key bad")
        return self


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "party.toml"
    path.write_text(text)
    return path


def test_overrides_win_over_settings_over_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, 'key = "id"\n[privacy]\nepsilon = 2\n')
    assert load_config(File, path).privacy.epsilon == 2.0
    settings = ["privacy.epsilon=3", "privacy.unit=user", "key = with space"]
    config = load_config(File, path, settings=settings)
    assert (config.privacy.epsilon, config.privacy.unit, config.key) == (3.0, "user", "with space")
    overrides = {"privacy.epsilon": 4, "key": None}
    config = load_config(File, path, overrides, settings)
    assert (config.privacy.epsilon, config.key) == (4.0, "with space")
    assert load_config(File, None, {"key": "k"}).privacy == Privacy()
    least = {"key": "k", "privacy.epsilon": float_info.min}
    assert load_config(File, None, least).privacy.epsilon == float_info.min


def test_what_is_text_needs_no_quotes_whatever_it_looks_like(tmp_path: Path) -> None:
    path = written(tmp_path, "")
    for typed in ("2", "2.5", "true", "2024-06-02", "1e5", '"2"', "'2'"):
        config = load_config(File, path, settings=[f"key={typed}"])
        assert config.key == typed.strip("\"'")
    assert load_config(File, path, settings=["key=a", "privacy.epsilon=2"]).privacy.epsilon == 2.0


class Tables(Section):
    named: dict[str, str] = Field(default_factory=dict)
    lists: dict[str, list[str]] = Field(default_factory=dict)
    texts: list[str] = Field(default_factory=list)
    numbers: list[float] = Field(default_factory=list)


class Lists(Section):
    of: Tables = Tables()


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("[a, b]", ["a", "b"]),
        ("[2024-06-01, 007, 1.50, true]", ["2024-06-01", "007", "1.50", "true"]),
        ("""["a,b", 'c"', it's, d e,]""", None),
        ("""["a,b", 'c"', d e,]""", ["a,b", 'c"', "d e"]),
        ('["a\\"b", "[x]"]', ['a"b', "[x]"]),
        ("[]", []),
        ("[a", None),
        ("[[a]]", None),
        ("[a,,b]", None),
        ("2024-06-01", None),
    ],
)
def test_texts_in_a_list_need_no_quotes(typed: str, value: list[str] | None) -> None:
    def load(name: str) -> Tables:
        return load_config(Lists, None, {}, [f"of.{name}={typed}"]).of

    if value is None:
        with pytest.raises(ConfigError, match=r"texts=.* must be a list, each text") as caught:
            load("texts")
        assert "datetime" not in str(caught.value)
        return
    assert load("texts").texts == value
    assert load("lists.x").lists == {"x": value}


def test_numbers_in_a_list_stay_numbers() -> None:
    assert load_config(Lists, None, {}, ["of.numbers=[1, 2.5]"]).of.numbers == [1.0, 2.5]
    with pytest.raises(ConfigError, match="each a number"):
        load_config(Lists, None, {}, ["of.numbers=[a]"])
    with pytest.raises(ConfigError, match="must be a number, and not true or false"):
        load_config(Lists, None, {}, ["of.numbers=[1, true]"])


@pytest.mark.parametrize(
    ("typed", "name", "value"),
    [
        ("a=7", "a", "7"),
        ("order date = date %d/%m/%Y", "order date", "date %d/%m/%Y"),
        ('"a.b"=number 1,234.5', "a.b", "number 1,234.5"),
        ("'a.b'=x", "a.b", "x"),
        ('"a=b" = c=d', "a=b", "c=d"),
        (r'"a\"b"=x', 'a"b', "x"),
        ("it's=x", "it's", "x"),
        ('é=""', "é", ""),
    ],
)
def test_a_name_in_a_table_may_be_quoted(typed: str, name: str, value: str) -> None:
    assert load_config(Lists, None, {}, [f"of.named.{typed}"]).of.named == {name: value}


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("named.a.b=x", r"^named\.a=\{'b': 'x'\} must be text; a name with dots stands in quotes"),
        ("lists.a.b=[x]", r"^lists\.a=.* must be a list, each text; a name with dots stands in"),
        ("lists.a=x", r"^lists\.a='x' must be a list, each text; set \[of\] lists$"),
        ("lists.a=[['x']]", r"^lists\.a=\[\['x'\]\] must be a list, each text; set \[of\] lists$"),
        ("named={a=7}", r"^named\.a=7 must be text; set \[of\] named$"),
        ("named={'a.b'=7}", r'^named\."a\.b"=7 must be text'),
        ("named..a=x", "must look like"),
    ],
)
def test_a_wrong_entry_of_a_table_is_named(typed: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(Lists, None, {}, [f"of.{typed}"])


@pytest.mark.parametrize(
    ("text", "settings", "said"),
    [
        ("", [], r"key is missing in .*party\.toml; set it there or with --set key="),
        ('key = "a"\ncolour = 1', [], "colour is not a known setting"),
        (
            'key = "a"\n[privacy]\nepsilom = 1',
            [],
            r"privacy\.epsilom is not .* mean privacy\.epsilon\?",
        ),
        (
            'key = "a"\n[privacy]\nepsilon = -1',
            [],
            r"^epsilon=-1 must .* above 0; set \[privacy\] .*toml$",
        ),
        ('key = "a"\n[privacy]\nepsilon = "x"', [], r"epsilon='x' must be a number above 0"),
        ('key = "a"\n[privacy]\nunit = "house"', [], r"unit='house' must .*; set \[privacy\] unit"),
        ('key = "a"\nprivacy = 3', [], r"privacy is a section in .*; write \[privacy\]"),
        ("[privcy]\nepsilon = 1", [], "did you mean privacy"),
        ('key = "a"', ["privacy.unti=user"], r"did you mean privacy\.unit\?"),
        ('key = "a"', ["epsilon=1"], r"did you mean privacy\.epsilon\?"),
        ('key = "a"', ["colour.hue=1"], "remove it or correct its name"),
        ("key = ", [], "not valid TOML"),
        ("key = 1\nkey = 2", [], "not valid TOML"),
        ("key = " + "[" * 100_000, [], "not valid TOML"),
        ('key = "a"\n[privacy]\nepsilon = inf', [], r"epsilon=inf must be a finite number"),
        ('key = "a"\n[privacy]\nepsilon = nan', [], "epsilon=nan must be a finite number"),
        ('key = "a"\n[privacy]\nepsilon = 5e-324', [], "epsilon=5e-324 must be 0, or at least 2"),
        (
            f'key = "a"\n[privacy]\nepsilon = {nextafter(float_info.min, 0)!r}',
            [],
            "must be 0, or at least 2",
        ),
        ("a." * 50_000 + "a = 1", [], "not valid TOML: .* more than 12 parts with dots"),
        ("a . " * 12 + "a = 1", [], "more than 12 parts"),
        ("'a'.\"b\"." * 6 + "a = 1", [], "more than 12 parts"),
        ("[" + "a." * 12 + "a]", [], "more than 12 parts"),
        ("[[" + "a." * 12 + "a]]", [], "more than 12 parts"),
        ("key = {" + "a." * 12 + "a = 1}", [], "more than 12 parts"),
        ("a." * 11 + "a = 1", [], "a is not a known setting"),
        ("#" * (MOST_BYTES + 1), [], "more than the 524,288 bytes"),
        ("a" * 100_000 + " = 1", [], "is not a known setting"),
        ('key = "a"\n[privacy]\nepsilon = [' + "[0]," * 60_000 + "]", [], "epsilon="),
        ('key = "a"', ["a." * 40_000 + "b=1"], "is not a known setting"),
        ('key = "a"', ["privacy"], "must look like section.key=value"),
        ('key = "a"', ["=3"], "must look like section.key=value"),
        ('key = "a"', ["key.deeper=3"], "key is a value, not a section"),
        ('key = "bad"', ["privacy.epsilon=6"], "party.toml: epsilon above 5 does not go"),
        ('key = "a"', ["privacy.epsilon=" + "9" * 5000], "epsilon"),
    ],
)
def test_a_mistake_is_told_in_one_line(
    tmp_path: Path, text: str, settings: list[str], said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        load_config(File, written(tmp_path, text), settings=settings)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_dots_in_values_make_no_long_name(tmp_path: Path) -> None:
    numbers = ", ".join(["0.5"] * 1000)
    data = parse_toml(f'a = [{numbers}]\nb = "{".".join("abcdefghijkl")}"'.encode())
    assert (len(data["a"]), len(data["b"])) == (1000, 23)


def test_an_unreadable_file_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist; write one with the init command"):
        load_config(File, tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(File, tmp_path)
    path = tmp_path / "latin.toml"
    path.write_bytes(b'key = "\xff"')
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(File, path)
    path.write_bytes(b'\xef\xbb\xbfkey = "a"')  # as an editor on Windows writes it
    assert load_config(File, path).key == "a"


def test_any_text_of_a_file_of_settings_reads_back() -> None:
    every = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    text = "".join(every) + '\\" \n"""\n[x]\ny = 1 #'
    assert tomllib.loads(f"a = {as_toml(text)}")["a"] == text
    assert tomllib.loads(f"a = {as_toml({text: [text]})}")["a"] == {text: [text]}
    with pytest.raises(ConfigError, match=r"^x\\ud800 is not UTF-8, .* rename it$"):
        as_toml("x\ud800")


def test_both_programs_read_settings_alike() -> None:
    """Names, dates and lists without quotes, whichever party is configured."""
    mine = {"data.labels": "l.csv", "domain.lower": 0, "domain.upper": 1, "privacy.epsilon": 1}
    for typed in ("2", "007", "2024-06-01", "1.5", "true", "a.b-c", '"2"', "'2'"):
        name = typed.strip("\"'")
        settings = [f"data.epoch={typed}", f'server.clients."a.b"=[{typed}, c]']
        theirs = load_config(LabelPartyConfig, None, mine, settings)
        settings = [f"labels_party.epoch={typed}", 'data.columns."a.b"=category']
        ours = load_config(FeaturePartyConfig, None, {}, settings)
        assert theirs.data.epoch == ours.only_labels_party.epoch == name
        assert theirs.server.clients == {"a.b": [name, "c"]}
        assert ours.data.columns == {"a.b": "category"}
        listed = load_config(FeaturePartyConfig, None, {}, [f"labels_party.epochs=[{typed}, c]"])
        assert listed.only_labels_party.epochs == [name, "c"]
