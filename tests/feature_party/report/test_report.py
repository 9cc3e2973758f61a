"""The report: what it says, that it loads nothing, and that no name can break out of its text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from labelveil.common.mechanisms.group_sums import (
    GroupQuestion,
    Lattice,
    NoisySums,
    PrivateSums,
)
from labelveil.feature_party.evaluation.breakdown import number
from labelveil.feature_party.evaluation.clipped_labels import Clipped
from labelveil.feature_party.evaluation.intervals import Measured, Verdict, compared
from labelveil.feature_party.evaluation.sentences import TOLD, figure_words
from labelveil.feature_party.evaluation.true_labels import TrueErrors
from labelveil.feature_party.groups.score import Score
from labelveil.feature_party.join.matches import MatchCounts
from labelveil.feature_party.learning.names import HEAD_NAMES, LEARNER_NAMES
from labelveil.feature_party.learning.problem import LabelProblem, first_codes
from labelveil.feature_party.learning.several_releases import join_problems
from labelveil.feature_party.model.facts import EpochLosses
from labelveil.feature_party.pipeline.sums import scored_facts
from labelveil.feature_party.report import ReportInputs, write_report
from labelveil.feature_party.report.inputs import ReleasedLabel
from labelveil.feature_party.report.page import render_report
from labelveil.feature_party.report.plots import compact
from labelveil.feature_party.report.score_plots import ErrorRow, error_end, error_scale
from labelveil.feature_party.report.sums import SumsReport, write_sums_report
from labelveil.feature_party.report.words import error_rows, headline, model_words
from tests.effort import one_in
from tests.feature_party.report.conftest import EXPLAINED
from tests.feature_party.two_labels import CELLS, NAMES, two_labels
from tests.feature_party.worlds import thresholds_channel

MakeInputs = Callable[..., ReportInputs]

HOSTILE = "<script>alert(1)</script>\"'&$x^2$ {{ 7*7 }} ]]>"

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """Collects a page's structure and fails on tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def values(self, attribute: str) -> list[str]:
        return [value for name, value in self.attributes if name == attribute]


@pytest.fixture(scope="module")
def rendered(make_inputs: MakeInputs) -> str:
    return render_report(make_inputs())


