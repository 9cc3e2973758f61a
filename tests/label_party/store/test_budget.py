"""What a line of arithmetic says of a budget: what is lost, left and allowed."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from fractions import Fraction

import pytest

from labelveil.common.errors import BudgetError, PrivacyError
from labelveil.common.guarantees import (
    Adjacency,
    Guarantee,
    PureDP,
    Unit,
    ZeroConcentratedDP,
)
from labelveil.label_party.store import budget
from labelveil.label_party.store.entries import LABELS, Composition, Purchase
from tests.label_party.store.ledgers import approximate, bought, pure


def test_what_a_record_has_lost_is_all_additive_charges_and_its_own_epochs() -> None:
    chance = random.Random(5)
    for _ in range(200):
        kinds: list[Composition] = ["additive", "disjoint"]
        charges = [
            bought(chance.randint(1, 9), str(chance.randint(1, 3)), chance.choice(kinds))
            for _ in range(chance.randint(0, 6))
        ]
        losses = []
        for epoch in "0123":
            own = [x for x in charges if x.composition == "additive" or x.epoch == epoch]
            losses.append(sum(Fraction(str(x.guarantee.epsilon)) for x in own))  # type: ignore[attr-defined]
        expected = pure(max(losses)) if charges else None
        assert budget.spent(charges, pure(100)) == expected


@pytest.mark.parametrize(
    ("limit", "lost", "left"),
    [
        (pure(3), None, pure(3)),
        (pure(3), pure("0.75"), pure("2.25")),
        (pure(3), pure(4), pure(0)),
        (approximate(3, "1e-6"), None, approximate(3, "5e-7")),
        # half of δ pays for adding up; what charges themselves take comes off the other half
        (approximate(3, "1e-6"), approximate(1, "5e-7"), approximate(2, "5e-7")),
        (approximate(3, "1e-6"), approximate(1, "3e-7"), approximate(2, "5e-7")),
        (approximate(3, "1e-6"), approximate(1, "8e-7"), approximate(2, "2e-7")),
        (approximate(3, "1e-6"), approximate(4, "2e-6"), approximate(0, 0)),
        (approximate(3, "1e-6"), pure(1), None),
        (ZeroConcentratedDP.of(Fraction(1)), None, ZeroConcentratedDP.of(Fraction(1))),
        (ZeroConcentratedDP.of(Fraction(1)), ZeroConcentratedDP.of(Fraction(1, 2)), None),
    ],
)
def test_what_is_left(limit: Guarantee, lost: Guarantee | None, left: Guarantee | None) -> None:
    assert budget.remaining(limit, lost) == left


@pytest.mark.parametrize(
    ("limit", "cap", "allowed"),
    [
        (pure(1), pure(1), True),
        (pure("1.0001"), pure(1), False),
        (pure(1), approximate(1, "1e-6"), True),
        (approximate(1, "1e-6"), pure(2), False),
        (approximate(1, 0), pure(1), True),
        (approximate(1, "1e-6"), approximate(1, "1e-6"), True),
        (approximate(1, "1.1e-6"), approximate(2, "1e-6"), False),
        (approximate("1.1", "1e-7"), approximate(1, "1e-6"), False),
        (ZeroConcentratedDP.of(Fraction(1, 9)), pure(100), False),
        (pure(1), ZeroConcentratedDP.of(Fraction(100)), False),
    ],
)
def test_a_limit_is_below_a_cap_in_both_numbers(
    limit: Guarantee, cap: Guarantee, allowed: bool
) -> None:
    assert budget.at_most(limit, cap) == allowed


def test_of_two_epochs_each_number_that_is_larger_counts() -> None:
    one, other, both = approximate(2, "1e-7"), approximate(1, "3e-7"), approximate(2, "3e-7")
    assert budget._larger(one, other) == budget._larger(other, one) == both
    assert budget._larger(one, one) == one
    assert budget._larger(pure(1), pure(2)) == budget._larger(pure(2), pure(1)) == pure(2)


def test_a_cap_is_raised_so_that_it_still_allows_what_it_did() -> None:
    assert budget.raising(pure(1), pure(2)) == "--to 2"
    assert budget.raising(pure(3), pure(2)) == "--to 3"
    assert budget.raising(approximate(1, "1e-6"), pure(2)) == "--to 2 --delta 0.000001"
    assert budget.raising(pure(3), approximate(2, "1e-7")) == "--to 3 --delta 1e-7"
    assert budget.raising(pure(1), pure("1.23456789")) == "--to 1.23457"  # rounded up
    assert budget.raising(pure(1), pure("1.2345601")) == "--to 1.23457"


def test_digits_are_cut_so_that_what_is_named_suffices() -> None:
    third = Fraction(1, 3)
    assert budget._decimal(third) == "0.333334"
    assert budget._decimal(third, up=False) == "0.333333"
    assert budget._decimal(Fraction(5, 4), up=False) == budget._decimal(Fraction(5, 4)) == "1.25"


REFUSALS: list[tuple[list[Purchase], Purchase, Guarantee, Guarantee | None, str]] = [
    ([], bought(2), pure(1), None,
     "account 'd': asked for ε = 2 (replace-label, per record), but ε = 1 (replace-label, per"
     " record) is left of ε = 1 (replace-label, per record); ask for less with --epsilon 1, or set"
     " [privacy] total_epsilon = 2"),
    ([bought("0.75")], bought("0.5"), pure(1), pure(1),
     "account 'd': asked for ε = 0.5 (replace-label, per record), but ε = 0.25 (replace-label, per"
     " record) is left of ε = 1 (replace-label, per record); ask for less with --epsilon 0.25, or"
     " run: label-party budget raise --to 1.25 --reason TEXT, and set [privacy] total_epsilon ="
     " 1.25"),
    ([bought("0.75")], bought("0.5"), pure(1), pure(2),
     "account 'd': asked for ε = 0.5 (replace-label, per record), but ε = 0.25 (replace-label, per"
     " record) is left of ε = 1 (replace-label, per record); ask for less with --epsilon 0.25, or"
     " set [privacy] total_epsilon = 1.25"),
    ([bought(1)], replace(bought("0.5"), answers=3), pure(1), pure(2),
     "account 'd': asked for ε = 0.5 (replace-label, per record), but ε = 0 (replace-label, per"
     " record) is left of ε = 1 (replace-label, per record); set [privacy] total_epsilon = 1.5"),
    ([bought("0.5")], replace(bought("0.75"), answers=3), pure(1), pure(2),
     "account 'd': asked for ε = 0.75 (replace-label, per record), but ε = 0.5 (replace-label, per"
     " record) is left of ε = 1 (replace-label, per record); ask for less with [evaluation] epsilon"
     " = 0.5, or set [privacy] total_epsilon = 1.25"),
    ([bought(1, "1", "disjoint")], bought(2, "2", "disjoint"), pure("1.5"), pure(9),
     "account 'd': asked for ε = 2 (replace-label, per record), but ε = 1.5 (replace-label, per"
     " record) is left of ε = 1.5 (replace-label, per record); ask for less with --epsilon 1.5, or"
     " set [privacy] total_epsilon = 2"),
]  # fmt: skip


@pytest.mark.parametrize(("charges", "proposal", "limit", "cap", "said"), REFUSALS)
def test_a_refusal_names_what_would_fit(
    charges: list[Purchase], proposal: Purchase, limit: Guarantee, cap: Guarantee | None, said: str
) -> None:
    with pytest.raises(BudgetError) as refused:
        budget.check_fits(charges, proposal, limit, cap)
    assert str(refused.value) == said
    enough = re.search(r"total_epsilon = ([\d.]+)$", said)
    assert enough is not None
    budget.check_fits(charges, proposal, pure(enough[1]), None)
    less = re.search(r"epsilon =? ?([\d.]+), or", said)
    if less is not None:
        smaller = replace(proposal, guarantee=pure(less[1]))
        budget.check_fits(charges, smaller, limit, cap)


def test_charges_about_other_neighbours_are_told_before_anything_is_added_up() -> None:
    of_users = replace(bought(1), guarantee=PureDP.of(1, unit=Unit.USER))
    for charges, proposal in (([of_users], bought(1)), ([bought(1)], of_users)):
        with pytest.raises(PrivacyError) as refused:
            budget.check_fits(charges, proposal, pure(9), None)
        assert str(refused.value) == (
            "account 'd': ε = 1 (replace-label, per user) and a limit per record do not compose;"
            " set [privacy] unit as it was for earlier purchases; for other events name another"
            " account"
        )
    records = replace(bought(1), guarantee=PureDP.of(1, Adjacency.REPLACE_RECORD))
    for charges, proposal in (([records], bought(1)), ([], records)):
        with pytest.raises(PrivacyError, match="adjacency replace-label and replace-record do not"):
            budget.check_fits(charges, proposal, pure(9), None)


def test_concentrated_charges_need_a_delta_which_is_proposed() -> None:
    rho = replace(bought(1), guarantee=ZeroConcentratedDP.of(Fraction(1, 200)))
    with pytest.raises(BudgetError) as refused:
        budget.check_fits([], rho, pure(1), None)
    said = str(refused.value)
    assert "do not fit a budget without a delta (ε = 1 (replace-label, per record)); set" in said
    found = re.search(r"total_epsilon = ([\d.]+) and total_delta = ([\d.e-]+)$", said)
    assert found is not None
    assert float(found[2]) == 1e-9
    budget.check_fits([], rho, approximate(found[1], found[2]), None)
    with pytest.raises(BudgetError, match=r"\(half of total_delta is for charges' own delta"):
        budget.check_fits([], bought(3), approximate(1, "1e-6"), None)


def test_a_concentrated_limit_that_is_passed_names_one_that_can_be_configured() -> None:
    limit, charge = (ZeroConcentratedDP.of(Fraction(rho)) for rho in (1, 2))
    order = Purchase("d", "1", LABELS, charge)
    with pytest.raises(BudgetError) as refused:
        budget.check_fits([], order, limit, None)
    found = re.search(r"total_epsilon = ([\d.]+) and total_delta = ([\d.e-]+)$", str(refused.value))
    assert found is not None
    budget.check_fits([], order, approximate(*found.groups()), None)


def test_who_meets_whom_again() -> None:
    a1, d1, d2 = bought(1), bought(1, "1", "disjoint"), bought(1, "2", "disjoint")
    every = [a1, d1, d2]
    assert budget.seen_by(every, "additive") == every
    assert budget.seen_by(every, "additive", "9") == every
    assert budget.seen_by(every, "disjoint") == [a1]
    assert budget.seen_by(every, "disjoint", "2") == [a1, d2]
    assert budget.short(pure("0.5")) == "ε = 0.5"
    assert budget.short(None) == "not one number"
    assert budget.short(None, "nothing") == "nothing"
