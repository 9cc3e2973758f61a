"""Pages and pictures as somebody looked at and approved them.

A picture is right if it looks right: what is drawn is recorded as the calls that draw it, a line
each, beside the words of its page. Where that changes on purpose, look at the pages, then
``LABELVEIL_APPROVE=1 pytest tests/feature_party/report/test_approved.py`` writes it anew.
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from markupsafe import Markup, escape
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colorbar import Colorbar
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from labelveil.common.mechanisms.group_sums import (
    GroupQuestion,
    Lattice,
    NoisySums,
    PrivateSums,
)
from labelveil.common.release.stated_message import StatedMessage
from labelveil.common.report.figures import style
from labelveil.common.version import software
from labelveil.feature_party.evaluation.clipped_labels import Clipped
from labelveil.feature_party.evaluation.intervals import Measured
from labelveil.feature_party.model.drift import ColumnDrift
from labelveil.feature_party.report import (
    plots,
    score_plots,
    write_labels_overview,
    write_overview,
    write_report,
)
from labelveil.feature_party.report.inputs import ReleasedLabel
from labelveil.feature_party.report.sums import SumsReport, write_sums_card, write_sums_report
from labelveil.feature_party.report.words import prior_cost, privacy_statements
from tests.feature_party.report.conftest import EXPLAINED, MakeInputs

APPROVED = Path(__file__).with_name("approved")
DRIFT = ColumnDrift("age", "number", (0.1, 0.4), (0.0, 0.0), (0.0, 0.0), 0.2)


def shown(value: Any) -> str:
    """A value in a few words: numbers to four digits, arrays by ends and sum."""
    match value:
        case bool() | None | str():
            return repr(value)
        case float() | np.floating():
            return f"{float(value):.4g}"
        case int() | np.integer():
            return str(int(value))
        case np.ndarray() if value.size > 6:
            flat = np.asarray(value, dtype=np.float64).ravel()
            ends = shown([*flat[:2], *flat[-2:]])
            total = shown(np.nansum(flat * np.sin(np.arange(flat.size) + 1)))
            return f"{'x'.join(map(str, value.shape))} {ends} {total}"
        case np.ndarray():
            return shown(value.tolist())
        case list() | tuple() | range() if len(value) > 6 and not isinstance(
            value[0], Artist | str
        ):
            return shown(np.array(value))
        case list() | tuple() | range():
            return f"[{', '.join(map(shown, value))}]"
        case MaxNLocator():
            return f"MaxNLocator({shown(value._nbins)}, {value._integer})"  # type: ignore[attr-defined]
        case Artist():
            said = (
                value.get_label() or value.get_facecolor()
                if hasattr(value, "get_facecolor")
                else value.get_label()
            )
            return f"{type(value).__name__} {shown(said)}"
        case dict():
            return f"{{{', '.join(f'{key}: {shown(each)}' for key, each in value.items())}}}"
        case slice():
            return ":"
        case _:
            return getattr(value, "__name__", type(value).__name__)


class Recorded:
    """Draws as what it stands for does, and writes down how."""

    def __init__(self, real: Any, name: str, lines: list[str]) -> None:
        self.__dict__.update(_real=real, _name=name, _lines=lines)

    def __getattr__(self, name: str) -> Any:
        return self._wrapped(getattr(self._real, name), f"{self._name}.{name}")

    def __getitem__(self, key: Any) -> Any:
        return self._wrapped(self._real[key], f"{self._name}[{shown(key)}]")

    def _wrapped(self, found: Any, name: str) -> Any:
        if isinstance(found, tuple | np.ndarray | list) and any(isinstance(a, Axes) for a in found):
            return [self._wrapped(each, f"axes{i}") for i, each in enumerate(found)]
        if isinstance(found, Axes | Axis | Colorbar) or "spines" in name.rpartition(".")[2]:
            return Recorded(found, name.replace("()", ""), self._lines)
        return (
            self._call(found, name) if callable(found) and not isinstance(found, Artist) else found
        )

    def _call(self, found: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            said = [*map(shown, given), *(f"{key}={shown(each)}" for key, each in named.items())]
            self._lines.append(f"{name}({', '.join(said)})")
            real = (each._real if isinstance(each, Recorded) else each for each in given)
            named = {k: v._real if isinstance(v, Recorded) else v for k, v in named.items()}
            return self._wrapped(found(*real, **named), name.rpartition(".")[2])

        return call


def recorded(
    name: str, what: str, draw: Callable[..., None], *, wide_height: float, narrow_height: float
) -> Markup:
    """A picture as how it is drawn, wide; and what is different in a narrow page."""
    drawn = []
    for narrow in (False, True):
        lines: list[str] = []
        with style():
            draw(Recorded(Figure(), "figure", lines), narrow)
        drawn.append(lines)
    wide, narrow_ones = drawn
    other = [f"narrow: {line}" for line in narrow_ones if line not in wide]
    size = f"{name}, {wide_height:.4g} or {narrow_height:.4g} inches: {what}"
    return Markup("\n").join(Markup("<p>{}</p>").format(x) for x in (size, *wide, *other))


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (plots, score_plots):
        monkeypatch.setattr(module, "responsive_figure", recorded)


def lines_of(path: Path) -> str:
    """The words of a page, a line for each piece of text."""
    text = path.read_text("utf-8").replace(software(), "labelveil/now")
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)
    if path.suffix == ".html":
        text = Markup(re.sub(r"<[^>]+>", "\n", text)).unescape()
    return "\n".join(line.strip() for line in text.splitlines() if line.strip()) + "\n"


def approved(name: str, *pages: Path) -> None:
    """Fail if pages say anything else than they did when somebody looked at them."""
    text, kept = "".join(map(lines_of, pages)), APPROVED / f"{name}.txt"
    if os.environ.get("LABELVEIL_APPROVE"):
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(text, "utf-8")
    assert text.splitlines() == kept.read_text("utf-8").splitlines()


@pytest.mark.slow
@pytest.mark.usefixtures("pictures")
def test_a_simulation(make_inputs: MakeInputs, tmp_path: Path) -> None:
    coverage = {0.5: Measured(0.48, 0.45, 0.51), 0.95: Measured(0.9, 0.88, 0.92)}
    inputs = make_inputs(unit="EUR", coverage=coverage, facts={"warnings": ["Few events"]})
    inputs = replace(inputs, drift=[DRIFT], ignored=["note"])
    write_report(tmp_path / "page.html", inputs)
    approved("simulation", tmp_path / "page.html", tmp_path / "page.md")


@pytest.mark.slow
@pytest.mark.usefixtures("pictures")
def test_privatized_labels_alone(make_inputs: MakeInputs, tmp_path: Path) -> None:
    below = Clipped(20.0, 0.03, replace(EXPLAINED, share=Measured(0.5, 0.4, 0.6)))
    vague = Measured(0.1, -0.2, 0.4)
    inputs = make_inputs(
        simulated=False,
        clipped=below,
        explained=replace(EXPLAINED, share=vague, association=1.0),
        segments={},
        importance={
            f"column {i} of many": Measured(0.2 - i / 50, 0.1 - i / 50, 0.3) for i in range(14)
        },
        facts={"history": [], "head": "gaussian (60%) + trees-gamma (40%)"},
        kept=30,
        kept_epsilon=0.5,
    )
    write_report(tmp_path / "page.html", inputs)
    approved("privatized", tmp_path / "page.html", tmp_path / "page.md")
    # events kept for sums count with those of codes, and the larger ε
    scores = inputs.scores
    more = replace(scores, kept_epsilon=2.5).to_json()
    assert (scores.epsilon, more["epsilon"]) == (1.0, 2.5)
    without = replace(scores, kept=0).to_json()
    assert [more[name] - without[name] for name in ("rows", "holdout_rows")] == [30, 30]


@pytest.mark.usefixtures("pictures")
def test_several_labels(make_inputs: MakeInputs, tmp_path: Path) -> None:
    each = {
        "visits": make_inputs().scores,
        "late": make_inputs(facts={"warnings": ["Few events"]}).scores,
    }
    pages = {name: tmp_path / f"{name}.html" for name in each}
    write_labels_overview(tmp_path / "page.html", each, pages)
    approved("labels", tmp_path / "page.html")
    write_overview(tmp_path / "page.html", replace(each["visits"], sources=each), pages)
    approved("parties", tmp_path / "page.html")
    scores = each["visits"]
    (manifest,) = scores.manifests
    later = manifest.model_copy(update={"epoch": "later"})
    both = {"clinic": replace(scores, manifests=(manifest, later))}
    write_overview(tmp_path / "two.html", replace(scores, sources=both), {"clinic": tmp_path / "v"})
    page = (tmp_path / "two.html").read_text("utf-8")
    for one in (manifest, later):  # what each of its releases guarantees
        assert f"epoch {one.epoch}: {one.total_guarantee}." in html.unescape(page)


@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize("kind", ["scored", "simulated", "unscored"])
def test_sums(tmp_path: Path, kind: str) -> None:
    lattice, answers = Lattice(0, 9, 9), []
    for groups in (2, 5):
        question = GroupQuestion.on_grid(lattice, np.arange(40) % groups, 9.0, 0.0)
        noisy = NoisySums(question, Fraction(1))
        answers.append(PrivateSums(noisy, np.zeros(groups, dtype=np.int64)))
    asked = {"events": 1200, "groups": 2, "offsets": 3, "question_bits": 1.25}
    metrics: dict[str, Any] = {
        "epsilon": 1.0, "question_bits": 2.5, "columns_matter": kind != "unscored",
        "warnings": ["Few"], "rounds": [asked, {**asked, "groups": 5}], "rows": 5000,
        "training_rows": 2400, "holdout_rows": 0, "seed": 7,
    }  # fmt: skip
    if kind != "unscored":
        metrics |= {
            "verdict": "better",
            **Measured(0.35, 0.27, 0.43).to_json("estimated_r2"),
            **Measured(5.1, 4.2, 6.0).to_json("estimated_mse"),
            **Measured(7.9, 7.0, 8.8).to_json("estimated_constant_mse"),
            "holdout_rows": 600,
        }
    if kind == "simulated":
        metrics |= {
            "test_mse": 5.0, "constant_mse": 8.0, "nonprivate_mse": 4.0, "codes_mse": 6.0,
            "test_r2": 0.375,
        }  # fmt: skip
    report = SumsReport("pay", "sales, epoch 7", lattice, answers, metrics)
    write_sums_report(tmp_path / "page.html", report)
    columns, trees = ["x", "z"][: 1 + (kind == "scored")], kind != "unscored"
    write_sums_card(tmp_path / "page.md", report, columns, "ab, cd", trees=trees)
    approved(f"sums {kind}", tmp_path / "page.html", tmp_path / "page.md")


def released(grid: np.ndarray, mass: np.ndarray, bins: list[float]) -> ReleasedLabel:
    outputs = np.array([grid[0] - (grid[-1] - grid[0]), *grid[::3]])
    stated: Any = SimpleNamespace(details={"bin_edges": bins} if bins else {})
    return ReleasedLabel(SimpleNamespace(), stated, grid, mass, np.eye(2), outputs, np.arange(2))  # type: ignore[arg-type]


def few_and_many() -> Iterator[tuple[str, Markup]]:
    """Pictures of labels of which there are few, or many, and of tails."""
    few, many = np.array([0.0, 1.0, 4.0]), np.linspace(0, 30_000, 40)
    steep = np.array([0.9, *np.full(39, 0.1 / 39)])
    yield "prior of few", plots.prior(released(few, np.array([0.5, 0.3, 0.2]), []), "y")
    yield "prior of many", plots.prior(released(many, steep, [0.0, 1e4, 2e4]), "y")
    shares = np.arange(1.0, 79.0).reshape(3, 26) / 3003
    outputs = np.linspace(0, 5, 26)
    edges = np.array([0.0, 0.5, 2.5, 4.0])
    yield "joint", plots.joint(shares, edges, few, outputs, "y", simulated=False)
    tall = np.arange(1.0, 51.0).reshape(25, 2) / 1275
    ends = np.linspace(0, 1, 26)
    yield "joint, tall", plots.joint(tall, ends, ends[1:], outputs[:2], "y", simulated=True)
    labels = np.array([0.0, 1.0, 1.0, 0.0, 1.0, 1.0] * 20)
    yield "actual of two", plots.predicted_against_actual(labels / 2 + 0.1, labels, (0.0, 1.0), "y")
    tail = np.append(np.linspace(0, 3, 999), 90.0)
    yield "actual with a tail", plots.predicted_against_actual(tail / 2, tail, (0.0, 100.0), "y")
    beyond = [
        score_plots.ErrorRow("a constant", 4.0),
        score_plots.ErrorRow("this", float("nan"), "#000000", None, (-1.0, 9.0), (-3.0, 3.0)),
        score_plots.ErrorRow("that", 0.1, share=-0.004),
    ]
    yield "errors", score_plots.error_scale(beyond, "EUR")


@pytest.mark.usefixtures("pictures")
def test_pictures_of_few_labels_and_of_tails(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("".join(f"<h1>{escape(name)}</h1>{drawn}" for name, drawn in few_and_many()))
    approved("pictures", page)


def test_intervals_of_an_axis_are_whole_numbers_while_that_is_legible() -> None:
    whole = np.arange(60.0)
    assert plots.label_boundaries(whole, (0.0, 60.0)).tolist() == [i - 0.5 for i in range(62)]
    assert plots.label_boundaries(whole, (0.0, 61.0)).size == 49
    assert plots.label_boundaries(whole + 0.5, (0.0, 60.0)).tolist() == pytest.approx(
        np.linspace(0, 60, 49)
    )
    # the axis ends a tenth beyond what all but half a percent reach
    tail = np.append(np.full(999, 2.5), 900.0)
    assert plots.label_boundaries(tail, (1.0, 900.0), 3).tolist() == pytest.approx(
        np.linspace(1, 1 + 1.1 * 1.5, 4)
    )
    assert plots.label_boundaries(np.zeros(9), (0.0, 5.0)).tolist() == [i - 0.5 for i in range(7)]


def test_shares_of_a_heat_map_are_counted_by_interval_and_code() -> None:
    labels, codes = np.array([0.0, 0.9, 1.0, 2.0, 99.0]), np.array([1, 0, 1, 1, 2], dtype=np.uint16)
    found = plots.joint_shares(labels, codes, 3, np.array([0.0, 1.0, 2.0, 3.0]))
    assert (found * 5).tolist() == [[1, 1, 0], [0, 1, 0], [0, 1, 1]]


def test_several_labels_and_users_are_protected_together(make_inputs: MakeInputs) -> None:
    manifest = make_inputs().manifest
    (label,) = manifest.labels
    two = [label, label.model_copy(update={"name": "late"})]
    privacy = manifest.privacy.model_copy(update={"records_per_unit": 1200})
    several = manifest.model_copy(update={"labels": two, "privacy": privacy})
    alone, said = dict(privacy_statements(manifest, "pay")), dict(privacy_statements(several))
    assert alone["Protected"].startswith("The label “pay” of one event. Anyone who reads")
    assert said["Protected"].startswith(
        "All labels together (“visits”, “late”) of one user, who has at most 1,200 events in this"
        " release (any more were replaced by the missing value). Anyone"
    )
    assert "that differ in the label of one event." in alone["Neighbours"]
    assert "that differ in the labels of one user." in said["Neighbours"]
    assert "may well learn how pay depends on the features" in alone["Not protected"]
    assert "may well learn how each label depends on the features" in said["Not protected"]


@pytest.mark.parametrize(
    ("asked", "sums", "said"),
    [
        ([False, False], 0, "one model of 2 epochs: errors are about all of them, pictures about"),
        ([False, True], 0, "estimated from the 1,200 events that were sent without a question;"),
        ([False, True], 900, None),
        ([True, True], 0, "one model of 2 epochs"),
        ([True, True, False], 0, "those of 1, 2 say little about them"),
        ([False], 0, None),
    ],
)
def test_which_events_errors_are_about_is_said(
    make_inputs: MakeInputs, asked: list[bool], sums: int, said: str | None
) -> None:
    scores = make_inputs(facts={"warnings": ["Few events"]}).scores
    manifests: Any = [
        SimpleNamespace(epoch=str(number), questioned=questioned)
        for number, questioned in enumerate(asked, start=1)
    ]
    problem = SimpleNamespace(by_release=lambda codes: [(None, None, codes)] * len(asked))
    events: Any = SimpleNamespace(problem=problem)
    told = replace(EXPLAINED, sums=sums)
    few, *others = replace(scores, manifests=manifests, events=events, explained=told).warnings
    assert few == "Few events"
    assert len(others) == (said is not None)
    assert said is None or said in others[0]


EARLIER: Any = SimpleNamespace(
    in_force=SimpleNamespace(epoch="2025-12", rows=6000), drifted=False, test=None, spent=None
)


@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize(
    ("of_manifest", "of_prior", "said"),
    [
        ({"drift": EARLIER}, {}, "Labels of epoch 2025-12 paid ε = 0.114 for this histogram, with"),
        ({}, {"noise": "public"}, "publicly known of the labels: nobody paid for it."),
    ],
)
def test_a_page_says_who_paid_for_the_prior(
    make_inputs: MakeInputs,
    tmp_path: Path,
    of_manifest: dict[str, Any],
    of_prior: dict[str, Any],
    said: str,
) -> None:
    inputs = make_inputs(simulated=False)
    (prior,) = inputs.manifest.priors
    changed = {"priors": [prior.model_copy(update=of_prior)], **of_manifest}
    manifest = inputs.manifest.model_copy(update=changed)
    write_report(tmp_path / "page.html", make_inputs(simulated=False, manifests=[manifest]))
    text = " ".join(lines_of(tmp_path / "page.html").split())
    assert said in text
    assert prior_cost(manifest) in text


def costing(*priors: dict[str, Any], **of_manifest: Any) -> Any:
    """A manifest of which only that is known which its priors cost."""
    plain = {"noisy": True, "public": False, "decoded": False, "start": None, "scale": "8"}
    known: dict[str, Any] = {
        "drift": None, "test_guarantee": None, "prior_paid": True, "questioned": False,
        "sums": None,
        "prior_guarantee": SimpleNamespace(epsilon=0.25),
        "priors": [SimpleNamespace(**{**plain, **prior}) for prior in priors],
    }  # fmt: skip
    manifest = SimpleNamespace(**{**known, **of_manifest})
    manifest.prior_source = vars(StatedMessage)["prior_source"].fget(manifest)
    return manifest


TESTED = SimpleNamespace(epsilon=0.05)
LATER = SimpleNamespace(in_force=EARLIER.in_force, test=SimpleNamespace(session="s"))


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        (
            costing({}, {"scale": "5/2"}),
            "0.25 for noisy histograms with discrete Laplace noise of scale 8 and 2.5 on every",
        ),
        (
            costing({"start": "1"}, test_guarantee=TESTED),
            "0.05 for a test for drift, 0.25 for the noisy prior, which is a histogram, which"
            " corrects a public one, with discrete Laplace noise of scale 8 on every",
        ),
        (costing({"noisy": False, "public": True}), "nothing for a prior, which was public before"),
        (
            costing({"noisy": False, "decoded": True}, prior_paid=False),
            "nothing for the histogram, which the randomized labels tell themselves",
        ),
        (
            costing(prior_paid=False, questioned=True),
            "nothing for a histogram: earlier rounds say what is expected of these",
        ),
        (
            costing({}, prior_paid=False, drift=LATER),
            "nothing for the prior, which epoch 2025-12's labels paid for (a test for drift is"
            " charged to a session over all",
        ),
    ],
)
def test_what_a_prior_costs_is_told_with_all_that_was_paid(manifest: Any, said: str) -> None:
    assert prior_cost(manifest).startswith(said)
