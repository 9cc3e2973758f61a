"""The architecture page and its picture follow from the imports."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tests import architecture
from tests.imports import direct


@pytest.fixture(scope="module")
def drawn() -> ElementTree.Element:
    return ElementTree.fromstring(architecture.PICTURE.read_text())


@pytest.mark.slow
def test_the_picture_shows_every_room_and_no_other(drawn: ElementTree.Element) -> None:
    shown = {part.get("data-room") for part in drawn.iter() if part.get("data-room")}
    assert shown == set(architecture.rooms()), "run make architecture"


@pytest.mark.slow
def test_the_picture_shows_what_is_imported(drawn: ElementTree.Element) -> None:
    shown = {
        (part.get("data-from"), part.get("data-to"))
        for part in drawn.iter()
        if part.get("data-from")
    }
    rooms = direct(architecture.rooms()).items()
    assert shown == {(room, target) for room, targets in rooms for target in targets}, (
        "run make architecture"
    )


def test_arrows_point_down() -> None:
    floor = architecture.storeys()
    for room, targets in architecture.rooms().items():
        assert all(floor[room] < floor[target] for target in targets), room


def test_the_page_names_every_room_with_its_purpose() -> None:
    text = architecture.PAGE.read_text()
    assert text == architecture.page(text), "run make architecture"
