"""The estimators keep scikit-learn's conventions, and score true labels from codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import labelveil as lv
from labelveil.common.arrays import Floats
from labelveil.common.errors import ConfigError, DataError, LabelveilError
from labelveil.feature_party.learning.support import Support
from tests.effort import one_in
from tests.feature_party.worlds import build_world
from tests.statistics import repeatable_entropy

pytest.importorskip("torch")

CACHES = "a channel keeps what it has computed"
NO_CODES = "its labels are no codes of the channel"
EXPECTED = {
    "LabelDPClassifier": {
        "check_estimators_overwrite_params": CACHES,
        "check_dtype_object": NO_CODES,
        "check_classifiers_classes": NO_CODES,
        "check_classifiers_train": "codes name classes, and are not the classes that it compares",
        "check_classifiers_regression_target": NO_CODES,
        "check_fit2d_1sample": "one row has only constant columns, which is said in a line",
    },
    "LabelDPRegressor": {
        "check_estimators_overwrite_params": CACHES,
        "check_fit2d_1sample": "one row has only constant columns, which is said in a line",
        **dict.fromkeys(
            (
                "check_n_features_in_after_fitting",
                "check_dtype_object",
                "check_regressors_train",
                "check_regressor_data_not_an_array",
                "check_regressors_no_decision_function",
                "check_fit_idempotent",
                "check_fit_check_is_fitted",
                "check_n_features_in",
            ),
            NO_CODES,
        ),
    },
}


def response(labels: int) -> Any:
    return lv.build_randomizer(
        "randomized-response", labels=np.arange(labels), prior=np.ones(labels), epsilon=8.0
    )


class _AnyNumbers:
    """Takes whole numbers of any type for codes, as scikit-learn's checks make them."""

    def _facts(self, codes: Any, channel: Any) -> Any:
        found = np.asarray(codes)
        if found.dtype.kind in "iufb" and np.all((found % 1 == 0) & (found >= 0)):
            codes = found.astype(np.uint16)
        return super()._facts(codes, channel)  # type: ignore[misc]


class Classifier(_AnyNumbers, lv.LabelDPClassifier):  # type: ignore[misc]
    pass


class Regressor(_AnyNumbers, lv.LabelDPRegressor):  # type: ignore[misc]
    pass


@pytest.mark.slow
@parametrize_with_checks(
    [
        Classifier(response(3), learner="linear", ensemble=2),
        Regressor(response(16), learner="linear", head="gaussian", ensemble=2),
    ],
    expected_failed_checks=lambda estimator: EXPECTED[f"LabelDP{type(estimator).__name__}"],
)
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def data() -> tuple[pl.DataFrame, Floats, lv.PrivateLabels]:
    rng = np.random.default_rng(0)
    rows = 2000
    table = pl.DataFrame({"x": rng.normal(size=rows), "shop": rng.choice(["a", "b", "c"], rows)})
    above = table["x"].to_numpy() + 2 * (table["shop"] == "b").to_numpy()
    labels = np.rint(5 + above + rng.normal(size=rows) / 2).clip(0, 10)
    with repeatable_entropy():
        return table, labels, lv.randomize_labels(labels, lower=0, upper=10, epsilon=4.0)


Data = tuple[pl.DataFrame, Floats, lv.PrivateLabels]


@pytest.mark.slow
def test_any_table_gives_the_same_model(data: Data) -> None:
    table, labels, private = data
    model = lv.LabelDPRegressor(learner="linear", head="gaussian")
    first = model.fit(table, private).predict(table)
    assert model.feature_names_in_.tolist() == ["x", "shop"]
    for same in (table.to_pandas(), table.to_pandas().astype({"shop": "category"})):
        np.testing.assert_allclose(model.fit(same, private).predict(same), first, atol=1e-4)
    by_parts = clone(model).fit(table, private.codes, channel=private)
    np.testing.assert_array_equal(by_parts.predict(table), first)
    law = model.predict_distribution(table)
    np.testing.assert_allclose(law @ model.labels_, first, rtol=1e-6)
    assert 1 - np.mean((first - labels) ** 2) / labels.var() > 0.6


@pytest.mark.slow
def test_scores_come_from_codes(data: Data) -> None:
    table, labels, private = data
    x = table.select("x", b=(pl.col("shop") == "b").cast(pl.Float64)).to_numpy()
    model = make_pipeline(
        StandardScaler(), lv.LabelDPRegressor(private, learner="linear", head="gaussian")
    )
    scores = cross_val_score(model, x, private.codes, cv=4)
    true = 1 - np.mean((model.fit(x, private.codes).predict(x) - labels) ** 2) / labels.var()
    assert abs(scores.mean() - true) < 0.15
    nothing = cross_val_score(model, x[::-1], private.codes, cv=4)
    assert nothing.mean() < 0.1
    with pytest.raises(DataError, match=r"lv\.LabelDPRegressor\(private\)"):
        cross_val_score(lv.LabelDPRegressor(), x, private, cv=4)


