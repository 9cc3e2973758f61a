"""``label-party top-k``: one release of leaders on the same budget, the same bytes for ever."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import polars as pl
import pytest

from common.guarantees import Adjacency, PureDP, guarantee_from_json
from label_party import top_k
from label_party.ledger import Ledger
from tests.label_party.conftest import Party

SIZES = {"shoes": 900, "hats": 700, "coats": 650, "socks": 20, "belts": 5}


@pytest.fixture
def shop(party: Party) -> Party:
    """2,275 purchases, one user each, every user twice in the file; total ε = 3."""
    items = [name for name, size in SIZES.items() for _ in range(size)]
    users = [f"user-{i}" for i in range(len(items))]
    frame = pl.DataFrame(
        {"key": [f"event-{i}" for i in range(len(items))], "product": items, "person": users}
    )
    twice = pl.concat([frame, frame.with_columns(key=pl.col("key") + "-again")])
    twice.with_columns(label=pl.lit(1.0)).write_csv(party.folder / "labels.csv")
    (party.folder / "products.txt").write_text("\n".join([*SIZES, "gloves"]) + "\n")
    return party


def arguments(*more: str) -> list[str]:
    return ["top-k", "--by", "product", "--categories", "products.txt", "--user", "person", *more]


def test_leaders_are_released_once_and_stay_the_same_bytes(shop: Party) -> None:
    made = shop.run(*arguments("--k", "3", "--out", "one.json", "--plot", "leaders.png"))
    assert made.code == 0, made
    document: dict[str, Any] = json.loads((shop.folder / "one.json").read_text())
    assert {row["category"] for row in document["leaders"]} == {"shoes", "hats", "coats"}
    for row in document["leaders"]:
        assert abs(row["users"] - SIZES[row["category"]]) < 120
    promise = guarantee_from_json(document["guarantee"])
    assert promise == PureDP.of(Fraction(1), Adjacency.REPLACE_LABEL)
    assert "shoes" in made.out
    assert "█" in made.out
    assert (shop.folder / "leaders.png").stat().st_size > 1000
    again = shop.run(*arguments("--k", "3", "--out", "two.json"))
    assert "already released" in again.out
    one, two = (shop.folder / name for name in ("one.json", "two.json"))
    assert one.read_bytes() == two.read_bytes()
    accounts = json.loads(shop.run("budget", "--json").out)
    (charge,) = accounts[0]["charges"]
    assert charge["purpose"] == "top-k by product"
    assert charge["guarantee"]["epsilon"] == "1"


def test_leaders_and_labels_share_one_budget(shop: Party) -> None:
    shop.write_population({"key": [f"event-{i}" for i in range(100)]})
    assert shop.run(*arguments("--k", "2", "--epsilon", "1.5")).code == 0
    assert shop.release(privacy__epsilon=1.5).code == 0
    refused = shop.run(*arguments("--adaptive", "--epoch", "2", "--epsilon", "0.5"))
    assert "budget" in refused.error or "left" in refused.error
    assert not list(shop.store.glob("top-k/*/2/*"))


def test_adaptive_k_stops_at_the_cliff(shop: Party) -> None:
    made = shop.run(*arguments("--adaptive", "--epsilon", "3", "--out", "one.json"))
    assert made.code == 0, made
    document = json.loads((shop.folder / "one.json").read_text())
    assert document["adaptive"]
    assert document["k"] == 3


def test_a_dead_process_spends_nothing(shop: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*given: object) -> None:
        raise KeyboardInterrupt

    for owner, step in ((top_k, "_write"), (Ledger, "commit")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, step, die)
            assert shop.run(*arguments("--k", "2")).code == 130
        assert shop.nothing_left()
        assert not list(shop.store.glob("top-k/*/*/*.json"))
    assert shop.run(*arguments("--k", "2")).code == 0


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--k", "2", "--adaptive"], "not both"),
        ([], "not both"),
        (["--k", "9"], "above the 6 categories"),
        (["--k", "2", "--by", "colour"], "no column 'colour'"),
        (["--k", "2", "--categories", "nothing.txt"], "cannot be read"),
        (["--k", "2", "--categories", "one.txt"], "at least 2"),
        (["--k", "2", "--labels", "missing.csv"], "cannot be read"),
    ],
)
def test_refusals_are_one_line_and_free(shop: Party, more: list[str], words: str) -> None:
    (shop.folder / "one.txt").write_text("shoes\n")
    assert words in shop.run(*arguments(*more)).error
    assert shop.nothing_left()


def test_other_settings_and_damage_are_refused(shop: Party) -> None:
    assert shop.run(*arguments("--k", "2")).code == 0
    assert "other settings (k)" in shop.run(*arguments("--k", "3")).error
    (path,) = shop.store.glob("top-k/*/*/*.json")
    path.write_bytes(path.read_bytes() + b" ")
    assert "digest" in shop.run(*arguments("--k", "2")).error