@pytest.mark.slow
def test_a_simulation_has_every_section(rendered: str) -> None:
    page = Page(rendered)
    assert not page.open
    analysed = "calibration", "columns", "segments"
    for section in ("privacy", "prior", "joint", "loss", "actual", *analysed, "matches"):
        assert section in page.values("id")
    assert "81% of what true labels teach about visits, at ε = 1" in page.text
    assert "5,900 events are in both the release (6,000 events)" in page.text
    assert page.tags.count("h1") == 1
    assert "Better than a constant: yes." in page.text
    share = "35% (95%: 27% … 43%). The interval takes the model's own distributions to be about"
    assert f"variation in visits that the features explain: {share} right" in page.text
    assert "; without that it is 23% … 47%" in page.text
    assert "The features predict the label: yes (p < 0.000001)." in page.text
    assert "The model reads 1 column: age. Not read: id (the key), note (left out" in page.text
    assert "shop: shop 2" in page.text
    assert "Estimated deviance 1.2 (95%: 1.1 … 1.3), the constant's 1.4." in page.text
    assert "predicting a probability for each cell of the labels" in page.text
    assert "a guess that is right with 50% becomes one of at most 73%" in page.text


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_without_true_labels_nothing_claims_to_know_them(make_inputs: MakeInputs) -> None:
    page = Page(render_report(make_inputs(simulated=False)))
    ids = page.values("id")
    assert "channel" in ids
    assert "joint" not in ids
    assert "actual" not in ids
    assert "About 35% of the variation in visits explained, at ε = 1" in page.text
    assert "error: 5.135 (95%: 4.2 … 6), of a constant 7.9" in page.text
    assert "true labels" not in page.text.partition("What is private")[0]
    assert "simulation" not in page.text.partition("What is private")[0]


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("sums", [False, True])
@pytest.mark.parametrize(
    ("share", "verdict", "title", "shown"),
    one_in(
        2,
        [
            (
                (0.35, 0.27, 0.43),
                "yes",
                "About 35% of the variation in visits",
                "35% (95%: 27% … 43%)",
            ),
            (
                (1.0, 0.27, 1.0),
                "yes",
                "At least 27% of the variation in visits",
                "27% … 100% (95%)",
            ),
            ((0.3, -0.1, 0.6), "cannot tell", "", "30% (95%: 0% … 60%)"),
            ((0.0, -0.2, 0.005), "no", "nothing was learned about visits", "0%"),
        ],
    ),
)
def test_title_verdict_and_interval_are_of_one_estimate(
    make_inputs: MakeInputs,
    sums: bool,
    share: tuple[float, float, float],
    verdict: str,
    title: str,
    shown: str,
) -> None:
    """Whether codes tell or sums do, and whatever the other says: no share stands in a title whose
    interval may be 0."""
    told, other = Measured(*share), Measured(0.9, 0.8, 1.0)  # which decides nothing
    codes = replace(EXPLAINED, share=told, assumption_free=other, association=0.0)
    explained = replace(EXPLAINED, share=other).by_sums(told, Measured(5.1, 4, 6), 7.9, 600)
    explained = replace(explained, association=0.0) if sums else codes
    said = headline(make_inputs(simulated=False, explained=explained))
    text = " ".join(said.sentences)
    assert f"Better than a constant: {verdict}" in text
    assert f"variation in visits that the features explain: {shown}" in text
    if title:
        assert title in said.title
    else:
        assert "%" not in said.title
        assert "too few events to tell" in said.title.lower()
    page = Page(render_report(make_inputs(simulated=False, explained=explained)))
    assert said.title in page.text


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(
    ("share", "verdict", "title"),
    [
        ((0.35, 0.27, 0.43), "better", "About 35% of the variation in pay explained, at ε = 1"),
        ((0.3, -0.1, 0.6), "cannot tell", "Too few events to tell what was learned about pay"),
        ((0.0, -0.2, 0.005), "not better", "nothing was learned about pay that beats its average"),
    ],
)
def test_a_page_on_sums_says_one_thing(
    tmp_path: Path, share: tuple[float, float, float], verdict: str, title: str
) -> None:
    question = GroupQuestion.on_grid(Lattice(0, 9, 9), np.arange(40) % 2, 9.0, 0.0)
    noisy = NoisySums(question, Fraction(1))
    figures = Measured(*share), Measured(5.1, 4.2, 6.0), Measured(7.9, 7.0, 8.8)
    assert compared(figures[0]) == verdict
    metrics = {
        "epsilon": 1.0, "question_bits": 1.0, "columns_matter": True, "warnings": [],
        "rounds": [{"events": 40, "groups": 2, "offsets": 1, "question_bits": 1.0}],
        **scored_facts(Score(*figures, events=600)),
    }  # fmt: skip
    answer = PrivateSums(noisy, np.zeros(2, dtype=np.int64))
    page = SumsReport("pay", "sales", question.lattice, [answer], metrics)
    write_sums_report(tmp_path / "page.html", page)
    text = Page((tmp_path / "page.html").read_text("utf-8")).text
    heading, _, rest = text.partition("Better than a constant: ")
    assert title in heading
    assert rest.startswith(f"{TOLD[compared(figures[0])]}. Share of the variation in pay")
    assert figure_words(figures[0], ".0%") in rest
    assert ("of the variation in pay explained" in heading) == (verdict == "better")


def test_the_page_loads_nothing(rendered: str) -> None:
    text, page = rendered, Page(rendered)
    for scheme in ("http:", "https:", "//cdn", "@import", "url(http"):
        assert scheme not in text
    assert not {"script", "link", "iframe", "img", "object", "embed"} & set(page.tags)
    for name in ("src", "href", "xlink:href"):
        assert all(value.startswith(("data:image/png", "#")) for value in page.values(name))