def test_classes_have_probabilities_and_an_accuracy(repeatable: None) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(6000, 2))
    labels = np.argmax(np.c_[np.zeros(6000), 2 * x] + rng.gumbel(size=(6000, 3)), axis=1)
    private = lv.randomize_labels(labels, lower=0, upper=2, epsilon=2.0, values=[0, 1, 2])
    model = lv.LabelDPClassifier(learner="linear").fit(x[:4000], private.codes[:4000], private)
    assert model.classes_.tolist() == [0, 1, 2]
    np.testing.assert_allclose(model.predict_proba(x).sum(axis=1), 1, rtol=1e-6)
    true = np.mean(model.predict(x[4000:]) == labels[4000:])
    assert true > 0.6
    assert abs(model.score(x[4000:], private.codes[4000:]) - true) < 0.12


def test_what_cannot_be_is_said(tmp_path: Any) -> None:
    x, codes = np.zeros((3, 1)), np.array([0, 1, 0], dtype=np.uint16)
    with pytest.raises(ConfigError, match=r"codes alone say nothing .* give channel"):
        lv.LabelDPRegressor().fit(x, codes)
    private = lv.randomize_labels(np.arange(100) % 10, lower=0, upper=9, epsilon=1.0)
    with pytest.raises(ConfigError, match="10 labels from 0 to 9 are places on a range"):
        lv.LabelDPClassifier().fit(np.arange(100.0)[:, None], private)
    release = lv.read_release(build_world(tmp_path, rows=50).directory)
    with pytest.raises(ConfigError, match="rows are in the order of its keys"):
        lv.LabelDPRegressor().fit(pd.DataFrame({"x": range(50)}), release)
    with pytest.raises(DataError, match=r"y has type .* and codes have uint16"):
        lv.LabelDPRegressor().fit(x, [0, 1, 0], channel=private)


@pytest.mark.slow
@pytest.mark.parametrize(
    "true",
    one_in(
        3,
        [
            np.arange(40) / 4,
            np.arange(40) % 10,
            [0, 1] * 20,
            pd.Series(range(40)),
            pl.Series([3] * 40),
        ],
    ),
)
def test_true_labels_are_not_taken_for_codes(true: Any) -> None:
    x = pd.DataFrame({"x": np.arange(40.0)})
    private = lv.randomize_labels(np.arange(40) % 10, lower=0, upper=9, epsilon=1.0)
    model = lv.LabelDPRegressor(private, learner="linear", head="gaussian")
    for use in (model.fit, lv.LabelDPRegressor().fit, model.fit(x, private.codes).score):
        with pytest.raises(DataError, match=r"and codes have uint16: .* never true labels"):
            use(x, true)


@pytest.mark.parametrize(
    ("codes", "said"),
    [
        ([0] * 39 + [60_000], r"code 60000 must lie in 0 … "),
        ([], "there are no codes to learn from"),
    ],
)
def test_codes_of_a_channel_alone_are_checked(codes: list[int], said: str) -> None:
    private = lv.randomize_labels(np.arange(40) % 10, lower=0, upper=9, epsilon=1.0)
    x = pd.DataFrame({"x": np.arange(float(len(codes)))})
    with pytest.raises(DataError, match=said):
        lv.LabelDPRegressor(private.channel).fit(x, np.array(codes, dtype=np.uint16))


FAST: dict[str, Any] = {"learner": "linear", "head": "gaussian", "ensemble": 1}


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["lazy", "to_arrow"])
def test_a_lazy_table_is_a_table(data: Data, kind: str) -> None:
    table, _, private = data
    other = getattr(table, kind)()
    model = lv.LabelDPRegressor(**FAST).fit(other, private)
    np.testing.assert_array_equal(model.predict(other), model.predict(table))


def test_a_release_without_keys_is_in_the_order_of_its_population(tmp_path: Any) -> None:
    world = build_world(tmp_path, rows=400, keyed=False)
    table = pl.read_parquet(world.features).drop("event")
    release = lv.read_release(world.directory)
    model = lv.LabelDPRegressor(**FAST).fit(table, release)
    by_parts = lv.LabelDPRegressor(release, **FAST).fit(table, np.array([*world.codes], np.uint16))
    np.testing.assert_array_equal(model.predict(table), by_parts.predict(table))
    truth = pl.read_parquet(world.truth)["amount"].to_numpy()
    assert np.corrcoef(model.predict(table), truth)[0, 1] > 0.5


