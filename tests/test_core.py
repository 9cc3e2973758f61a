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


@pytest.mark.slow
def test_the_page_says_what_a_job_with_its_defaults_loads(
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = core.loaded_by_default()
    loaded = frozenset().union(*job.values())
    with capsys.disabled():
        print(
            f"\na default job loads {len(loaded)} modules, {sum(map(core.lines, loaded)):,} lines"
        )
    assert {"label_party-release", "serve", "feature_party-run"} <= job.keys()
    assert "label_party.release.run" in job["label_party-release"]
    assert {option for name in loaded if (option := core.option_of(name))} == core.BY_DEFAULT
    core_alone = core.whole() - {name for name in core.whole() if "commands" in name}
    assert core_alone <= loaded | {"feature_party.model.prediction"}
