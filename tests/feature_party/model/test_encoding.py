"""Encodings are decided on training rows, survive JSON, and meet the unknown calmly."""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from labelveil.common.errors import ConfigError, DataError, LabelveilError
from labelveil.feature_party.export.torch_module import served_columns
from labelveil.feature_party.model.drift import DriftCounts
from labelveil.feature_party.model.encoding import MIN_OCCURRENCES, Encoder, moments
from labelveil.feature_party.schema import Stated


@pytest.fixture
def table() -> pl.DataFrame:
    rng = np.random.default_rng(0)
    n = 400
    return pl.DataFrame(
        {
            "age": rng.integers(18, 80, n),
            "income": np.exp(3 * rng.normal(size=n)),
            "gap": [None if u < 0.2 else u * u for u in rng.random(n)],
            "member": rng.random(n) < 0.5,
            "when": [datetime(2024, 1, 1 + i % 28, i % 24, 30) for i in range(n)],
            "CustomerID": rng.integers(1, 6, n).astype(float),
            "shop": ["rare" if i < MIN_OCCURRENCES - 1 else f"s{i % 3}" for i in range(n)],
            "constant": np.ones(n),
        }
    )


def test_kinds_are_inferred(table: pl.DataFrame) -> None:
    encoder = Encoder.fit(table)
    assert [(c.name, c.part) for c in encoder.numeric] == [
        ("age", "value"),
        ("income", "value"),
        ("gap", "value"),
        ("member", "value"),
        ("when", "hour"),
        ("when", "weekday"),
        ("when", "day"),
    ]
    assert [c.name for c in encoder.categorical] == ["CustomerID", "shop"]
    assert encoder.cardinalities == (6, 4)
    by_name = {c.name: c for c in encoder.numeric}
    assert by_name["income"].logarithmic
    assert not by_name["age"].logarithmic
    assert by_name["gap"].indicator
    assert encoder.inputs == 8