def test_names_on_the_page_are_text(make_inputs: MakeInputs) -> None:
    inputs = make_inputs(
        label=HOSTILE,
        facts={"warnings": [HOSTILE], "objective": HOSTILE, "head": HOSTILE},
        importance={HOSTILE: Measured(0.2, 0.1, 0.3)},
        segments={HOSTILE: make_inputs().scores.tenths},
    )
    text = render_report(inputs)
    page = Page(text)
    assert not page.open
    assert "script" not in page.tags
    assert "<script" not in text
    assert HOSTILE in page.text


def test_ids_are_unique(rendered: str) -> None:
    ids = Page(rendered).values("id")
    assert sorted(ids) == sorted(set(ids))


@pytest.mark.slow
def test_the_same_inputs_give_the_same_page(rendered: str, make_inputs: MakeInputs) -> None:
    assert render_report(make_inputs()) == rendered


@pytest.mark.slow
def test_what_is_absent_is_left_out(make_inputs: MakeInputs) -> None:
    inputs = make_inputs(simulated=False, segments={}, importance={}, facts={"history": []})
    page = Page(render_report(inputs))
    for section in ("loss", "segments", "joint", "actual"):
        assert section not in page.values("id")
    assert "A column's effect" not in page.text


@pytest.mark.slow
def test_labels_that_are_all_alike_still_make_a_page(make_inputs: MakeInputs) -> None:
    scores = make_inputs().scores
    assert scores.truth is not None
    same = np.full(scores.truth.labels.size, 3.0)
    alike = TrueErrors(same, 0.02, 0.1, 0.0, 0.01, 0.1)
    assert alike.r2 is None
    assert "test_r2" not in alike.to_json()
    assert "R² none, as all labels are alike" in alike.lines[0]
    assert "nothing was learned" in render_report(make_inputs(truth=alike))


@pytest.mark.slow
def test_a_mean_label_is_shown_where_labels_lie(make_inputs: MakeInputs) -> None:
    """Decoded without bias it may lie anywhere; the truth cannot."""
    inputs = make_inputs()
    (low, high), tenth = inputs.scores.bounds, inputs.scores.tenths[0]
    beyond = replace(tenth, name="all", label=Measured(-20_184.0, -54_321.0, 54_321.0))
    scores = replace(inputs.scores, tenths=[beyond] * 10, segments={"shop": [beyond]})
    page = render_report(replace(inputs, scores=scores))
    shown = f"{number(low)} ({number(low)} … {number(high)})"
    assert sum(shown in line for line in scores.summary) == 11
    assert shown.replace(" … ", " to ") in page
    for text in (page, "\n".join(scores.summary)):
        assert not re.search("20,184|54,321", text)
    assert scores.to_json()["tenths"][0]["label"]["value"] == -20_184


@pytest.mark.slow
def test_degenerate_predictions_still_make_a_page(make_inputs: MakeInputs) -> None:
    scores = make_inputs().scores
    assert scores.truth is not None
    few = slice(0, 3)
    late = [EpochLosses(1, float("inf"), 2.0), EpochLosses(2, 1.0, 1.5)]
    for changes in (
        {"points": np.full_like(scores.points, 2.5)},
        {
            "points": scores.points[few],
            "codes": scores.codes[few],
            "truth": replace(scores.truth, labels=scores.truth.labels[few]),
        },
        {"explained": replace(EXPLAINED, share=Measured(0.1, -1e300, 1.0))},
        {"facts": {"history": late}},
    ):
        assert not Page(render_report(make_inputs(**changes))).open


