"""``label-party init`` looks at files, and fixes how they are read from then on."""

from __future__ import annotations

from pathlib import Path

import pytest

from label_party.commands.cli import main
from label_party.config.sections import load
from label_party.events.epoch import rows_of_epoch
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