def test_training_rows_come_out_standardised(table: pl.DataFrame) -> None:
    numeric = Encoder.fit(table.drop("gap")).encode(table).numeric
    np.testing.assert_allclose(numeric.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(numeric.std(axis=0), 1, atol=1e-3)


@pytest.mark.parametrize("name", ["age", "income", "gap"])
def test_numbers_are_encoded_alike_in_any_unit(table: pl.DataFrame, name: str) -> None:
    """Heavy tails or none, some missing or none: degrees in C and in F teach the same model."""
    here, there = (
        frame.select(name) for frame in (table, table.with_columns(pl.col(name) * 8 + 96))
    )
    one, other = (Encoder.fit(frame).encode(frame).numeric for frame in (here, there))
    np.testing.assert_allclose(one, other, atol=1e-3)


def test_missing_values_have_an_indicator_and_the_median(table: pl.DataFrame) -> None:
    encoder = Encoder.fit(table.select("gap"))
    encoded = encoder.encode(table).numeric
    missing = table["gap"].is_null().to_numpy()
    np.testing.assert_array_equal(encoded[:, 1], missing)
    assert len(np.unique(encoded[missing, 0])) == 1
    assert abs(encoded[missing][0, 0]) < 0.5


def test_pieces_say_how_far_through_a_value_is() -> None:
    values = np.arange(101.0)
    table = pl.DataFrame({"x": values, "flag": values % 2})
    encoder = Encoder.fit(table, pieces=4)
    assert encoder.inputs == 1 + 4 + 1
    pieces = encoder.encode(table).numeric[:, 1:5] + 0.5
    np.testing.assert_allclose(pieces.sum(axis=1) * 25, values, atol=1e-4)
    np.testing.assert_allclose(pieces[60], [1, 1, 0.4, 0], atol=1e-6)


def test_a_column_of_few_values_is_cut_at_each() -> None:
    hours = np.repeat(np.arange(24.0), np.arange(1, 25))  # quantiles would merge the night's
    encoder = Encoder.fit(pl.DataFrame({"hour": hours}), pieces=4)
    pieces = encoder.encode(pl.DataFrame({"hour": np.arange(24.0)})).numeric[:, 1:] + 0.5
    np.testing.assert_allclose(pieces, np.tri(24, 23, -1), atol=1e-6)


@pytest.mark.parametrize(("common", "parted"), [(0, [(0, 1)]), (3, [(2, 3), (3, 4)])])
def test_one_piece_parts_a_number_of_many_rows_from_its_neighbours(
    common: int, parted: list[tuple[int, int]]
) -> None:
    values = np.r_[np.full(70, common), np.tile(np.arange(10), 10)].astype(float)
    spread = np.tile(np.arange(34.0), 5)
    encoder = Encoder.fit(pl.DataFrame({"x": values, "y": spread, "z": spread % 3}), pieces=1)
    assert encoder.inputs == 3 + len(parted)  # a third of the rows is not so many
    shown = pl.DataFrame({"x": np.arange(10.0), "y": np.zeros(10), "z": np.zeros(10)})
    beyond = encoder.encode(shown).numeric[:, 1 : 1 + len(parted)] + 0.5
    expected = np.stack([np.arange(10) >= above for _, above in parted], axis=1)
    np.testing.assert_allclose(beyond, expected, atol=1e-6)


def test_json_round_trip(table: pl.DataFrame) -> None:
    encoder = Encoder.fit(table, pieces=5)
    again = Encoder.from_json(json.loads(json.dumps(encoder.to_json())))
    assert again == encoder
    np.testing.assert_array_equal(again.encode(table).numeric, encoder.encode(table).numeric)


def test_rare_unseen_and_missing_categories(table: pl.DataFrame) -> None:
    encoder = Encoder.fit(table, stated=Stated(ignored=("when",)))
    column = [c.name for c in encoder.categorical].index("shop")
    assert "rare" not in encoder.categorical[column].vocabulary
    changed = table.with_columns(
        shop=pl.Series(["rare", "never seen", None] + ["s1"] * (table.height - 3))
    )
    codes = encoder.encode(changed).categories[:, column]
    assert codes[:3].tolist() == [0, 0, 0]
    assert codes[3] > 0


def test_identifiers_are_alike_from_csv_and_parquet(table: pl.DataFrame) -> None:
    encoder = Encoder.fit(table)
    whole = table.with_columns(pl.col("CustomerID").cast(pl.Int64))
    text = table.with_columns(pl.col("CustomerID").cast(pl.Int64).cast(pl.String))
    wanted = encoder.encode(table).categories
    assert wanted[:, 0].min() > 0
    np.testing.assert_array_equal(encoder.encode(whole).categories, wanted)
    np.testing.assert_array_equal(encoder.encode(text).categories, wanted)


def test_configured_kinds_win(table: pl.DataFrame) -> None:
    stated = Stated.from_settings({}, ["CustomerID"], ["age"], ["when", "shop"])
    encoder = Encoder.fit(table, stated=stated)
    assert "CustomerID" in [c.name for c in encoder.numeric]
    assert [c.name for c in encoder.categorical] == ["age"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("factor", [1, 1e-3])
def test_outliers_at_prediction_are_bounded(table: pl.DataFrame, factor: float) -> None:
    encoder = Encoder.fit(table.select(pl.col("age", "income") * factor))
    far = [1e30, -1e30, 1.7e308, -1.7e308, float("inf")]
    encoded = encoder.encode(pl.DataFrame({"age": far, "income": far})).numeric
    assert np.abs(encoded).max() <= 8


@pytest.mark.parametrize("pieces", [0, 4])
def test_a_number_that_stands_for_nothing_hides_no_other(table: pl.DataFrame, pieces: int) -> None:
    """As the largest float does: its square, and its distance from the least one, are none."""
    most = float(np.finfo(np.float64).max)
    ages = table["age"].cast(pl.Float64).to_numpy().copy()
    ages[:3] = most, -most, float("inf")
    encoder = Encoder.fit(pl.DataFrame({"age": ages}), pieces=pieces)
    encoded = encoder.encode(pl.DataFrame({"age": ages})).numeric
    assert np.isfinite(encoded).all()
    assert np.abs(encoded).max() <= 8
    order = np.argsort(ages[3:])
    assert (np.diff(encoded[3:, 0][order]) >= 0).all()
    assert np.ptp(encoded[3:, 0]) > 0.01
    seen = DriftCounts(encoder)
    seen.add(pl.DataFrame({"age": ages}))
    assert seen.columns()[0].outside == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"numeric": ["wages"]}, r"\[data\] names the column 'wages'"),
        ({"numeric": ["shop"]}, "column 'shop' is listed in .* none of its 400 cells is a number"),
        ({"numeric": ["age"], "categorical": ["age"]}, "'age' is said to be two things"),
    ],
)
def test_impossible_columns(
    table: pl.DataFrame, options: dict[str, list[str]], message: str
) -> None:
    with pytest.raises(LabelveilError, match=message) as caught:
        Encoder.fit(table, stated=Stated.from_settings({}, **options))
    assert "\n" not in str(caught.value)


def test_nothing_to_learn_from(table: pl.DataFrame) -> None:
    with pytest.raises(DataError, match="no column is left to learn from"):
        Encoder.fit(table.select("constant"))
    with pytest.raises(ConfigError, match="names the column 'x'"):
        Encoder.fit(table, stated=Stated.from_settings({}, categorical=["x"]))


def test_missing_and_wrong_columns_at_prediction(table: pl.DataFrame) -> None:
    encoder = Encoder.fit(table)
    with pytest.raises(DataError, match="the features lack the column 'age'"):
        encoder.encode(table.drop("age"))
    with pytest.raises(DataError, match=r"'age' has type Date here, and is to hold a number"):
        encoder.encode(table.with_columns(age=pl.lit(date(2024, 1, 1))))
    with pytest.raises(DataError, match=r"'when' has type Int32 here, and is to hold a date"):
        encoder.encode(table.with_columns(when=pl.lit(3)))
    # a cell that is none is missing, as it is when its column is found
    odd = encoder.encode(table.with_columns(gap=pl.lit("old")))
    gone = encoder.encode(table.with_columns(gap=pl.lit(None, dtype=pl.Float64)))
    np.testing.assert_array_equal(odd.numeric, gone.numeric)


