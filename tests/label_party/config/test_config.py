"""The configuration: what is refused, in one line, and what ``init`` writes."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import polars as pl
import pytest

from labelveil.common.config.declare import declared, sections
from labelveil.common.config.wording import as_toml
from labelveil.common.exact.rational import decimal_value
from labelveil.label_party.config import sections as config
from tests.label_party.conftest import Party, Result


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"privacy__epsilon": -1}, ["epsilon=-1", "above 0", "[privacy] epsilon"]),
        ({"privacy__epsilon": 0}, ["epsilon=0", "above 0"]),
        ({"privacy__epsilon": 41}, ["epsilon=41", "at most 40"]),
        ({"privacy__epsilon": "nan"}, ["epsilon=nan", "a finite number above 0"]),
        ({"privacy__epsilon": "much"}, ["epsilon='much'", "[privacy] epsilon"]),
        ({"privacy__total_epsilon": 0}, ["total_epsilon=0", "above 0"]),
        ({"privacy__epsilon": 1 / 3}, ["epsilon=0.333", "6 significant digits"]),
        ({"privacy__prior_share": 1}, ["prior_share=1", "above 0 and below 1"]),
        ({"privacy__unit": "user"}, ["unit='user'", "max_records_per_user"]),
        ({"privacy__max_records_per_user": 3}, ["no effect", "unit"]),
        ({"domain__lower": 10}, ["lower=10", "upper=10", "domain is empty"]),
        ({"domain__lower": "-inf"}, ["lower=-inf", "finite"]),
        ({"domain__grid": "step"}, ["grid='step'", "[domain] step"]),
        ({"domain__grid": "step", "domain__step": 0}, ["step=0"]),
        ({"domain__grid": "edges", "domain__edges": "[0, 5, 3, 10]"}, ["ascending", "5", "3"]),
        ({"domain__grid": "edges", "domain__edges": "[0, 5]"}, ["0 to 5", "0 to upper=10"]),
        ({"data__missing": 11}, ["missing=11", "0 … 10"]),
        ({"data__data_set": "../etc"}, ["data_set='../etc'", "[data] data_set"]),
        ({"data__epoch": ".hidden"}, ["epoch='.hidden'", "[data] epoch"]),
        ({"data__duplicates": "first"}, ["duplicates='first'", '"sum"', "[data] duplicates"]),
        ({"randomizer__name": "magic"}, ["name='magic'", '"rr-on-bins"', "[randomizer] name"]),
        ({"randomizer__loss": "cubic"}, ["loss='cubic'", "squared"]),
        ({"server__listen": "nowhere"}, ["listen='nowhere'", "host:port"]),
        ({"server__listen": "http://0.0.0.0:5"}, ["listen='http://0.0.0.0:5'", "host:port"]),
        ({"server__client_san": "*.example"}, ["client_san='*.example'", "exact"]),
        ({"server__clients": "{'x.example' = ['labels']}"}, ["client_san", "[server] clients"]),
        (
            {"server__clients": "{'*.example' = ['labels']}"},
            ["'*.example'", "exact", "[server] clients"],
        ),
        ({"server__clients": "{'x.example' = []}"}, ["'x.example'", "at least one data set"]),
        ({"observability__listen": "loopback"}, ["listen='loopback'", "[observability] listen"]),
        ({"data__key": "label"}, ["[data] key = 'label' is public", "'label' is a label"]),
        ({"data__date": "label"}, ["[data] date = 'label' is public"]),
        (
            {
                "privacy__unit": "user",
                "privacy__user": "label",
                "privacy__max_records_per_user": 1,
            },
            ["[privacy] user = 'label' is public"],
        ),
        (
            {"strata__column": "label", "strata__values": "v.txt", "randomizer__name": "auto"},
            ["[strata] column = 'label' is public", "name another column there"],
        ),
        ({"privacy__epsilom": 1}, ["privacy.epsilom", "mean privacy.epsilon?"]),
    ],
)
def test_a_wrong_setting_is_one_line_and_spends_nothing(
    party: Party, settings: dict[str, object], parts: list[str]
) -> None:
    error = party.release(**settings).error
    for part in parts:
        assert part in error
    assert party.nothing_left()


@pytest.mark.parametrize("column", ["paid", "amount"])
def test_one_of_several_labels_is_no_class_by_its_name_or_its_column(
    party: Party, column: str
) -> None:
    text = (party.folder / "label_party.toml").read_text()
    start, end = text.index("[domain]"), text.index("[privacy]")
    labels = """[[label]]
        name = "paid"
        column = "amount"
        lower = 0
        upper = 10
        [[label]]
        name = "seen"
        kind = "binary"
        """
    rest = text[end:].replace('name = "rr-on-bins"', "")
    (party.folder / "label_party.toml").write_text(text[:start] + labels + rest)
    values = {"strata__values": "v.txt"}
    refused = party.release(strata__column=column, **values)
    assert refused.code == 1
    assert f"[strata] column = '{column}' is public, and '{column}' is a label" in refused.error
    assert "v.txt cannot be read" in party.release(strata__column="country", **values).error
    several = party.run("release", "--set=label.upper=9").error
    assert "label.upper could be set in any of 2 [[label]]; set it in the file" in several
    assert party.nothing_left()
    path = party.folder / "label_party.toml"
    path.write_text(text[:start] + labels.rpartition("[[label]]")[0] + text[end:])
    assert config.load(path, settings=["label.upper=9"]).labels[0].upper == 9
    path.write_text(f"label = 3\n{text[:start]}{text[end:]}")
    assert "label is a section in label_party.toml; write [label]" in party.release().error


@pytest.mark.parametrize("role", ["data__key", "data__date", "privacy__user", "strata__column"])
@pytest.mark.parametrize("listed", [False, True])
def test_a_query_that_selects_the_label_twice_is_refused(
    party: Party, role: str, listed: bool
) -> None:
    settings = {
        "data__labels": "sqlite:///rows.db",
        "data__labels_query": "'SELECT id AS key, amount AS label, amount AS band FROM sales'",
        "randomizer__name": "auto",
        role: "band",
    }
    if role == "privacy__user":
        settings |= {"privacy__unit": "user", "privacy__max_records_per_user": "1"}
    if role == "strata__column":
        settings["strata__values"] = "v.txt"
    if listed:
        settings["data__population"] = "sqlite:///rows.db"
        settings["data__population_query"] = "'SELECT id AS key, amount + 1 AS band FROM sales'"
    else:
        text = (party.folder / "label_party.toml").read_text()
        text = text.replace('population = "population.csv"', "")
        (party.folder / "label_party.toml").write_text(text)
    refused = party.release(**settings)
    assert "'band' is public, and the query makes it of all that the label" in refused.error
    assert party.nothing_left()


def test_missing_and_broken_files_are_one_line(party: Party) -> None:
    assert "init" in party.run("release", "--config", "absent.toml").error
    (party.folder / "label_party.toml").write_text("[data\n")
    assert "not valid TOML" in party.run("release").error
    (party.folder / "label_party.toml").write_text("[domain]\nlower = 0\nupper = 1\n")
    assert "is missing" in party.run("release").error


def test_init_writes_a_file_that_release_accepts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_cli: Callable[..., Result]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["--labels", 'odd "name".csv', "--lower=-2", "--upper", "7", "--epsilon", "0.5"]
    assert run_cli("init", *arguments, "--secret-file", "s.key", "--new-secret").code == 0
    loaded = config.load(Path("label_party.toml"))
    assert loaded.data.labels == Path('odd "name".csv')
    assert (*loaded.labels[0].bounds, loaded.privacy.epsilon) == (-2, 7, 0.5)
    assert len((tmp_path / "s.key").read_text().strip()) == 64
    assert loaded.data.population is None


def test_init_looks_for_events_of_several_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_cli: Callable[..., Result]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "labels.csv").write_text("key,label\na,1\nb,2\na,3\na,\n,4\n,5\n")
    arguments = ["--lower=0", "--upper=7", "--epsilon=1", "--labels=labels.csv"]
    assert (
        "events with several rows, and so the missing value: 1; if"
        in run_cli("init", *arguments).out
    )
    other_key = [*arguments, "--key=label", "--label=key", "--force"]
    assert "several rows" not in run_cli("init", *other_key).out


def test_init_writes_a_table_for_each_of_several_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_cli: Callable[..., Result]
) -> None:
    monkeypatch.chdir(tmp_path)
    labels = ["--label", "returned:0:1:whole", "--label", "a value:0:400"]
    said = run_cli("init", *labels, "--epsilon", "2").out
    assert "label 'returned': binary, as --label says" in said
    assert "label 'a value': amount, as nothing says that labels are whole numbers" in said
    written = tomllib.loads(Path("label_party.toml").read_text())
    assert [sorted(one) for one in written["label"]] == [["kind", "lower", "name", "upper"]] * 2
    loaded = config.load(Path("label_party.toml"))
    assert [(one.name, *one.bounds) for one in loaded.labels] == [
        ("returned", 0, 1),
        ("a value", 0, 400),
    ]
    assert [one.grid for one in loaded.labels] == ["values", "auto"]
    assert "domain" not in written


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "kinds"),
    [
        ([0.0, 1.0, None], ("auto", "amount")),  # pandas' way to write 0, 1 and a missing one
        ([0, 1, None], ("whole", "binary")),
        ([True, False, None], ("whole", "binary")),
        ([Decimal(1), Decimal(0), None], ("whole", "binary")),
        ([Decimal("0.5"), Decimal(1), None], ("auto", "amount")),
    ],
)
def test_init_takes_a_label_for_what_its_column_is_declared_to_be(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run_cli: Callable[..., Result],
    column: list[object],
    kinds: tuple[str, str],
) -> None:
    monkeypatch.chdir(tmp_path)
    table = pl.DataFrame({"key": ["a", "b", "c"], "y": column, "other": [1.5, 2.0, None]})
    table.write_parquet("labels.parquet")
    said = run_cli("init", "--labels=labels.parquet", "--label=y:0:1", "--epsilon=1").out
    kind = str(table.schema["y"]).replace("precision=", "").replace("scale=", "")
    why = f"as column 'y' has type {kind}"
    assert f"grid: {kinds[0]}, {why}" in said
    assert f'grid = "{kinds[0]}"  # {why}' in Path("label_party.toml").read_text()
    both = ["--label=y:0:1", "--label=other:0:400"]
    run_cli("init", "--force", "--labels=labels.parquet", *both, "--epsilon=1")
    assert config.load(Path("label_party.toml")).labels[0].kind == kinds[1]


def test_init_takes_no_csv_cell_for_a_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_cli: Callable[..., Result]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "labels.csv").write_text("key,label\na,1\nb,0\n")
    run_cli("init", "--labels=labels.csv", "--label=label:0:1", "--epsilon=1")
    (terms,) = config.load(Path("label_party.toml")).terms
    assert len(terms.own_grid(1000, 1.0)) == 11
    run_cli("init", "--force", "--labels=labels.csv", "--label=label:0:1:whole", "--epsilon=1")
    (terms,) = config.load(Path("label_party.toml")).terms
    assert len(terms.own_grid(1000, 1.0)) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--label", "a:0:1.5:whole"], "have whole bounds, not 0 … 1.5"),
        (["--label", "a:0:1:full"], "or COLUMN:LOWER:UPPER:whole for whole numbers"),
        (["--label", "a:0:1", "--label", "b"], "'b' must be COLUMN:LOWER:UPPER"),
        (["--label", "a:0:1", "--label", "a:0:2"], "'a' is that of two labels"),
        (["--label", "a:0:1", "--label", "b:5:5"], "lower=5 must be below upper=5"),
        (["--label", "a:0:1", "--label", "b:0:2", "--loss", "absolute"], "--loss has no effect"),
        (["--label", "a:0:1", "--upper", "3"], "--upper has no effect beside --label a:0:1"),
        (["--labels=sqlite:///a.db"], "is a database: name its table by --table, or give a query"),
        (
            ["--labels=a.db", "--population=sqlite:///a.db"],
            "name its table by --population-table, or give a query by --population-query",
        ),
        (["--labels=a.csv", "--table=t"], "--table t has no effect beside --labels that is no"),
        (
            ["--labels=sqlite:///a.db", "--table=t", "--labels-query=SELECT 1"],
            "--table t has no effect beside --labels-query",
        ),
        (["--population-table=t"], "--population-table t has no effect"),
    ],
)
def test_init_refuses_what_does_not_fit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run_cli: Callable[..., Result],
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in run_cli("init", *arguments).error
    assert not Path("label_party.toml").exists()
    assert run_cli("init", "--label", "a:0:3").code == 0
    assert config.load(Path("label_party.toml")).labels[0].bounds == (0, 3)


def test_init_never_overwrites_unless_forced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_cli: Callable[..., Result]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("label_party.toml").write_text("precious")
    assert "--force" in run_cli("init").error
    assert Path("label_party.toml").read_text() == "precious"
    assert run_cli("init", "--force").code == 0


def test_init_refuses_what_release_would_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_cli: Callable[..., Result]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "epsilon=-1" in run_cli("init", "--epsilon=-1").error
    assert not Path("label_party.toml").exists()


def test_every_setting_is_in_the_file_that_init_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_cli: Callable[..., Result]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_cli("init")
    text = Path("label_party.toml").read_text()
    written = {
        section: {line.lstrip("# ").partition(" = ")[0] for line in body.splitlines()}
        for section, body in _sections(text).items()
    }
    for section, model in sections(config.LabelPartyConfig):
        keys = set(model.model_fields) - {"options"}
        assert keys <= written[section], (section, keys - written[section])
    assert tomllib.loads(text)


def test_the_missing_value_is_zero_where_zero_is_a_label(party: Party) -> None:
    assert party.config().labels[0].missing == 0
    assert party.config(domain__lower=2).labels[0].missing == 2
    for lower, upper, missing in ((-5, -1, -5), (-5, 0, 0), (0, 5, 0), (-5, 5, 0), (0.5, 5, 0.5)):
        told = party.config(domain__lower=lower, domain__upper=upper)
        assert told.labels[0].missing == missing
    assert party.config(data__missing=4).labels[0].missing == 4


def test_domain_is_short_for_a_list_of_one_label(party: Party) -> None:
    short = party.config(data__missing=4, randomizer__loss="absolute")
    stated = {"name": short.data.label, "missing": 4.0, "loss": "absolute"}
    listed = config.LabelPartyConfig.model_validate(
        {
            "data": short.data.model_dump(exclude={"label", "missing"}, exclude_none=True),
            "privacy": short.privacy.model_dump(),
            "label": {**stated, **dict(short.domain or ())},
            "randomizer": {"name": short.randomizer.name},
        }
    )
    assert short.labels == listed.labels
    assert short.request() == listed.request()


def test_epsilon_is_the_decimal_that_was_written() -> None:
    assert decimal_value(0.1) == Fraction(1, 10)
    assert 3 * decimal_value(0.1) == decimal_value(0.3)


def _sections(text: str) -> dict[str, str]:
    found, name = {}, ""
    for line in text.splitlines():
        if line.startswith(("[", "# [[")):
            name = line.strip("# []")
            found[name] = ""
        elif name:
            found[name] += line + "\n"
    return found


def test_the_clients_of_a_server(party: Party) -> None:
    assert party.config().entitlements == {"partner.example": {"labels"}}
    both = party.config(server__data_sets='["labels", "installs"]').entitlements
    assert both == {"partner.example": {"labels", "installs"}}
    text = (party.folder / "label_party.toml").read_text()
    table = '{ "a.example" = ["labels"], "spiffe://b/c" = ["labels", "installs"] }'
    text = text.replace('client_san = "partner.example"', f"clients = {table}")
    (party.folder / "label_party.toml").write_text(text)
    assert party.config().entitlements == {
        "a.example": {"labels"}, "spiffe://b/c": {"labels", "installs"},
    }  # fmt: skip


def test_every_setting_says_what_it_decides() -> None:
    for one in declared(config.LabelPartyConfig):
        assert one.description.endswith("."), one.name
        assert one.default is not None or one.example is not None, one.name


def test_every_example_in_the_file_is_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_cli: Callable[..., Result]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_cli("init").code == 0
    every = declared(config.LabelPartyConfig)
    examples = [one for one in every if one.example is not None and one.section != "label"]
    together = {  # settings that have an effect only beside others
        "data.labels_query": ["data.labels=sqlite:///sales.db"],
        "data.population_query": ["data.population=sqlite:///sales.db"],
        "domain.edges": ["domain.upper=10"],
        "privacy.user": ["privacy.unit=user", "privacy.max_records_per_user=1"],
        "privacy.max_records_per_user": ["privacy.unit=user", "privacy.user=u"],
        "privacy.separate_reason": ["privacy.separate=true"],
        "strata.column": ["strata.values=countries.txt"],
        "strata.values": ["strata.column=country"],
        "engine.master": ["engine.name=spark"],
    }
    text = Path("label_party.toml").read_text().replace('client_san = "feature-party"\n', "")
    Path("label_party.toml").write_text(text)
    for one in examples:
        settings = [*together.get(one.name, []), f"{one.name}={as_toml(one.example)}"]
        config.load(Path("label_party.toml"), settings=settings)
