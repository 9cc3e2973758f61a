"""What is drawn, chosen and scheduled in a training by formulas; what comes out as approved."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
import pytest

from labelveil.common.errors import ConfigError, DataError
from labelveil.common.exact.channel import FiniteChannel, randomized_response_rows
from labelveil.feature_party.config.sections import DataSection, FeaturePartyConfig, TrainingSection
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.model.encoding import Encoded
from labelveil.feature_party.model.facts import FitSettings
from labelveil.feature_party.model.network import Ensemble, NetworkShape
from labelveil.feature_party.model.trees import Trees
from labelveil.feature_party.training import run
from labelveil.feature_party.training.batches import BatchPlan, group_size
from labelveil.feature_party.training.events import TrainingSetup
from labelveil.feature_party.training.fitting import EpochRecord, Fit, _learning_rate, out_of_reach
from labelveil.feature_party.training.folds import FoldedRows
from labelveil.feature_party.training.holdout import deal_holdout, draw_holdout
from labelveil.feature_party.training.in_memory import Prepared
from labelveil.feature_party.training.mixture import MEAN, OF_MEANS, Candidate, Mixture, Trained
from labelveil.feature_party.training.settings import (
    choose_device,
    resolve_pieces,
    resolve_settings,
)
from labelveil.feature_party.training.workers import ALONE, Workers
from tests.approved import approved
from tests.feature_party.learn import prepare
from tests.feature_party.worlds import World

torch = pytest.importorskip("torch")

CPU = torch.device("cpu")
KEPT = Path(__file__).with_name("approved.json")
SETTINGS = FitSettings(4, 10, 8, 1e-2, "adamw", 0.01, (4,), 0.0, 0.25, 5, 3)


@pytest.mark.parametrize(
    ("members", "group"), [(1, 1), (2, 1), (3, 1), (4, 2), (6, 2), (9, 3), (15, 3), (7, 1)]
)
def test_networks_share_folds_in_the_smallest_groups(members: int, group: int) -> None:
    assert group_size(members) == group


@pytest.mark.parametrize("sizes", [(40,), (40, 25, 2)])
def test_folds_leave_out_each_row_once_and_train_on_the_rest(sizes: tuple[int, ...]) -> None:
    plan = BatchPlan(replace(SETTINGS, members=8), sizes)
    assert plan.group == 2
    for part, rows in enumerate(sizes):
        size = plan.left_out(part)
        assert size == max(1, rows // 4)
        training, out = (each.numpy() for each in plan.folds(part))
        assert (training.shape, out.shape) == ((8, rows - size), (8, size))
        for member in range(8):
            assert sorted([*training[member], *out[member]]) == [*range(rows)]
            assert np.array_equal(out[member], out[member // 2 * 2])
        if rows == 40:
            assert sorted(out[::2].ravel()) == [*range(40)]
        rest = BatchPlan(plan.settings, sizes, range(2, 8))
        for whole, some in zip(plan.folds(part), rest.folds(part), strict=True):
            assert torch.equal(whole[2:], some)
        for whole, some in zip(*(each.places(1, part, CPU) for each in (plan, rest)), strict=True):
            assert torch.equal(whole[1][2:], some[1])
        drawn = [each.own_generator("weights", part).initial_seed() for each in (plan, rest)]
        assert drawn[0] == plan.generator("weights", part).initial_seed() != drawn[1]
    assert plan.epoch_steps == sum(plan.steps(part) for part in range(len(sizes)))
    assert sorted(plan.part_order(0)) == [*range(len(sizes))]


@pytest.mark.parametrize(
    ("validation", "rows", "left_out"),
    [(0.25, 2, 1), (0.01, 50, 1), (0.5, 9, 4), (0.5, 3, 1)],
)
def test_at_least_a_row_is_left_out_and_one_trained_on(
    validation: float, rows: int, left_out: int
) -> None:
    assert BatchPlan(replace(SETTINGS, validation=validation), (rows,)).left_out(0) == left_out


def test_batches_are_even_and_each_member_walks_all_rows_from_its_own_place() -> None:
    plan = BatchPlan(SETTINGS, (40,))
    assert plan.steps(0) == round(30 / 8)
    batches = list(plan.places(2, 0, torch.device("cpu")))
    assert [size for size, _ in batches] == [7, 8, 7, 8]
    walked = torch.cat([places for _, places in batches], dim=1).numpy()
    assert all(sorted(each) == [*range(30)] for each in walked)
    for member in range(4):  # one permutation, a quarter further each
        assert np.array_equal(walked[member], np.roll(walked[0], -7 * member))
    again = torch.cat([p for _, p in plan.places(2, 0, torch.device("cpu"))], dim=1)
    assert np.array_equal(again, walked)
    other = torch.cat([p for _, p in plan.places(3, 0, torch.device("cpu"))], dim=1)
    assert not np.array_equal(other, walked)
    alone = BatchPlan(replace(SETTINGS, batch_size=1000), (40,))
    assert alone.steps(0) == 1
    seeds = [plan.generator(*given).initial_seed() for given in (("a",), ("b",), ("a", 0))]
    assert seeds[0] != seeds[1]
    assert seeds[2] == seeds[0]  # of a single part its number says nothing
    several = BatchPlan(SETTINGS, (40, 40))
    assert several.generator("a", 0).initial_seed() != several.generator("a", 1).initial_seed()
    assert BatchPlan(replace(SETTINGS, seed=4), (40,)).generator("a").initial_seed() != seeds[0]


def test_the_learning_rate_warms_up_and_falls_along_a_cosine() -> None:
    for steps in (10, 100, 1000):
        for step in range(0, steps, max(1, steps // 37)):
            warm = min(1.0, (step + 1) / max(1, steps // 20))
            cosine = 0.01 + 0.99 * (1 + math.cos(math.pi * step / steps)) / 2
            assert _learning_rate(0.3, step, steps) == pytest.approx(0.3 * warm * cosine)


@pytest.mark.parametrize(
    ("losses", "epochs", "beat", "ends"),
    [
        ([2.0] * 3, 9, 1.0, False), ([2.0] * 4, 9, 1.0, True),  # four are compared
        ([2.0] * 6, 9, 1.0, True), ([2.0] * 6, 9, 2.0, False), ([2.0] * 6, 19, 1.0, False),
        ([2.0] * 7, 19, 1.0, True), ([2.0, 1.9, 1.8, 1.7, 1.6, 1.5], 9, 1.31, False),
        ([2.0, 1.9, 1.8, 1.7, 1.6, 1.5], 9, 1.29, True),
        ([1.0, 1.1, 1.2, 1.3, 1.4, 1.5], 9, 1.2, False),
    ],
)  # fmt: skip
def test_who_cannot_come_below_is_given_up(
    losses: list[float], epochs: int, beat: float, ends: bool
) -> None:
    """Averages of three: the last fall goes on, a third of the epochs is waited for."""
    assert out_of_reach(losses, epochs, beat) == ends


@pytest.mark.parametrize(
    ("rows", "members", "batch", "epochs", "left_out"),
    [
        (1, 8, 64, 60, 0.25), (1000, 8, 64, 60, 0.25), (16_000, 8, 256, 20, 0.25),
        (99_999, 8, 1024, 8, 0.25), (100_000, 4, 1024, 8, 0.25), (10**7, 4, 1024, 3, 0.25),
    ],
)  # fmt: skip
def test_auto_follows_from_the_rows(
    rows: int, members: int, batch: int, epochs: int, left_out: float
) -> None:
    found = resolve_settings(TrainingSection(), rows)
    assert (found.members, found.batch_size, found.epochs) == (members, batch, epochs)
    assert (found.validation, found.weight_decay) == (left_out, 0.01)
    chosen = TrainingSection(
        ensemble=12, batch_size=9, epochs=3, weight_decay=0.5, validation=0.2, seed=4, patience=2,
        hidden=[3], dropout=0.1, optimizer="rmsprop", learning_rate=0.01,
    )  # fmt: skip
    assert resolve_settings(chosen, rows) == FitSettings(
        12, 3, 9, 0.01, "rmsprop", 0.5, (3,), 0.1, 0.2, 2, 4
    )
    for ensemble, share in ((1, 0.1), (3, 0.25), (6, 0.25), (12, 1 / 6), (30, 0.1)):
        assert resolve_settings(TrainingSection(ensemble=ensemble), rows).validation == share


@pytest.mark.parametrize(
    ("pieces", "labels", "cut"),
    [("auto", 799, 0), ("auto", 800, 8), ("auto", 3199, 31), ("auto", 9999, 32), (5, 1, 5)],
)
def test_pieces_are_one_a_hundred_labels(pieces: Any, labels: float, cut: int) -> None:
    assert resolve_pieces(pieces, labels) == cut


def test_devices_that_are_not_there_are_named() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match="device='abacus' is unknown; use auto, cpu or cuda"):
        choose_device("abacus")
    if not torch.cuda.is_available():
        assert choose_device("auto") == torch.device("cpu")
        with pytest.raises(ConfigError, match="device='cuda' is not available on this machine"):
            choose_device("cuda")


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_workers_share_all_there_is(size: int) -> None:
    def worker(rank: int) -> Workers:
        found = Workers()
        found.rank, found.size = rank, size
        return found

    for count in (0, 1, 10, 23):
        shares = [worker(rank).share(count) for rank in range(size)]
        assert [place for share in shares for place in range(count)[share]] == [*range(count)]
        sizes = [share.stop - share.start for share in shares]
        assert max(sizes) - min(sizes) <= 1
    assert [worker(rank).first for rank in range(size)] == [True, *[False] * (size - 1)]
    assert ALONE.from_first("x") == "x"


def test_holdouts_are_dealt_to_each_row_by_itself_or_drawn_in_number() -> None:
    rows = np.array([3, 5, 8, 200])
    chances = np.random.default_rng(4).random(201)
    assert deal_holdout(rows, 0.4, 4).tolist() == np.flatnonzero(chances[rows] < 0.4).tolist()
    assert deal_holdout(rows[:0], 0.4, 4).size == 0
    for events, share, size in ((10, 0.25, 2), (10, 0.35, 4), (100, 0.0, 0), (4, 0.5, 2)):
        found = draw_holdout(events, share, 1)
        assert found.size == size
        assert np.array_equal(found, np.unique(found))
    with pytest.raises(DataError) as caught:
        draw_holdout(2000, 0.9997, 1)
    assert str(caught.value) == (
        "2,000 matched events leave 1 to train on after a holdout of 0.9997; match more events or"
        " lower [training] holdout"
    )


def fitted(losses: list[float], epochs: int = 2) -> Fit:
    each = np.array(losses)
    history = [EpochRecord(n + 1, 5, 2.0 + n, 3.0 + n, True) for n in range(epochs)]
    return Fit(None, history, np.arange(each.size), each, each + 1, each + 2, np.array([0.5, 0.5]))  # type: ignore[arg-type]


def test_a_mixture_says_what_predicts_and_what_was_tried() -> None:
    gaussian, trees = Candidate("likelihood", "gaussian"), Candidate("likelihood", "gamma", "trees")
    tried = Candidate("likelihood", "softmax")
    found = Mixture(
        (
            Trained(gaussian, fitted([1.0, 3.0]), 0.25),
            Trained(trees, fitted([5.0, 5.0], 3), 0.75),
            Trained(Candidate("likelihood", "gamma"), fitted([2.0, 2.0], 3)),
        ),
        0.5,
        (Trained(tried, fitted([9.0], 1)),),
    )
    assert found.main.candidate == trees
    assert found.head == "trees-gamma (75%) + gaussian (25%)"
    assert found.average(lambda fit: fit.losses).tolist() == [4.0, 4.5]
    assert found.shrunk(lambda fit: fit.losses, 1.0).tolist() == [2.5, 2.75]
    assert found.shares.tolist() == [0.125, 0.375, 0.0, 0.5]
    assert {name: (f.validation_loss, f.weight, f.epochs) for name, f in found.heads.items()} == {
        "gaussian": (2.0, 0.25, 2), "trees-gamma": (5.0, 0.75, 3), "gamma": (2.0, 0.0, 3),
        "softmax": (9.0, 0.0, 1),
    }  # fmt: skip
    assert [(e.epoch, e.train_loss, e.validation_loss) for e in found.history] == [
        (1, 2.0, 3.0), (2, 3.0, 4.0), (3, 4.0, 5.0),
    ]  # fmt: skip
    alone = Mixture((Trained(gaussian, fitted([1.0]), 1.0),))
    assert alone.head == "gaussian"
    plain = Candidate("debiased")
    assert Mixture((Trained(plain, fitted([1.0]), 1.0),)).head == ""
    assert [str(each) for each in (gaussian, trees, plain, MEAN, OF_MEANS)] == [
        "likelihood-gaussian", "likelihood-trees-gamma", "debiased", "likelihood-mean",
        "likelihood-trees-mean",
    ]  # fmt: skip


def test_networks_that_were_trained_apart_are_one_ensemble() -> None:
    """Each row that one of them left out counts alike."""
    made = []
    for rows, members, start in ((3, 2, 0), (1, 1, 3)):
        shape = NetworkShape(2, (), (3,), 1, members)
        learned = Ensemble(shape, torch.Generator().manual_seed(members))
        places = np.arange(start, start + rows)
        values = [places + offset for offset in (0.25, 0.5, 0.75)]
        history = [EpochRecord(members, 5, 1.0, 1.0, True)]
        made.append(Fit(learned, history, places, *values, np.eye(2)[members - 1]))
    first, second = made
    both = first.followed_by(second)
    assert both.history == second.history
    assert both.rows.tolist() == [0, 1, 2, 3]
    for name, offset in (("losses", 0.25), ("predictions", 0.5), ("estimates", 0.75)):
        assert getattr(both, name).tolist() == [row + offset for row in range(4)]
    assert both.marginal.tolist() == [0.25, 0.75]
    inputs, none = torch.ones(1, 1, 2), torch.zeros(1, 1, 0, dtype=torch.int64)
    together = both.learned(inputs, none)
    apart = [each.learned(inputs, none) for each in made]
    assert torch.equal(together, torch.cat(apart))
    for one, other in ((first, fitted([1.0])), (fitted([1.0]), first)):
        with pytest.raises(TypeError, match="only networks have members that are trained apart"):
            one.followed_by(other)


@pytest.mark.parametrize(
    ("rows", "sizes"),
    [(23, [4, 4, 4, 4, 3]), (22, [5, 5, 4, 4]), (9, [5]), (5, [1]), (4, [])],
)
def test_rows_that_no_model_leaves_out_make_up_folds_about_as_large(
    rows: int, sizes: list[int]
) -> None:
    inputs = Encoded(np.zeros((rows, 1), np.float32), np.zeros((rows, 0), np.int32))
    nothing = np.zeros(rows)
    folds = np.array([[3, 0, 1, 2]])
    found = FoldedRows(cast(Any, None), inputs, nothing, nothing, folds, 0).fold_of
    assert np.flatnonzero(found == 0).tolist() == [0, 1, 2, 3]
    assert np.bincount(found)[1:].tolist() == sizes


def events() -> Prepared:
    rng = np.random.default_rng(1)
    grid = np.arange(6.0)
    channel = FiniteChannel(grid, grid + 0.5, randomized_response_rows(6, 3.0))
    x = rng.normal(size=400)
    labels = np.clip(np.rint(2.5 + 1.2 * x), 0, 5).astype(int)
    shares = np.bincount(labels, minlength=6) / 400
    table = pl.DataFrame({"x": x, "z": rng.normal(size=400), "kind": list("abcd") * 100})
    odds = channel.probabilities[labels].cumsum(axis=1)
    codes = (odds < rng.random(400)[:, None]).sum(axis=1).clip(0, 5).astype(np.uint16)
    return Prepared.of_table(table, codes, LabelProblem.from_channel(channel, shares))


@pytest.mark.slow
@pytest.mark.parametrize("learner", ["linear", "trees", "networks"])
def test_models_are_trained_as_approved(learner: str) -> None:
    section = TrainingSection(
        learner=learner, head="gaussian", objective="likelihood", ensemble=4, epochs=3, hidden=[4],
        checkpoint=False,
    )  # fmt: skip
    records: list[tuple[str, EpochRecord]] = []
    setup = TrainingSetup(section, DataSection(), on_epoch=lambda *each: records.append(each))
    given = events()
    model = run.train(given, setup)
    points = model.predict(given.table[:8])["prediction"].to_numpy()
    facts = model.facts
    assert {name for name, _ in records} == {
        f"likelihood-{learner}-gaussian" if learner != "networks" else "likelihood-gaussian"
    }
    # to what single precision and its order of sums leave of it
    approved(KEPT, f"trained {learner}", {
        "points": np.round(points, 2), "head": facts.head, "shrinkage": round(facts.shrinkage, 2),
        "history": [[each.epoch, round(each.train_loss, 2), round(each.validation_loss, 2)]
                    for each in facts.history],
        "slope": None if facts.slope is None else round(facts.slope.value, 1),
        "rows": facts.training_rows, "adjusted": facts.adjusted,
        "ended": [record.ended for _, record in records],
    })  # fmt: skip


@pytest.mark.slow
def test_all_that_may_do_well_is_mixed_as_approved(monkeypatch: pytest.MonkeyPatch) -> None:
    section = TrainingSection(ensemble=2, epochs=2, hidden=[4], checkpoint=False)
    model = run.train(events(), TrainingSetup(section, DataSection()))
    facts = model.facts
    assert [expert.weight for expert in model.experts] != []
    assert sum(expert.weight for expert in model.experts) == pytest.approx(1)
    ended: list[str] = []  # trees of one size
    setup = TrainingSetup(section, DataSection(), asks=True)
    setup = replace(setup, on_epoch=lambda of, record: ended.extend([of] * bool(record.ended)))
    monkeypatch.setattr(run.Reach, "from_means", lambda *given: given)
    limited = run.train(events(), setup)
    assert limited.facts.heads.keys() == facts.heads.keys()
    # trees that learn means alone limit all others' and come last, whatever their share is
    given: Any = limited.reach
    assert given[0] is limited.support
    assert given[1].shape == given[2].shape
    assert given[3] == pytest.approx(400 * limited.problem.informativeness)
    heads = [(expert.objective.head, type(expert.learned)) for expert in limited.experts]
    assert heads[-1] == ("mean", Trees)
    assert ("mean", Trees) not in heads[:-1]
    assert sum(expert.weight for expert in limited.experts) == pytest.approx(1)
    trees = [name for name in ended if "trees" in name]
    assert trees == ["likelihood-trees-gaussian", "likelihood-trees-mean"]
    approved(KEPT, "trained all", {
        "candidates": sorted(facts.heads), "adjusted": facts.adjusted,
        "likeliest": facts.head.partition(" ")[0], "shrinkage": round(facts.shrinkage, 1),
        "epochs": {name: of.epochs for name, of in facts.heads.items() if "trees" not in name},
    })  # fmt: skip


@pytest.mark.parametrize(
    ("asks", "most", "boosts", "networks"),
    [(True, 399, True, False), (True, 400, True, True), (False, 1, True, True),
     (True, 1, False, True)],
)  # fmt: skip
def test_a_model_of_many_rows_that_only_asks_is_of_trees(
    asks: bool, most: int, boosts: bool, networks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless none can be boosted; one that predicts has networks beside them."""
    monkeypatch.setattr(run, "_TREES_ASK", most)
    monkeypatch.setattr(run._Run, "_drop_tables", lambda self: None)
    if not boosts:
        monkeypatch.setattr(run._Run, "_boosted", lambda self, law: [])
    section = TrainingSection(ensemble=2, epochs=1, hidden=[4], checkpoint=False)
    given = events()
    assert given.training_rows == 400
    trained: list[str] = []
    setup = TrainingSetup(section, DataSection(), asks=asks)
    run.train(given, replace(setup, on_epoch=lambda of, record: trained.append(of)))
    assert any("-trees-" in name for name in trained) == boosts
    assert any("-trees-" not in name and "-linear-" not in name for name in trained) == networks


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"objective": "true"}, "objective='true' needs true labels; pass --true-labels FILE"),
        ({"objective": "debiased", "learner": "trees"}, "objective='debiased' is for networks "),
        ({"objective": "raw", "learner": "linear"}, "set .training. learner to networks, or obj"),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_is_said(section: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        run.train(events(), TrainingSetup(TrainingSection(**section), DataSection()))  # type: ignore[arg-type]


@pytest.mark.slow
def test_events_in_memory_are_those_of_the_release(world: World) -> None:
    config = FeaturePartyConfig.model_validate(
        {
            "data": {"features": world.features, "key": "event"},
            "keys": {"secret_file": world.secret_file},
            "training": {"holdout": 0.3, "seed": 5},
        }
    )
    found: Any = prepare(world.directory, world.features, config)
    assert (found.training_rows, found.holdout.size) == (1050, 450)
    assert np.array_equal(np.sort([*found.training, *found.holdout]), np.arange(1500))
    places = found.keys().str.slice(1).cast(pl.Int64).to_numpy()
    assert np.array_equal(found.all_codes(), world.release.codes[places])
    table, codes = found.held_out()
    assert np.array_equal(codes, found.codes[found.holdout])
    assert table["event"].to_list() == found.keys()[found.holdout].to_list()
    mask = np.zeros(1500, dtype=bool)
    mask[found.rows[found.training]] = True
    assert np.array_equal(found.trained(100, 900), mask[100:900])
    assert np.array_equal(found.training_of(np.array([0, 2])), found.training[[0, 2]])
