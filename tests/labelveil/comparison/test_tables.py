"""Tables and plots of a comparison, from figures that are made up."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from matplotlib.figure import Figure

from labelveil.comparison.settings import Job, Method
from labelveil.comparison.tables import GAIN, Cell, draw, summarise, write_csv, write_markdown

NAN = math.nan
METRICS = ("label_mse", "test_mse", "test_mae", "test_loss")


def cell(method: str, epsilon: float, label_mse: float, test: float, **more: Any) -> Cell:
    means = dict(zip(METRICS, (label_mse, test, test / 2, test / 4), strict=True))
    spread = {name: mean / 10 for name, mean in means.items()}
    return Cell(method, epsilon, more.pop("runs", 4), means, spread, 9.0, **more)


CELLS = [
    cell("true labels", math.inf, 0.0, 1.0),
    cell("auto · auto", 1.0, 6.0, 3.0),
    cell("rr · raw", 1.0, 8.0, 2.5),
    cell("auto · auto", 4.0, 2.0, 1.5),
    cell("dp-sgd", 4.0, NAN, 1.25, runs=1),
]

TABLE = """\
# Comparison

## Test error of the model (mean squared error)

| method | ε = 1 | ε = 4 |
|---|---|---|
| auto · auto | 3 ± 0.3 | 1.5 ± 0.15 |
| rr · raw | **2.5 ± 0.25** | – |
| dp-sgd | – | **1.25** |

True labels: 1 ± 0.1.
Best constant: 9.

## Error of the randomized label (mean squared error)

| method | ε = 1 | ε = 4 |
|---|---|---|
| auto · auto | **6 ± 0.6** | **2 ± 0.2** |
| rr · raw | 8 ± 0.8 | – |

- a note
"""


def test_a_table_has_a_row_a_method_and_the_best_of_each_column_bold(tmp_path: Path) -> None:
    write_markdown(CELLS, tmp_path / "t.md", ["a note"])
    assert (tmp_path / "t.md").read_text("utf-8") == TABLE
    write_markdown(CELLS, tmp_path / "t.md", loss="poisson")
    lines = (tmp_path / "t.md").read_text("utf-8").splitlines()
    assert lines[2:7] == [
        "## Test loss of the model (poisson)",
        "",
        "| method | ε = 1 | ε = 4 |",
        "|---|---|---|",
        "| auto · auto | 0.75 ± 0.075 | 0.375 ± 0.037 |",
    ]
    assert lines[9:12] == ["", "## Test error of the model (mean squared error)", ""]
    write_markdown(CELLS[:1], tmp_path / "t.md")
    assert (tmp_path / "t.md").read_text("utf-8") == "# Comparison\n\n"


def test_numbers_for_programs_are_not_rounded(tmp_path: Path) -> None:
    write_csv(CELLS, tmp_path / "t.csv")
    table = pl.read_csv(tmp_path / "t.csv")
    assert table.columns == [
        *("method", "epsilon", "runs"),
        *(f"{name}_mean" for name in METRICS),
        *(f"{name}_sd" for name in METRICS),
        "constant_mse",
    ]
    assert table.row(1) == ("auto · auto", 1.0, 4, 6.0, 3.0, 1.5, 0.75, 0.6, 0.3, 0.15, 0.075, 9.0)
    assert CELLS[4].to_json() == {
        "method": "dp-sgd", "epsilon": 4.0, "runs": 1, "constant_mse": 9.0,
        "means": {"label_mse": None, "test_mse": 1.25, "test_mae": 0.625, "test_loss": 0.3125},
        "deviations": {
            "label_mse": None, "test_mse": 0.125, "test_mae": 0.0625, "test_loss": 0.03125,
        },
    }  # fmt: skip
    assert CELLS[0].to_json()["epsilon"] is None


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, Figure]:
    """Figures by the names of their files, in which nothing was laid out."""
    figures: dict[str, Figure] = {}

    @contextmanager
    def picture(path: Path, width: float, height: float) -> Iterator[Figure]:
        figures[path.name] = Figure(figsize=(width, height))
        yield figures[path.name]

    monkeypatch.setattr("labelveil.common.report.figures.picture", picture)
    return figures


def curves(axes: Any) -> dict[str, list[tuple[float, float]]]:
    """Points of each method's curve."""
    found = {}
    for bar in axes.containers:
        places, heights = map(np.asarray, bar.lines[0].get_data())
        found[bar.get_label()] = [*zip(places.tolist(), heights.tolist(), strict=True)]
    return found


def test_a_panel_has_a_curve_a_method_and_lines_to_compare_with(
    tmp_path: Path, drawn: dict[str, Figure]
) -> None:
    draw(CELLS, tmp_path)
    assert set(drawn) == {"test_error.png", "label_error.png"}
    assert drawn["test_error.png"].get_size_inches().tolist() == [8, 5]
    (axes,) = drawn["test_error.png"].axes
    found = curves(axes)
    # three methods stand beside each other: a factor of 1.012 apart, the second at its ε
    assert found == {
        "auto · auto": [(pytest.approx(1 / 1.012), 3.0), (pytest.approx(4 / 1.012), 1.5)],
        "rr · raw": [(1.0, 2.5)],
        "dp-sgd": [(pytest.approx(4 * 1.012), 1.25)],
    }
    widths = {bar.get_label(): bar.lines[0].get_linewidth() for bar in axes.containers}
    assert widths == {"auto · auto": 2.6, "rr · raw": 1.2, "dp-sgd": 1.2}
    assert len({bar.lines[0].get_marker() for bar in axes.containers}) == 3
    ends = axes.containers[0].lines[2][0].get_segments()
    assert ends[0][:, 1].tolist() == pytest.approx([2.7, 3.3])
    levels = {text.get_text(): text.xy[1] for text in axes.texts}
    assert levels == {"constant": 9.0, "true labels": 1.0}
    assert axes.get_title() == "Test error of the model"
    # from 1 to 9 is more than fourfold
    assert (axes.get_yscale(), axes.get_ylabel()) == ("log", "mean squared error (logarithmic)")
    assert axes.get_xticks().tolist() == [1.0, 4.0]
    (axes,) = drawn["label_error.png"].axes
    assert [*curves(axes)] == ["auto · auto", "rr · raw"]
    assert not [*axes.texts]
    # from 2 to 8 is four times, and no more
    assert (axes.get_yscale(), axes.get_ylabel()) == ("linear", "mean squared error")
    shown = drawn["test_error.png"].legends[0]
    assert [text.get_text() for text in shown.get_texts()] == [*found]
    assert shown._ncols == 3  # type: ignore[attr-defined]