@pytest.mark.slow
def test_a_channel_that_is_given_stands_above_the_codes_own(data: Data) -> None:
    table, labels, private = data
    wide = lv.build_randomizer(
        "randomized-response", labels=np.arange(40.0), prior=np.ones(40), epsilon=4.0
    )
    assert lv.LabelDPRegressor(**FAST).fit(table, private).labels_.max() == 10
    for model in (
        lv.LabelDPRegressor(**FAST).fit(table, private, wide),
        lv.LabelDPRegressor(wide, **FAST).fit(table, private),
    ):
        assert model.labels_.max() == 39
    assert lv.LabelDPRegressor(wide, **FAST).fit(table, private, private).labels_.max() == 10
    # clear labels are of no channel
    clear = lv.clear_labels(labels, private)
    assert lv.LabelDPRegressor(wide, **FAST).fit(table, clear).labels_.max() == 10


def test_classes_are_whole_where_labels_are() -> None:
    x = np.repeat([[0.0], [1.0]], 200, axis=0)
    for values, kind in (([0, 2], np.int64), ([0, 0.5], np.float64)):
        labels = np.where(x[:, 0] > 0.5, values[1], values[0])
        private = lv.randomize_labels(labels, lower=0, upper=2, epsilon=8.0, values=values)
        model = lv.LabelDPClassifier(learner="linear", ensemble=1).fit(x, private)
        assert (model.classes_.tolist(), model.classes_.dtype) == (values, kind)
        assert np.mean(model.predict(x) == labels) > 0.95


def test_an_impossible_score_is_explained(data: Data) -> None:
    table, _, private = data
    model = lv.LabelDPRegressor(learner="linear", head="gaussian").fit(table, private)
    with pytest.warns(UserWarning, match=r"R² is estimated as .* 2 codes; score more") as said:
        scores = [model.score(table[i : i + 2], private.codes[i : i + 2]) for i in range(0, 60, 2)]
    above = [f"{score:.2f}" for score in scores if score > 1]
    assert [str(one.message).split()[4] for one in said] == above
    best = int(np.argmax(scores))
    pair = range(2 * best, 2 * best + 2)
    one = max(pair, key=lambda i: model.score(table[i : i + 1], private.codes[i : i + 1]))
    with pytest.warns(UserWarning, match=r"R² is estimated as .* ± inf, .* 1 codes"):
        model.score(table[one : one + 1], private.codes[one : one + 1])


def test_mistakes_are_one_line_in_the_words_of_python(data: Data) -> None:
    table, _, private = data
    last = table.columns[-1]
    twice = pd.concat([table.to_pandas(), table.to_pandas()[[last]]], axis=1)
    for options, x, said in (
        ({"learner": "lightgbm"}, table, "^learner='lightgbm' must be"),
        ({"epochs": "many"}, table, "^epochs='many' must be"),
        ({}, twice, f"X has 2 columns of the name {last!r}"),
    ):
        with pytest.raises(LabelveilError, match=said) as caught:
            lv.LabelDPRegressor(**options).fit(x, private)
        assert "\n" not in str(caught.value)
    assert repr(private) == "<2,000 labels, randomized: ε = 4 (replace-label, per record)>"
    fitted = lv.LabelDPRegressor(learner="linear", head="gaussian").fit(table, private)
    assert repr(fitted.model_) == "<Model: linear-gaussian; 2 features, 2,000 events>"


@pytest.mark.slow
@pytest.mark.parametrize(
    "codes",
    one_in(
        3,
        [
            lambda codes: pd.Series(codes, dtype="UInt16"),
            lambda codes: pd.Series(codes, dtype="uint16[pyarrow]"),
            lambda codes: pd.array(codes, dtype="UInt16"),
            lambda codes: pl.Series(codes),
            lambda codes: pa.chunked_array([codes[:500], codes[500:]]),
            lambda codes: np.ma.array(codes, mask=False),
        ],
    ),
)
def test_codes_of_any_type_are_codes(data: Data, codes: Any) -> None:
    table, _, private = data
    model = lv.LabelDPRegressor(private, learner="linear", head="gaussian", ensemble=2)
    wanted = model.fit(table, private.codes).predict(table)
    np.testing.assert_array_equal(
        clone(model).fit(table, codes(private.codes)).predict(table), wanted
    )