DAYS = [date(2011, 1, 1) + timedelta(days=i) for i in range(731)]


@pytest.mark.parametrize(
    ("written", "hours"),
    [
        ("{0.day}.{0:%m.%Y}", 0),
        ("{0:%Y-%m-%d}", 0),
        ("{0:%d/%m/%Y}", 0),
        ("{0:%m/%d/%y}", 0),
        ("{0.day} {0:%b %Y}", 0),
        ("{0:%b} {0.day}, {0.year}", 0),
        ("{0:%Y-%m-%d}T07:30:00Z", 7.5),
        ("{0:%d.%m.%Y} 7:30", 7.5),
    ],
)
def test_dates_are_read_as_people_write_them(written: str, hours: float) -> None:
    texts = pl.Series("day", [written.format(day) for day in DAYS])
    encoder = Encoder.fit(pl.DataFrame({"day": texts}))
    assert [column.part for column in encoder.numeric] == ["weekday", "day", "season"]
    kept = Encoder.from_json(json.loads(json.dumps(encoder.to_json())))
    typed = pl.DataFrame({"day": pl.Series(DAYS)})
    spelled = kept.encode(pl.DataFrame({"day": texts})).numeric
    np.testing.assert_allclose(spelled, kept.encode(typed).numeric, atol=1e-6)
    (column,) = served_columns(kept)
    np.testing.assert_allclose(
        column.values(pl.DataFrame({"day": texts})), moments(typed["day"]) + 3600 * hours
    )
    unread = kept.encode(pl.DataFrame({"day": ["some day"]})).numeric
    assert np.isfinite(unread).all()


def test_a_season_takes_a_year() -> None:
    few = pl.DataFrame({"day": pl.Series(DAYS[:200])})
    assert [column.part for column in Encoder.fit(few).numeric] == ["weekday", "day"]


def test_decimal_commas_are_numbers() -> None:
    texts = [f"{1000 + i}"[0] + "." + f"{1000 + i}"[1:] + ",5" for i in range(50)]
    table = pl.DataFrame({"price": texts, "size": [f"{i}" for i in range(50)]})
    encoder = Encoder.fit(table, stated=Stated(ignored=("size",)))
    same = pl.DataFrame({"price": np.arange(50) + 1000.5})
    np.testing.assert_allclose(encoder.encode(table).numeric, encoder.encode(same).numeric)
    (column,) = served_columns(encoder)
    np.testing.assert_allclose(column.values(table), same["price"])


def test_columns_that_name_or_number_the_rows_are_left_out() -> None:
    rows = 300
    table = pl.DataFrame(
        {
            "instant": np.arange(rows) * 2 // 2 + 7,
            "token": [f"{i:x}" for i in range(rows)],
            "same": np.ones(rows),
            "amount": np.arange(rows) * 10,
        }
    )
    encoder = Encoder.fit(table)
    assert [column.name for column in encoder.numeric] == ["amount"]
    assert dict(encoder.left_out) == {
        "instant": "numbers the rows",
        "token": "names the rows",
        "same": "has one value",
    }
    assert "instant" in Encoder.fit(table, stated=Stated(numeric=("instant",))).columns
    kept = Encoder.from_json(json.loads(json.dumps(encoder.to_json())))
    assert kept == encoder


@pytest.mark.parametrize("pieces", [0, 3])
def test_a_number_that_most_rows_have_alike_is_scaled_by_all(pieces: int) -> None:
    """Of two thirds and more of zeros the quartiles are one, and so are the cuts."""
    table = pl.DataFrame(
        {
            "visits": [0.0] * 320 + [float(i) for i in range(1, 81)],
            "paid": [None, 7.5] * 200,  # it says no more than whether it is there
            "half": [i % 2 + 0.5 for i in range(400)],
        }
    )
    encoder = Encoder.fit(table, pieces=pieces)
    visits, paid, _ = encoder.numeric
    deviation = float(np.std(table["visits"].to_numpy()))
    assert (visits.middle, visits.spread) == (0.0, pytest.approx(deviation))
    assert (paid.middle, paid.scale, paid.indicator) == (7.5, 1.0, True)
    assert visits.edges == paid.edges == ()
    numeric = encoder.encode(table).numeric
    assert numeric[:, 0].mean() == pytest.approx(0, abs=1e-6)
    assert numeric[:, 0].std() == pytest.approx(1, rel=1e-5)
    assert numeric[:, 1].tolist() == [0.0] * 400
    assert numeric[:, 2].tolist() == [1.0, 0.0] * 200
