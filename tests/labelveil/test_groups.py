"""Sums over groups from asking to a model, by the functions of a notebook."""

from __future__ import annotations

import pickle
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest

import labelveil as lv
from labelveil.common.arrays import Floats
from labelveil.common.errors import ConfigError, DataError, PrivacyError
from labelveil.common.mechanisms.group_sums import NO_GROUP
from tests.statistics import repeatable_entropy

pytest.importorskip("torch")
pytest.importorskip("sklearn")
SumsModel = pytest.importorskip("labelveil.feature_party.groups.model").SumsModel

BOUNDS = {"lower": 0, "upper": 100}
NOISE = 25.0  # the labels' variance that no column explains
TRAIN = 8000


def events(rows: int = 10_000) -> tuple[pl.DataFrame, Floats]:
    """Five columns, of which two and a category explain most of the label."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(rows, 4))
    kind = rng.integers(0, 3, rows)
    mean = 40 + 12 * np.sin(1.5 * x[:, 0]) + 8 * x[:, 1] + np.array([-8, 0, 8])[kind]
    table = pl.DataFrame({f"x{i}": x[:, i] for i in range(4)})
    table = table.with_columns(pl.Series("kind", [["a", "b", "c"][k] for k in kind]))
    return table, (mean + NOISE**0.5 * rng.normal(size=rows)).clip(0, 100)


def share(model: lv.LabelDPRegressor, table: pl.DataFrame, labels: Floats) -> float:
    """What is left of a constant's squared error on the last rows."""
    rest = labels[TRAIN:]
    errors = model.predict(table[TRAIN:]) - rest
    return float(np.mean(errors**2) / np.mean((rest - labels[:TRAIN].mean()) ** 2))


def in_rounds(
    epsilon: float, ends: tuple[int, ...] = (0, 2000, 4400, TRAIN)
) -> tuple[lv.LabelDPRegressor, list[lv.PrivateSums], list[float]]:
    table, labels = events()
    model, sums, shares = lv.LabelDPRegressor(), list[lv.PrivateSums](), []
    for start, end in pairwise(ends):
        asked = (
            lv.ask_groups(table[start:end], epsilon=epsilon, model=model)
            if sums
            else lv.ask_groups(table[start:end], epsilon=epsilon, **BOUNDS)
        )
        sums.append(lv.group_sums(labels[start:end], asked, epsilon=epsilon))
        model.fit(table[:end], sums)
        shares.append(share(model, table, labels))
    return model, sums, shares


@pytest.mark.slow
def test_rounds_of_sums_teach_what_little_of_each_label_would_not() -> None:
    with repeatable_entropy():
        model, sums, shares = in_rounds(0.25)
    assert all(each.guarantee.exact_epsilon == Fraction(1, 4) for each in sums)
    # codes of 8,000 labels at this ε are worth 80 true ones: n (2/π) tanh²(ε/2)
    assert shares[-1] < 0.4
    assert shares[-1] < 0.8 * shares[0]
    # the columns that matter are found
    scales = model.model_.scales  # type: ignore[union-attr]
    assert scales[:2].min() > scales[2:4].max()
    table, _ = events()
    again = pickle.loads(pickle.dumps(model))
    assert again.predict(table[:50]).tolist() == model.predict(table[:50]).tolist()


