"""Strata that both parties know: one message, one ε, and channels of each stratum's own."""

from __future__ import annotations

import hashlib
import itertools
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from labelveil.audit.canaries.inference import audit_inference
from labelveil.audit.certificate.run import certify
from labelveil.audit.settings import RunFiles
from labelveil.audit.verdict import Verdict
from labelveil.common.engine.local import InProcess
from labelveil.common.errors import ReleaseError
from labelveil.common.guarantees import PureDP
from labelveil.common.randomizers import build_randomizer
from labelveil.common.release.blocks import decode_codes
from labelveil.common.release.event_keys import hash_keys, read_secret
from labelveil.common.release.limits import MANIFEST_BYTES
from labelveil.common.release.manifest import Manifest, manifest_digest
from labelveil.common.release.size import largest_manifest
from labelveil.label_party.events import row_ranges
from labelveil.label_party.release import message
from labelveil.label_party.store.release_store import StoredRelease
from tests.effort import one_in
from tests.label_party.conftest import Party
from tests.label_party.engines import in_memory, settings, with_engine

STRATA: dict[str, Any] = {
    "strata__column": '"shop"',
    "strata__values": '"shops.txt"',
    "privacy__epsilon": 8,
    "privacy__total_epsilon": 8,
    "randomizer__name": '"auto"',
    "domain__grid": '"auto"',
}
SHOPS = ["north", "south", "west"]
EVENTS = 1_200


@pytest.fixture
def shops(party: Party) -> Party:
    """A shop of each event: north and south have about half of the events each, west has two."""
    where = np.where(np.arange(EVENTS) < 600, "north", "south").astype(object)
    where[:2], where[2] = "west", "nowhere"
    keys = [f"event-{i}" for i in range(EVENTS)]
    party.write_population({"key": keys, "shop": where.tolist()})
    party.write_labels({"key": keys[::2], "label": [float(i % 10) for i in range(0, EVENTS, 2)]})
    (party.folder / "shops.txt").write_text("\n".join(SHOPS))
    return party


def released(party: Party, epoch: str = "1") -> tuple[Manifest, np.ndarray[Any, Any], bytes]:
    """A release's manifest, codes and keys."""
    folder = party.store / "releases" / "labels" / epoch
    digest = manifest_digest((folder / "manifest.json").read_bytes())
    stored = StoredRelease(folder, digest)
    keys, codes = stored.read(0, stored.rows)
    manifest = stored.manifest
    return manifest, decode_codes(codes, manifest.content.code_bytes), keys


