"""Folders and files of labels, whose names the labels party chose."""

from __future__ import annotations

from pathlib import Path

import pytest

from labelveil.feature_party.model.several_labels import label_files, label_folders


def test_plain_names_are_folders_and_ends_of_files() -> None:
    assert label_folders(Path("m"), ["amount"]) == {"amount": Path("m/amount")}
    assert label_files(Path("a/report.html"), ["amount", "returned"]) == {
        "amount": Path("a/report-amount.html"),
        "returned": Path("a/report-returned.html"),
    }
    assert label_files(Path("a/report.html"), ["amount"]) == {"amount": Path("a/report.html")}


@pytest.mark.parametrize("name", ["model.json", "..", "../up", "a/b", "x" * 65, "Käufe"])
def test_other_names_are_numbered(name: str) -> None:
    assert label_folders(Path("m"), ["amount", name]) == {
        "amount": Path("m/label-1"),
        name: Path("m/label-2"),
    }
