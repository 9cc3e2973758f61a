"""Folders of the models of several labels, whose names the labels party chose."""

from __future__ import annotations

from pathlib import Path

import pytest

from feature_party.model.several_labels import label_paths


def test_plain_names_are_folders() -> None:
    assert label_paths(Path("m"), {"amount": 0, "returned": 0}) == {
        "amount": Path("m/amount"),
        "returned": Path("m/returned"),
    }
    assert label_paths(Path("m"), {"": 0}) == {"": Path("m")}


@pytest.mark.parametrize("name", ["model.json", "..", "../up", "a/b", "x" * 65, "Käufe"])
def test_other_names_are_numbered(name: str) -> None:
    assert label_paths(Path("m"), {"amount": 0, name: 0}) == {
        "amount": Path("m/label-1"),
        name: Path("m/label-2"),
    }
