"""What a plan assumes, what a prior is, and what a manifest says: small and by hand."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial
from operator import eq
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import (
    ConfigError,
    DataError,
    PrivacyError,
    ReleaseError,
)
from labelveil.common.mechanisms.interactive import Terms
from labelveil.common.mechanisms.interactive.targets import not_prior
from labelveil.common.randomizers.cells import Cells, Group
from labelveil.common.randomizers.grid import Grid
from labelveil.common.release.manifest import Manifest
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.events.epoch import rows_of_values, values_of
from labelveil.label_party.release import plan as planning
from labelveil.label_party.release.message import accepted, stated_labels
from labelveil.label_party.release.plan import make_plan, planned_rows, too_few_events
from labelveil.label_party.release.prior_in_force import PaidSession
from labelveil.label_party.release.prior_in_force import test_epsilon as epsilon_of_test
from labelveil.label_party.release.prior_knowledge import (
    KnownLabels,
    PriorKnowledge,
    choose_knowledge,
    from_domain,
    from_manifest,
)
from labelveil.label_party.release.public_prior import read_prior
from labelveil.label_party.release.strata import names_stratum, strata_notes, stratum_column
from tests.label_party.conftest import EVENTS, Party


def test_a_prior_is_a_table_of_labels_and_weights(tmp_path: Path) -> None:
    path = tmp_path / "prior.csv"
    path.write_text("weight,label\n3,2.5\n1,0\n")
    known = read_prior(path, ["amount"])
    assert known.values.tolist() == [[0.0], [2.5]]
    assert known.weights.tolist() == [1.0, 3.0]
    path.write_text("b,weight,a\n1,2,7\n0,5,8\n")
    several = read_prior(path, ["a", "b"])
    assert several.labels == (0, 1)
    assert several.values.tolist() == [[7.0, 1.0], [8.0, 0.0]]
    assert several.weights.tolist() == [2.0, 5.0]
    for text, names, said in (
        ("label\n1\n", ["x"], "has no column weight; it needs label and weight"),
        ("x,weight\n1,1\n", ["x"], "has no column label"),
        ("a,weight\n1,1\n", ["a", "b"], "has no column b; it needs a, b and weight"),
        ("label,weight\nx,1\n", ["x"], "labels and weight must be numbers"),
        ("label,weight\n1,0\n", ["x"], "the weights are all zero"),
        ("label,weight\n1,-1\n", ["x"], "weights finite and >= 0"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=said):
            read_prior(path, names)


def test_what_is_assumed_is_split_between_neighbours_and_multiplied_over_labels() -> None:
    first, second = Grid.from_edges([0.0, 1.0, 3.0]), Grid.from_edges([0.0, 10.0])
    one = KnownLabels((0,), np.array([[0.0], [2.0], [9.0]]), np.array([1.0, 2.0, 1.0]))
    other = KnownLabels((1,), np.array([[2.5]]), np.array([4.0]))
    known = PriorKnowledge((other, one), 100, "x")
    # 0 at 0; 2 halfway between 1 and 3; 9 clipped to 3
    alone = np.array([1.0, 1.0, 2.0]) / 4
    np.testing.assert_allclose(known.over(Group((0,), Cells((first,)))), alone)
    np.testing.assert_allclose(known.over(Group((1,), Cells((second,)))), [0.75, 0.25])
    both = known.over(Group((0, 1), Cells((first, second))))
    np.testing.assert_allclose(both, np.outer(alone, [0.75, 0.25]).ravel())
    turned = known.over(Group((1, 0), Cells((second, first))))
    np.testing.assert_allclose(turned, np.outer([0.75, 0.25], alone).ravel())
    together = KnownLabels((0, 1), np.array([[0.0, 0.0], [3.0, 10.0]]), np.array([1.0, 3.0]))
    joint = PriorKnowledge((together,), 100, "x").over(Group((0, 1), Cells((first, second))))
    np.testing.assert_allclose(joint, [0.25, 0, 0, 0, 0, 0.75])
    uniform = from_domain(7)
    np.testing.assert_allclose(uniform.over(Group((0,), Cells((first,)))), np.full(3, 1 / 3))
    assert (uniform.rows, uniform.leaks) == (7, False)


def test_a_plan_has_one_prior_and_says_which(party: Party) -> None:
    (party.folder / "a.csv").write_text("label,weight\n1,1\n")
    (party.folder / "b.csv").write_text("label,weight\n2,1\n")
    assert party.release().code == 0
    release = party.store / "releases" / "labels" / "1"
    config = party.config()

    def chosen(*given: Any, of: LabelPartyConfig = config) -> PriorKnowledge:
        return choose_knowledge(of, *given, 50)

    assert chosen(None, None, False).source.startswith("a uniform prior")
    table = chosen(None, Path("a.csv"), False)
    assert (table.source, table.rows, table.leaks) == ("the prior in a.csv", 50, False)
    configured = party.config(prior__file="b.csv")
    assert chosen(None, None, False, of=configured).source == "the prior in b.csv"
    assert chosen(None, Path("a.csv"), False, of=configured).source == "the prior in a.csv"
    released = chosen(release, None, False)
    assert released.rows == EVENTS
    assert released.source == "the released prior of 'labels', epoch '1'"
    assert chosen(release / "manifest.json", None, False).source == released.source
    manifest = Manifest.from_bytes((release / "manifest.json").read_bytes())
    group = Group((0,), Cells((Grid.from_edges(manifest.label.grid),)))
    ((_, histogram),) = manifest.message.histograms
    np.testing.assert_allclose(released.over(group), histogram.probabilities)
    raw = chosen(None, None, True)
    assert (raw.rows, raw.source, raw.leaks) == (EVENTS, "the raw labels", True)
    (known,) = raw.known
    # 100 labels that are missing, and 20 each of 0, 2, 4, 6, 8
    assert known.values[:, 0].tolist() == [0, 2, 4, 6, 8]
    assert known.weights.tolist() == [120, 20, 20, 20, 20]
    for given in (
        (release, Path("a.csv"), False),
        (release, None, True),
        (None, Path("a.csv"), True),
    ):
        with pytest.raises(ConfigError, match="a plan has one prior"):
            chosen(*given)
    party.write_labels({"key": ["event-0", "event-1"], "label": [-5.0, 99.0]})
    (known,) = chosen(None, None, True).known  # as a release takes them: at the nearest end
    assert (known.values[:, 0].tolist(), known.weights.tolist()) == ([0, 10], [EVENTS - 1, 1])
    with pytest.raises(ConfigError, match="has no label 'x'; its labels are label"):
        from_manifest(release, ["x", "y"])
    damaged = party.folder / "manifest.json"
    damaged.write_bytes((release / "manifest.json").read_bytes()[:-9])
    with pytest.raises(ReleaseError, match=f"^{damaged}: the manifest is not valid JSON"):
        from_manifest(damaged, ["label"])
    assert party.run("withdraw", "1", "--reason=wrong", "--yes").code == 0
    assert chosen(release, None, False).source.endswith(", which was withdrawn (wrong)")


def test_a_plan_judges_what_is_named_at_each_epsilon(party: Party) -> None:
    config = party.config(privacy__prior_share=0.25)
    told: list[float] = []
    names = ["rr-on-bins", "two-point"]
    plan = make_plan(config, from_domain(5000), [2.0, 0.5], told.append, names, 0.5)
    assert told == [0.5, 2.0]
    assert [row.epsilon for row in plan.rows] == [0.5, 0.5, 2.0, 2.0]
    assert (plan.loss, plan.explained, plan.unfit) == ("squared", 0.5, {})
    for row in plan.rows:
        assert row.epsilon_prior + row.epsilon_labels == pytest.approx(row.epsilon)
        assert row.assessment.epsilon <= row.epsilon_labels
        assert not row.auto
        told_row = row.to_json()
        assert told_row["randomizer"] == row.assessment.name
        assert told_row["realised_epsilon"] == row.assessment.epsilon
        assert "name" not in told_row
        worth = row.assessment.effective_sample_size
        assert worth == pytest.approx(5000 * row.assessment.effective_share)
        assert plan.true_label_error < row.assessment.predicted_error <= plan.constant_error
    # of four points that are even on a logarithmic scale: the best constant is a mean
    points = config.labels[0].fixed
    assert points is not None
    assert plan.constant_error == pytest.approx(points.points.var(), rel=1e-3)
    users = party.config(privacy__unit="user", privacy__user="who", privacy__max_records_per_user=4)
    (row,) = make_plan(users, from_domain(5000), [2.0], names=["two-point"]).rows
    assert row.assessment.epsilon <= row.epsilon_labels / 4
    assert row.assessment.epsilon == pytest.approx(row.epsilon_labels / 4, rel=1e-3)
    binary = party.config(domain__grid="whole", domain__upper=1, randomizer__name="auto")
    rows = make_plan(binary, from_domain(500), [1.0]).rows
    assert [r.assessment.name for r in rows if r.auto] == ["randomized-response"]


def test_of_several_labels_the_division_that_is_taken_is_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gains = {"joint": {"a": 0.5, "b": 0.4}, "split": {"a": 0.3, "b": 0.05}}
    rows = [SimpleNamespace(gains=gains[one], taken_by=partial(eq, one)) for one in gains]
    made: Any = SimpleNamespace(rows=rows, gains=lambda row: row.gains)
    asked: list[bool] = []

    def judged(*given: object, over_cells: bool) -> Any:
        asked.append(over_cells)
        return made

    monkeypatch.setattr(planning, "plan_divisions", judged)

    def told(division: str) -> str | None:
        asked.clear()
        privacy = SimpleNamespace(epsilon=0.5, division=division)
        few: Any = SimpleNamespace(labels=[None, None], privacy=privacy)
        return too_few_events(few, 900)

    assert told("joint") is None
    assert asked == [False]  # one channel a label was enough
    assert told("auto") is None  # neither was taken: the first
    assert "is predicted to gain 5.0% for 'b' of what" in str(told("split"))
    assert asked == [False, False]
    gains["joint"]["a"] = 0.01
    assert "gain 1.0% for 'a' of" in str(told("joint"))
    assert asked == [False, True]


def test_few_events_are_told_with_what_they_gain(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert too_few_events(party.config(), 5000) is None
    few = party.config(privacy__epsilon=0.05)
    (row,) = (plan := make_plan(few, from_domain(60), [0.05], names=["rr-on-bins"])).rows
    gain = (plan.constant_error - row.assessment.predicted_error) / (
        plan.constant_error - plan.true_label_error
    )
    assert gain < 0.1
    assert too_few_events(few, 60) == (
        f"60 events are few for epsilon=0.05: a model is predicted to gain {gain:.1%} of what true"
        " labels would over a constant (label-party plan --rows 60)"
    )
    # of what is chosen, and of nothing better
    for name, enough in (("two-point", True), ("exponential", False)):
        assert (too_few_events(party.config(randomizer__name=name), 1000) is None) is enough
    one = too_few_events(few, 1)
    assert one is not None
    assert one.startswith("1 event is few for epsilon=0.05")
    assert planned_rows(few, 17) == 17
    assert planned_rows(few, None) == 20_000
    submitted = party.config(data__population="submitted")
    assert planned_rows(submitted, None) == 20_000
    known = SimpleNamespace(rows=7)
    monkeypatch.setattr(planning.Populations, "current", lambda *_: known)
    assert [planned_rows(submitted, rows) for rows in (None, 17, 0)] == [7, 17, 0]


def test_names_of_strata_and_their_list(party: Party) -> None:
    assert names_stratum("x" * 256)
    assert not names_stratum("x" * 257)
    assert not names_stratum("all others")
    strata = {"randomizer__name": "auto", "strata__column": "town", "strata__values": "t.txt"}
    (party.folder / "t.txt").write_text("Ulm\nBonn\n")
    column = stratum_column(party.config(**strata).strata)
    assert column is not None
    assert column.values is not None
    assert (column.name, column.values.to_list()) == ("town", ["Bonn", "Ulm"])
    assert stratum_column(party.config().strata) is None
    (party.folder / "t.txt").write_text("\n".join(f"v{n}" for n in range(65_536)))
    with pytest.raises(ConfigError, match="lists 65,536 values of 'town', more than 65,535"):
        stratum_column(party.config(**strata).strata)
    (party.folder / "t.txt").write_text("\n".join(f"v{n}" for n in range(65_535)))
    assert stratum_column(party.config(**strata).strata) is not None


def test_a_manifest_names_labels_and_their_points(party: Party) -> None:
    config = party.config(
        data__missing=3, randomizer__loss="absolute", privacy__total_epsilon=9, data__epoch="7"
    )
    grid = Grid.from_edges([0.0, 4.0, 10.0])
    (label,) = stated_labels(config, [grid])
    assert label.model_dump() | {
        "name": "label", "grid": [0.0, 4.0, 10.0], "missing": 3.0, "loss": "absolute",
        "weight": 1.0, "asked": True,
    } == label.model_dump()  # fmt: skip
    assert not stated_labels(config, [grid], questioned=True)[0].asked
    assert not stated_labels(party.config(domain__grid="auto"), [grid])[0].asked


def test_a_session_goes_on_where_it_stood_and_lost_releases_are_hits() -> None:
    terms = Terms(not_prior(Fraction(1, 10)), 3)
    entropy = seeded_entropy(1)

    def hits(**facts: Any) -> int:
        given: Any = {"state": None, **facts}
        return int(PaidSession("aa" * 32, terms, **given).open([1.0], entropy).to_json()["hits"][0])

    begun = PaidSession("aa" * 32, terms, None).open([1.0], entropy).to_json()
    assert hits() == 0
    assert hits(lost_hits=2) == 2
    assert hits(lost_hits=7) == 3
    stood = {**begun, "hits": [1], "calls": 5}
    assert hits(state=stood) == 1
    assert hits(state=stood, lost_hits=1) == 2
    assert PaidSession("aa" * 32, terms, stood).open([1.0], entropy).to_json()["calls"] == 5


def test_a_tests_epsilon_is_as_written_or_a_quarter_of_a_prior_at_most(party: Party) -> None:
    written = party.config(watch__epsilon=0.03)
    drawn = epsilon_of_test(written.watch, written.privacy, 4, 5000)
    assert Fraction(3, 100) - Fraction(1, 10**6) < drawn <= Fraction(3, 100)
    for rows in (300, 20_000, 10**6):
        config = party.config()
        epsilon = epsilon_of_test(config.watch, config.privacy, 4, rows)
        plan = config.plan_message(rows)
        prior = sum((each.epsilon for each in plan.histograms), Fraction(0))
        assert 0 < epsilon <= prior / 4
    tight = party.config(watch__tolerance=0.2)
    wide = epsilon_of_test(tight.watch, tight.privacy, 4, 10**6)
    narrow = party.config(watch__tolerance=0.1)
    assert wide < epsilon_of_test(narrow.watch, narrow.privacy, 4, 10**6)
    assert math.isfinite(float(wide))


def test_what_would_spend_more_than_asked_is_not_released(party: Party) -> None:
    assert party.release(privacy__epsilon=0.5).code == 0
    path = party.store / "releases" / "labels" / "1" / "manifest.json"
    manifest = Manifest.from_bytes(path.read_bytes())
    assert (manifest.data_set, manifest.epoch) == ("labels", "1")
    stated = manifest.privacy
    assert (stated.requested_epsilon, stated.records_per_unit, stated.division) == (0.5, 1, "auto")
    assert stated.total["epsilon"] == "1/2"
    built = accepted(manifest, party.config(privacy__epsilon=0.5))
    assert built.to_bytes() == path.read_bytes()
    with pytest.raises(PrivacyError, match=r"would spend ε = 0\.5 .*, more than ε = 0\.25"):
        accepted(manifest, party.config(privacy__epsilon=0.25))
    broken = manifest.model_copy(update={"data_set": "../x"})
    with pytest.raises((ReleaseError, ValueError)):
        accepted(broken, party.config(privacy__epsilon=0.5))


def test_strata_are_counted_before_anything_is_released(party: Party) -> None:
    towns = ["Bonn"] * 300 + ["Ulm"] * 250 + ["Kiel"] * 40 + [" Bonn "]
    rows = "".join(f"k{n},{town},{n % 7}\n" for n, town in enumerate(towns))
    (party.folder / "towns.csv").write_text("id,town,amount\n" + rows + "k0,Ulm,1\n")
    (party.folder / "t.txt").write_text("Ulm\nBonn\n")
    source = party.folder / "towns.csv"
    assert values_of(source, "town") == ["Bonn", "Ulm", "Kiel"]
    config = LabelPartyConfig.model_validate(
        {
            "data": {"labels": str(source), "key": "id"},
            "privacy": {"epsilon": 1.0},
            "label": [{"name": "amount", "lower": 0, "upper": 6}],
            "randomizer": {"name": "auto"},
            "strata": {"column": "town", "values": str(party.folder / "t.txt")},
        }
    )
    column = stratum_column(config.strata)
    assert column is not None
    assert rows_of_values(config, column).tolist() == [301, 250, 40]  # an event once, by its first
    first, none, three = strata_notes(config, [0.05, 4.0])
    assert first == "Strata by 'town', 2 values."
    assert none.startswith("At ε = 0.05 all events are sent in one way: ")  # 320 make a stratum
    said = "At ε = 4 events are sent in 3 strata: Bonn (301), Ulm (250), all others (40)."
    assert three == said
    assert strata_notes(party.config(), [1.0]) == []
    (party.folder / "t.txt").write_text("Ulm\nBonn\nKiel\n")  # no event is of another
    assert rows_of_values(config, stratum_column(config.strata)).tolist() == [301, 40, 250, 0]
    (party.folder / "few.csv").write_text("id,amount\nk0,1\n")
    sources = {"labels": party.folder / "few.csv", "population": source}
    config = config.model_copy(update={"data": config.data.model_copy(update=sources)})
    assert rows_of_values(config, stratum_column(config.strata)).tolist() == [301, 40, 250, 0]