@pytest.mark.parametrize(
    ("truth", "title"),
    [
        ((8.0, 1.2, 7.7), "nothing was learned"),
        ((7.7, 1.2, 7.7), "nothing was learned"),
        ((4.0, 1.2, 7.7, 4.1), "nothing was lost"),
        ((4.1, 1.2, 7.7, 4.1), "nothing was lost"),
        ((5.9, 1.2, 7.7, 4.1), "50% of what true labels teach about visits"),
        ((3.85, 1.2, 7.7, 7.7), "50% of the variation in visits explained"),
        ((3.85, 1.2, 7.7), "50% of the variation in visits explained"),
    ],
)
def test_the_title_says_what_true_labels_say(
    make_inputs: MakeInputs, truth: tuple[float, ...], title: str
) -> None:
    assert title in headline(make_inputs(truth=TrueErrors(np.zeros(0), *truth))).title


@pytest.mark.parametrize(
    ("verdict", "share", "title"),
    [
        ("better", (0.5, 0.4, 1.0), "About 50% of the variation in visits"),
        ("not better", (0.001, -0.2, 0.004), "nothing was learned about visits"),
        (
            "cannot tell",
            (0.2, 0.0, 1.0),
            "The features predict visits; how much, is open",
        ),
        ("better", (1.0, 0.4, 1.0), "At least 40% of the variation in visits"),
        ("better", (0.2, 0.2, 0.6), "At least 20% of the variation in visits"),  # no "about 20%"
        ("better", (0.4, 0.003, 1.0), "About 40% of the variation in visits"),
    ],
)
def test_the_title_says_what_happened(
    make_inputs: MakeInputs, verdict: Verdict, share: tuple[float, float, float], title: str
) -> None:
    explained = replace(EXPLAINED, share=Measured(*share))
    told = headline(make_inputs(simulated=False, explained=explained))
    assert explained.verdict == verdict
    assert title in told.title
    better = "Better than a constant: yes" in " ".join(told.sentences)
    assert better == (verdict == "better")
    ends = re.search(r"([\d.]+)% … ([\d.]+)%", told.sentences[2])
    assert ends is not None
    assert (float(ends[1]) > 0) == better  # as printed, beside the verdict


def test_where_the_tail_hides_the_whole_the_title_is_about_clipped_labels(
    make_inputs: MakeInputs,
) -> None:
    unknown = replace(EXPLAINED, share=Measured(0.35, -0.1, 0.9), association=0.5)
    inputs = make_inputs(simulated=False, explained=unknown)
    assert "Too few events to tell what was learned" in headline(inputs).title
    clipped = Clipped(20.0, 0.04, EXPLAINED)
    inputs = make_inputs(simulated=False, explained=unknown, clipped=clipped)
    assert (
        "About 35% of the variation in visits, clipped at 20, explained" in headline(inputs).title
    )
    vague = Clipped(20.0, 0.04, replace(EXPLAINED, share=Measured(0.35, 0.0, 0.9)))
    open_ = headline(make_inputs(simulated=False, explained=unknown, clipped=vague))
    assert "Too few events to tell what was learned about visits, at" in open_.title
    assert "Of labels clipped at 20, which 4.0% exceed: R² 35%" in headline(inputs).sentences[-2]


def test_an_estimate_beyond_what_is_possible_is_not_drawn(make_inputs: MakeInputs) -> None:
    r2 = Measured(1.0, 0.4, 1.0)
    inputs = make_inputs(simulated=False, explained=replace(EXPLAINED, share=r2))
    row = error_rows(inputs.scores)[1]
    assert np.isnan(row.value)
    assert row.share is None
    assert "nan" not in error_scale(error_rows(inputs.scores))
    sentence = headline(inputs).sentences[3]
    assert sentence == "Estimated mean squared error: 0 … 6 (95%), of a constant 7.9."


