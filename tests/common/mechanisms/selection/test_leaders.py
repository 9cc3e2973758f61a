"""Leaders under pure ε: exact privacy for replaced votes, and the split of ε."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import PrivacyError
from labelveil.common.guarantees import Adjacency, Unit
from labelveil.common.mechanisms.selection.leaders import Leaders, StableLeaders
from tests.common.mechanisms.selection import laws
from tests.common.mechanisms.selection.test_privacy import peel_law
from tests.statistics import outcomes_fit

EPSILON = Fraction(3, 2)


def names_law(leaders: Leaders, counts: tuple[int, ...]) -> laws.Law:
    """Over (k, named in order), without the noisy counts."""
    ranks = range(1, len(counts)) if leaders.k is None else [leaders.k]
    choice, _, _ = leaders.split(1)
    gaps = laws.gaps_of(counts, len(counts) - 1)
    shares = laws.softmax([float(choice) / 4 * gap for gap in gaps]) if leaders.k is None else [1.0]
    law: laws.Law = {}
    for k, mass in zip(ranks, shares, strict=True):
        rate = float(leaders.split(k)[1])
        for path, part in peel_law([rate * count for count in counts], k).items():
            law[k, path] = float(mass) * part
    return law


@pytest.mark.parametrize("k", [None, 1, 2])
def test_names_leave_the_counts_their_share(k: int | None) -> None:
    """Replacing a unit's votes: the names alone cost ε less what the counts' noise is paid."""
    leaders = Leaders(EPSILON, k, unit=Unit.USER)
    for counts in product(range(1, 4), repeat=3):
        law = names_law(leaders, counts)
        assert sum(law.values()) == pytest.approx(1)
        for move in product((-1, 0, 1), repeat=3):
            other = names_law(leaders, tuple(a + b for a, b in zip(counts, move, strict=True)))
            for (size, path), mass in law.items():
                _, _, scale = leaders.split(size)
                counted = size / scale  # L1 sensitivity of a user over the noise's scale
                names = leaders.epsilon - counted
                assert math.log(mass / other[size, path]) <= float(names) + 1e-9


def test_draws_follow_the_law() -> None:
    leaders, counts = Leaders(Fraction(6), None), (1, 6, 2)
    law = {path: mass for (_, path), mass in names_law(leaders, counts).items()}

    def draw(entropy: object) -> tuple[int, ...]:
        return tuple(leaders.draw(counts, entropy).chosen.tolist())  # type: ignore[arg-type]

    seen = laws.drawn(draw)
    assert outcomes_fit(seen, law)
    assert not outcomes_fit(seen, laws.broken_twin(law))


def test_all_candidates_are_no_set_of_leaders() -> None:
    """Behind the last there is no gap: nothing comes out where the others are alike."""
    for counts in ([5000, 5000], [5000, 5000, 5000]):
        assert (
            StableLeaders(Fraction(8), Fraction(1, 10**6)).draw(counts, seeded_entropy(1)) is None
        )


def test_noise_is_scaled_to_what_one_unit_moves() -> None:
    record, user = (Leaders(Fraction(2), 5, votes=votes) for votes in (1, 2))
    anybody = Leaders(Fraction(2), 5)
    assert user.split(5) == (0, Fraction(1, 10), 4)
    assert anybody.split(5) == Leaders(Fraction(2), 5, votes=9).split(5) == (0, Fraction(1, 10), 5)
    assert record.split(5) == (0, Fraction(1, 10), 2)
    assert record.guarantee.exact_epsilon == 2
    assert record.guarantee.adjacency == Adjacency.REPLACE_LABEL
    counts = np.array([500, 10, 400, 30, 450, 300, 350])
    leading = record.draw(counts, seeded_entropy(1))
    assert set(leading.chosen.tolist()) == {0, 2, 4, 5, 6}
    assert np.all(np.abs(leading.noisy_counts - counts[leading.chosen]) < 60)
    for broken in (
        lambda: Leaders(Fraction(0)),
        lambda: Leaders(Fraction(1), 0),
        lambda: Leaders(EPSILON, votes=0),
    ):
        with pytest.raises(PrivacyError):
            broken()
    with pytest.raises(PrivacyError, match="candidates"):
        record.draw(counts[:3], seeded_entropy(1))
