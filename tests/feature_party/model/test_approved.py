"""How rows become inputs, distributions become columns, and what is told of both."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from labelveil.common.errors import DataError
from labelveil.common.exact.channel import FiniteChannel, randomized_response_rows
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.learning.support import Support
from labelveil.feature_party.model.columns import columns, quantile
from labelveil.feature_party.model.drift import ColumnDrift, DriftCounts
from labelveil.feature_party.model.encoding import ColumnShares, Encoder
from labelveil.feature_party.model.model import _same_folds
from labelveil.feature_party.model.network import Dropout, Ensemble, NetworkShape
from labelveil.feature_party.model.prediction import predict_file
from labelveil.feature_party.model.reach import Reach
from labelveil.feature_party.model.several_labels import LabelModels, label_files, label_folders
from labelveil.feature_party.model.trees import TreesShape
from labelveil.feature_party.schema import Stated
from labelveil.feature_party.threads import threads_for
from tests.approved import approved

torch = pytest.importorskip("torch")

KEPT = Path(__file__).with_name("approved.json")
ROWS = 120


def table() -> pl.DataFrame:
    rng = np.random.default_rng(0)
    days = [date(2024, 1, 1) + timedelta(days=5 * i) for i in range(ROWS)]
    return pl.DataFrame(
        {
            "plain": rng.normal(5, 2, ROWS),
            "tail": np.exp(2.5 * rng.normal(size=ROWS)),
            "gaps": [None if i % 7 == 0 else float(i % 13) for i in range(ROWS)],
            "often": [0.0 if i % 2 else 1.0 + i for i in range(ROWS)],
            "day": days,
            "moment": [datetime(2025, 1, 1) + timedelta(minutes=197 * i) for i in range(ROWS)],
            "flag": [i % 3 == 0 for i in range(ROWS)],
            "kind": [("a", "b", "c", "rare")[min(i % 30, 3)] for i in range(ROWS)],
            "row": list(range(ROWS)),
            "same": ["x"] * ROWS,
            "name": [f"n{i}" for i in range(ROWS)],
        }
    )


@pytest.mark.parametrize("pieces", [0, 1, 4])
def test_rows_are_encoded_as_approved(pieces: int) -> None:
    rows = table()
    encoder = Encoder.fit(rows, pieces=pieces)
    found = encoder.encode(rows)
    assert dict(encoder.left_out) == {
        "row": "numbers the rows", "same": "has one value", "name": "names the rows",
    }  # fmt: skip
    assert encoder.inputs == found.numeric.shape[1] == sum(c.inputs for c in encoder.numeric)
    assert encoder.cardinalities == (1 + len(encoder.categorical[0].vocabulary),)
    again = Encoder.from_json(encoder.to_json()).encode(rows)
    np.testing.assert_array_equal(again.numeric, found.numeric)
    odd = rows.head(3).with_columns(
        plain=pl.Series([None, 1e12, -1e12]), kind=pl.Series(["new", None, "a"]),
        tail=pl.Series([0.0, -5.0, float("nan")]), day=pl.lit(None, pl.Date),
    )  # fmt: skip
    far = encoder.encode(odd)
    plain = encoder.inputs_of("plain")[0][0]
    assert far.numeric[1:, plain].tolist() == [8.0, -8.0]
    assert far.categories[:2, 0].tolist() == [0, 0]
    mean, deviation = rows["plain"].mean(), rows["plain"].std(ddof=0)
    middle = (np.median(rows["plain"]) - mean) / deviation
    assert far.numeric[0, plain] == pytest.approx(middle, abs=1e-5)
    np.testing.assert_allclose(
        found.numeric[:, plain], (rows["plain"].to_numpy() - mean) / deviation, rtol=1e-4, atol=1e-6
    )
    approved(KEPT, f"encoded {pieces}", {
        "numeric": encoder.numeric, "categorical": encoder.categorical, "shares": encoder.shares,
        "columns": list(encoder.columns), "plain": list(encoder.plain_inputs),
        "encoded": found.numeric, "categories": found.categories.astype(np.int64),
        "far": far.numeric,
        "inputs of": {name: encoder.inputs_of(name) for name in encoder.columns},
    })  # fmt: skip


def test_what_cannot_be_encoded_is_named() -> None:
    rows = table()
    encoder = Encoder.fit(rows)
    with pytest.raises(DataError, match="the features lack the columns 'plain', 'kind', which the"):
        encoder.encode(rows.drop("plain", "kind"))
    with pytest.raises(DataError, match="lack the column 'plain', which the model was"):
        encoder.check([name for name in rows.columns if name != "plain"])
    with pytest.raises(DataError, match="no column is left to learn from: all are keys, "):
        Encoder.fit(rows.select("row", "same", "name"))
    kept = Encoder.fit(
        rows.select("row", "plain"), stated=Stated.from_settings({}, numeric=["row"])
    )
    assert kept.columns == ("row", "plain")
    ignored = Encoder.fit(rows, stated=Stated.from_settings({}, ignored=["plain"]))
    assert "plain" not in ignored.columns
    assert encoder.unknown().to_dicts() == [dict.fromkeys(encoder.columns)]


@pytest.mark.parametrize(("count", "kept"), [(4, False), (5, True)])
def test_values_are_known_that_occur_five_times(count: int, kept: bool) -> None:
    texts = ["a"] * 20 + ["b"] * count
    encoder = Encoder.fit(pl.DataFrame({"c": texts}))
    assert encoder.categorical[0].vocabulary == (("a", "b") if kept else ("a",))
    (share,) = encoder.shares
    assert share == ColumnShares("c", 0.0, 0.0, 0.0 if kept else count / (20 + count))
    more = pl.DataFrame({"value": ["z", "a", "y"], "count": [9, 9, 4]})
    assert encoder.with_counts({"c": more}).categorical[0].vocabulary == ("a", "z")


@pytest.mark.parametrize(("values", "edges"), [(32, 32), (33, 5)])
def test_few_values_are_cut_at_each(values: int, edges: int) -> None:
    cells = np.repeat(np.arange(float(values)), 4)
    (column,) = Encoder.fit(pl.DataFrame({"x": cells}), pieces=4).numeric
    assert len(column.edges) == edges
    assert column.inputs == edges


@pytest.mark.parametrize(("often", "cut"), [(40, True), (39, False)])
def test_a_value_of_two_fifths_is_parted_from_the_next(often: int, cut: bool) -> None:
    cells = [50.5] * often + [float(i) for i in range(100 - often)]
    (column,) = Encoder.fit(pl.DataFrame({"x": cells}), pieces=1).numeric
    assert len(column.edges) == (3 if cut else 0)
    if cut:
        scaled = [(each - column.centre) / column.scale for each in (50.0, 50.5, 51.0)]
        assert column.edges == pytest.approx(scaled)


def test_a_column_differs_where_shares_differ_by_more_than_a_fifth() -> None:
    def drift(**changes: Any) -> ColumnDrift:
        same = {"missing": (0.1, 0.1), "odd": (0.0, 0.0), "unknown": (0.0, 0.0), "outside": 0.0}
        return ColumnDrift("x", "number", **(same | changes))

    assert not drift(missing=(0.125, 0.325)).matters
    assert not drift(missing=(0.9, 0.1)).matters
    sentences = {
        "missing": ((0.1, 0.31), "31% of the rows have no 'x' (10% in training)"),
        "odd": ((0.0, 0.21), "21% of the rows have a 'x' that is no number, and are predicted as if"
                             " it was missing (0% in training)"),
        "unknown": ((0.1, 0.4), "40% of the rows have a 'x' that the model does not know, and are"
                                " predicted without it (10% in training)"),
        "outside": (0.25, "25% of the rows have a 'x' outside the range that the model was trained"
                          " on (0% in training)"),
    }  # fmt: skip
    for name, (value, said) in sentences.items():
        found = drift(**{name: value})
        assert found.sentences == [said]
        assert found.matters
    assert drift(missing=(0.1, 0.4), outside=0.3).to_json() == {
        "column": "x", "meaning": "number", "missing": {"training": 0.1, "now": 0.4},
        "odd": {"training": 0.0, "now": 0.0}, "unknown": {"training": 0.0, "now": 0.0},
        "outside": 0.3, "matters": True,
    }  # fmt: skip


def test_rows_are_counted_over_batches() -> None:
    text = {"x": [str(i) for i in range(20)] * 5, "c": ["a", "b"] * 50}
    encoder = Encoder.fit(pl.DataFrame(text), stated=Stated.from_settings({"x": "number"}))
    counts = DriftCounts(encoder)
    counts.add(pl.DataFrame({"x": ["1", "", "q", "0"], "c": ["a", "z", "", "b"]}))
    counts.add(pl.DataFrame({"x": ["-1", "19", "20", "r"], "c": ["z", "a", "a", "a"]}))
    x, c = counts.columns()
    assert (x.missing, x.odd, x.outside) == ((0.0, 1 / 8), (0.0, 2 / 8), 2 / 8)
    assert (c.missing, c.unknown, c.outside) == ((0.0, 1 / 8), (0.0, 2 / 8), 0.0)
    counts.check()
    strange = DriftCounts(encoder)
    strange.add(pl.DataFrame({"x": ["", ""], "c": ["a", "b"]}))
    strange.add(pl.DataFrame({"x": ["", "q", "r"], "c": ["a", "b", "b"]}))
    with pytest.raises(DataError) as caught:
        strange.check()
    assert str(caught.value) == (
        "column 'x' holds no number in any of 2 cells, the first in row 4, and did when the model"
        " was trained; correct it, or train again"
    )


def problem(count: int) -> LabelProblem:
    grid = np.arange(float(count))
    channel = FiniteChannel(grid, grid + 0.25, randomized_response_rows(count, 2.0))
    prior = np.ones(count)
    prior[0] = 0.5 * count
    return LabelProblem.from_channel(channel, prior)


def test_columns_are_what_distributions_say() -> None:
    given = problem(12)
    support = Support.from_problem(given)
    laws = np.random.default_rng(1).dirichlet(np.ones(12), 5)
    found = columns(given, support, laws, 0.8, [0.25], [0.0, 3.0, 10.5])
    below = np.cumsum(laws, axis=1)

    def at(share: float) -> list[float]:
        return [float(np.argmax(row >= share - 1e-9)) for row in below]

    assert list(found) == [
        "mean", "median", "lower", "upper", "equal_0", "quantile_0.25", "above_0", "above_3",
        "above_10.5",
    ]  # fmt: skip
    np.testing.assert_allclose(found["mean"], laws @ np.arange(12))
    for name, share in (("median", 0.5), ("lower", 0.1), ("upper", 0.9), ("quantile_0.25", 0.25)):
        assert found[name].tolist() == at(share)
    np.testing.assert_allclose(found["equal_0"], laws[:, 0])
    np.testing.assert_allclose(found["above_0"], 1 - laws[:, 0])
    np.testing.assert_allclose(found["above_3"], laws[:, 4:].sum(axis=1))
    np.testing.assert_allclose(found["above_10.5"], laws[:, 11])
    assert quantile(support, np.array([[0.5, 0.5, *[0.0] * 10]]), 1.0)[0] == 1
    assert quantile(support, np.array([[0.5, 0.5 - 1e-12, *[0.0] * 10]]), 1.0)[0] == 1
    for wrong in (-0.1, 11.0):
        with pytest.raises(
            DataError, match=rf"above={wrong:g} must be a label in 0 … 11, the last"
        ):
            columns(given, support, laws, above=[wrong])
    two = problem(2)
    probability = columns(two, Support.from_problem(two), np.array([[0.3, 0.7]]), 0.8)
    assert {name: each.tolist() for name, each in probability.items()} == {"probability": [0.7]}


def test_means_reach_no_further_above_trees_than_is_believed() -> None:
    given = problem(12)
    support = Support.from_problem(given)
    levels, shares = np.array([2.0, 6.0]), np.array([0.2, 1.0])
    reach = Reach(support, 3.0, levels, shares)
    mean = float(support.prior @ support.values)
    deviation = float(support.prior @ (support.values - mean) ** 2) ** 0.5
    laws, trees = np.random.default_rng(2).dirichlet(np.ones(12) * 0.3, (2, 40))
    limited = reach(torch.as_tensor(laws), torch.as_tensor(trees)).numpy()
    for law, of_trees, found in zip(laws, trees, limited, strict=True):
        ours, theirs = law @ support.values, of_trees @ support.values
        believed = mean + 3 * max(theirs - mean, 0) + deviation / 2
        taken = np.interp(ours, levels, shares)
        wanted = ours - max(ours - believed, 0) * taken
        assert found @ support.values == pytest.approx(wanted)
        assert found.sum() == pytest.approx(1)
    again = Reach.from_json(support, reach.to_json())
    assert again.to_json() == {"times": 3.0, "levels": [2.0, 6.0], "shares": [0.2, 1.0]}
    good = reach.to_json()
    for wrong, said in (
        ({"levels": [6.0, 2.0]}, "do not ascend"), ({"levels": [2.0]}, "1 levels do not ascend"),
        ({"levels": [], "shares": []}, "0 levels"), ({"shares": [0.2, 1.1]}, "shares up to 1.1"),
        ({"shares": [-0.1, 0.5]}, "shares up to 0.5"), ({"times": 0.99}, "a mean 0.99 times"),
        ({"times": float("inf")}, "a mean inf times"), ({"levels": [2.0, float("nan")]}, "ascend"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            Reach.from_json(support, good | wrong)
    rng = np.random.default_rng(3)
    means = np.append(rng.gamma(2.0, 1.5, 400), [40.0, 60.0])
    of_trees = np.append(0.8 * means[:400] + 0.6, [6.0, 6.5])
    made = Reach.from_means(support, means, of_trees, 50.0)
    assert made is not None
    assert Reach.from_means(support, means, means, 50.0) is None
    assert Reach.from_means(support, means, np.zeros(402), 50.0) is None
    approved(KEPT, "reach", {**made.to_json(), "mean": made.mean, "slack": made.slack})


def test_folds_of_fewer_members_are_those_of_more() -> None:
    assert _same_folds(slice(None), 4, 8) == slice(None)
    assert _same_folds(slice(2, 4), 4, 8) == slice(1, 2)
    assert _same_folds(slice(6, 8), 8, 8) == slice(6, 8)


def test_few_rows_are_given_one_thread() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with threads_for(25_000):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        with threads_for(25_001):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_networks_side_by_side_are_those_one_by_one() -> None:
    shape = NetworkShape(3, (4, 5), (6, 2), 3, 2)
    assert shape.sizes == (19, 6, 2, 3)
    assert shape.weights == 2 * (8 * 9 + 20 * 6 + 7 * 2 + 3 * 3)
    made = Ensemble(shape, torch.Generator().manual_seed(1), dropout=0.5)
    state = made.state_dict()
    assert sum(each.numel() for each in state.values()) == shape.weights
    numeric = torch.randn(1, 7, 3, generator=torch.Generator().manual_seed(2))
    categories = torch.stack([torch.arange(7) % 4, torch.arange(7) % 5], dim=1)[None]
    found = made(numeric, categories)
    for member in range(2):
        table_ = state["embeddings"].view(2, 9, 8)[member]
        rows = torch.cat(
            [numeric[0], table_[categories[0, :, 0]], table_[4 + categories[0, :, 1]]], 1
        )
        for layer in range(3):
            rows = torch.relu(rows) if layer else rows
            rows = rows @ state[f"weights.{layer}"][member] + state[f"biases.{layer}"][member]
        torch.testing.assert_close(found[member], rows, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(made(numeric, categories, members=slice(1, 2)), found[1:])
    part = made.only(slice(1, 3))
    torch.testing.assert_close(part(numeric, categories), found[..., 1:])
    assert made.only(slice(None)) is made
    both = made.only(slice(0, 1)).joined(part)
    assert both is not None
    torch.testing.assert_close(both(numeric, categories), found)
    other = Ensemble(shape, torch.Generator().manual_seed(9))
    assert made.joined(other) is None
    four = made.followed_by(other)(numeric, categories)
    torch.testing.assert_close(four, torch.cat([found, other(numeric, categories)]))
    # the first layers and embeddings as He has them, the last one near 0
    wide = Ensemble(NetworkShape(200, (200,), (300,), 200, 1), torch.Generator().manual_seed(1))
    deviations = [float(each.std()) for each in (wide.embeddings, *wide.weights)]
    assert deviations == pytest.approx([0.1, (2 / 208) ** 0.5, 0.1 * (2 / 300) ** 0.5], rel=0.05)
    # what is dropped does not depend on who has which rows
    kept = [
        made(numeric[:, rows], categories[:, rows],
             Dropout(torch.Generator().manual_seed(5), 7, rows))
        for rows in (slice(0, 7), slice(0, 3), slice(3, 7))
    ]  # fmt: skip
    torch.testing.assert_close(torch.cat(kept[1:], dim=1), kept[0])
    assert not torch.allclose(kept[0], found)
    hidden = made._drop(
        torch.ones(2, 400, 6), Dropout(torch.Generator().manual_seed(5), 400, slice(0, 400))
    )
    assert set(hidden.unique().tolist()) == {0.0, 2.0}
    assert float(hidden.mean()) == pytest.approx(1, abs=0.1)
    assert TreesShape((1, 3), (5, 9), 2, 3, 4, 50, 3).weights == 3 * (14 + 8) + 250


def test_files_and_folders_of_labels() -> None:
    within = Path("m")
    assert label_folders(within, ["a", "b-1"]) == {"a": within / "a", "b-1": within / "b-1"}
    assert label_folders(within, ["a", "b.1"]) == {
        "a": within / "label-1",
        "b.1": within / "label-2",
    }
    assert label_folders(within, ["x" * 65]) == {"x" * 65: within / "label-1"}
    assert label_files(Path("r.html"), ["a"]) == {"a": Path("r.html")}
    assert label_files(Path("r.html"), ["a", "b"]) == {"a": Path("r-a.html"), "b": Path("r-b.html")}
    alone, two = (LabelModels(dict.fromkeys(names)) for names in (["a"], ["a", "b"]))  # type: ignore[arg-type]
    assert [alone.output("a", name) for name in ("prediction", "mean")] == ["prediction", "mean"]
    assert [two.output("a", name) for name in ("prediction", "mean")] == ["a", "a_mean"]


class Doubling:
    """A model that predicts twice x, and says whose it is."""

    has_distributions = False
    key = "id"

    def __init__(self, sources: tuple[str, ...] = (), factor: float = 2.0) -> None:
        self.sources, self.factor = sources, factor
        self.encoder = Encoder.fit(pl.DataFrame({"x": np.arange(100.0) % 17}))

    def for_source(self, source: str) -> Doubling:
        return Doubling((), {"": 2.0, "a": 3.0, "b": 5.0}[source])

    def predict(self, features: pl.DataFrame, *_: Any) -> pl.DataFrame:
        return features.select(prediction=pl.col("x").cast(pl.Float64) * self.factor, equal_0=0.5)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_file_is_predicted_in_batches_with_its_keys_and_who_was_held_out(
    tmp_path: Path, suffix: str
) -> None:
    rows = pl.DataFrame({"id": [f"e{i}" for i in range(10)], "x": np.arange(10.0)})
    rows.write_parquet(tmp_path / "f.parquet")
    seen: list[tuple[int, int]] = []
    out = tmp_path / "new" / f"p{suffix}"
    done = predict_file(
        Doubling(), tmp_path / "f.parquet", out, key="id", batch_rows=4,
        trained=lambda start, stop: np.arange(start, stop) % 3 == 0,
        on_rows=lambda *each: seen.append(each),
    )  # fmt: skip
    assert (done.rows, seen) == (10, [(4, 10), (8, 10), (10, 10)])
    found = (pl.read_csv if suffix == ".csv" else pl.read_parquet)(out)
    assert found.columns == ["id", "prediction", "equal_0", "held_out"]
    assert found["id"].to_list() == rows["id"].to_list()
    assert found["prediction"].to_list() == (2 * rows["x"]).to_list()
    assert found["held_out"].to_list() == [i % 3 != 0 for i in range(10)]


def test_rows_of_several_labels_parties_are_predicted_for_each_or_for_one(tmp_path: Path) -> None:
    rows = pl.DataFrame({"x": [1.0, 2.0, 3.0], "who": ["b", "a", "b"]})
    rows.write_parquet(tmp_path / "f.parquet")
    out = tmp_path / "p.parquet"

    def predicted(source: str) -> pl.DataFrame:
        predict_file(
            Doubling(("a", "b")), tmp_path / "f.parquet", out, source=source, batch_rows=2,
            trained=lambda start, stop: np.arange(start, stop) == 1,
        )  # fmt: skip
        return pl.read_parquet(out)

    each = predicted("")
    assert each.columns == ["labels_party", "prediction", "held_out"]
    assert each["held_out"].to_list() == [True, True, False, False, True, True]
    assert each["labels_party"].to_list() == ["a", "b"] * 3
    assert each["prediction"].to_list() == [3, 5, 6, 10, 9, 15]
    assert predicted("b")["prediction"].to_list() == [5, 10, 15]
    own = predicted("who")
    assert own["labels_party"].to_list() == ["b", "a", "b"]
    assert own["prediction"].to_list() == [5, 6, 15]
    rows.with_columns(who=pl.Series(["b", "c", None])).write_parquet(tmp_path / "f.parquet")
    with pytest.raises(DataError, match=r"who='c' must name a labels party .*: a, b;"):
        predicted("who")
    rows.head(0).write_parquet(tmp_path / "f.parquet")
    with pytest.raises(DataError, match=r"f\.parquet has no rows to predict"):
        predicted("a")