def test_the_last_release_with_held_out_events_is_drawn() -> None:
    channel = thresholds_channel(np.linspace(0, 4, 5), 2.0)
    problem = join_problems([LabelProblem.from_channel(channel, np.ones(5))] * 3, [1, 1, 1])
    first = first_codes(problem.releases)
    for sent in ([0, 0], [1, 0, 1, 0], [0, 2], []):
        codes = np.array([first[number] for number in sent], dtype=np.int64)
        events = SimpleNamespace(problem=problem)
        scores: Any = SimpleNamespace(manifests=["a", "b", "c"], codes=codes, events=events)
        shown = max(sent, default=2)
        inputs = ReportInputs(scores)
        assert inputs.shown == "abc"[shown]
        mine, own = inputs.drawn
        assert mine.tolist() == [number == shown for number in sent]
        assert not own.any()


@pytest.mark.slow
@pytest.mark.parametrize("label", [0, 1])
def test_the_channel_of_a_label_is_the_average_over_those_sent_with_it(label: int) -> None:
    """As the prior has these: P[code | value], by a sum over the cells."""
    manifest = two_labels(600, "joint")[0].manifest
    ((_, prior),) = manifest.message.histograms
    (channel,) = manifest.channels
    shown = ReleasedLabel.from_manifest(manifest, NAMES[label])
    values = CELLS.points[:, label]
    for value, mass, row in zip(shown.grid, shown.mass, shown.channel, strict=True):
        weights = np.where(values == value, prior.probabilities, 0.0)
        assert mass == pytest.approx(weights.sum())
        if mass > 1e-6:
            told = weights @ channel.probabilities / mass
            np.testing.assert_allclose(row[shown.rank], told, atol=1e-9)


def test_an_estimate_that_says_nothing_does_not_squeeze_the_others() -> None:
    rows = [ErrorRow("a constant", 8.0), ErrorRow("this model", -900.0, interval=(-2000.0, 90.0))]
    assert error_end(rows) == error_end(rows[:1]) == pytest.approx(10.4)
    assert error_end([rows[0], replace(rows[1], value=900.0)]) == pytest.approx(10.4)
    assert error_end([*rows, ErrorRow("true", 20.0)]) == pytest.approx(26)


@pytest.mark.slow
def test_the_label_has_the_name_and_unit_that_were_configured(make_inputs: MakeInputs) -> None:
    text = render_report(make_inputs(label="value", name="order value", unit="EUR"))
    page = Page(text)
    assert "value of value" not in page.text
    assert "The label “order value” of one event." in page.text
    assert "order value (EUR)" in text
    assert "mean squared error (EUR²)" in text
    assert "The label “value” of one event." in Page(render_report(make_inputs(label="value"))).text


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ("gaussian", "a normal distribution"),
        ("bernoulli", "a probability"),
        (
            "gamma (60%) + trees-gaussian (40%)",
            "a gamma distribution (60%) and a normal distribution by boosted trees (40%)",
        ),
    ],
)
def test_heads_are_said_in_words(head: str, said: str) -> None:
    assert model_words(head) == said


def test_every_head_and_learner_has_words() -> None:
    assert len({model_words(head) for head in HEAD_NAMES}) == len(HEAD_NAMES)
    for head in HEAD_NAMES:
        assert model_words(head).startswith(("a ", "the "))
        for learner in LEARNER_NAMES[1:]:
            assert model_words(f"{learner}-{head}").startswith(f"{model_words(head)} by ")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (7.5, "7.5"),
        (2500, "2500"),
        (100_000, "100k"),
        (-3_876_795, "−3.88M"),
        (1.37e10, "13.7G"),
        (0.0123, "0.0123"),
    ],
)
def test_ticks_are_short(value: float, shown: str) -> None:
    assert compact(value) == shown


@pytest.mark.usefixtures("no_pictures")
def test_a_written_page_states_matches_and_privacy(make_inputs: MakeInputs, tmp_path: Path) -> None:
    inputs = make_inputs(matches=MatchCounts(10, 20, 5))
    write_report(tmp_path / "new" / "report.html", inputs)
    text = Page((tmp_path / "new" / "report.html").read_text("utf-8")).text
    assert "That is 50.0% of what could match." in text
    assert "a factor of at most 2.72" in text
    assert "there is no δ" in text
