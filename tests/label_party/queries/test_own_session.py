"""A session of one's own calls: paid for once, every hit in the ledger before it is seen."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from labelveil.common.arrays import Floats
from labelveil.common.entropy import Entropy, WordSource
from labelveil.common.errors import BudgetError, ConfigError, ReleaseError
from labelveil.common.guarantees import Unit
from labelveil.common.mechanisms.interactive import HeldOutcome, NotPrior, Terms
from labelveil.common.mechanisms.interactive.targets import not_prior
from labelveil.exact import discrete_laplace
from labelveil.label_party.queries.own_session import open_session
from labelveil.label_party.store.disk import StoreError
from labelveil.label_party.store.ledger import Ledger
from labelveil.label_party.store.release_store import ANSWERED_FILE, Store
from tests.label_party.conftest import Party
from tests.power_cut import watching

SPENT: dict[str, Any] = {"privacy__total_epsilon": 40, "privacy__total_delta": 1e-6}
TERMS = Terms(not_prior(Fraction(1, 10)), hits=3)


def noisy_sum(labels: Floats, source: WordSource) -> int:
    """ε-DP for one label of 0 … 10 with ε = 1/10."""
    return int(np.rint(labels.sum())) + int(discrete_laplace(Fraction(100), 1, source)[0])


HIT = NotPrior(noisy_sum, Fraction(1, 10), prior=-(10**9))  # surely another outcome
MISS = NotPrior(lambda labels, source: 0, Fraction(1, 10), prior=0)


def hits_of(party: Party) -> int:
    store = Store(party.config(**SPENT).store.directory)
    with store.read_ledger() as ledger:
        (charge,) = ledger.charges("labels")
        return len(ledger.answers(charge))


def test_it_is_paid_for_once_and_goes_on_where_it_was(party: Party) -> None:
    config = party.config(**SPENT)
    with open_session(config, "sums", TERMS) as session:
        truth = 450.0  # 100 labels from 0 to 9, and 100 missing ones
        assert abs(session.run(HIT) - truth) < 2_000
        assert session.run(MISS) == 0
        assert (session.hits, session.calls) == (1, 2)
    with open_session(config, "sums", TERMS) as session:
        assert (session.hits, session.calls) == (1, 1)  # of misses nothing is kept
        session.run(HIT)
        session.run(HIT)
        with pytest.raises(BudgetError, match="halted after 3 hits"):
            session.run(MISS)
    assert hits_of(party) == 3
    with open_session(config, "sums", TERMS) as session, pytest.raises(BudgetError):
        session.run(MISS)
    store = Store(config.store.directory)
    with store.read_ledger() as ledger:
        (charge,) = ledger.charges("labels")
        assert charge.guarantee == TERMS.guarantee
        assert charge.answers == 3


def test_a_hit_is_in_the_ledger_before_it_is_seen(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, seen = party.config(**SPENT), list[int]()

    def failing(*arguments: Any) -> None:
        raise OSError("no space left")

    with open_session(config, "sums", TERMS) as session, monkeypatch.context() as patch:
        patch.setattr(Ledger, "answer", failing)
        with pytest.raises(Exception, match="cannot be written"):
            seen.append(session.run(HIT))
    assert not seen
    # nor is it lost where the ledger has it, and the log by which an older one is known has not
    with open_session(config, "sums", TERMS) as session, monkeypatch.context() as patch:
        patch.setattr("labelveil.label_party.queries.own_session.append_durably", failing)
        with pytest.raises(StoreError):
            session.run(HIT)
    with open_session(config, "sums", TERMS) as session:
        assert session.hits == 1
    assert hits_of(party) == 1


def test_a_hit_outlives_a_power_cut_once_it_is_seen(
    party: Party, keys_of_noise: list[Entropy]
) -> None:
    """Its ledger's line, and the log by which an older ledger is known; no key of its noise."""
    config, seen = party.config(**SPENT), list[bool]()
    with (
        watching(party.folder, lambda path: path.name != ANSWERED_FILE) as disk,
        open_session(config, "sums", TERMS) as session,
    ):
        for _ in range(2):
            session.run(HIT)
            disk.look("a hit")
            seen.append(bool(list(party.folder.rglob(ANSWERED_FILE))))
    assert disk.lost == []
    assert seen == [True, True]
    (entropy,) = keys_of_noise
    with pytest.raises(ValueError, match="destroyed"):
        _ = entropy.key