@pytest.mark.parametrize(
    "codes",
    [
        lambda codes: pd.Series(codes, dtype="UInt16").where(codes != codes[0]),
        lambda codes: pl.Series(codes).replace(codes[0], None),
        lambda codes: np.ma.array(codes, mask=codes == codes[0]),
    ],
)
def test_missing_codes_are_refused(data: Data, codes: Any) -> None:
    table, _, private = data
    with pytest.raises(ValueError, match="contains NaN"):
        lv.LabelDPRegressor(private, learner="linear").fit(table, codes(private.codes))


def test_what_a_mask_hides_of_features_is_missing(data: Data) -> None:
    _, _, private = data
    x = np.random.default_rng(0).normal(size=(2000, 2))
    hidden = np.ma.array(np.where(x > 1, 1e6, x), mask=x > 1)
    model = lv.LabelDPRegressor(private, learner="linear", head="gaussian", ensemble=2)
    wanted = model.fit(np.where(x > 1, np.nan, x), private.codes).predict(x)
    np.testing.assert_array_equal(model.fit(hidden, private.codes).predict(x), wanted)


@pytest.mark.slow
def test_random_state_may_be_none_or_a_generator(data: Data) -> None:
    table, _, private = data
    fast = {"learner": "linear", "head": "gaussian", "ensemble": 2}
    drawn = np.random.RandomState(3).randint(1 << 31)
    wanted = lv.LabelDPRegressor(private, **fast, random_state=drawn)
    given = lv.LabelDPRegressor(private, **fast, random_state=np.random.RandomState(3))
    first = given.fit(table, private.codes).predict(table)
    np.testing.assert_array_equal(first, wanted.fit(table, private.codes).predict(table))
    assert not np.array_equal(first, given.fit(table, private.codes).predict(table))
    anything = clone(wanted).set_params(random_state=None)
    assert anything.fit(table, private.codes).predict(table).shape == first.shape
    assert anything.random_state is None
    with pytest.raises(ConfigError, match="random_state=-1 must be a whole number >= 0"):
        clone(wanted).set_params(random_state=-1).fit(table, private.codes)


DAYS = pd.Series(pd.date_range("2026-01-01", periods=10))


