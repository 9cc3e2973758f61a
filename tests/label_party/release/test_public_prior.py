"""A prior that is public beforehand: nothing is spent on it, and a wrong one costs accuracy."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labelveil.audit.certificate.run import certify
from labelveil.audit.verdict import Verdict
from labelveil.common.guarantees import PureDP
from labelveil.common.randomizers import build_randomizer
from labelveil.common.release.manifest import Manifest
from labelveil.label_party.release.prior_in_force import prior_in_force
from labelveil.label_party.store.release_store import Store
from tests.label_party.conftest import Party

EVENTS = 2_400
PRIOR: dict[str, Any] = {
    "prior__file": '"known.csv"',
    "privacy__epsilon": 2,
    "privacy__total_epsilon": 2,
    "randomizer__name": '"auto"',
    "domain__grid": '"auto"',
}
CORRECTED = PRIOR | {"prior__corrected": "true"}
RIGHT = "label,weight\n" + "".join(f"{y},{12 - y}\n" for y in range(10))
WRONG = "label,weight\n9,1\n"  # says that every label is 9


@pytest.fixture
def knowing(party: Party) -> Party:
    """Labels from 0 to 9, with a public prior about them."""
    keys = [f"event-{i}" for i in range(EVENTS)]
    party.write_population({"key": keys})
    party.write_labels({"key": keys, "label": [float(i * i % 10) for i in range(EVENTS)]})
    (party.folder / "known.csv").write_text(RIGHT)
    return party


def manifest_of(party: Party, epoch: str = "1") -> Manifest:
    folder = party.store / "releases" / "labels" / epoch
    return Manifest.from_bytes((folder / "manifest.json").read_bytes())


def verdicts(party: Party, epoch: str = "1") -> dict[str, Verdict]:
    audit = certify(party.store / "releases" / "labels" / epoch)
    return {check.name: check.verdict for check in audit.checks}


@pytest.mark.slow
@pytest.mark.parametrize("table", [RIGHT, WRONG])
def test_all_of_epsilon_is_the_labels_whatever_the_file_says(knowing: Party, table: str) -> None:
    (knowing.folder / "known.csv").write_text(table)
    result = knowing.release(**PRIOR)
    assert result.code == 0, result.error
    assert "a public prior takes its place, free" in result.out
    manifest = manifest_of(knowing)
    assert not manifest.prior_paid
    assert (manifest.prior.noise, manifest.prior.scale) == ("public", "0")
    assert manifest.prior.spent == PureDP.of(0)
    assert manifest.total_guarantee == manifest.labels_guarantee
    assert 1.99 < manifest.labels_guarantee.epsilon <= 2
    given = [line.split(",") for line in table.splitlines()[1:]]
    grid, expected = np.array(manifest.label.grid), np.zeros(len(manifest.label.grid))
    for label, weight in given:
        expected[int(np.argmin(abs(grid - float(label))))] += float(weight)
    found = np.array(manifest.prior.noisy_counts, dtype=float)
    assert np.allclose(found / found.sum(), expected / expected.sum(), atol=1e-9)
    # the channel is the public prior's, to the last integer: no label reached it
    again = build_randomizer(
        "auto", labels=grid, prior=found, epsilon=2.0, loss="squared", rows=EVENTS
    )
    assert again.channel.to_json() == manifest.randomizer.channel


def test_the_labels_do_not_reach_a_release_but_through_the_channel(knowing: Party) -> None:
    """Two parties with opposite labels publish manifests that differ in codes' digests alone."""
    wanted = PRIOR | {"privacy__total_epsilon": 4}
    assert knowing.release(**wanted).code == 0
    first = json.loads(manifest_of(knowing).to_bytes())
    keys = [f"event-{i}" for i in range(EVENTS)]
    knowing.write_labels({"key": keys, "label": [float(9 - i * i % 10) for i in range(EVENTS)]})
    assert knowing.release(**wanted, data__epoch='"2"').code == 0
    second = json.loads(manifest_of(knowing, "2").to_bytes())
    for document in (first, second):
        del document["epoch"], document["content"]["blocks"], document["content"]["digest"]
    assert first == second


def test_a_certificate_knows_that_it_is_not_private(knowing: Party) -> None:
    assert knowing.release(**PRIOR).code == 0
    found = verdicts(knowing)
    assert Verdict.FAIL not in found.values()
    assert found["the prior was public beforehand"] is Verdict.NOT_CHECKABLE
    assert found["channel is a function of the noisy histogram"] is Verdict.PASS
    assert found["every field is accounted for"] is Verdict.PASS
    assert "the histogram's noise was drawn as stated" not in found
    assert "prior noise scale" not in found


@pytest.mark.slow
@pytest.mark.parametrize("table", [RIGHT, WRONG])
def test_a_histogram_corrects_it_at_the_histograms_price(knowing: Party, table: str) -> None:
    (knowing.folder / "known.csv").write_text(table)
    result = knowing.release(**CORRECTED)
    assert result.code == 0, result.error
    manifest = manifest_of(knowing)
    paid = manifest.prior.spent.exact_epsilon
    assert float(paid) == pytest.approx(math.sqrt(11 / EVENTS), abs=1e-6)
    assert Fraction(manifest.prior.scale) * paid == 2
    assert manifest.total_guarantee == PureDP.of(paid + manifest.labels_guarantee.exact_epsilon)
    assert manifest.total_guarantee.within(PureDP.of(2))
    found = verdicts(knowing)
    assert Verdict.FAIL not in found.values()
    for name in ("split of ε", "channel is a function of the noisy histogram", "prior noise scale"):
        assert found[name] is Verdict.PASS, name
    assert found["the prior was public beforehand"] is Verdict.NOT_CHECKABLE
    ((_, known),) = manifest.message.histograms
    grid, truth = np.array(manifest.label.grid), (np.arange(EVENTS) ** 2 % 10).mean()
    # RIGHT says 3.3, WRONG 9, the labels 4.5; the noisy mean's standard deviation is 9 / sqrt(n)
    assert abs(known.probabilities @ grid - truth) < 1.0  # 5.5 of them