def test_what_lies_outside_of_the_domain_counts_at_its_end(party: Party) -> None:
    party.write_labels({"key": ["event-1", "event-2"], "label": [-5.0, 1e6]})

    def ends(labels: Floats, source: WordSource) -> tuple[float, float]:
        return float(labels.min()), float(labels.max())

    with open_session(party.config(**SPENT), "ends", TERMS) as session:
        assert session.run(NotPrior(ends, Fraction(1, 10), prior=(0.0, 10.0))) == (0, 10)


def test_models_are_shown_only_above_a_bar(party: Party) -> None:
    def candidate(score: int) -> Callable[[Floats, WordSource], int]:
        return lambda labels, source: score  # trains nothing, so it is private

    terms = Terms(not_prior(Fraction(1, 5)), hits=1)
    with open_session(party.config(**SPENT), "models", terms) as session:
        for score in (3, 5, 9):
            held = HeldOutcome(session, candidate(score), Fraction(1, 10))
            shown = held.ask(lambda found: found > 8)
            assert shown is not None if score == 9 else shown is None
        assert session.halted


def test_one_process_has_it_at_a_time(party: Party) -> None:
    config = party.config(**SPENT)
    with (
        open_session(config, "sums", TERMS),
        pytest.raises(BudgetError, match="open in another process"),
        open_session(config, "sums", TERMS),
    ):
        pass
    with open_session(config, "sums", TERMS) as session:
        assert session.hits == 0


def test_an_older_ledger_closes_it(party: Party) -> None:
    config = party.config(**SPENT)
    with open_session(config, "sums", TERMS) as session:
        session.run(HIT)
    log = next(config.store.directory.rglob(ANSWERED_FILE))
    log.write_text(log.read_text() + "\n" + "ab" * 32)  # a hit that this ledger never had
    with pytest.raises(ReleaseError, match="older copy"), open_session(config, "sums", TERMS):
        pass


def test_a_restored_ledger_opens_none_that_it_knows(party: Party) -> None:
    """Whatever is stated: which hits there were since the backup is not known."""
    config = party.config(**SPENT)
    with open_session(config, "sums", TERMS) as session:
        session.run(HIT)
    assert party.run("backup", "--to", "b.tar").code == 0
    shutil.rmtree(party.store)
    assert party.run("restore", "b.tar", "--nothing-since").code == 0
    with (
        pytest.raises(ReleaseError, match="was restored from a backup and is closed"),
        open_session(config, "sums", TERMS),
    ):
        pass
    with open_session(config, "other", TERMS) as session:
        session.run(HIT)


def test_what_it_cannot_keep_is_refused_and_costs_nothing(party: Party) -> None:
    config = party.config(**SPENT)
    users = {"privacy__unit": "user", "privacy__user": "who", "privacy__max_records_per_user": 2}
    several = party.config(**SPENT, **users)
    of_users = Terms(not_prior(Fraction(1, 10)), hits=3, unit=Unit.USER)
    for settings, terms in ((several, of_users), (config, of_users)):
        with (
            pytest.raises(ConfigError, match="its terms have 1, 0 and units of"),
            open_session(settings, "sums", terms),
        ):
            pass
    for terms in (
        Terms(not_prior(Fraction(1, 10)), hits=3, families=2),
        Terms(not_prior(Fraction(1, 10)), hits=3, call_delta=Fraction(1, 10**9)),
    ):
        with (
            pytest.raises(ConfigError, match="one target family"),
            open_session(config, "sums", terms),
        ):
            pass
    small = party.config(privacy__total_epsilon=1, privacy__total_delta=1e-6)
    with (
        pytest.raises(BudgetError),
        open_session(small, "sums", Terms(not_prior(Fraction(1)), hits=50)),
    ):
        pass
    with open_session(config, "sums", TERMS):
        pass
    with (
        pytest.raises(ReleaseError, match="stays as it was sold"),
        open_session(config, "sums", Terms(not_prior(Fraction(1, 10)), hits=4)),
    ):
        pass
