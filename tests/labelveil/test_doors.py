"""What a notebook's functions hand on, and how programs start: whatever is behind them."""

from __future__ import annotations

import atexit
import errno
import gc
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

import labelveil as lv
from labelveil import programs, runs
from labelveil.children import child_command, child_environment
from labelveil.common.errors import ConfigError, DataError
from labelveil.common.mechanisms.interactive import Terms
from labelveil.common.mechanisms.interactive.targets import not_prior
from labelveil.lasting import open_session
from labelveil.simulation import Outcome
from tests.statistics import repeatable_entropy


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What was done to start a program, whose modules do nothing."""
    seen: list[str] = []
    threshold = gc.get_threshold()
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.setattr("labelveil.common.security.tls.only_tls13", lambda: seen.append("tls"))
    monkeypatch.setattr(atexit, "register", lambda function: seen.append(function.__name__))
    gc.set_threshold(700)

    def loaded(name: str) -> ModuleType:
        module = ModuleType(name)
        module.main = lambda: seen.append(name)  # type: ignore[attr-defined]
        return module

    monkeypatch.setattr(programs, "import_module", loaded)
    yield seen
    gc.set_threshold(*threshold)


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("labelveil", "labelveil.commands.cli"),
        ("label_party", "labelveil.label_party.commands.cli"),
        ("feature_party", "labelveil.feature_party.commands.cli"),
    ],
)
def test_a_program_starts_with_the_garbage_left_alone(
    name: str, module: str, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for a server, which runs for weeks."""
    for arguments, freezes in ((["serve"], []), (["plan", "serve"], ["freeze"]), ([], ["freeze"])):
        started.clear()
        gc.set_threshold(700)
        monkeypatch.setattr("sys.argv", [name, *arguments])
        getattr(programs, name)()
        assert started == [*freezes, "tls", module]
        assert gc.get_threshold()[0] == (50_000 if freezes else 700)
        assert os.environ["PYTHONSAFEPATH"] == "1"