def test_each_stratum_is_sent_by_its_own_channel_for_one_epsilon(
    shops: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message, "block_rows_for", lambda rows: 64)
    monkeypatch.setattr(row_ranges, "_STRATA_ROWS", 300)  # four blocks, and a rest
    assert shops.release(**STRATA).code == 0
    manifest, codes, keys = released(shops)
    # west and what the list lacks have too few events
    assert [(each.name, each.rows) for each in manifest.strata] == [
        ("north", 597), ("south", 600), ("all others", 3),
    ]  # fmt: skip
    secret = read_secret(shops.folder / "join.key")
    hashed = {bytes(hash_keys(pl.Series([f"event-{i}"]), secret)): i for i in range(EVENTS)}
    events = np.array([hashed[keys[16 * row : 16 * row + 16]] for row in range(EVENTS)])
    stratum = np.searchsorted(manifest.codebooks.starts, codes, side="right") - 1
    assert stratum.tolist() == np.where(events < 3, 2, events // 600).tolist()
    assert manifest.total_guarantee.within(PureDP.of(8))
    histograms = manifest.priors[0].spent, manifest.tables[0].spent
    assert histograms[0] == histograms[1]
    paid = sum((each.exact_epsilon for each in histograms), manifest.labels_guarantee.exact_epsilon)
    assert manifest.total_guarantee == PureDP.of(paid)


def test_an_auditor_builds_every_channel_again(shops: Party) -> None:
    assert shops.release(**STRATA).code == 0
    audit = certify(shops.store / "releases" / "labels" / "1")
    verdicts = {check.name: check.verdict for check in audit.checks}
    assert Verdict.FAIL not in verdicts.values()
    assert verdicts["channel is a function of the noisy histogram"] is Verdict.PASS
    assert verdicts["rows of each stratum"] is Verdict.PASS
    assert verdicts["split of ε"] is Verdict.PASS


@pytest.mark.slow
@pytest.mark.parametrize("division", one_in(2, ["split", "joint"]))
def test_several_labels_and_users_as_units(shops: Party, division: str) -> None:
    rows = np.arange(6_000)
    shops.write_labels(
        {
            "key": [f"event-{i}" for i in rows],
            "a": rows % 4 * 1.0,
            "b": rows % 3 * 1.0,
            "yes": rows % 2,
        }
    )
    shops.write_population(
        {
            "key": [f"event-{i}" for i in rows],
            "shop": [SHOPS[i % 2] for i in rows],
            "who": [f"user-{i // 2}" for i in rows],
        }
    )
    text = (shops.folder / "label_party.toml").read_text()
    head, tail = text.index("[domain]"), text.index("[privacy]")
    (shops.folder / "label_party.toml").write_text(
        text[:head]
        + '[[label]]\nname = "a"\nkind = "count"\nlower = 0\nupper = 3\n'
        + '[[label]]\nname = "b"\nkind = "count"\nlower = 0\nupper = 2\n'
        + '[[label]]\nname = "yes"\nkind = "binary"\n'
        + text[tail:].replace('[randomizer]\n        name = "rr-on-bins"', "")
    )
    wanted = {name: STRATA[name] for name in STRATA if "strata" in name or "privacy" in name}
    users = {
        "privacy__unit": '"user"',
        "privacy__user": '"who"',
        "privacy__max_records_per_user": 2,
    }
    wanted |= {"privacy__division": f'"{division}"', **users}
    wanted |= {"privacy__epsilon": 30, "privacy__total_epsilon": 30}
    done = shops.release(**wanted)
    assert done.code == 0, done
    manifest, codes, _ = released(shops)
    assert [each.rows for each in manifest.strata] == [3_000, 3_000]
    assert len(manifest.randomizers) == 2 * len(manifest.by_stratum[0])
    assert int(codes.max()) < manifest.codebooks.outputs
    assert manifest.total_guarantee.unit == "user"
    audit = certify(shops.store / "releases" / "labels" / "1")
    assert [check.name for check in audit.checks if check.verdict is Verdict.FAIL] == []


def test_what_an_events_stratum_is_no_label_decides(shops: Party) -> None:
    """Where the labels' own keys are the population: the first row's, however many there are."""
    own = {**STRATA, "data__population": '""'}
    rows = [("a", 1.0, "north"), ("b", 2.0, "south"), ("a", 3.0, "south")]
    rows += [(f"n{i}", float(i % 5), SHOPS[i % 2]) for i in range(EVENTS)]
    text = (shops.folder / "label_party.toml").read_text()
    (shops.folder / "label_party.toml").write_text(
        text.replace('population = "population.csv"\n', "")
    )
    del own["data__population"]
    for epoch, values in enumerate(itertools.islice(itertools.permutations((1.0, 9.0)), 2)):
        changed = [(k, values[0] if k == "a" else y, s) for k, y, s in rows]
        keys, labels, where = zip(*changed, strict=True)
        shops.write_labels({"key": keys, "shop": where, "label": labels})
        name = str(epoch + 1)
        done = shops.release(**{**own, "privacy__total_epsilon": 16}, data__epoch=name)
        assert done.code == 0, done
        manifest, *_ = released(shops, name)
        assert [(s.name, s.rows) for s in manifest.strata] == [("north", 601), ("south", 601)]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"strata__values": '"none.txt"'}, "none.txt cannot be read: No such file"),
        ({"strata__column": '"town"'}, "has no column 'town'"),
        ({"data__population": '"submitted"'}, "which stratum each is; remove"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(
    shops: Party, change: dict[str, Any], line: str
) -> None:
    assert line in shops.release(**{**STRATA, **change}).error
    assert shops.nothing_left()


@pytest.mark.parametrize("value", ["all others", "x" * 257])
def test_a_value_that_cannot_name_a_stratum_is_refused_before_anything(
    shops: Party, value: str
) -> None:
    (shops.folder / "shops.txt").write_text("\n".join([*SHOPS, value]))
    assert "cannot name a stratum" in shops.release(**STRATA).error
    assert shops.nothing_left()


def test_a_column_needs_its_values(shops: Party) -> None:
    wanted = {name: value for name, value in STRATA.items() if name != "strata__values"}
    assert "set both in [strata]" in shops.release(**wanted).error


@pytest.mark.slow
def test_other_values_are_other_strata(shops: Party) -> None:
    assert shops.release(**STRATA).code == 0
    assert "already released" in shops.release(**STRATA).out
    (shops.folder / "shops.txt").write_text("\n".join(SHOPS[1:]))
    assert "strata.values was" in shops.release(**STRATA).error


def test_a_label_in_disguise_is_told_to_the_operator(shops: Party) -> None:
    rows = np.arange(EVENTS)
    keys = [f"event-{i}" for i in rows]
    shops.write_labels({"key": keys, "label": np.where(rows % 2, 9.0, 0.0)})
    shops.write_population({"key": keys, "shop": [SHOPS[i % 2] for i in rows]})
    done = shops.run("release", "--dry-run", "--yes", *shops.arguments(**STRATA))
    assert "the strata tell 100% of its variance" in done.err
    shops.write_population({"key": keys, "shop": [SHOPS[i // 2 % 2] for i in rows]})
    done = shops.run("release", "--dry-run", "--yes", *shops.arguments(**STRATA))
    assert "the strata tell" not in done.err
    shops.write_labels({"key": keys, "label": [9.0] * EVENTS})
    done = shops.run("release", "--dry-run", "--yes", *shops.arguments(**STRATA))
    assert "have the same label" in done.err
    assert "the strata tell" not in done.err


@pytest.mark.slow
def test_every_engine_makes_the_same_bytes(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    rows = np.arange(5_000)
    keys = [f"k{i}" for i in rows]
    pl.DataFrame({"k": keys[::2], "y": rows[::2] % 97 * 1.0}).write_parquet(
        folder / "labels.parquet"
    )
    where = [f"s{i % 3}" if i % 11 else None for i in rows]
    pl.DataFrame({"k": keys, "at": where}).write_parquet(folder / "population.parquet")
    (folder / "at.txt").write_text("s0\ns1\ns2")
    chosen = settings(
        folder,
        data__population=str(folder / "population.parquet"),
        data__key="k",
        strata__column="at",
        strata__values=str(folder / "at.txt"),
        privacy__epsilon=8.0,
        randomizer__name="auto",
    )
    first = in_memory(tmp_path / "memory", chosen)
    second = with_engine(tmp_path / "disk", chosen, InProcess())
    assert first.parts == 4
    assert first.files == second.files
    assert first.digest == second.digest


@pytest.mark.slow
def test_ten_thousand_values_are_the_largest_and_all_others(shops: Party) -> None:
    values = [f"value-{i:05}" for i in range(10_000)]
    (shops.folder / "shops.txt").write_text("\n".join([*values, "north", "south"]))
    assert shops.release(**STRATA).code == 0
    manifest, *_ = released(shops)
    assert [each.name for each in manifest.strata] == ["north", "south", "all others"]
    rows = np.where(np.arange(10_001) < 40, 200_000, 200)
    plan = shops.config(**STRATA).plan_message(10**7).by_stratum(values, rows)
    assert plan.strata is not None
    assert (len(plan.strata.names), plan.strata.names[-1]) == (32, "all others")
    assert largest_manifest(plan) <= MANIFEST_BYTES


def test_init_lists_the_values_of_the_population(party: Party) -> None:
    party.write_population({"key": ["1", "2", "3"], "count": ["b", " a ", "b"]})
    made = party.run(
        "init", "--force", "--labels", "labels.csv", "--population", "population.csv",
        "--upper", "10", "--lower", "0", "--epsilon", "1", "--strata-column", "count",
    )  # fmt: skip
    assert made.code == 0, made
    assert (party.folder / "strata.txt").read_text().split() == ["a", "b"]
    assert party.config().strata.column == "count"
    refused = party.run(
        "init", "--force", "--labels", "labels.csv", "--upper", "10", "--lower", "0",
        "--epsilon", "1", "--strata-column", "count",
    )  # fmt: skip
    assert "takes its values from a population, and there is none" in refused.error


def test_a_manifest_of_strata_spends_what_the_worst_of_them_does(shops: Party) -> None:
    assert shops.release(**STRATA).code == 0
    made, *_ = released(shops)
    with pytest.raises(ReleaseError, match=r"of 1 labels .* in 3 strata where one is expected"):
        _ = made.randomizer
    whole = json.loads(made.to_bytes())
    beside = sum((part.spent.exact_epsilon for part in (*made.priors, *made.tables)), Fraction(0))
    points = made.labels[0].grid

    def sent(epsilon: float) -> tuple[dict[str, Any], Fraction]:
        found = build_randomizer(
            "randomized-response", labels=points, prior=[1] * len(points), epsilon=epsilon
        )
        stated = {"channel": found.channel.to_json(), "guarantee": found.guarantee.to_json()}
        spent = beside + found.guarantee.exact_epsilon
        return {**whole["randomizers"][0], "details": {}, **stated}, spent

    def read(randomizers: list[dict[str, Any]], total: Fraction) -> Manifest:
        privacy = {**whole["privacy"], "total": PureDP.of(total).to_json()}
        data = {**whole, "randomizers": randomizers, "privacy": privacy}
        return Manifest.from_bytes(Manifest.model_validate(data).to_bytes())

    (better, least), (worst, most) = sent(0.5), sent(1.0)
    for place in range(len(whole["strata"])):
        randomizers = [better] * len(whole["strata"])
        randomizers[place] = worst
        for total in (least, most + Fraction(1, 2**40)):
            with pytest.raises(ReleaseError, match="the parts add up to"):
                read(randomizers, total)
        assert read(randomizers, most).labels_guarantee.exact_epsilon == most - beside


def test_a_manifest_of_strata_that_contradicts_itself_is_refused(shops: Party) -> None:
    assert shops.release(**STRATA).code == 0
    path = shops.store / "releases" / "labels" / "1" / "manifest.json"
    whole = json.loads(path.read_bytes())

    def refused(said: str, **changes: Any) -> None:
        data = json.dumps(
            {**whole, **changes}, sort_keys=True, separators=(",", ":"), ensure_ascii=False
        )
        with pytest.raises(ReleaseError, match=said):
            Manifest.from_bytes(data.encode())

    strata, (table,) = whole["strata"], whole["tables"]
    rows, once = "must have all rows", "in exactly one prior and one randomizer"
    refused("must stand beside each noisy prior", tables=[])
    refused(once, strata=[])
    refused("must have as many randomizers", strata=strata[:2])
    refused(rows, strata=[*strata[:2], {**strata[2], "rows": strata[2]["rows"] + 1}])
    refused(rows, strata=[*strata[:2], {**strata[2], "rows": strata[2]["rows"] - 1}])
    refused("two strata have one name", strata=[*strata[:2], {**strata[2], "name": "north"}])
    refused("a weight for each point", strata=[{**each, "law": [1]} for each in strata])
    fewer = {**table, "noisy_counts": table["noisy_counts"][:-1]}
    refused("noise of scale .* does not give", tables=[{**table, "scale": "1"}])
    refused("bins of each", tables=[fewer])
    for bins, said in ((9, "bins of each"), (8, "other bins than its prior gives")):
        refused(said, tables=[{**table, "noisy_counts": [1] * bins * len(strata)}])
    free = {"noise": "public", "scale": "0", "guarantee": {**table["guarantee"], "epsilon": "0"}}
    refused("bins of each", tables=[{**table, **free}])
    for factor in (Fraction(1, 2), Fraction(2)):  # less noise than is claimed, and more
        other = {**table, "scale": str(Fraction(table["scale"]) * factor)}
        refused("scale times epsilon must be", tables=[other])
    cells = len(whole["labels"][0]["grid"])
    refused("a weight for each cell that is counted", tables=[{**table, "start": [1] * cells}])
    content = whole["content"]
    digest = hashlib.sha256(bytes.fromhex("".join([content["blocks"][0]] * 2))).hexdigest()
    more = {**content, "blocks": [content["blocks"][0]] * 2, "digest": digest}
    refused("2 block digests for 1 blocks", content=more)
    refused(once, randomizers=whole["randomizers"][:2])
    refused(once, randomizers=[])
    in_force = {"epoch": "0", "manifest": "0" * 64, "rows": 9}
    drift = {"in_force": in_force, "test": None, "drifted": False}
    refused("no test for drift", drift=drift)


@pytest.mark.slow
def test_a_watch_pays_for_every_epochs_strata(shops: Party) -> None:
    assert "hits has no effect" in shops.release(**STRATA, watch__hits=2).error
    for name in ("labels", "population"):
        source = shops.folder / f"{name}.csv"
        for epoch in ("1", "2"):
            (shops.folder / f"{name}-{epoch}.csv").write_bytes(source.read_bytes())
    done = shops.run(
        "watch", "--once", *shops.arguments(
            **{**STRATA, "privacy__total_epsilon": 16},
            data__labels='"labels-{epoch}.csv"', data__population='"population-{epoch}.csv"',
        ),
    )  # fmt: skip
    assert done.code == 0, done
    for epoch in ("1", "2"):
        manifest, *_ = released(shops, epoch)
        assert (manifest.drift, len(manifest.strata), len(manifest.tables)) == (None, 3, 1)


def test_what_one_message_gives_away_is_asked_of_the_largest_stratum(shops: Party) -> None:
    assert shops.release(**STRATA).code == 0
    release = shops.store / "releases" / "labels" / "1"
    audit = audit_inference(RunFiles(release=release).in_folder(shops.folder / "none"))
    assert audit.facts["attacked"] == "events of south, the largest stratum"
    verdicts = [check.verdict for check in audit.checks]
    assert verdicts == [Verdict.PASS] * 3 + [Verdict.NOT_CHECKABLE]