@pytest.mark.slow
def test_what_is_asked_follows_from_the_columns_and_earlier_answers() -> None:
    table, labels = events()
    first = lv.ask_groups(table[:2000], epsilon=1, **BOUNDS)
    assert first.offsets.tolist() == [first.lattice.steps // 2]
    # nothing is clipped before anything is known
    assert 2 * first.half_widths.min() >= first.lattice.steps
    assert 2000 / 12 * 0.7 < first.half_widths.size < 2000 / 12 * 1.3
    # the same columns and seed make the same question, whatever the labels
    assert lv.ask_groups(table[:2000], epsilon=1, **BOUNDS).digest == first.digest
    with repeatable_entropy():
        model = lv.LabelDPRegressor().fit(
            table[:2000], lv.group_sums(labels[:2000], first, epsilon=1)
        )
    learned = model.model_
    assert isinstance(learned, SumsModel)
    rest = lv.ask_groups(table[2000:TRAIN], epsilon=1, model=model)
    lattice = rest.lattice
    assert lattice == first.lattice
    assert not (rest.groups == NO_GROUP).any()
    predicted = model.predict(table[2000:TRAIN])
    assert rest.levels is not None
    surveyed = rest.groups >= rest.half_widths.size - 2
    assert surveyed.sum() == 600
    offsets = lattice.points(rest.offsets[rest.levels])
    assert np.abs(offsets - predicted)[~surveyed].max() <= learned.miss / 4
    groups = rest.groups[~surveyed]
    means = np.bincount(groups, predicted[~surveyed]) / np.bincount(groups)
    assert np.mean((predicted[~surveyed] - means[groups]) ** 2) < 0.1 * predicted.var()


@pytest.mark.slow
def test_sums_that_say_nothing_are_warned_of() -> None:
    table, labels = events(600)
    asked = lv.ask_groups(table, epsilon=0.01, **BOUNDS)
    with repeatable_entropy():
        sums = lv.group_sums(labels, asked, epsilon=0.01)
    with pytest.warns(UserWarning, match="do not show that any column matters"):
        model = lv.LabelDPRegressor().fit(table, sums)
    assert np.ptp(model.predict(table)) < 50
    assert model.predict(table).min() >= 0


@pytest.mark.slow
def test_what_cannot_be_asked_or_learned_is_said() -> None:
    table, labels = events(400)
    asked = lv.ask_groups(table, epsilon=4, **BOUNDS)
    sums = lv.group_sums(labels, asked, epsilon=4)
    codes = lv.randomize_labels(labels, epsilon=4, **BOUNDS)
    model = lv.LabelDPRegressor()
    with pytest.raises(ConfigError, match="learned from no sums"):
        lv.ask_groups(table, epsilon=1, model=model)
    with pytest.raises(ConfigError, match="lower and upper are missing"):
        lv.ask_groups(table, epsilon=1)
    with pytest.raises(PrivacyError, match="epsilon=0"):
        lv.ask_groups(table, epsilon=0, **BOUNDS)
    for wrong in (True, "1", None, 10**400):
        for spend in (
            lambda epsilon: lv.ask_groups(table, epsilon=epsilon, **BOUNDS),
            lambda epsilon: lv.group_sums(labels, asked, epsilon=epsilon),
            lambda epsilon: lv.randomize_labels(labels, epsilon=epsilon, **BOUNDS),
        ):
            with pytest.raises(PrivacyError, match=r"^epsilon=[^\n]{1,22} must be a number"):
                spend(wrong)
    with pytest.raises(ConfigError, match="lower='0' must be a number"):
        lv.ask_groups(table, epsilon=1, lower="0", upper=100)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="X has no rows"):
        lv.ask_groups(table[:0], epsilon=1, **BOUNDS)
    with pytest.raises(ConfigError, match="random_state=-1"):
        lv.ask_groups(table, epsilon=1, random_state=-1, **BOUNDS)
    with pytest.raises(DataError, match="the sums and codes are about 800 events"):
        model.fit(table, [sums, codes])
    with pytest.raises(DataError, match="X has 399 rows, and the sums and codes are about 400"):
        model.fit(table[:399], sums)
    with pytest.raises(ConfigError, match="use LabelDPRegressor"):
        lv.LabelDPClassifier().fit(table, sums)
    other = lv.ask_groups(table, epsilon=4, lower=0, upper=99)
    with pytest.raises(ConfigError, match="name the same bounds"):
        model.fit(pl.concat([table, table]), [sums, lv.group_sums(labels, other, epsilon=4)])
    model.fit(table, sums)
    with pytest.raises(ConfigError, match="not their distribution"):
        model.predict_distribution(table)
    with pytest.raises(ConfigError, match="leave lower and upper out"):
        lv.ask_groups(table, epsilon=1, model=model, lower=0, upper=99)
    assert model.predict(table[:0]).size == 0
    # codes of other events say how good it is
    assert -1 < model.score(table, codes) < 2