def test_an_interruption_while_it_loads_is_one_line(
    started: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def loaded(name: str) -> ModuleType:
        raise KeyboardInterrupt

    monkeypatch.setattr(programs, "import_module", loaded)
    with pytest.raises(SystemExit) as ended:
        programs.labelveil()
    assert ended.value.code == 130
    assert capsys.readouterr() == ("", "interrupted; nothing was done yet\n")


def test_an_interruption_waits_for_an_import_that_it_would_abort(
    started: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch registers its types by Python that is called where C++ takes no error of it."""
    body = "import signal, sys\nsignal.raise_signal(signal.SIGINT)\nsys.imported = __name__\n"
    for name in ("aborted", "plain"):
        (tmp_path / f"{name}.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(sys, "imported", "", raising=False)
    monkeypatch.setattr(programs, "_ABORTED", ("aborted",))
    programs.labelveil()
    for name, imported in (("plain", ""), ("aborted", "aborted")):
        with pytest.raises(KeyboardInterrupt):
            import_module(name)
        assert sys.imported == imported  # type: ignore[attr-defined]


WAITING = """
import os, signal, threading, types
from labelveil import programs

programs.import_module = lambda name: types.SimpleNamespace(main=lambda: None)
programs.labelveil()
import polars

held, done = threading.Lock(), threading.Event()
held.acquire()

def interrupt():
    while not done.wait(0.01):
        os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
try:
    held.acquire()
except KeyboardInterrupt:
    os._exit(7)
"""


def test_an_interruption_ends_a_wait_for_a_thread_though_polars_is_there() -> None:
    """It has calls restarted that SIGINT interrupts: a comparison ended with its workers alone."""
    command = [sys.executable, "-c", WAITING]
    done = subprocess.run(command, env=child_environment(), timeout=60, check=False)
    assert done.returncode == 7


LOST = """
import signal, types
from labelveil import programs
from labelveil.common.signals import terminated_as_interrupted

class Deleted:
    def __del__(self):
        signal.raise_signal(signal.SIGNAL)

def main():
    with terminated_as_interrupted():
        Deleted()
        signal.pause()

programs.import_module = lambda name: types.SimpleNamespace(main=main)
programs.labelveil()
"""


@pytest.mark.parametrize("signal", ["SIGINT", "SIGTERM"])
def test_an_interruption_where_no_error_is_taken_is_not_lost(signal: str) -> None:
    command = [sys.executable, "-c", LOST.replace("SIGNAL", signal)]
    environment = child_environment()
    done = subprocess.run(
        command, env=environment, timeout=60, check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (130, "interrupted; nothing was done yet\n")


def test_children_are_run_by_this_interpreter_with_its_paths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert child_command("a.b", "--c", "d") == [sys.executable, "-m", "a.b", "--c", "d"]
    monkeypatch.setattr("sys.path", ["/x", "rel", "/y"])
    monkeypatch.setenv("OTHER", "1")
    made = child_environment(MORE="2")
    assert made["PYTHONPATH"] == os.pathsep.join(["/x", os.path.abspath("rel"), "/y"])
    assert (made["PYTHONSAFEPATH"], made["OTHER"], made["MORE"]) == ("1", "1", "2")


def test_a_session_is_opened_over_a_configuration_and_its_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        "labelveil.label_party.config.sections.load",
        lambda path, settings: seen.append((path, settings)) or "config",
    )
    monkeypatch.setattr(
        "labelveil.label_party.queries.own_session.open_session", lambda *given: given
    )
    terms = Terms(not_prior(Fraction(1, 10)), 2)
    assert open_session("bar", terms) == ("config", "bar", terms)
    open_session("bar", terms, "other.toml", {"data.epoch": "2", "privacy.epsilon": 1.5})
    assert seen == [
        (Path("label_party.toml"), []),
        (Path("other.toml"), ["data.epoch=2", "privacy.epsilon=1.5"]),
    ]


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The settings of each simulation; what it leaves is a report of two pages, and labels."""
    seen: list[Any] = []

    def simulate(settings: Any) -> Outcome:
        seen.append((settings, pl.read_parquet(settings.labels)))
        settings.out.mkdir(parents=True)
        for name in ("report.html", "report-y.html", "other.html", "labels.parquet"):
            (settings.out / name).write_text(name)
        return Outcome({"epsilon": settings.epsilon}, settings.out / "report.html", None)

    monkeypatch.setattr(runs, "run_simulation", simulate)
    return seen


def test_of_a_table_the_report_alone_is_kept(
    simulated: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[Any] = []
    monkeypatch.setattr(atexit, "register", lambda *given, **named: removed.append((*given, named)))
    table = pl.DataFrame({"x": [1, 2, 3], "y": [0.0, 7.3, 120.0]})
    outcome = lv.simulate(table, label="y", epsilon=2.0)
    settings, written = simulated[0]
    assert written.equals(table)
    assert settings.features == settings.labels
    assert (settings.lower, settings.upper, settings.epsilon) == (0.0, 120.0, 2.0)
    assert not settings.labels.exists()
    assert not settings.out.exists()
    kept = outcome.report.parent
    assert {path.name for path in kept.iterdir()} == {"report.html", "report-y.html"}
    (remove,) = (given[0] for given in removed if given[1:] == (kept, {"ignore_errors": True}))
    remove(kept)
    assert not kept.exists()
    own = lv.simulate(table, label="y", epsilon=1, out=tmp_path / "run", lower=-1, upper=500)
    assert own.report == tmp_path / "run" / "report.html"
    assert (tmp_path / "run" / "labels.parquet").exists()
    settings, _ = simulated[1]
    assert (settings.lower, settings.upper) == (-1.0, 500.0)
    table.write_parquet(tmp_path / "t.parquet")
    files = {"labels": tmp_path / "t.parquet", "features": tmp_path / "t.parquet"}
    lv.simulate(**files, label="y", lower=0, upper=1, epsilon=1, out=tmp_path / "b")
    assert simulated[2][0].labels == tmp_path / "t.parquet"


@pytest.mark.parametrize(
    ("labels", "lower", "upper"),
    [
        ([0.0, 1.0], 0.0, 1.0),
        ([0.12, 0.998], 0.12, 1.0),
        ([1.234, 98.7], 1.0, 99.0),
        ([-0.5, 1234.0], -100.0, 1300.0),
        ([101.0, 110.0], 101.0, 110.0),
        ([100.01, 110.01], 100.0, 111.0),
    ],
)
def test_bounds_have_two_digits_of_the_range(
    tmp_path: Path, labels: list[float], lower: float, upper: float
) -> None:
    table = pl.DataFrame({"y": [*labels, None, math.nan]})
    found = runs.write_events(table, tmp_path / "e.parquet", {"label": "y"})
    assert (found["lower"], found["upper"]) == pytest.approx((lower, upper))
    assert found["labels"] == found["features"] == tmp_path / "e.parquet"
    assert found["label"] == ["y"]
    with pytest.raises(DataError, match="labels are numbers"):
        runs.write_events(table.cast(pl.String), tmp_path / "e.parquet", {"label": "y"})


def test_labels_that_are_categories_are_the_numbers_that_name_them(tmp_path: Path) -> None:
    path, named = tmp_path / "e.parquet", pl.DataFrame({"y": ["10", None, "2"]})
    named = named.cast(pl.Categorical)  # as of pandas' categories 10 and 2
    found = runs.write_events(named, path, {"label": "y"})
    assert (found["lower"], found["upper"]) == (2, 10)
    assert pl.read_parquet(path)["y"].to_list() == [10.0, None, 2.0]
    assert named["y"].dtype == pl.Categorical, "the caller's table is as it was"
    words = pl.DataFrame({"y": ["10", "lamp"]}).cast(pl.Categorical)
    with pytest.raises(DataError, match="has type Categorical; labels are numbers"):
        runs.write_events(words, path, {"label": "y"})


def test_labels_that_name_their_bounds_are_left_to_others(tmp_path: Path) -> None:
    table = pl.DataFrame({"y": [1.0, 2.0], "b": [True, False]})
    found = runs.write_events(table, tmp_path / "e", {"label": ("z:0:1", "b")})
    assert found["label"] == ["z:0:1", "b:0.0:1.0"]
    with pytest.raises(DataError, match="label='z:0' must be one of the columns y, b"):
        runs.write_events(table, tmp_path / "e", {"label": ["z:0", "y"]})


pytest.importorskip("torch")
pytest.importorskip("sklearn")
decode_targets = pytest.importorskip("labelveil.feature_party.notebook.targets").decode_targets
BOUNDS = {"lower": 0, "upper": 10}


@pytest.fixture
def private() -> lv.PrivateLabels:
    with repeatable_entropy():
        return lv.randomize_labels(np.arange(60) % 11, epsilon=2.0, **BOUNDS)


class Fitted:
    """In place of training: what it was given; a model of one number an event."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.given: list[Any] = []

        def train(events: Any, setup: Any) -> Any:
            self.given.append((events, setup))
            predicted = lambda table: SimpleNamespace(points=np.full(table.height, 5.0))  # noqa: E731
            encoder = SimpleNamespace(
                encode=lambda table: table, shares=(), categorical=(), columns=()
            )
            support = SimpleNamespace(values=events.problem.values)
            return SimpleNamespace(
                problem=events.problem, support=support, encoder=encoder, distributions=predicted
            )

        monkeypatch.setattr("labelveil.feature_party.training.run.train", train)


def test_an_estimator_trains_with_what_it_was_told(
    private: lv.PrivateLabels, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted = Fitted(monkeypatch)
    x = np.arange(60.0)[:, None]
    model = lv.LabelDPRegressor(
        head="gaussian", learner="linear", ensemble=3, epochs=7, columns={"x0": "category"},
        random_state=9,
    ).fit(x, private)  # fmt: skip
    events, setup = fitted.given[0]
    section = setup.training
    assert (section.head, section.learner, section.ensemble, section.epochs, section.seed) == (
        "gaussian", "linear", 3, 7, 9,
    )  # fmt: skip
    assert section.checkpoint is False
    assert dict(setup.data.columns) == {"x0": "category"}
    assert np.array_equal(events.codes, private.codes)
    assert model.labels_ is events.problem.values
    assert model.predict(x[:4]).tolist() == [5.0] * 4
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        lv.LabelDPRegressor().fit(x[:-1], private)
    lv.LabelDPRegressor(private).fit(x, private.codes)
    assert fitted.given[1][1].training.seed == 0
    with pytest.raises(ValueError, match="requires y to be passed"):
        lv.LabelDPRegressor(private).fit(x)


def test_a_score_is_of_true_labels_and_follows_its_formula(
    private: lv.PrivateLabels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mean of (f - c)(2u - f - c) over the prior's variance, u the decoded codes."""
    Fitted(monkeypatch)
    x = np.arange(60.0)[:, None]
    model = lv.LabelDPRegressor(private).fit(x, private.codes)
    problem = model.model_.problem
    assert problem is not None
    codes = private.codes.astype(np.int64)
    decoded = decode_targets(problem, codes, "low-variance").targets
    gains = (5.0 - problem.mean) * (2 * decoded - 5.0 - problem.mean)
    found = model.score(x, private.codes)
    assert found == pytest.approx(gains.mean() / problem.deviation**2)
    # of events that seem far better told than they can be
    best = int(np.argmax(gains))
    if gains[best] > problem.deviation**2:
        with pytest.warns(UserWarning, match="R² is estimated as .* ± 0.00, and cannot be above"):
            model.score(x[:2], np.repeat(private.codes[best], 2))


def test_rounds_are_joined_with_codes_of_their_own(
    private: lv.PrivateLabels, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted = Fitted(monkeypatch)
    x = np.arange(120.0)[:, None]
    lv.LabelDPRegressor().fit(x, [private, private])
    codes = fitted.given[0][0].codes
    outputs = private.channel.outputs.size
    assert np.array_equal(codes[:60], private.codes)
    assert np.array_equal(codes[60:], private.codes + outputs)
    assert codes.dtype == np.uint16


@pytest.mark.parametrize("state", [-1, 1.5, "a"])
def test_a_seed_is_a_whole_number(private: lv.PrivateLabels, state: Any) -> None:
    model = lv.LabelDPRegressor(private, random_state=state)
    with pytest.raises(ConfigError, match=r"random_state=.* must be a whole number >= 0"):
        model.fit(np.arange(60.0)[:, None], private.codes)


def test_a_group_question_follows_from_bounds_and_columns() -> None:
    table = pl.DataFrame({"x": range(40), "arm": ["a", "b"] * 20})
    asked = lv.ask_means(table, "arm", lower=0, upper=4)
    assert asked.question.half_widths.size == 2
    assert (asked.question.lattice.lower, asked.question.lattice.upper) == (0, 4)
    both = lv.ask_means(table, ["arm", "x"], lower=0, upper=4)  # numbers in five ranges
    assert (both.by, both.question.half_widths.size) == (("arm", "x"), 10)
    with pytest.raises(DataError, match="X has no names of columns"):
        lv.ask_means(np.zeros((4, 2)), "arm", lower=0, upper=4)
    for missing in ({"lower": None, "upper": 4}, {"lower": 0, "upper": None}):
        with pytest.raises(ConfigError, match="lower and upper are missing"):
            lv.ask_means(table, "arm", **missing)  # type: ignore[arg-type]
    groups = lv.ask_groups(table, epsilon=1, **BOUNDS)
    assert len(groups) == 40
    assert lv.ask_groups(table, epsilon=1, random_state=1, **BOUNDS).digest != groups.digest
    for epsilon in (0, 41):
        with pytest.raises(
            lv.PrivacyError if hasattr(lv, "PrivacyError") else Exception, match="epsilon="
        ):
            lv.ask_groups(table, epsilon=epsilon, **BOUNDS)
    with pytest.raises(DataError, match="X has no rows; ask about at least one event"):
        lv.ask_groups(table[:0], epsilon=1, **BOUNDS)
    other: Any = lv.LabelDPRegressor()
    with pytest.raises(ConfigError, match="the model has learned from no sums"):
        lv.ask_groups(table, epsilon=1, model=other)


def test_a_score_is_asked_with_what_a_model_knows(
    private: lv.PrivateLabels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bounds, the labels' mean, and how far labels are from its predictions."""
    seen: list[Any] = []

    def of(points: Any, beside: Any, lattice: Any, epsilon: float, rng: Any, miss: Any) -> None:
        seen.append((points, beside, lattice, epsilon, rng.random(), miss))

    monkeypatch.setattr("labelveil.feature_party.groups.scoring.ScoreQuestion.from_predictions", of)
    numbers, x = np.linspace(2, 8, 30), np.arange(30.0)[:, None]
    lv.ask_score(numbers, x, epsilon=0.5, random_state=4, **BOUNDS)
    points, beside, lattice, epsilon, drawn, miss = seen[-1]
    assert points.tolist() == numbers.tolist()
    assert (beside, epsilon, miss) == (pytest.approx(5.0), 0.5, None)
    assert (lattice.lower, lattice.upper) == (0, 10)
    assert drawn == np.random.default_rng(4).random()
    lv.ask_score(numbers, x, epsilon=0.5, reference=numbers[::-1], **BOUNDS)
    assert seen[-1][1].tolist() == numbers[::-1].tolist()
    lv.ask_score(numbers, x, epsilon=0.5, reference=3, **BOUNDS)
    assert seen[-1][1] == 3
    Fitted(monkeypatch)
    model = lv.LabelDPRegressor(private).fit(np.arange(60.0)[:, None], private.codes)
    problem = model.model_.problem
    assert problem is not None
    lv.ask_score(model, x, epsilon=1)
    points, beside, lattice, _, _, miss = seen[-1]
    assert points.tolist() == [5.0] * 30
    assert (lattice.lower, lattice.upper) == (0, 10)
    assert beside == problem.mean
    left = problem.deviation**2 - (5.0 - problem.mean) ** 2
    assert miss == pytest.approx(math.sqrt(max(left, 0.05 * problem.deviation**2)))
    lv.ask_score(model, x, epsilon=1, lower=0, upper=10)  # its own
    for ends in ({"lower": 0}, {"lower": 0, "upper": 9}, {"lower": 1, "upper": 10}):
        with pytest.raises(ConfigError, match="the model is of labels in 0 … 10; leave lower and"):
            lv.ask_score(model, x, epsilon=1, **ends)
    with pytest.raises(DataError, match="the reference predicts 29 events, and the model 30"):
        lv.ask_score(numbers, x, epsilon=1, reference=numbers[1:], **BOUNDS)


def test_codes_become_numbers_where_there_are_codes(private: lv.PrivateLabels) -> None:
    unbiased = lv.decoded_labels(private)
    assert unbiased.targets.shape == (60,)
    some = lv.decoded_labels(private, private.codes[:5])
    assert some.targets.tolist() == unbiased.targets[:5].tolist()
    with pytest.raises(ConfigError, match="FiniteChannel holds no codes; give them"):
        lv.decoded_labels(private.channel)
    with pytest.raises(DataError, match=r"around=\(59,\) must be a prediction for each of \(60,\)"):
        lv.decoded_labels(private, around=np.zeros(59))
    near = lv.decoded_labels(private, around=np.full(60, 5.0))
    assert near.targets.tolist() != unbiased.targets.tolist()


@pytest.mark.parametrize(
    "name", ["torch_loss", "lightgbm_objective", "xgboost_objective", "catboost_objective"]
)
def test_own_models_are_told_a_head(private: lv.PrivateLabels, name: str) -> None:
    with pytest.raises(ConfigError, match="head='no' must be"):
        getattr(lv, name)(private, "no")
    chosen = getattr(lv, name)(private, "poisson")
    with pytest.raises(ConfigError):
        getattr(lv, name)(object())
    assert chosen is not None


def test_a_disk_that_is_full_is_named_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(table: pl.DataFrame, path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    with pytest.raises(OSError, match="No space left") as caught:
        runs.write_events(pl.DataFrame({"y": [1.0, 2.0]}), tmp_path / "e", {"label": "y"})
    assert caught.value.filename == str(tmp_path / "e")


def test_a_classifier_looks_at_features_before_codes(private: lv.PrivateLabels) -> None:
    """As scikit-learn's do: what is wrong with X is said first."""
    twice = pl.DataFrame({"a": [1.0, 2.0], "b": [1.0, 2.0]}).to_pandas()
    twice.columns = ["a", "a"]
    for estimator in (lv.LabelDPClassifier(private), lv.LabelDPRegressor(private)):
        with pytest.raises(DataError, match="X has 2 columns of the name 'a'"):
            estimator.fit(twice, None)
