"""Which epochs there are, and what a watch makes of each: small and by hand."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labelveil.common.errors import (
    ConfigError,
    DataError,
    OutputFailed,
)
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.events.intention import DryRunEnded
from labelveil.label_party.release import watch
from labelveil.label_party.store.disk import StoreBusy
from labelveil.label_party.store.release_store import Store
from tests.label_party.conftest import Party


def touched(folder: Path, *names: str) -> None:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text("key,label\na,1\n")


def test_epochs_are_what_stands_in_the_place_of_names(party: Party) -> None:
    days = party.folder / "days"
    touched(days, "s-2.csv", "s-1.csv", "s-.csv", ".s-9.csv", "t-3.csv", "s-4.csv.new")
    touched(days, "p-1.csv", "p-2.csv", "p-7.csv")
    settings: dict[str, Any] = {"data__labels": "days/s-{epoch}.csv"}
    # the population is one file: of every epoch, unless epochs are to share no event
    assert watch.arrived(party.config(**settings)) == ["", "1", "2"]
    with pytest.raises(ConfigError, match="covers the same events in every epoch"):
        watch.arrived(party.config(**settings, privacy__epochs="disjoint"))
    settings["data__population"] = "days/p-{epoch}.csv"
    for epochs in ("additive", "disjoint"):
        assert watch.arrived(party.config(**settings, privacy__epochs=epochs)) == ["1", "2"]
    for labels, said in (
        ("days/{epoch}", "once, in the file's name and not alone"),
        ("{epoch}/s-{epoch}.csv", "once, in the file's name"),
        ("days/{epoch}-{epoch}.csv", "once, in the file's name"),
        ("s3://bucket/{epoch}.csv", "must be files on this machine"),
    ):
        with pytest.raises(ConfigError, match=said):
            watch.arrived(party.config(data__labels=labels))
    submitted = {"data__labels": "days/s-{epoch}.csv", "data__population": "submitted"}
    assert watch.arrived(party.config(**submitted)) == ["", "1", "2"]  # labels say what there is
    with pytest.raises(DataError, match="none is no folder"):
        watch.arrived(party.config(data__labels="none/{epoch}.csv"))
    with pytest.raises(ConfigError, match="neither is set"):
        watch.arrived(party.config())
    with pytest.raises(ConfigError, match="both is set"):
        watch.arrived(party.config(data__labels="days/s-{epoch}.csv", data__date="day"))


def test_a_day_has_arrived_once_it_is_over(party: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    today = datetime.now(UTC).date()
    days = [str(today + timedelta(days=n)) for n in (-2, -1, 0, 1)]
    party.write_labels({"key": ["a", "b"], "label": [1, 2], "day": [days[1], days[2]]})
    party.write_population({"key": list("abcd"), "day": days})
    assert watch.arrived(party.config(data__date="day")) == days[:2]
    # a submitter may name what it likes
    named = ["2024-06-01", "2024-6-1", "20240601", "2024-13-01", "x", *days]
    monkeypatch.setattr(watch.Populations, "epochs", lambda self, data_set: named)
    asked = {"data__population": "submitted", "privacy__epochs": "disjoint"}
    assert watch.arrived(party.config(**asked, data__date="day")) == ["2024-06-01", *days[:2]]
    assert watch.arrived(party.config(**asked)) == named


def looks(
    party: Party, monkeypatch: pytest.MonkeyPatch, outcomes: dict[str, Any]
) -> Callable[..., Any]:
    """A look of a watch at epochs, each of which ends as it is given."""
    tried: list[str] = []

    def release(config: LabelPartyConfig, *given: object) -> Any:
        tried.append(config.data.epoch)
        outcome = outcomes[config.data.epoch]
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    monkeypatch.setattr(watch, "_release", release)
    monkeypatch.setattr(watch, "_waiting", lambda config, store: sorted(outcomes))

    def look(before: dict[str, str] | None = None, **named: Any) -> Any:
        tried.clear()
        reported: list[Any] = []
        given: Any = {"quiet": True, "stop": None, "confirm": lambda x: None, **named}
        config = party.config()
        store = Store(config.store.directory)
        done, refused = watch._look(config, store, reported.append, before or {}, **given)
        return done, refused, [*tried], reported

    return look


def test_one_epoch_that_is_refused_stops_no_other(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes: dict[str, Any] = {
        "1": DataError("no such file"),
        "2": "two",
        "3": DryRunEnded(),
        "4": ZeroDivisionError("73571"),
        "5": "five",
        "6": StoreBusy("in use"),
    }
    look = looks(party, monkeypatch, outcomes)
    done, refused, tried, reported = look()
    assert (done, reported, tried) == (2, ["two", "five"], list("123456"))
    assert refused.keys() == {"1", "4", "6"}
    assert (refused["1"], refused["6"]) == ("no such file", "in use")
    assert "73571" not in refused["4"]
    assert re.match(
        r"ZeroDivisionError in test_watch_by_hand\.py, line \d+, a mistake", refused["4"]
    )
    assert look({"2": "x", "1": "y"})[2] == list("345612")  # those refused before come last
    stopped = SimpleNamespace(is_set=lambda: True)
    assert look({"9": "z"}, stop=stopped) == (0, {"9": "z"}, [], [])
    outcomes["2"] = OutputFailed("standard output")
    with pytest.raises(OutputFailed):
        look()
    outcomes["2"] = StoreBusy("another builds")
    store = Store(party.store)
    store.create()
    with store.building(), pytest.raises(StoreBusy, match="another process is building"):
        look()


def test_a_watch_once_names_the_first_that_is_refused(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes: dict[str, Any] = {"1": "one", "2": DataError("first"), "3": DataError("second")}
    looks(party, monkeypatch, outcomes)
    with pytest.raises(DataError) as refused:
        watch.release_new(party.config(), lambda outcome: None)
    assert str(refused.value) == "epoch '2': first (1 more were refused, too)"
    outcomes["3"] = "three"
    with pytest.raises(DataError) as refused:
        watch.release_new(party.config(), lambda outcome: None)
    assert str(refused.value) == "epoch '2': first"
    outcomes["2"] = "two"
    assert watch.release_new(party.config(), lambda outcome: None) == 3


def test_a_watch_once_releases_as_it_was_told_and_ends_between_epochs(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    looks(party, monkeypatch, dict.fromkeys("123", "released"))
    monkeypatch.setattr(
        watch, "_release", lambda config, store, *how: told.append((config.data.epoch, *how))
    )
    stop, reported = threading.Event(), list[object]()

    def report(outcome: object) -> None:
        reported.append(outcome)
        if len(reported) == 2:
            stop.set()

    def confirm(intention: object) -> None: ...

    config = party.config()
    assert watch.release_new(config, report, quiet=True, stop=stop, confirm=confirm) == 2
    assert told == [("1", True, confirm), ("2", True, confirm)]
    assert watch.release_new(config, reported.append) == 3
    assert told[2:] == [(epoch, False, watch.go_on) for epoch in "123"]


def test_an_operator_is_told_of_a_refusal_once_and_again_when_it_changes(
    party: Party, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    steps: list[Any] = [
        (0, {"1": "a"}),
        (1, {"1": "a", "2": "b"}),
        DataError("no folder"),
        DataError("no folder"),
        StoreBusy("busy"),
        DataError("no rights"),
        (0, {"1": "c"}),
        DataError("no rights"),
    ]
    waited: list[float] = []
    idle: list[str] = []

    def look(*given: object, **named: object) -> Any:
        step = steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    monkeypatch.setattr(watch, "_look", look)
    stop: Any = SimpleNamespace(is_set=lambda: not steps, wait=waited.append)
    watch.keep_releasing(party.config(watch__interval=7), lambda x: None, idle.append, stop)
    lines = capfd.readouterr().err.splitlines()
    assert [line.removeprefix("error: ") for line in lines] == [
        "epoch '1': a",
        "epoch '2': b",
        "no folder",
        "no rights",
        "epoch '1': c",
        "no rights",
    ]
    assert waited == [7.0] * 8
    assert idle == ["busy"]


@pytest.mark.parametrize(
    ("population", "interval", "seconds"),
    [("submitted", "auto", 60.0), ("events.csv", "auto", 3600.0), ("submitted", 5.0, 5.0)],
)
def test_submitted_populations_are_looked_for_every_minute(
    party: Party, population: str, interval: object, seconds: float
) -> None:
    config = party.config(
        data__population=population, privacy__epochs="disjoint", watch__interval=interval
    )
    assert watch.seconds_between_looks(config) == seconds


@pytest.mark.parametrize(
    ("interval", "expected"),
    [("auto", "bdacbda"), (60.0, 5 * "b" + "dab" + 54 * "bda" + "cbda")],
)
def test_what_is_submitted_in_vain_is_read_again_once_an_hour(
    party: Party, monkeypatch: pytest.MonkeyPatch, interval: object, expected: str
) -> None:
    """Others are looked for meanwhile, and before it; each try reads all labels."""
    tried: list[str] = []

    def refuse(config: Any, *rest: object) -> Any:
        tried.append(config.data.epoch)
        raise DataError("no")

    waiting, waits = ["b"], list[float]()
    monkeypatch.setattr(watch, "_release", refuse)
    monkeypatch.setattr(watch, "_waiting", lambda config, store: list(waiting))

    def wait(seconds: float) -> None:
        waits.append(seconds)
        waiting.extend({5: "da", 60: "c"}.get(len(waits), ""))

    stop: Any = SimpleNamespace(is_set=lambda: len(waits) == 61, wait=wait)
    config = party.config(
        data__population="submitted", privacy__epochs="disjoint", watch__interval=interval
    )
    watch.keep_releasing(config, lambda x: None, lambda line: None, stop)
    assert "".join(tried) == expected
    assert set(waits) == {60.0}
