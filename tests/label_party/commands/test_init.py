"""``label-party init`` looks at files, and fixes how they are read from then on."""

from __future__ import annotations

from pathlib import Path

import pytest

from label_party.commands.cli import main
from label_party.config.sections import load
from label_party.events.epoch import rows_of_epoch
from labelveil.commands.cli import main as labelveil_main
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
    done = run_command(main, "init", "--labels", "sales.csv", *given)
    assert done.code == 0, done
    broken = "sales.csv names the events itself, and a label with a separator or a quote could"
    assert (broken in done.out) == (header == "label,key")
    assert run_command(main, "init", "--new-secret", "--force", "--labels", "sales.csv", *given)
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
