"""``label-party init`` looks at files, and fixes how they are read from then on."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from labelveil.commands.cli import main as labelveil_main
from labelveil.label_party.commands.cli import main
from labelveil.label_party.commands.init import select
from labelveil.label_party.config.sections import load
from labelveil.label_party.events.epoch import rows_of_epoch
from tests.commands import RunCommand


def test_init_proposes_how_csv_files_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_command: RunCommand
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "key;label;town\na;1,5;Köln\nb;;\n"
    Path("sales.csv").write_bytes(text.encode("cp1252"))
    Path("landings.tsv").write_text("key\ttown\na\tKöln\n")
    done = run_command(
        main,
        *("init", "--labels", "sales.csv", "--population", "landings.tsv", "--label", "label:0:9"),
        *("--epsilon", "1", "--total-epsilon", "1", "--data-set", "sales"),
    )
    assert done.code == 0, done
    config = load(Path("label_party.toml"))
    assert config.data.labels_encoding == "cp1252"
    assert config.data.labels_separator == ";"
    assert config.data.labels_decimal == ","
    assert config.data.population_encoding is None
    assert config.data.population_separator is None
    labels, population = rows_of_epoch(config)
    assert population is not None
    assert labels.read()[0]["label"].to_list() == [1.5, None]
    assert population.read()[0]["key"].to_list() == ["a"]
    # of a population's numbers nothing is said, nor of its separator where it is usual
    Path("prices.csv").write_text("key;price\na;1,5\n")
    Path("plain.csv").write_text("key,label\na,1.5\n")
    done = run_command(
        main,
        *("init", "--force", "--labels", "plain.csv", "--population", "prices.csv"),
        *("--label", "label:0:9", "--epsilon", "1", "--total-epsilon", "1"),
    )
    assert done.code == 0, done
    data = load(Path("label_party.toml")).data
    assert (data.labels_decimal, data.labels_separator) == (None, None)
    assert data.population_separator == ";"
    # a later file in UTF-8 is read as configured: one cell is odd, and nothing is guessed
    Path("sales.csv").write_text("key;label;town\na;1,5;Köln\nb;2.5;\n", encoding="utf-8")
    assert labels.read()[0]["label"].to_list() == [1.5, None]


@pytest.mark.parametrize("header", ["key,label", "label,key"])
def test_init_says_where_a_label_could_break_what_is_public(
    header: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_command: RunCommand
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sales.csv").write_text(f"{header}\n1,2\n")
    given = ("--label", "label:0:9", "--epsilon", "1", "--total-epsilon", "1")
    init = (main, "init", "--new-secret", "--labels", "sales.csv", *given)
    done = run_command(*init)
    broken = "sales.csv names the events itself, and a label with a separator or a quote could"
    assert (done.code, broken in done.err) == ((1, True) if header == "label,key" else (0, False))
    if done.code:
        assert list(Path().iterdir()) == [Path("sales.csv")]
        done = run_command(*init, "--unverified")
        assert done.code == 0
        assert broken in done.out.splitlines()[-1]
    released = run_command(main, "release", "--quiet")
    assert released.code == (header == "label,key"), released
    if released.code:  # what the line says helps
        assert broken in released.error
        Path("all.csv").write_text("key\n2\n")
        done = run_command(main, "release", "--quiet", "--population", "all.csv")
        assert done.code == 0, done


def test_another_separator_is_named_where_no_column_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_command: RunCommand
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sales.csv").write_text("key,label\n1,2\n")
    given = ("--label", "label:0:9", "--epsilon", "1", "--total-epsilon", "1", "--new-secret")
    assert run_command(main, "init", "--labels", "sales.csv", *given).code == 0
    Path("sales.csv").write_text("key;label\n1;2\n")
    assert "set [data] labels_separator" in run_command(main, "release").error


def test_a_column_that_is_not_there_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_command: RunCommand
) -> None:
    """In labels or population, of files or of a database: exit code 1, the column, no file."""
    monkeypatch.chdir(tmp_path)
    rows = pl.DataFrame({"id": ["a"], "amount": [2.0], "day": ["2024-06-01"]})
    rows.write_parquet("sales.parquet")
    rows.write_csv("sales.csv")
    with closing(sqlite3.connect("shop.db")) as database:
        database.execute("CREATE TABLE sales (id TEXT, amount REAL, day TEXT)")
        database.execute("CREATE TABLE landings (id TEXT)")
        database.commit()
    pl.DataFrame({"id": ["a"]}).write_parquet("landings.parquet")
    before = everything()
    database_of = ("--labels", "sqlite:///shop.db", "--table", "sales")
    right = {"--key": "id", "--label": "amount:0:9", "--date": "day"}
    listed = ("--population", "landings.parquet")
    in_database = ("--population", "sqlite:///shop.db", "--population-table", "landings")
    sources = [("--labels", "sales.parquet"), ("--labels", "sales.csv"), database_of]
    for place in sources:
        for flag, wrong in (("--key", "idd"), ("--label", "amuont:0:9"), ("--date", "dya")):
            given = [word for pair in (right | {flag: wrong}).items() for word in pair]
            line = run_command(main, "init", *place, *given, "--epsilon", "1").error
            assert wrong.partition(":")[0] in line, line
            assert "nothing was written; with --unverified it is written all the same" in line
    for population in (listed, in_database):
        given = [word for pair in right.items() for word in pair]
        line = run_command(main, "init", *sources[0], *population, *given).error
        assert "day" in line, line
        assert population[-1] in line or "population query" in line
    line = run_command(main, "init", "--labels", "sqlite:///shop.db", "--table", "sale").error
    assert "labels query of sqlite:///shop.db" in line
    assert "'sale'" in line
    assert everything() == before


def test_a_label_of_another_type_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_command: RunCommand
) -> None:
    monkeypatch.chdir(tmp_path)
    pl.DataFrame({"key": ["a"], "label": [[1.0, 73571.25]]}).write_parquet("sales.parquet")
    line = run_command(main, "init", "--labels", "sales.parquet", *GIVEN).error
    assert "label column 'label' has type" in line
    assert "73571" not in line
    assert not Path("label_party.toml").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "[data] labels, [domain] lower, [domain] upper, [privacy] epsilon"),
        (("--labels", "none.csv", "--label", "label"), "none.csv does not exist yet; examples"),
        (("--labels", "here.csv", "--label", "label"), "[domain] lower, [domain] upper"),
        (("--labels", "here.csv", "--population", "no.csv", "--label", "label:0:1"), "no.csv does"),
        (("--labels", "{epoch}.csv", "--label", "label:0:1"), "label-party watch --dry-run"),
    ],
)
def test_what_was_not_verified_is_the_last_line(
    given: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run_command: RunCommand,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here.csv").write_text("key,label\na,1\n")
    done = run_command(main, "init", *given)
    first, *_, last = done.out.splitlines()
    assert done.code == 0
    assert first == "wrote label_party.toml; read it"
    assert last.startswith("not verified: ")
    assert said in last
    assert last.endswith("; then run: label-party doctor")
    done = run_command(main, "init", *given, "--config", "of a.toml")
    assert done.out.endswith("; then run: label-party doctor '--config=of a.toml'\n")


def test_with_all_verified_the_last_line_is_none_of_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_command: RunCommand
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here.csv").write_text("key,label\na,1\n")
    done = run_command(main, "init", "--labels", "here.csv", *GIVEN)
    assert done.out.startswith("wrote label_party.toml; read it, then run: label-party release\n")
    assert "not verified" not in done.out


GIVEN = ("--label", "label:0:9", "--epsilon", "1", "--total-epsilon", "1", "--data-set", "mine")


def everything() -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}


def test_the_remedy_that_an_error_names_adds_a_key_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_command: RunCommand
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("labels.csv").write_text("key,label\na,2\nb,3\n")
    assert run_command(main, "init", "--labels", "labels.csv", *GIVEN).code == 0
    before = everything()
    refused = run_command(main, "release", "--dry-run").error
    assert "label-party init --new-secret makes one and nothing else" in refused
    for more in ((), ("--force",)):  # somebody may take that along from another error
        done = run_command(main, "init", "--new-secret", *more)
        assert done.code == 0, done
        assert {path: everything()[path] for path in before} == before
        (secret,) = everything().keys() - before.keys()
        assert secret == Path("certificates/join.key")
        key = secret.read_bytes()
        assert "leave --new-secret out" in run_command(main, "init", "--new-secret", *more).error
        assert secret.read_bytes() == key
        secret.unlink()
    assert run_command(main, "init", "--new-secret", "--new-signing-key").code == 0
    assert run_command(main, "release").code == 0


@pytest.mark.parametrize(
    "there", ["certificates/join.key", "certificates/signing.key", "certificates/signing.key.pub"]
)
@pytest.mark.parametrize("force", [(), ("--force",)])
def test_all_is_checked_before_anything_is_written(
    there: str,
    force: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run_command: RunCommand,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("events.csv").write_text("key,town\na,Köln\n", encoding="utf-8")
    Path("label_party.toml").write_text("# written by hand\n")
    Path("certificates").mkdir()
    Path(there).write_text("precious")
    before = everything()
    asked = (*GIVEN, "--new-secret", "--new-signing-key", "--population", "events.csv")
    done = run_command(main, "init", *asked, "--strata-column", "town", *force)
    assert "exists already" in done.error
    assert everything() == before


def test_a_list_of_strata_is_not_overwritten_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_command: RunCommand
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("events.csv").write_text("key,town\na,Bonn\n")
    Path("strata.txt").write_text("a list of mine")
    before = everything()
    asked = ("init", *GIVEN, "--population", "events.csv", "--strata-column", "town")
    assert "strata.txt exists already" in run_command(main, *asked).error
    assert everything() == before
    assert run_command(main, *asked, "--force").code == 0
    assert Path("strata.txt").read_text() == "Bonn"


@pytest.mark.parametrize("first", ["init", "certificates"])
def test_certificates_and_init_make_one_secret_in_either_order(
    first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_command: RunCommand
) -> None:
    monkeypatch.chdir(tmp_path)
    init = (main, "init", *GIVEN, "--new-secret", "--new-signing-key")
    pilot = (labelveil_main, "certificates", "--out", "certificates", "--signing-key")
    keys = [Path("certificates") / name for name in ("join.key", "signing.key", "signing.key.pub")]
    begin, end = (init, pilot) if first == "init" else (pilot, init)
    assert run_command(*begin).code == 0
    made = [key.read_bytes() for key in keys]
    done = run_command(*end)
    assert (done.code == 0) == (first == "init")
    if first == "certificates":
        assert "leave --new-secret out to use it" in done.error
        assert run_command(main, "init", *GIVEN).code == 0  # as it says
    else:
        assert "kept join.key, signing.key, signing.key.pub" in done.out
    assert [key.read_bytes() for key in keys] == made
    assert Path("certificates/label-party.pem").exists()


def test_half_a_pair_of_keys_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_command: RunCommand
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("certificates").mkdir()
    Path("certificates/signing.key.pub").write_text("precious")
    before = everything()
    asked = ("certificates", "--out", "certificates", "--signing-key")
    assert "without its other half" in run_command(labelveil_main, *asked).error
    assert everything() == before


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--label", "a:0:1"), {"grid": "auto", "column": "a", "bounds": (0, 1)}),
        (("--label", "a:0:9:whole"), {"grid": "whole", "column": "a", "bounds": (0, 9)}),
        (("--label", "a", "--lower=1", "--upper=3"), {"column": "a", "bounds": (1, 3)}),
        (("--label", "a:b", "--upper=3"), {"column": "a:b", "bounds": (0, 3)}),
        (("--label", "a:b:-1:3"), {"column": "a:b", "bounds": (-1, 3)}),
        (("--label", "a:0:1:whole", "--grid=auto"), {"grid": "auto", "bounds": (0, 1)}),
    ],
)
def test_one_label_has_its_column_its_bounds_and_its_grid(
    given: tuple[str, ...],
    said: dict[str, object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run_command: RunCommand,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(main, "init", *given).code == 0
    (label,) = load(Path("label_party.toml")).labels
    told = {"grid": label.grid, "column": label.column, "bounds": label.bounds}
    assert told | said == told


def test_several_labels_are_of_the_kind_that_bounds_and_whole_numbers_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_command: RunCommand
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = ["a:0:1:whole", "b:0:2:whole", "c:1:2:whole", "d:0:1", "e:-1:1:whole"]
    done = run_command(main, "init", *(word for text in texts for word in ("--label", text)))
    assert done.code == 0, done
    labels = load(Path("label_party.toml")).labels
    assert [label.kind for label in labels] == ["binary", "count", "count", "amount", "count"]
    assert [label.bounds for label in labels] == [(0, 1), (0, 2), (1, 2), (0, 1), (-1, 1)]
    pl.DataFrame({"key": ["k"], "a": [1], "b": [1], "c": [1.0]}).write_parquet("sales.parquet")
    texts = ["a:0:1.5", "b:0:1", "c:0:1"]
    more = [word for text in texts for word in ("--label", text)]
    done = run_command(main, "init", "--force", "--labels=sales.parquet", *more)
    assert done.code == 0, done
    labels = load(Path("label_party.toml")).labels
    # whole numbers between bounds that are none have no grid of whole numbers
    assert [label.kind for label in labels] == ["amount", "binary", "amount"]


@pytest.mark.parametrize(
    ("given", "query"),
    [
        ((), 'SELECT t."key", t."label" FROM "sales" AS t'),
        (("--key=id", "--label=amount:0:9", "--date=day"),
         'SELECT t."id", t."amount", t."day" FROM "sales" AS t'),
        (("--label=a:b:0:9:whole", "--label=c:0:1"),
         'SELECT t."key", t."a:b", t."c" FROM "sales" AS t'),
    ],
)  # fmt: skip
def test_a_table_is_read_by_the_query_of_its_columns(
    given: tuple[str, ...],
    query: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run_command: RunCommand,
) -> None:
    monkeypatch.chdir(tmp_path)
    place = ("--labels=sqlite:///shop.db", "--table=sales", "--unverified")
    assert run_command(main, "init", *place, *given).code == 0
    assert load(Path("label_party.toml")).data.labels_query == query
    asked = ("--labels=sqlite:///shop.db", "--labels-query=SELECT 1", "--unverified")
    assert run_command(main, "init", "--force", *asked, *given).code == 0
    assert load(Path("label_party.toml")).data.labels_query == "SELECT 1"
    listed = ("--population=sqlite:///shop.db", "--population-table=shop.clicks")
    assert run_command(main, "init", "--force", *place, *listed, *given).code == 0
    data = load(Path("label_party.toml")).data
    key, date = ("id", ', t."day"') if "--date=day" in given else ("key", "")
    assert data.population_query == f'SELECT t."{key}"{date} FROM "shop"."clicks" AS t'


def test_quotes_in_names_are_doubled() -> None:
    assert select(['a"b', "c"], 'd"."e') == 'SELECT t."a""b", t."c" FROM "d"""."""e" AS t'


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (["a,1", "b,2"], 0),
        (["a,1", "a,2", "b,2"], 1),
        (["a,1", "a,2", "a,3", "b,2", "b,1"], 2),
        ([",1", ",2"], 0),
    ],
)
def test_events_of_several_rows_are_counted_once_each(
    rows: list[str],
    said: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run_command: RunCommand,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here.csv").write_text("\n".join(["key,label", *rows]) + "\n")
    out = run_command(main, "init", "--labels", "here.csv", *GIVEN).out
    line = f"events with several rows, and so the missing value: {said};"
    assert (line in out) == bool(said)
    assert ("several rows" in out) == bool(said)


def test_values_of_strata_are_those_that_can_be_names_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_command: RunCommand
) -> None:
    monkeypatch.chdir(tmp_path)
    pl.DataFrame(
        {"key": list("abcdef"), "town": ["Bonn", "Aachen", "Bonn", None, "", "two\nlines"]}
    ).write_parquet("events.parquet")
    asked = ("init", *GIVEN, "--strata-column", "town")
    assert "and there is none" in run_command(main, *asked).error
    done = run_command(main, *asked, "--population", "events.parquet")
    assert done.code == 0, done
    assert Path("strata.txt").read_text() == "Aachen\nBonn"
    assert done.out.splitlines()[0] == "wrote strata.txt: 2 values of 'town'"
    strata = load(Path("label_party.toml")).strata
    assert (strata.column, strata.values) == ("town", Path("strata.txt"))


def test_keys_are_made_where_they_are_asked_for_and_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_command: RunCommand
) -> None:
    monkeypatch.chdir(tmp_path)
    made = run_command(main, "init", *GIVEN, "--new-secret", "--new-signing-key")
    keys = load(Path("label_party.toml")).keys
    assert keys.signing_key == Path("certificates/signing.key")
    said = made.out.splitlines()
    assert "wrote certificates/join.key; give the features party a copy, safely" in said
    assert any(line.startswith("wrote certificates/signing.key and cert") for line in said)
    assert not any(line.startswith("to sign with it") for line in said)
    before = everything()
    more = run_command(main, "init", "--new-secret", "--secret-file=keys/other.key")
    assert more.out.splitlines()[-1] == (
        'new epochs are hashed with it once you set [keys] secret_file = "keys/other.key"'
    )
    assert set(everything()) - set(before) == {Path("keys/other.key")}
    assert "beside" not in more.out
    # with a setting of another kind it is no matter of keys alone
    refused = run_command(main, "init", "--new-secret", "--secret-file=k", "--epsilon=2").error
    assert "label_party.toml exists already" in refused
    text = Path("label_party.toml").read_text()
    Path("label_party.toml").write_text(text.replace('signing_key = "', '# signing_key = "'))
    for path in Path("certificates").glob("signing.key*"):
        path.unlink()
    alone = run_command(main, "init", "--new-signing-key")
    assert alone.out.splitlines()[-1] == (
        'to sign with it, say so: [keys] signing_key = "certificates/signing.key"'
    )