@pytest.mark.parametrize(
    ("labels", "options", "said"),
    [
        (np.zeros(9), {"epsilon": "1,0"}, "epsilon='1,0' must be a number"),
        (np.zeros(9), {"lower": "0"}, "lower='0' must be a number"),
        (np.zeros((9, 2)), {}, r"labels of shape \(9, 2\) must be one column"),
        ([], {}, r"labels of shape \(0,\) must be one column of at least one"),
        (DAYS, {}, "are times; make numbers of them"),
        (["a"] * 9, {}, "must be numbers"),
        (np.zeros(9) + 1j, {}, "labels of type complex128 must be numbers"),
        (
            np.full(9, np.nan),
            {},
            "9 of 9 are missing or infinite, the first in row 1; fill them in",
        ),
        ([0, np.inf, 2, -np.inf], {}, "2 of 4 are missing or infinite, the first in row 2"),
        (np.ma.array([1, 2, 3], mask=[0, 0, 1]), {}, "1 of 3 are missing .* in row 3"),
        (np.ma.array(["1", "2"], mask=[0, 1]), {}, "1 of 2 are missing .* in row 2"),
        (pd.Series([1, None, 3], dtype="Int64"), {}, "1 of 3 are missing .* in row 2"),
        (pd.Series([1, None], dtype="float[pyarrow]"), {}, "1 of 2 are missing .* in row 2"),
        (pd.array([True, None], dtype="boolean"), {}, "1 of 2 are missing .* in row 2"),
        (pd.Series([1, pd.NA, 3], dtype=object), {}, "1 of 3 are missing .* in row 2"),
        (pl.Series([None, 1]), {}, "1 of 2 are missing .* in row 1"),
        ([10**400], {}, "labels of type object must be numbers"),
        (np.zeros(9), {"upper": 1e300}, "must be at most .*; rescale labels"),
        (np.zeros(9), {"upper": 10**400}, "must be at most 1e.100; rescale labels"),
        (np.zeros(9), {"upper": 1e-300}, "must be at least .* apart; rescale labels"),
    ],
)
def test_labels_that_cannot_be_randomized(labels: Any, options: Any, said: str) -> None:
    with pytest.raises(LabelveilError, match=said):
        lv.randomize_labels(labels, **{"lower": 0, "upper": 9, "epsilon": 1.0, **options})
    if not options:
        coin = lv.build_randomizer("two-point", labels=[0, 9], prior=[1, 1], epsilon=1)
        if np.ndim(labels) == 1 and len(labels):
            with pytest.raises(LabelveilError, match=said):
                coin.randomize(labels, lv.seeded_entropy(0))
        with pytest.raises(LabelveilError):
            lv.randomize_events({"y": labels}, {"y": (0, 9)}, epsilon=1.0)
    with pytest.raises(DataError, match="there is no label 'z'"):
        lv.randomize_events({"y": np.zeros(9)}, {"z": (0, 9)}, epsilon=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("number", [np.float16, np.float32, np.float64, np.int64])
def test_numbers_of_any_type_are_numbers(number: Any) -> None:
    """As a value that was taken out of an array is."""
    private = lv.randomize_labels(
        np.arange(60) % 10, lower=number(0), upper=number(9), epsilon=number(2)
    )
    assert private.guarantee == lv.PureDP.of(private.guarantee.exact_epsilon)
    assert 1 < private.guarantee.epsilon <= 2
    assert lv.PureDP.of(number(2)) == lv.PureDP.of(2)
    curve = lv.ZeroConcentratedDP.of(number(1))
    assert lv.epsilon_at(curve, 0.25) == lv.epsilon_at(curve, np.float32(0.25))
    prior = lv.private_prior([3, 4], number(1), lv.seeded_entropy(0))
    assert prior.exact_epsilon == 1


@pytest.mark.slow
@pytest.mark.parametrize("division", one_in(2, ["split", "joint"]))
def test_each_label_of_an_event_gets_a_model(division: str) -> None:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(1500, 2))
    amount = np.clip(5 + 2 * x[:, 0] + rng.normal(size=1500), 0, 10)
    table = {"returned": rng.random(1500) < 1 / (1 + np.exp(-2 * x[:, 1])), "amount": amount}
    bounds = {"returned": (0, 1), "amount": (0, 10)}
    with repeatable_entropy():
        private = lv.randomize_events(table, bounds, epsilon=6.0, division=division)
    assert private.names == ("returned", "amount")
    assert private.guarantee.epsilon <= 6
    with pytest.raises(ConfigError, match="label='kept' must be one of returned, amount"):
        private["kept"]
    chosen = {"learner": "linear", "head": "auto"}
    bought = lv.LabelDPClassifier(**chosen).fit(x, private["returned"])
    assert bought.classes_.tolist() == [0, 1]
    assert np.corrcoef(bought.predict_proba(x)[:, 1], x[:, 1])[0, 1] > 0.9
    paid = lv.LabelDPRegressor(**chosen).fit(x, private["amount"])
    assert np.corrcoef(paid.predict(x), x[:, 0])[0, 1] > 0.9
    decoded = lv.decoded_labels(private["amount"]).targets
    assert abs(decoded.mean() - amount.mean()) < 1


@pytest.mark.slow
def test_what_columns_mean_can_be_said() -> None:
    rng = np.random.default_rng(0)
    amount = rng.integers(1, 9, 400)
    table = pl.DataFrame({"amount": [f"{each},500" for each in amount], "x": rng.random(400)})
    private = lv.randomize_labels(amount.astype(float), lower=0, upper=10, epsilon=8)
    fast: dict[str, Any] = {"learner": "linear", "ensemble": 1}
    with pytest.raises(DataError, match="'amount' can be read in two ways"):
        lv.LabelDPRegressor(private, **fast).fit(table, private.codes)
    said = lv.LabelDPRegressor(private, columns={"amount": "number 1,234.5"}, **fast)
    model = said.fit(table, private.codes).model_
    assert str(model.encoder.schema["amount"]) == "number 1,234.5"
    texts = table.with_columns(amount=pl.lit("many"))
    with pytest.raises(
        DataError, match=r"^column 'amount' holds no number [^\n]* any of 400 cells"
    ):
        said.predict(texts)
    assert said.predict(pl.concat([texts, table.head(1)])).shape == (401,)
    wrong = lv.LabelDPRegressor(private, columns={"amount": "numbers"}, **fast)
    with pytest.raises(ConfigError, match=r"amount='numbers' must be number"):
        wrong.fit(table, private.codes)


def test_rounds_count_by_their_codes() -> None:
    sizes, rng = (300, 900), np.random.default_rng(0)
    table = pl.DataFrame({"x": rng.normal(size=sum(sizes))})
    rounds = [
        lv.randomize_labels(rng.integers(0, 5, size), lower=0, upper=4, epsilon=8.0)
        for size in sizes
    ]
    model = lv.LabelDPRegressor(learner="linear", head="gaussian").fit(table, rounds)
    shares = Support.from_problem(model.model_.problem).shares
    assert shares.tolist() == pytest.approx([0.25, 0.75])
