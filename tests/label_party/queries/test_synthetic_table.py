"""``label-party synthesize``: one private table on the same budget, the same bytes forever."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import numpy as np
import polars as pl
import pytest

from labelveil.common.guarantees import Adjacency, PureDP, ZeroConcentratedDP, guarantee_from_json
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.events.open import open_events
from labelveil.label_party.queries import synthetic_table as synthesize
from labelveil.label_party.queries.synthetic_table import OTHER, TableRequest
from labelveil.label_party.store.ledger import Ledger
from labelveil.label_party.store.release_store import Store
from tests.label_party.conftest import Party
from tests.label_party.release.test_several import with_labels

ROWS = 3000
LISTS = {"product": ["hats", "shoes"], "country": ["CH", "DE", "FR"]}


def write_shop(party: Party) -> pl.DataFrame:
    """3,000 events, 2,400 labelled: shoes cost 8 or 9, hats 1; the product 'sofa' is unlisted."""
    rng = np.arange(ROWS)
    frame = pl.DataFrame(
        {
            "key": [f"event-{i}" for i in rng],
            "product": np.where(rng % 10 == 0, "sofa", np.where(rng % 3 == 0, "shoes", "hats")),
            "country": np.array(["CH", "DE", "FR", "DE"])[rng % 4],
            "label": np.where(rng % 3 == 0, 8.0 + rng % 2, 1.0),
        }
    )
    party.write_population({"key": frame["key"]})
    frame.filter(pl.Series(rng % 5 != 0)).write_csv(party.folder / "labels.csv")
    for name, values in LISTS.items():
        (party.folder / f"{name}.txt").write_text("\n".join(values) + "\n")
    return frame


@pytest.fixture
def shop(party: Party) -> Party:
    write_shop(party)
    return party


def arguments(*more: str) -> list[str]:
    columns = [f"--column={name}={name}.txt" for name in LISTS]
    return ["synthesize", *columns, "--bins", "5", *more]


def request(party: Party, **settings: Any) -> TableRequest:
    columns = tuple((name, party.folder / f"{name}.txt") for name in LISTS)
    return TableRequest(columns, (0.0, 2.0, 4.0, 6.0, 8.0, 10.0), 2, **settings)


def truth(party: Party, **settings: Any) -> np.ndarray:
    """(n, 3) true codes, as the command makes them."""
    config = party.config(**settings)
    lists = synthesize._lists(request(party), [])
    with open_events(config, synthesize._columns(lists), quiet=True) as events:
        return synthesize._records(events, request(party), lists)


@pytest.mark.usefixtures("repeatable")
def test_a_table_is_released_once_and_stays_the_same_bytes(shop: Party) -> None:
    made = shop.run(*arguments("--out", "one.csv"))
    assert made.code == 0, made
    table = pl.read_csv(shop.folder / "one.csv")
    assert table.columns == ["product", "country", "label_from", "label_to"]
    assert table.height == ROWS  # every event of the population, labelled or not
    assert set(table["product"]) <= {*LISTS["product"], OTHER}
    shoes = table.filter(pl.col("product") == "shoes")
    hats = table.filter(pl.col("product") == "hats")
    # what belongs together stays together
    assert shoes.filter(pl.col("label_from") == 8).height > 0.7 * shoes.height
    assert hats.filter(pl.col("label_from") == 0).height > 0.8 * hats.height
    for again in ("two.csv", "two.parquet", "two.json"):
        result = shop.run(*arguments("--out", again))
        assert "already released" in result.out
    one, two = (shop.folder / name for name in ("one.csv", "two.csv"))
    assert one.read_bytes() == two.read_bytes()
    assert pl.read_parquet(shop.folder / "two.parquet").equals(pl.read_csv(two))
    document = json.loads((shop.folder / "two.json").read_text())
    assert guarantee_from_json(document["guarantee"]) == PureDP.of(1)
    assert guarantee_from_json(document["guarantee_for_records"]) == PureDP.of(
        1, Adjacency.REPLACE_RECORD
    )
    (account,) = json.loads(shop.run("budget", "--json").out)
    (charge,) = account["charges"]
    assert charge["purpose"] == "synthetic table of product, country"
    assert charge["guarantee"]["epsilon"] == "1"


def test_of_several_labels_one_is_named(shop: Party) -> None:
    frame = write_shop(shop).rename({"label": "amount"})
    with_labels(shop)
    shop.write_labels({**frame.to_dict(as_series=False), "returned": [0.0] * ROWS})
    assert "one of the labels returned, amount; set --label" in shop.run(*arguments()).error
    assert "'x' must be one of returned, amount" in shop.run(*arguments("--label", "x")).error
    other = [*arguments("--label", "returned"), "--column=amount=product.txt"]
    assert "'amount' must be named once" in shop.run(*other).error
    assert not shop.store.exists() or shop.nothing_left()
    made = shop.run(*arguments("--label", "amount", "--edges", "0,2,10,100", "--out", "t.csv"))
    assert made.code == 0, made
    assert "the same label" not in made.err  # as those of the other are
    shoes = pl.read_csv(shop.folder / "t.csv").filter(pl.col("product") == "shoes")
    assert shoes.filter(pl.col("amount_from") == 2).height > 0.7 * shoes.height
    made = shop.run(*arguments("--label", "returned", "--bins", "2"))
    assert made.code == 0
    assert f"all {ROWS:,} events have the same label, 0" in made.err
    (account,) = json.loads(shop.run("budget", "--json").out)
    assert [charge["purpose"].rpartition(", ")[2] for charge in account["charges"]] == [
        "amount",
        "returned",
    ]


def test_every_event_is_one_record_in_the_cell_that_it_belongs_to(shop: Party) -> None:
    frame = write_shop(shop)
    codes = truth(shop)
    assert codes.shape == (ROWS, 3)
    labelled = np.arange(ROWS) % 5 != 0
    product = np.where(labelled, frame["product"].to_numpy(), OTHER)
    expected = [
        (np.isin(product, ["sofa", OTHER])).sum(),
        (~labelled).sum(),
        (labelled & (frame["label"].to_numpy() >= 8)).sum(),
    ]
    got = [(codes[:, 0] == 2).sum(), (codes[:, 1] == 3).sum(), (codes[:, 2] == 4).sum()]
    assert got == expected
    joint = ((codes[:, 0] == 1) & (codes[:, 2] == 4)).sum()
    assert joint == (labelled & (product == "shoes")).sum()


def test_a_replaced_event_moves_one_record(shop: Party) -> None:
    before = truth(shop)
    lines = (shop.folder / "labels.csv").read_text().splitlines()
    for change in (
        [*lines[:5], "event-6,other thing,XX,99", *lines[6:]],  # replaced
        [*lines[:5], *lines[6:]],  # its label was never known
        [*lines, "stranger,shoes,CH,3"],  # not in the population
    ):
        (shop.folder / "labels.csv").write_text("\n".join(change) + "\n")
        after = truth(shop)
        assert after.shape == before.shape
        assert np.any(after != before, axis=1).sum() <= 1
    assert lines[5].startswith("event-6,")


def test_users_with_too_many_events_count_up_to_their_limit(shop: Party) -> None:
    frame = write_shop(shop)
    users = [f"user-{i % 10}" for i in range(ROWS)]
    shop.write_population({"key": frame["key"], "person": users})
    settings = {
        "privacy__unit": "user",
        "privacy__user": "person",
        "privacy__max_records_per_user": 7,
    }
    codes = truth(shop, **settings)
    kept = (codes[:, 0] != 2) | (codes[:, 1] != 3) | (codes[:, 2] != 0)
    assert 0 < kept.sum() <= 70
    made = shop.run(*arguments(*shop.arguments(**settings)), "--out", "one.json")
    assert made.code == 0, made
    document = json.loads((shop.folder / "one.json").read_text())
    guarantee = guarantee_from_json(document["guarantee"])
    assert isinstance(guarantee, PureDP)
    assert guarantee.exact_epsilon == 1
    assert guarantee.unit == "user"
    per_record = guarantee_from_json(document["guarantee_for_records"])
    assert isinstance(per_record, PureDP)
    assert per_record.exact_epsilon == Fraction(1, 7)


def test_a_column_may_come_from_the_population(shop: Party) -> None:
    frame = write_shop(shop)
    shop.write_population({"key": frame["key"], "country": frame["country"]})
    codes = truth(shop)
    assert (codes[:, 1] == 1).sum() == (frame["country"] == "DE").sum()  # unlabelled ones, too
    assert (codes[:, 1] == 3).sum() == 0


def test_gaussian_noise_needs_a_total_delta_and_is_charged_as_zcdp(shop: Party) -> None:
    assert "total_delta" in shop.run(*arguments("--delta", "1e-6")).error
    assert shop.nothing_left()
    made = shop.run(
        *arguments("--delta", "1e-6", "--out", "one.json"),
        *shop.arguments(privacy__total_delta=1e-5),
    )
    assert made.code == 0, made
    document = json.loads((shop.folder / "one.json").read_text())
    guarantee = guarantee_from_json(document["guarantee"])
    assert isinstance(guarantee, ZeroConcentratedDP)
    assert 0.01 < guarantee.rho < 0.05
    assert document["noise"] == "discrete-gaussian"


@pytest.mark.slow
def test_a_dead_process_spends_nothing(shop: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*given: object, **named: object) -> None:
        raise KeyboardInterrupt

    for owner, step in ((synthesize, "_fit"), (Store, "write_outcome"), (Ledger, "commit")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, step, die)
            assert shop.run(*arguments()).code == 130
        assert shop.nothing_left()
        assert not list(shop.store.glob("outcomes/*/*/*"))
    assert shop.run(*arguments()).code == 0


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--column", "colour=product.txt"], "no column 'colour'"),
        (["--column", "product=product.txt"], "named once"),
        (["--column", "label=product.txt"], "neither label nor key"),
        (["--column", "size"], "NAME=FILE"),
        (["--column", "size=nothing.txt"], "cannot be read"),
        (["--column", "size=other.txt"], "stands for what is not"),
        (["--edges", "0,5"], "edges run from 0 to 5"),
        (["--edges", "0,7,3,10"], "ascending"),
        (["--bins", "999999"], "must lie in 2"),
        (["--labels", "missing.csv"], "does not exist"),
        (["--epsilon", "0"], "above 0"),
        (["--epsilon", "5"], "left"),
        (["--out", "nowhere/table.csv"], "there is no folder"),
        (["--out", "table.xlsx"], "must end in one of .csv, .json"),
    ],
)
def test_refusals_are_one_line_and_free(shop: Party, more: list[str], words: str) -> None:
    (shop.folder / "other.txt").write_text("a\n(other)\n")
    assert words in shop.run(*arguments(*more)).error
    assert shop.nothing_left()


def test_other_settings_and_damage_are_refused(shop: Party) -> None:
    assert shop.run(*arguments("--epsilon", "0.5")).code == 0
    (shop.folder / "fewer.txt").write_text("CH\nDE\n")
    fewer = ["synthesize", "--column=product=product.txt", "--column=country=fewer.txt"]
    for term, given in (
        ("edges", arguments("--bins", "4")),
        ("missing", arguments("--set", "data.missing=1")),
        ("order", arguments("--order", "1")),
        ("columns.country", [*fewer, "--bins", "5"]),
        ("duplicates", arguments("--set", "data.duplicates=last")),
    ):
        assert f"{term} was " in shop.run(*given, "--epsilon", "0.5").error, term
    assert "epsilon was " in shop.run(*arguments("--epsilon", "0.25")).error
    (path,) = shop.store.glob("outcomes/*/*/*/outcome.bin")
    path.write_bytes(path.read_bytes() + b" ")
    assert "digest" in shop.run(*arguments("--epsilon", "0.5")).error


@pytest.mark.slow
def test_table_and_labels_share_one_budget(shop: Party) -> None:
    assert shop.release(privacy__epsilon=2).code == 0
    assert shop.run(*arguments("--epsilon", "1")).code == 0
    config: LabelPartyConfig = shop.config()
    with Ledger(config.store.directory / "ledger.sqlite") as ledger:
        spent = ledger.spent("labels", config.privacy.limit)
    assert spent == PureDP.of(3)
    assert "left" in shop.run(*arguments("--epoch", "2", "--epsilon", "0.1")).error