@pytest.mark.slow
def test_sums_and_codes_are_of_the_events_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events of sums come first to whoever learns, and codes of each round are its own."""
    learned: list[tuple[pl.DataFrame, list[lv.PrivateSums], dict[str, Any]]] = []

    def fit(table: pl.DataFrame, sums: list[lv.PrivateSums], **more: Any) -> str:
        learned.append((table, sums, more))
        return "a model"

    monkeypatch.setattr(SumsModel, "fit", fit)
    table, labels = events(60)
    asked = lv.ask_groups(table[15:55], epsilon=4, **BOUNDS)
    scored = lv.ask_score(labels[15:55], table[15:55], epsilon=4, **BOUNDS)
    sums, squares = (
        lv.group_sums(labels[15:55], question, epsilon=4) for question in (asked, scored.question)
    )
    first, last = (
        lv.randomize_labels(labels[part], epsilon=4, **BOUNDS)
        for part in (slice(15), slice(55, 60))
    )
    model = lv.LabelDPRegressor(columns={"x0": "category"}, random_state=7)
    assert model.fit(table, [first, sums, last]).model_ == "a model"
    ((rows, given, more),) = learned
    assert rows.equals(pl.concat([table[15:55], table[:15], table[55:]]))
    assert (given, more["seed"]) == ([sums], 7)
    assert "x0" in str(more["stated"])
    _, codes = more["codes"]
    assert codes[:15].tolist() == first.codes.tolist()
    assert codes[15:].tolist() == (last.codes + first.channel.outputs.size).tolist()
    model.fit(table[15:55], sums)
    assert learned[1][0].equals(table[15:55])
    assert learned[1][2]["codes"] is None
    model.fit(table[:55], [first, sums])
    assert learned[2][2]["codes"][1].tolist() == first.codes.tolist()
    for refused, said in (
        (squares, "squares tell how good a model is"),
        ([first, sums, squares], "squares tell how good a model is"),
    ):
        with pytest.raises(ConfigError, match=said):
            model.fit(table, refused)
    for size in (59, 54):
        with pytest.raises(DataError, match=f"X has {size} rows, and the sums and codes are about"):
            model.fit(table[:size], [first, sums, last])
    with pytest.raises(ConfigError, match="use LabelDPRegressor"):
        lv.LabelDPClassifier().fit(table, [first, sums, last])
    with pytest.raises(ConfigError, match="learned from no sums"):
        lv.ask_groups(table, epsilon=1, model=lv.LabelDPRegressor())
    for ends, said in (
        ({"lower": 0}, "lower and upper are missing"),
        ({"lower": 0, "upper": "100"}, "upper='100' must be a number, a bound"),
    ):
        with pytest.raises(ConfigError, match=said):
            lv.ask_groups(table, epsilon=1, **ends)  # type: ignore[arg-type]


@pytest.mark.slow
def test_any_model_is_scored_on_events_that_it_has_not_seen() -> None:
    """Means of labels between the deviations that noise of a seed has: the interval holds."""
    table, labels = events(6000)
    x = table.select("x0", "x1").to_numpy()
    truth = 40 + 12 * np.sin(1.5 * x[:, 0]) + 8 * x[:, 1]
    with repeatable_entropy():
        asked = lv.ask_score(truth, table, epsilon=1, **BOUNDS)
        score = asked.score(lv.group_sums(labels, asked.question, epsilon=1))
        codes = lv.randomize_labels(labels[:3000], epsilon=4, **BOUNDS)
    true = 1 - np.mean((labels - truth) ** 2) / labels.var()
    assert score.r2.low < true < score.r2.high < score.r2.low + 0.2
    assert score.events == 6000
    # a model of codes knows its bounds, and a model is compared with another one
    model = lv.LabelDPRegressor(learner="linear").fit(table[:3000], codes)
    rest, ours = table[3000:], labels[3000:]
    with repeatable_entropy():
        asked = lv.ask_score(model, rest, epsilon=1, reference=truth[3000:])
        score = asked.score(lv.group_sums(ours, asked.question, epsilon=1))
    predicted = model.predict(rest)
    true = 1 - np.mean((ours - predicted) ** 2) / np.mean((ours - truth[3000:]) ** 2)
    assert score.r2.low < true < score.r2.high
    with pytest.raises(ConfigError, match="leave lower and upper out"):
        lv.ask_score(model, rest, epsilon=1, lower=0, upper=99)
    with pytest.raises(ConfigError, match="lower and upper are missing"):
        lv.ask_score(truth, table, epsilon=1)
    with pytest.raises(DataError, match="the reference predicts 6,000 events, and the model 3,000"):
        lv.ask_score(model, rest, epsilon=1, reference=truth)
    with pytest.raises(PrivacyError, match="epsilon=0"):
        lv.ask_score(model, rest, epsilon=0)
    sums = lv.group_sums(ours, asked.question, epsilon=1)
    with pytest.raises(ConfigError, match="squares tell how good a model is"):
        lv.LabelDPRegressor().fit(rest, sums)
