"""Whom each round is about and what it is asked, whatever is learned from and asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import polars as pl
import pytest

from labelveil.common.arrays import Floats
from labelveil.common.errors import ConfigError, ConnectionFailed, DataError, LabelveilError
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.message.questions import Question
from labelveil.common.release.folder import (
    CHECK_FILE,
    CODES_FILE,
    MANIFEST_FILE,
    POPULATION_FILE,
    QUESTION_FILE,
)
from labelveil.common.release.question import decode_question
from labelveil.feature_party.client.submission import Population
from labelveil.feature_party.config.sections import FeaturePartyConfig
from labelveil.feature_party.pipeline import rounds as module
from labelveil.feature_party.pipeline.rounds import Rounds, deal, held_out, question_of, rows_of
from labelveil.feature_party.tables import FeatureFile
from tests.feature_party.worlds import SECRET

EVENTS = 400
KEYS = np.random.default_rng(3).integers(0, 256, (EVENTS, 16), dtype=np.uint8)
FIRST_HALF = KEYS[:, 0] < 128  # the key's first byte decides at 1/2


@dataclass
class Stages:
    """Stages that note what they are asked; a model is the name of the epochs it is of."""

    config: FeaturePartyConfig
    done: list[tuple[Any, ...]] = field(default_factory=list)
    question: bytes = b"what?"
    score: bytes = b"how good?"
    fails: LabelveilError | None = None

    def with_config(self, config: FeaturePartyConfig) -> Self:
        return replace(self, config=config)

    @property
    def epochs(self) -> str:
        party = self.config.only_labels_party
        return "+".join(party.epochs) or party.epoch

    def population(self) -> Population:
        return Population(KEYS.tobytes(), b"c" * 16)

    def submit(self, population: Population, folder: Path) -> str:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / QUESTION_FILE).write_bytes(population.question)
        (folder / CHECK_FILE).write_bytes(population.secret_check)
        (folder / POPULATION_FILE).write_bytes(population.keys)
        self.done.append(("submit", self.epochs, folder.name, population))
        return "stored"

    def fetch(self) -> None:
        self.done.append(("fetch", self.epochs))
        if self.fails is not None:
            raise self.fails
        for path in self.config.release_folders:
            arrived(path)

    def load(self) -> str:
        return f"saved {self.epochs}"

    def trained(self) -> str:
        self.done.append(("train", self.epochs))
        return f"of {self.epochs}"

    def check_kept(self, rows: int, kept: int) -> None:
        self.done.append(("kept", rows, kept))

    def ask(self, model: str | None, mine: np.ndarray[Any, Any], number: int) -> bytes:
        self.done.append(("ask", model, mine, number))
        return self.question if number > 1 else b""

    def ask_score(self, model: str, mine: np.ndarray[Any, Any]) -> bytes:
        self.done.append(("ask score", model, mine))
        return self.score

    def noted(self, what: str) -> list[tuple[Any, ...]]:
        return [each[1:] for each in self.done if each[0] == what]


def arrived(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in (MANIFEST_FILE, CODES_FILE):
        (folder / name).touch()


Make = Callable[..., Rounds[str]]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    (tmp_path / "key").write_text(SECRET.hex())
    (tmp_path / "key").chmod(0o600)

    def made(*shares: float, stages: dict[str, Any] | None = None, **more: Any) -> Rounds[str]:
        values = {
            "keys": {"secret_file": tmp_path / "key"},
            "labels_party": {"submit": True, "epoch": "day"},
            "release": {"directory": tmp_path / "release"},
            "rounds": {"shares": list(shares or (0.5, 0.5))},
            **more,
        }
        return Rounds(Stages(FeaturePartyConfig.model_validate(values), **(stages or {})))

    return made


def rows_in(population: Population) -> set[bytes]:
    return {population.keys[at : at + 16] for at in range(0, len(population.keys), 16)}


def keys_of(mine: np.ndarray[Any, Any]) -> set[bytes]:
    return {bytes(key) for key in KEYS[mine]}


def test_events_are_dealt_by_the_first_eight_bytes_of_their_keys() -> None:
    starts = [0, (1 << 62) - 2048, 1 << 62, (1 << 63) - 2048, 1 << 63, (1 << 64) - 2048]
    starts.append((1 << 64) - 1)  # which is all of a whole, as floats go
    for tail in (b"\0" * 8, b"\xff" * 8):
        keys = b"".join(start.to_bytes(8, "big") + tail for start in starts)
        assert deal(keys, [0.25, 0.25, 0.5]).tolist() == [0, 0, 1, 1, 2, 2, 2]
        assert deal(keys, [1.0]).tolist() == [0] * 7


def test_who_is_held_out_is_a_share_by_seed_and_no_more_than_is_kept(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make(training={"holdout": 0.3, "seed": 5}).config
    held = held_out(config, 4_000)
    # an event in three tenths: six deviations of a binomial
    assert abs(held.sum() - 1_200) < 6 * (4_000 * 0.3 * 0.7) ** 0.5
    chances = np.random.default_rng(5).random(4_000)
    assert np.array_equal(held, chances < 0.3)
    assert np.array_equal(held_out(config, 1_000), held[:1_000])  # each by itself
    monkeypatch.setattr(module, "MOST_HELD_OUT", 400)
    assert np.array_equal(held_out(config, 4_000), chances < 0.1)
    assert held_out(config, 0).size == 0


def test_rows_are_read_with_their_keys_some_at_a_time(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pl.DataFrame({"x": range(10), "z": range(10, 20), "id": [f"e{i}" for i in range(10)]})
    table.write_csv(tmp_path / "features.csv")
    config = make(data={"features": tmp_path / "features.csv", "key": "id"}).config
    whole = FeatureFile.batches
    monkeypatch.setattr(FeatureFile, "batches", lambda self, names: whole(self, names, 3))
    read = list(rows_of(config, ["x", "id"]))
    assert len(read) > 1
    assert pl.concat(read).columns == ["id", "x"]
    assert pl.concat(read)["x"].cast(pl.Int64).to_list() == [*range(10)]
    mine = np.isin(np.arange(10), [0, 7, 9])
    some = list(rows_of(config, ["x"], mine))
    assert pl.concat(some)["id"].to_list() == ["e0", "e7", "e9"]
    assert all(part.height for part in some)


def test_a_question_is_of_what_is_predicted_of_the_very_events(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    x = np.arange(40.0)
    table = pl.DataFrame({"x": x, "id": [f"e{i}" for i in range(40)]})
    table.write_parquet(tmp_path / "features.parquet")
    config = make(data={"features": tmp_path / "features.parquet", "key": "id"}).config
    whole = FeatureFile.batches
    monkeypatch.setattr(FeatureFile, "batches", lambda self, names: whole(self, names, 7))

    class Model:
        encoder = SimpleNamespace(columns=["x"], encode=lambda table: table["x"].to_numpy())
        problem, support, has_distributions = "problem", "support", True

        def distributions(self, inputs: Floats) -> Any:
            return SimpleNamespace(distributions=np.column_stack([inputs, -inputs]))

    asked, laws = list[tuple[Any, ...]](), [[1, 0, 0], [0, 0, 1]]
    second = np.array([False, True, True])

    def ask(problem: Any, support: Any, predicted: Any, strata: int) -> Question:
        found = [
            np.concatenate([*predicted(some)])[:, 0].tolist() for some in (slice(None), second)
        ]
        asked.append((problem, support, strata, *found))
        return Question(np.array([0, 1]), Grid(np.array([0.0, 1.0, 4.0])), np.array(laws))

    monkeypatch.setattr(module, "ask", ask)
    monkeypatch.setattr(module, "asks_better", lambda problem: True)
    mine = np.isin(np.arange(40), [5, 6, 30])
    models: Any = SimpleNamespace(by_label={"y": Model()})
    question = decode_question(question_of(models, config, mine), 2)
    assert question.laws.tolist() == laws
    assert asked == [("problem", "support", config.rounds.strata, [5, 6, 30], [6, 30])]
    second = np.isin(np.arange(40), [1, 39])
    question_of(models, config)
    assert asked[1][3:] == (x.tolist(), [1, 39])
    assert not capfd.readouterr().err
    laws = [[1, 1, 1], [2, 2, 2]]
    assert question_of(models, config) == b""
    assert "tells 0.0% of what labels vary, too little" in " ".join(capfd.readouterr().err.split())
    # nothing is asked where it would gain nothing
    models.by_label = {"y": Model(), "z": Model()}
    assert question_of(models, config) == b""
    models.by_label = {"y": Model()}
    monkeypatch.setattr(Model, "has_distributions", False)
    assert question_of(models, config) == b""
    monkeypatch.setattr(Model, "has_distributions", True)
    monkeypatch.setattr(module, "asks_better", lambda problem: False)
    assert question_of(models, config) == b""
    said = " ".join(capfd.readouterr().err.split())
    for reason in ("several labels are sent", "predicts points alone", "labels of a few values"):
        assert reason in said
    assert len(asked) == 3


def test_the_first_round_asks_of_all_that_are_dealt_to_it(make: Make) -> None:
    rounds = make(training={"holdout": 0.25})
    population, ending = rounds.submit(1, None)
    assert ending == "stored"
    assert rows_in(population) == keys_of(FIRST_HALF)  # held-out ones, too: codes tell of them
    assert (population.question, population.secret_check) == (b"", b"c" * 16)
    held = held_out(rounds.config, EVENTS)
    assert rounds.stages.noted("kept") == [(EVENTS, held.sum())]


def test_a_later_round_asks_of_nobody_who_is_held_out(make: Make) -> None:
    rounds = make(training={"holdout": 0.25})
    rounds.submit(1, None)
    population, _ = rounds.submit(2, "a model")
    free = ~FIRST_HALF & ~held_out(rounds.config, EVENTS)
    assert rows_in(population) == keys_of(free)
    assert population.question == b"what?"
    ((model, mine, number),) = rounds.stages.noted("ask")[1:]
    assert (model, number) == ("a model", 2)
    assert np.array_equal(mine, free)
    ((epoch, folder, _),) = rounds.stages.noted("submit")[1:]
    assert (epoch, folder) == ("day-2", "day-2")


def test_without_a_question_everybody_is_submitted(make: Make) -> None:
    rounds = make(training={"holdout": 0.25}, stages={"question": b""})
    rounds.submit(1, None)
    population, _ = rounds.submit(2, "a model")
    assert rows_in(population) == keys_of(~FIRST_HALF)


def test_sums_are_asked_of_nobody_who_is_held_out_in_any_round(make: Make) -> None:
    groups = {"epsilon": 1, "lower": 0, "upper": 1}
    rounds = make(training={"holdout": 0.25}, groups=groups)
    rounds.submit(1, None)
    ((_, mine, number),) = rounds.stages.noted("ask")
    assert number == 1
    assert np.array_equal(mine, FIRST_HALF & ~held_out(rounds.config, EVENTS))


def test_a_round_that_nobody_is_dealt_to_is_named(make: Make) -> None:
    with pytest.raises(DataError, match=r"none of the 400 events is dealt to round 2; set"):
        make(0.5, 1e-9, 0.5 - 1e-9).submit(1, None)


def test_rounds_follow_on_what_is_here(make: Make, tmp_path: Path) -> None:
    rounds = make(0.5, 0.25, 0.25)
    assert (rounds.count, rounds.left, rounds.next) == (3, range(1, 4), 1)
    assert [rounds.asks(number) for number in (1, 2, 3)] == [False, True, True]
    rounds.submit(1, None)
    arrived(rounds.config.round_folder(1))
    assert (rounds.left, rounds.next) == (range(2, 4), 2)
    party, population, ending = rounds.submit_next()
    assert (party.epoch, ending) == ("day-2", "stored")
    assert rounds.stages.noted("ask")[-1][0] == "saved day-1"
    assert not rounds.asks(2)  # it was submitted, and is sent again as it was
    assert rounds.submit_next()[1].keys == population.keys
    arrived(rounds.config.round_folder(2))
    rounds.submit_next()
    assert rounds.stages.noted("ask")[-1][0] == "saved day-1+day-2"
    arrived(rounds.config.round_folder(3))
    assert (list(rounds.left), rounds.next) == ([], 4)
    arrived(rounds.config.score_folder)
    done = replace(rounds)  # what was read before is not read again
    with pytest.raises(ConfigError, match=r"releases of all 3 rounds are in .*release; train on"):
        _ = done.next


def test_a_run_goes_through_all_rounds_and_asks_how_good_it_is(make: Make) -> None:
    rounds = make(training={"holdout": 0.25})
    last = rounds.stages.with_config(rounds.config.through(2))
    mine = Rounds(rounds.stages, last)
    assert mine.through(2) is last
    assert mine.through(1) is mine.through(1)
    sent = list(mine.learn())
    assert [(party.epoch, ending) for party, _, ending in sent] == [
        ("day-1", "stored"),
        ("day-2", "stored"),
    ]
    order = [(each[0], each[1]) for each in rounds.stages.done if each[0] in ("train", "fetch")]
    assert order == [
        ("fetch", "day-1"),
        ("fetch", "day-1"),  # whether it was withdrawn
        ("train", "day-1"),
        ("fetch", "day-1+day-2"),
    ]
    assert list(mine.learn()) == []
    ((party, population, ending),) = mine.score("the model")
    assert (party.epoch, ending, population.question) == ("day-3", "stored", b"how good?")
    kept = held_out(rounds.config, EVENTS) & ~FIRST_HALF
    assert rows_in(population) == keys_of(kept)
    ((model, asked),) = rounds.stages.noted("ask score")
    assert model == "the model"
    assert np.array_equal(asked, kept)
    assert rounds.stages.done[-1] == ("fetch", "day-3")
    assert list(mine.score("the model")) == []  # it is here


def test_what_was_submitted_elsewhere_is_not_known_and_the_rest_is_still_compared(
    make: Make, tmp_path: Path
) -> None:
    rounds = make(0.5, 0.25, 0.25, training={"holdout": 0.25})
    for number in (1, 2):
        rounds.submit(number, "a model" if number > 1 else None)
        arrived(rounds.config.round_folder(number))
    (rounds.config.round_folder(1) / POPULATION_FILE).unlink()
    other = make(0.25, 0.25, 0.5, training={"holdout": 0.25})
    with pytest.raises(ConfigError, match=r"events of round 2 would be asked again in round 3"):
        other.submit(3, "a model")
    (rounds.config.round_folder(2) / CHECK_FILE).write_bytes(b"d" * 16)
    with pytest.raises(ConfigError, match="round 2 was hashed with another secret than"):
        rounds.submit(3, "a model")
    (rounds.config.round_folder(2) / CHECK_FILE).write_bytes(b"c" * 16)
    rounds.submit(3, "a model")
    arrived(rounds.config.round_folder(3))
    party, nobody, why = rounds.submit_next()
    assert (party.epoch, nobody.rows) == ("day-4", 0)
    assert why.startswith("too few held-out events are known to be in none of the 3 rounds, to ask")
    (population,) = (each[2] for each in rounds.stages.noted("submit") if each[0] == "day-1")
    (rounds.config.round_folder(1) / POPULATION_FILE).write_bytes(population.keys)
    assert replace(rounds).submit_next()[1].question == b"how good?"


def test_nothing_is_submitted_where_nobody_is_left_to_ask_how_good_the_model_is(make: Make) -> None:
    rounds = make(training={"holdout": 0.01})  # 4 events
    for number in (1, 2):
        rounds.submit(number, "a model" if number > 1 else None)
        arrived(rounds.config.round_folder(number))
    sent = len(rounds.stages.noted("submit"))
    for _ in range(2):  # it may be asked again
        assert rounds.submit_next()[1].rows == 0
    assert len(rounds.stages.noted("submit")) == sent
    assert rounds.stages.noted("ask score") == []


def test_a_score_is_of_no_fewer_events_than_tell_anything(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = make(training={"holdout": 0.25})
    list(rounds.learn())
    kept = int(np.count_nonzero(held_out(rounds.config, EVENTS) & ~FIRST_HALF))
    for fewest, asks in ((kept, True), (kept + 1, False)):
        monkeypatch.setattr(module, "FEWEST", fewest)
        before = len(rounds.stages.noted("ask score"))
        population = replace(rounds)._new(3, "the model")
        assert bool(population.question) == asks
        assert len(rounds.stages.noted("ask score")) - before == asks
        assert population.rows == (kept if asks else 0)


def test_a_score_that_nobody_answers_is_left_with_a_warning(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds = make(training={"holdout": 0.25})
    list(rounds.learn())
    rounds.stages.fails = ConnectionFailed("nobody there")
    assert len(list(rounds.score("the model"))) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "no sums tell how good the model is: nobody there" in said
    rounds.stages.fails = DataError("a fault of ours")
    with pytest.raises(DataError, match="a fault of ours"):
        list(rounds.score("the model"))


def test_a_score_that_was_submitted_is_sent_again_and_not_asked_anew(make: Make) -> None:
    rounds = make(training={"holdout": 0.25})
    list(rounds.learn())
    rounds.submit(3, "the model")
    asked = len(rounds.stages.noted("ask score"))
    ((_, population, _),) = rounds.score("another model")
    assert population.question == b"how good?"
    assert len(rounds.stages.noted("ask score")) == asked


def test_what_was_asked_by_a_secret_of_an_earlier_version_counts_as_ours(make: Make) -> None:
    """Its check was not kept: the present one stands for it."""
    rounds = make()
    rounds.submit(1, None)
    (rounds.config.round_folder(1) / CHECK_FILE).unlink()
    population, _ = rounds.submit(2, "a model")
    assert rows_in(population) == keys_of(~FIRST_HALF & ~held_out(rounds.config, EVENTS))


def test_a_score_that_asks_nothing_is_of_nobody(make: Make) -> None:
    rounds = make(training={"holdout": 0.25}, stages={"score": b""})
    list(rounds.learn())
    assert list(rounds.score("the model")) == []
    population, ending = rounds.submit(3, "the model")
    assert (population.rows, population.secret_check) == (0, b"c" * 16)
    assert ending.startswith("the codes of 2 rounds tell how good the model is as well")
