"""``label-party top-k``: one release of leaders on the same budget, the same bytes forever."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from typing import Any

import polars as pl
import pytest

from labelveil.common.guarantees import (
    Adjacency,
    PureDP,
    ZeroConcentratedDP,
    adaptive_total,
    epsilon_at,
    guarantee_from_json,
)
from labelveil.common.mechanisms.selection.leaders import StableLeaders
from labelveil.label_party.queries import top_k
from labelveil.label_party.store.ledger import Ledger
from labelveil.label_party.store.release_store import Store
from tests.label_party.conftest import Party

SIZES = {"shoes": 900, "hats": 700, "coats": 650, "socks": 20, "belts": 5}


DELTAS = ["--set", "privacy.total_delta=1e-5"]


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
    party.write_population({"key": twice["key"]})
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
    guarantee = guarantee_from_json(document["guarantee"])
    assert guarantee == PureDP.of(Fraction(1), Adjacency.REPLACE_LABEL)
    assert "shoes" in made.out
    assert "users, ±" in made.out
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


def test_events_are_counted_where_no_users_are_named(shop: Party) -> None:
    made = shop.run("top-k", "--by", "product", "--categories", "products.txt", "--k", "2")
    assert "events, ±" in made.out
    assert "users" not in made.out


def test_leaders_and_labels_share_one_budget(shop: Party) -> None:
    assert shop.run(*arguments("--k", "2", "--epsilon", "1.5")).code == 0
    assert shop.release(privacy__epsilon=1.5).code == 0
    refused = shop.run(*arguments("--adaptive", "--epoch", "2", "--epsilon", "0.5"))
    assert "budget" in refused.error or "left" in refused.error
    assert not list(shop.store.glob("outcomes/*/2/*"))


def test_adaptive_k_stops_at_the_cliff(shop: Party) -> None:
    made = shop.run(*arguments("--adaptive", "--epsilon", "3", "--out", "one.json"))
    assert made.code == 0, made
    document = json.loads((shop.folder / "one.json").read_text())
    assert document["adaptive"]
    assert document["k"] == 3


def test_a_stable_set_is_charged_as_its_mechanism_states(shop: Party) -> None:
    more = ["--stable", "--epsilon", "2", "--set", "privacy.total_delta=1e-5"]
    assert "total_delta" in shop.run(*arguments("--stable", "--epsilon", "1")).error
    made = shop.run(*arguments(*more, "--out", "one.json"))
    assert made.code == 0, made
    document = json.loads((shop.folder / "one.json").read_text())
    assert [row["category"] for row in document["leaders"]] == ["coats", "hats", "shoes"]
    assert "users" not in document["leaders"][0]
    guarantee = StableLeaders(Fraction(2), Fraction(1, 10**6), 20).guarantee
    assert guarantee_from_json(document["guarantee"]) == guarantee
    assert epsilon_at(guarantee, 1e-6) <= 2
    assert isinstance(guarantee, ZeroConcentratedDP)
    assert 0 < guarantee.exact_delta <= Fraction(1, 2 * 10**6)
    (account,) = json.loads(shop.run("budget", "--json", *more[3:]).out)
    spent = guarantee_from_json(account["spent"])
    assert spent == adaptive_total([guarantee], Fraction(1, 10**5))
    assert account["total"]["delta"] == "1/100000"
    assert account["charges"][0]["guarantee"]["kind"] == "zcdp"
    again = shop.run(*arguments(*more))
    assert "already released" in again.out
    # without a delta the charge still shows, against the total that admitted it
    (plain,) = json.loads(shop.run("budget", "--json").out)
    assert plain == account
    table = shop.run("budget", *more[3:]).out
    assert "left ε = 0.9" in table


def test_exactly_k_by_stability(shop: Party) -> None:
    """Three lead by far, and a fourth is asked for: the three stand, and one more comes by chance.

    The budget is what the mechanism states for a set at the gap and peeling, whatever the split.
    """
    more = ["--stable", "--k", "4", "--epsilon", "2", "--set", "privacy.total_delta=1e-5"]
    half = [*more, "--stable-share", "0.5"]
    made = shop.run(*arguments(*half, "--out", "one.json"))
    assert made.code == 0, made
    document = json.loads((shop.folder / "one.json").read_text())
    assert (document["k"], document["adaptive"], document["noise"]) == (4, False, None)
    names = [row["category"] for row in document["leaders"]]
    assert {"coats", "hats", "shoes"} < set(names)
    assert names == sorted(names)  # a set, in the list's order
    assert all("users" not in row for row in document["leaders"])
    charged = guarantee_from_json(document["guarantee"])
    delta, share = Fraction(1, 10**6), Fraction(1, 2)
    assert charged == StableLeaders(Fraction(2), delta, k=4, share=share).guarantee
    assert isinstance(charged, ZeroConcentratedDP)
    assert charged.adjacency == Adjacency.REPLACE_LABEL
    assert 1.9 < epsilon_at(charged, 1e-6) <= 2
    assert "already released" in shop.run(*arguments(*half)).out
    assert 'stable_share was "1/2" and is "1/10" now' in shop.run(*arguments(*more)).error
    assert "k was 4 and is 5 now" in shop.run(*arguments(*half, "--k", "5")).error


def test_all_categories_are_named_where_as_many_are_asked_for(shop: Party) -> None:
    made = shop.run(
        *arguments("--stable", "--k", "6", "--set", "privacy.total_delta=1e-5", "--out", "all.json")
    )
    assert made.code == 0, made
    assert json.loads((shop.folder / "all.json").read_text())["k"] == 6


@pytest.mark.slow
def test_a_gap_that_no_counts_could_have_is_said_before_it_costs(shop: Party) -> None:
    more = ["--stable", "--set", "privacy.total_delta=1e-5", "--dry-run"]
    wide = shop.run(*arguments(*more, "--epsilon", "1"))
    tiny = shop.run(*arguments(*more, "--epsilon", "0.001"))
    assert "are few for" not in wide.out + wide.err
    assert "are few for epsilon=0.001 and delta=1e-06" in tiny.out + tiny.err
    assert "before a gap of" in tiny.out + tiny.err
    assert shop.nothing_left()


def test_noise_that_covers_an_average_category_is_said_before_it_costs(shop: Party) -> None:
    """± is the 95 % point of Laplace noise of the scale in the document: scale · ln 20."""
    one = arguments("--k", "2", "--epsilon", "0.005")
    said = shop.run(*one, "--dry-run")
    assert shop.run(*one, "--out", "one.json").code == 0
    scale = float(Fraction(json.loads((shop.folder / "one.json").read_text())["noise"]["scale"]))
    assert f"noise of ± {scale * math.log(20):,.0f} (95%)" in said.out + said.err


def test_flat_counts_release_nothing_and_are_charged(shop: Party) -> None:
    (shop.folder / "products.txt").write_text("gloves\nscarves\nboots\n")
    more = ["--stable", "--set", "privacy.total_delta=1e-5"]
    made = shop.run(*arguments(*more))
    assert made.code == 0, made
    assert "no gap" in made.out
    (account,) = json.loads(shop.run("budget", "--json", *more[1:]).out)
    assert len(account["charges"]) == 1


@pytest.mark.slow
def test_a_dead_process_spends_nothing(shop: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*given: object) -> None:
        raise KeyboardInterrupt

    steps = ((top_k, "_build"), (Store, "write_outcome"), (Ledger, "commit"))
    for owner, step in steps:
        with monkeypatch.context() as patch:
            patch.setattr(owner, step, die)
            assert shop.run(*arguments("--k", "2")).code == 130
        assert shop.nothing_left()
        assert not list(shop.store.glob("outcomes/*/*/*/outcome.bin"))
    assert shop.run(*arguments("--k", "2")).code == 0


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--k", "2", "--adaptive"], "neither"),
        (["--stable", "--adaptive"], "neither"),
        ([], "neither"),
        (["--k", "2", "--stable"], "total_delta=0"),
        (["--k", "2", "--stable-share", "0.5"], "stable_share is for --stable with --k"),
        (["--stable", "--stable-share", "0.5"], "stable_share is for --stable with --k"),
        (["--k", "2", "--stable", "--stable-share", "1"], "below 1"),
        (["--stable", *DELTAS, "--epsilon", "1e-6"], "epsilon=1e-06 is too small"),
        (
            ["--stable", *DELTAS, "--k", "3", "--stable-share", "1e-30"],
            "k=3 and share=1e-30; raise",
        ),
        (["--k", "9", "--stable", "--set", "privacy.total_delta=1e-6"], "above the 6 categories"),
        (["--stable"], "total_delta=0"),
        (["--stable", "--delta", "0.1", "--set", "privacy.total_delta=1e-6"], "delta=0.1"),
        (["--stable", "--plot", "p.png"], "no counts"),
        (["--k", "9"], "above the 6 categories"),
        (["--k", "2", "--by", "colour"], "no column 'colour'"),
        (["--k", "2", "--categories", "nothing.txt"], "cannot be read"),
        (["--k", "2", "--categories", "one.txt"], "at least 2"),
        (["--k", "2", "--labels", "missing.csv"], "does not exist"),
        (["--k", "2", "--plot", "leaders.jpgg"], "must end in one of"),
        (["--k", "2", "--plot", "nowhere/leaders.png"], "there is no folder"),
        (["--k", "2", "--out", "nowhere/one.json"], "there is no folder"),
        (["--k", "2", "--out", "."], "is a folder"),
    ],
)
def test_refusals_are_one_line_and_free(shop: Party, more: list[str], words: str) -> None:
    (shop.folder / "one.txt").write_text("shoes\n")
    assert words in shop.run(*arguments(*more)).error
    assert shop.nothing_left()


def test_other_settings_and_damage_are_refused(shop: Party) -> None:
    """Whatever decides what is released is a term, and named where it is another than was sold."""
    (shop.folder / "fewer.txt").write_text("shoes\nhats\ncoats\n")
    several = arguments("--stable", "--k", "2", *DELTAS, "--set", "data.epoch=2")
    adaptive = arguments("--adaptive", "--set", "data.epoch=3")
    sold = {"1": arguments("--k", "2", *DELTAS), "2": several, "3": [*adaptive, *DELTAS]}
    for given in sold.values():
        assert shop.run(*given, "--epsilon", "0.5").code == 0
    for epoch, term, *changed in (
        ("1", "k", "--k", "3"),
        ("1", "user", "--user", ""),
        ("1", "categories", "--categories", "fewer.txt"),
        ("1", "epsilon", "--epsilon", "0.25"),
        ("1", "duplicates", "--set", "data.duplicates=last"),
        ("2", "stable_share", "--stable-share", "0.75"),
        ("2", "delta", "--delta", "1e-7"),
        ("3", "most", "--most", "3"),
    ):
        given = [*sold[epoch], *([] if term == "epsilon" else ["--epsilon", "0.5"]), *changed]
        assert f"{term} was " in shop.run(*given).error, term
    (path,) = shop.store.glob("outcomes/*/1/*/outcome.bin")
    path.write_bytes(path.read_bytes() + b" ")
    assert "digest" in shop.run(*sold["1"], "--epsilon", "0.5").error