def test_strata_need_it_corrected(knowing: Party) -> None:
    shops = [["north", "south"][i % 2] for i in range(EVENTS)]
    keys = [f"event-{i}" for i in range(EVENTS)]
    knowing.write_population({"key": keys, "shop": shops})
    (knowing.folder / "shops.txt").write_text("north\nsouth\n")
    strata = {"strata__column": '"shop"', "strata__values": '"shops.txt"'}
    refused = knowing.release(**PRIOR, **strata)
    assert refused.code != 0
    assert "set [prior] corrected = true" in refused.error
    assert knowing.nothing_left()
    wanted = CORRECTED | strata | {"privacy__epsilon": 8, "privacy__total_epsilon": 8}
    assert knowing.release(**wanted).code == 0
    manifest = manifest_of(knowing)
    assert len(manifest.strata) == 2
    assert manifest.prior.noisy
    assert manifest.prior.start
    found = verdicts(knowing)
    assert Verdict.FAIL not in found.values()
    assert found["channel is a function of the noisy histogram"] is Verdict.PASS


def test_the_file_is_part_of_what_a_release_is(knowing: Party) -> None:
    assert knowing.release(**PRIOR).code == 0
    again = knowing.release(**PRIOR)
    assert again.code == 0
    assert "already released" in again.out
    assert "prior.corrected was false and is true now" in knowing.release(**CORRECTED).error
    (knowing.folder / "known.csv").write_text(WRONG)
    refused = knowing.release(**PRIOR)
    assert refused.code != 0
    assert "prior.weights" in refused.error


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("label\n1\n", "has no column weight"),
        ("label,weight\n1,-1\n", "weights finite and >= 0"),
        ("label,weight\n1,0\n", "weights are all zero"),
        ("label,weight\n1,many\n", "must be numbers"),
        ("label,weight\n", "without any value"),
        (None, "known.csv is not a file"),
    ],
)
def test_a_bad_file_costs_nothing(knowing: Party, text: str | None, reason: str) -> None:
    path = knowing.folder / "known.csv"
    path.unlink()
    if text is not None:
        path.write_text(text)
    refused = knowing.release(**PRIOR)
    assert refused.code != 0
    assert reason in refused.error
    assert len(refused.error.strip().splitlines()) == 1
    assert knowing.nothing_left()


def test_settings_that_exclude_it_are_refused(knowing: Party) -> None:
    alone = {name: value for name, value in CORRECTED.items() if name != "prior__file"}
    assert "nothing to correct; set [prior] file" in knowing.release(**alone).error
    watched = knowing.release(**PRIOR, watch__hits=2, privacy__total_delta=1e-6)
    assert "remove [watch] hits" in watched.error


def test_a_watch_that_pays_again_does_not_go_on_with_it(knowing: Party) -> None:
    wanted = CORRECTED | {"privacy__total_epsilon": 4}
    assert knowing.release(**wanted).code == 0
    plain = {name: value for name, value in wanted.items() if not name.startswith("prior")}
    config = knowing.config(**plain, data__epoch='"2"')
    store = Store(config.store.directory)
    with store.read_ledger() as ledger:
        assert prior_in_force(config, store, ledger) is None


def test_a_watch_neither_tests_nor_pays(knowing: Party) -> None:
    keys = [f"event-{i}" for i in range(EVENTS)]
    knowing.write_population({"key": keys})
    days = ["2026-01-01" if i % 2 else "2026-01-02" for i in range(EVENTS)]
    labels = [float(i * i % 10) for i in range(EVENTS)]
    knowing.write_labels({"key": keys, "at": days, "label": labels})
    text = (knowing.folder / "label_party.toml").read_text()
    (knowing.folder / "label_party.toml").write_text(
        "\n".join(line for line in text.splitlines() if not line.strip().startswith("population"))
    )
    wanted = PRIOR | {"data__date": '"at"', "privacy__total_epsilon": 4}
    done = knowing.run("watch", "--once", *knowing.arguments(**wanted))
    assert done.code == 0, done.error
    for epoch in ("2026-01-01", "2026-01-02"):
        manifest = manifest_of(knowing, epoch)
        assert manifest.drift is None
        assert manifest.prior.public
        assert manifest.total_guarantee == manifest.labels_guarantee


def test_a_plan_takes_it(knowing: Party) -> None:
    planned = knowing.run("plan", "--json", "--epsilons", "2", *knowing.arguments(**PRIOR))
    assert planned.code == 0, planned.error
    rows = json.loads(planned.out)["candidates"]
    assert {row["epsilon_prior"] for row in rows} == {0.0}


def test_forged_weights_are_refused(knowing: Party, tmp_path: Path) -> None:
    assert knowing.release(**PRIOR).code == 0
    document = json.loads(manifest_of(knowing).to_bytes())
    for change in (
        {"noisy_counts": [-1] * len(document["priors"][0]["noisy_counts"])},
        {"noisy_counts": [0] * len(document["priors"][0]["noisy_counts"])},
        {"scale": "4"},
    ):
        forged = document | {"priors": [document["priors"][0] | change]}
        data = json.dumps(forged, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        with pytest.raises(Exception, match="public prior"):
            Manifest.from_bytes(data.encode())
