"""Nothing is charged that cannot be delivered: a manifest's size is known before noise is drawn."""

from __future__ import annotations

import json

import pytest

from labelveil.common.errors import ConfigError
from labelveil.common.randomizers import LabelTerms, plan_message, randomizer_names
from labelveil.common.randomizers.grid import MAX_POINTS, Grid
from labelveil.common.release.limits import MANIFEST_BYTES, ROWS
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.size import check_manifest, largest_manifest
from tests.effort import one_in, some_of
from tests.label_party.conftest import Party
from tests.label_party.release.test_message import built, configuration

CENTS = {"upper": 60, "grid": "step", "step": 0.01}


def check_cents(name: str, epsilon: float) -> None:
    config = configuration(
        domain=CENTS, randomizer={"name": name}, privacy={"epsilon": epsilon, "total_epsilon": 40}
    )
    result, _ = built([0.01 * (i * i % 6001) for i in range(300)], config)
    most = largest_manifest(config.plan_message(300))
    assert len(result.to_bytes()) <= most <= MANIFEST_BYTES
    assert len(Manifest.from_bytes(result.to_bytes()).label.grid) == 6001


@pytest.mark.parametrize(
    "name", ["auto", "rr-with-prior", *one_in(2, ["discrete-laplace"], first=1)]
)
def test_cents_can_be_sent(name: str) -> None:
    check_cents(name, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", some_of(2, [0.1, 8.0, 40.0]))
@pytest.mark.parametrize("name", randomizer_names())
def test_cents_can_be_sent_by_every_randomizer(name: str, epsilon: float) -> None:
    check_cents(name, epsilon)


@pytest.mark.parametrize("name", randomizer_names())
def test_one_label_always_fits(name: str) -> None:
    """The finest grid and the most rows that there can be, whatever noise is drawn."""
    label = LabelTerms("y", 0.0, 1.0, Grid.from_count(0.0, 1.0, MAX_POINTS), randomizer=name)
    assert check_manifest(plan_message([label], ROWS, 1.0)) <= MANIFEST_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("labels", one_in(3, [2, 3, 5]))
def test_labels_that_fit_together_fit(labels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as codes have room for; where there were more, it would be said."""
    grid = Grid.from_count(0.0, 1.0, MAX_POINTS)
    terms = [LabelTerms(f"y{j}", 0.0, 1.0, grid) for j in range(labels)]
    plan = plan_message(terms, ROWS, 8.0)
    assert check_manifest(plan) <= MANIFEST_BYTES
    monkeypatch.setattr("labelveil.common.release.size.MANIFEST_BYTES", 1_000_000)
    with pytest.raises(ConfigError, match=r"8,192 grid points each, can have .*larger steps"):
        check_manifest(plan)


@pytest.mark.slow
def test_options_that_ask_for_too_much_are_refused_before_a_look_at_labels() -> None:
    label = LabelTerms("y", 0.0, 1.0, Grid.from_count(0.0, 1.0, 3000))
    for name, options in (
        ("randomized-thresholds", {"weights": [1.0] * 2999}),
        ("laplace", {"tails": 60_000}),
    ):
        asked = LabelTerms("y", 0.0, 1.0, label.grid, randomizer=name, options=options)
        with pytest.raises(ConfigError, match="leave the randomizer's options out"):
            check_manifest(plan_message([asked], 1000, 1.0))


def test_what_cannot_be_delivered_is_neither_drawn_nor_charged(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drawn() -> None:
        raise AssertionError("noise is drawn")

    with monkeypatch.context() as patch:
        patch.setattr("labelveil.label_party.release.run.system_entropy", drawn)
        patch.setattr("labelveil.common.release.size.MANIFEST_BYTES", 1000)
        for arguments in ((), ("--dry-run",)):
            result = party.run("release", *arguments)
            assert result.code != 0
            assert "the most that a client accepts is 1,000" in result.error
            assert result.error.count("\n") <= 1
    assert not (party.store / "releases").exists()
    assert party.release().code == 0


@pytest.mark.slow
def test_a_dry_run_and_a_plan_say_how_large(party: Party) -> None:
    most = f"{largest_manifest(party.config().plan_message(200)):,} bytes"
    assert f"at most {most}, of 8,388,608" in party.run("release", "--dry-run").out
    planned = party.run("plan", "--epsilons=1", "--rows=200")
    assert f"at most {most}" in " ".join(planned.out.split())
    document = json.loads(party.run("plan", "--epsilons=1", "--rows=200", "--json").out)
    assert document["largest_manifest"] == int(most.split()[0].replace(",", ""))