def test_another_loss_has_a_figure_of_its_own(tmp_path: Path, drawn: dict[str, Figure]) -> None:
    draw(CELLS, tmp_path, "poisson")
    (axes,) = drawn["test_loss.png"].axes
    assert (axes.get_title(), axes.get_ylabel()) == ("Test loss of the model", "poisson loss")
    assert {text.get_text() for text in axes.texts} == {"true labels"}
    drawn.clear()
    draw([cell("true labels", math.inf, 0.0, 1.0)], tmp_path)
    assert not drawn


def test_several_labels_have_a_panel_each(tmp_path: Path, drawn: dict[str, Figure]) -> None:
    both = [cell("joint · auto", 1.0, NAN, test, label=name) for name, test in (("a", 2), ("b", 4))]
    draw(both, tmp_path)
    figure = drawn["test_error.png"]
    assert figure.get_size_inches().tolist() == [10, 5]
    assert [axes.get_title() for axes in figure.axes] == [
        "a: test error of the model", "b: test error of the model",
    ]  # fmt: skip
    assert [curves(axes)["joint · auto"] for axes in figure.axes] == [[(1.0, 2)], [(1.0, 4)]]
    assert set(drawn) == {"test_error.png"}


def record(method: Method, run: int, epsilon: float = 1.0, **figures: Any) -> dict[str, Any]:
    return {**Job(epsilon, run, method).to_json(), **figures}


def of(value: float, **more: Any) -> dict[str, Any]:
    return {"test_mse": value, "test_mae": 2 * value, "test_loss": 3 * value, "constant_mse": 9.0,
            **more}  # fmt: skip


def test_figures_are_means_of_a_method_at_an_epsilon() -> None:
    auto, published = Method("auto"), Method("rr-on-bins", "raw", options=(("bins", 3),))
    records = [
        record(auto, 0, label_mse=1.0, **of(1.0)),
        record(published, 0, label_mse=None, **of(5.0)),
        record(auto, 1, label_mse=2.0, **of(4.0)),
        record(auto, 1, 2.0, label_mse=2.0, **of(7.0)),
        record(auto, 2, error="no"),
    ]
    cells = summarise(records)
    assert [(c.method, c.epsilon, c.runs, c.label) for c in cells] == [
        ("auto · auto", 1.0, 2, ""), ("rr-on-bins, bins 3 · raw", 1.0, 1, ""),
        ("auto · auto", 2.0, 1, ""),
    ]  # fmt: skip
    assert cells[0].means == {"label_mse": 1.5, "test_mse": 2.5, "test_mae": 5.0, "test_loss": 7.5}
    assert cells[0].deviations["test_mse"] == pytest.approx(3 / math.sqrt(2))
    assert cells[0].constant_mse == 9.0
    assert math.isnan(cells[1].means["label_mse"])
    assert cells[1].deviations["test_mse"] == 0.0
    assert [c.has("label_mse") for c in cells] == [True, False, True]
    assert summarise([record(auto, 0, error="no")]) == []
    assert GAIN not in cells[0].means


def test_a_gain_is_of_the_same_run_epsilon_and_learning() -> None:
    """What no separate message stands beside has none."""
    separate, joint = Method("separate", "raw"), Method("joint", "raw")
    other = Method("joint", "likelihood")

    def labels(*values: float) -> dict[str, Any]:
        return {"labels": [of(v, name=n) for v, n in zip(values, "ab", strict=True)]}

    records = [
        record(separate, 0, **labels(10.0, 20.0)),
        record(joint, 0, **labels(7.0, 25.0)),
        record(other, 0, **labels(1.0, 1.0)),
        record(joint, 0, 2.0, **labels(1.0, 1.0)),
    ]
    gains = {(c.label, c.method, c.epsilon): c.means[GAIN] for c in summarise(records)}
    known = {key: gain for key, gain in gains.items() if not math.isnan(gain)}
    assert known == {("a", "joint · raw", 1.0): 3.0, ("b", "joint · raw", 1.0): -5.0}
    assert len(gains) == 8


def test_the_largest_gain_is_the_best(tmp_path: Path) -> None:
    def gained(method: str, gain: float, spread: float) -> Cell:
        means = {"test_mse": 1.0, GAIN: gain}
        return Cell(method, 1.0, 4, means, {"test_mse": 0.1, GAIN: spread}, 9.0, "a")

    write_markdown([gained("x", 0.5, 0.2), gained("y", 0.25, 0.4)], tmp_path / "t.md")
    lines = (tmp_path / "t.md").read_text("utf-8").splitlines()
    at = lines.index("## a: How much lower than with a message a label (paired, ± standard error)")
    # of four runs the standard error is half the deviation
    assert lines[at + 4 : at + 6] == ["| x | **0.5 ± 0.1** |", "| y | 0.25 ± 0.2 |"]
