"""What cannot be written is refused by every program before any work, in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import labelveil.commands.cli
import labelveil.feature_party.commands.cli
import labelveil.label_party.commands.cli
from labelveil.common.errors import ConfigError
from labelveil.common.outputs import check_folder, check_output
from tests.commands import RunCommand

LABELVEIL = labelveil.commands.cli.main
LABELS = labelveil.label_party.commands.cli.main
FEATURES = labelveil.feature_party.commands.cli.main

AUDIT = ["audit", "mechanism", "rr-on-bins", "--effort", "0.01"]
TOP_K = ["top-k", "--by", "a", "--categories", "a.txt", "--k", "1"]
FILES: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "predict --output": (FEATURES, ["predict", "--output"]),
    "labels --output": (FEATURES, ["labels", "--output"]),
    "export --output": (FEATURES, ["export", "--output"]),
    "evaluate --report": (FEATURES, ["evaluate", "--report"]),
    "evaluate --metrics": (FEATURES, ["evaluate", "--metrics"]),
    "run --report": (FEATURES, ["run", "--report"]),
    "run --output": (FEATURES, ["run", "--output"]),
    "accounting --plot": (LABELVEIL, ["accounting", "compose", "--epsilon", "1", "--plot"]),
    "plan --plot": (LABELS, ["plan", "--rows", "100", "--plot"]),
    "top-k --out": (LABELS, [*TOP_K, "--out"]),
    "top-k --plot": (LABELS, [*TOP_K, "--plot"]),
    "synthesize --out": (LABELS, ["synthesize", "--column", "a=a.txt", "--out"]),
    "init --config": (LABELS, ["init", "--force", "--config"]),
    "init of features": (FEATURES, ["init", "--force", "--config"]),
}
FOLDERS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "train --model": (FEATURES, ["train", "--model"]),
    "run --model": (FEATURES, ["run", "--model"]),
    "fetch --release": (FEATURES, ["fetch", "--release"]),
    "join --out": (FEATURES, ["join", "--out"]),
    "audit --out": (LABELVEIL, [*AUDIT, "--out"]),
    "plant --folder": (
        LABELVEIL,
        ["audit", "canaries", "plant", "--lower", "0", "--upper", "1", "--folder"],
    ),
    "certificates --out": (LABELVEIL, ["certificates", "--out"]),
    "demo --out": (LABELVEIL, ["demo", "--rows", "1000", "--out"]),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a labels party's configuration and a file in a folder's place."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "a.txt").write_text("x\ny\n")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "label_party.toml").write_text(
        '[data]\nlabels = "labels.csv"\n[domain]\nlower = 0\nupper = 9\n[privacy]\nepsilon = 1\n'
    )
    return tmp_path


@pytest.mark.parametrize("path", ["folder.png", "file/out.png", "/sys/out.png"])
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_cannot_be_written_is_refused_in_one_line(
    folder: Path, run_command: RunCommand, name: str, path: str
) -> None:
    main, arguments = FILES[name]
    if name in ("synthesize --out", "labels --output"):
        path = path.replace("png", "csv")
        (folder / "folder.csv").mkdir(exist_ok=True)
    before = sorted(folder.rglob("*"))
    assert Path(path).name in run_command(main, *arguments, path).error
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("path", ["file", "file/out", "/sys/out"])
@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_that_cannot_be_written_is_refused_in_one_line(
    folder: Path, run_command: RunCommand, name: str, path: str
) -> None:
    main, arguments = FOLDERS[name]
    before = sorted(folder.rglob("*"))
    done = run_command(main, *arguments, path)
    assert done.error
    assert sorted(folder.rglob("*")) == before


def test_nothing_is_left_by_looking(tmp_path: Path) -> None:
    check_output("--out", tmp_path / "new.csv", (".csv",))
    check_output("--out", tmp_path / "a" / "b" / "new.csv", makes_folder=True)
    check_folder("--out", tmp_path / "c" / "d")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match="there is no folder"):
        check_output("--out", tmp_path / "a" / "new.csv")


def test_labels_never_take_the_place_of_the_file_beside_them(run_command: RunCommand) -> None:
    done = run_command(FEATURES, "labels", "--output", "labels.json")
    assert done.error == "error: --output labels.json must end in one of .csv, .parquet, .pq\n"
