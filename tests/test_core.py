"""The core stays one that a person can hold, and asks for no option but where options are wired."""

from __future__ import annotations

import pytest

from tests import core
from tests.imports import modules


def test_the_core_asks_for_no_option() -> None:
    assert core.open_doors() == {}, f"wire these options in one of {core.ROOTS}"


@pytest.mark.parametrize("option", core.OPTIONS)
def test_an_option_is_there(option: str) -> None:
    assert core.OPTIONS[option]
    for part in core.OPTIONS[option]:
        assert part in modules(), part
    for root in core.ROOTS:
        assert root in modules(), root


def test_what_an_option_alone_needs_is_left_out() -> None:
    """The count sees lazy imports, and stops at options."""
    release = core.core("label-party release")
    assert {"label_party.release.run", "label_party.store.ledger", "common"} <= release
    assert not {name for name in release if core.within(name, "common.mechanisms.synthesis")}
    assert core.option_of("label_party.sources.databases") == "databases and object stores"
    assert core.option_of("label_party.sources.databases_of_others") is None
