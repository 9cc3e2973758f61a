"""``kill -9`` and failing disks at the steps of every kind of purchase: paid and whole, or nothing.

A store lives through one disaster after the other, and is looked at after each. What a disaster
leaves is cleared up by the next start, which is struck as well. A few moments, drawn anew with
every change of their number, are tried in the ordinary tests, and more in the slow ones. Where
everything is tried, it is every moment of a release, and many of whatever else is bought, which
goes the same way (`pay`).
"""

from __future__ import annotations

import errno
import random
import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest

from labelveil import label_party
from labelveil.label_party.store.entries import EVALUATION
from labelveil.label_party.store.release_store import Store
from tests.effort import EXHAUSTIVE, effort, some_of
from tests.faults import Ended, Experiments, Mode
from tests.label_party.conftest import BODIES, Party
from tests.label_party.fault_bodies import PURCHASES
from tests.label_party.witness import Witness

FEW, MANY = 2, effort(12, 60)
TWICE = ("watched", "question")
"""What buys something else first, which may be there when it starts again."""


class Buyer:
    """Makes one kind of purchase, epoch after epoch, and has the store looked at."""

    def __init__(self, kind: str, party: Party, patient: Experiments) -> None:
        self.kind, self.purpose = kind, PURCHASES[kind]
        self.witness = Witness(party)
        self._party, self._patient = party, patient
        first, second = self.buy(), self.buy()
        assert first.error == second.error == ""
        assert self.bought == 2
        # after a disaster the way is longer, too: what it left is cleared up first
        self.steps, self.least = max(first.steps, second.steps), second.steps
        assert self.least > 50

    @property
    def bought(self) -> int:
        return self.witness.bought(self.purpose)

    def buy(self, mode: Mode = Mode.COUNT, nth: int = 0, failure: int = errno.ENOSPC) -> Ended:
        """Make the next purchase, or have a disaster at its nth step."""
        ended = self._patient.run(
            f"{BODIES}:{self.kind}", str(self._party.folder), str(self.bought),
            folder=self._party.store, mode=mode, nth=nth, failure=failure,
        )  # fmt: skip
        assert not ended.error.startswith("unforeseen"), ended.error
        self.witness.look()
        return ended

    def end(self) -> None:
        """After all disasters, a purchase succeeds, and all that were made are what they were."""
        before = self.bought
        assert self.buy().error == ""
        assert self.bought == before + 1
        self.witness.clear_up()

    def shuffled(self, few: int | None = None) -> list[int]:
        """Many steps, or a few, in an order that leaves different ruins for each to find.

        Of many, half are there even without ruins, and half are later.
        """
        draw, certain = random.Random(self.steps), range(1, self.least + 1)
        later = range(self.least + 1, self.steps + 1)
        if few:
            return draw.sample(certain, few)
        many = self.steps if EXHAUSTIVE and self.kind == "release" else MANY // 2
        both = [n for all_ in (certain, later) for n in draw.sample(all_, min(many, len(all_)))]
        return random.Random(self.least).sample(both, len(both))


@pytest.fixture
def buyer(request: pytest.FixtureRequest, party: Party, patient: Experiments) -> Buyer:
    return Buyer(request.param, party, patient)


every_kind = pytest.mark.parametrize("buyer", PURCHASES, indirect=True)
patience = pytest.mark.timeout(3600)  # of a watch there are some hundred steps, of seconds each


@every_kind
def test_killed_at_some_steps(buyer: Buyer) -> None:
    killed = [buyer.buy(Mode.KILL_TORN, nth).killed for nth in buyer.shuffled(FEW)]
    assert sum(killed) >= (FEW // 2 if buyer.kind in TWICE else FEW)
    buyer.end()


@pytest.mark.slow
@patience
@pytest.mark.parametrize(
    ("mode", "buyer"),
    some_of(2, product((Mode.KILL_BEFORE, Mode.KILL_TORN), PURCHASES)),
    indirect=["buyer"],
)
def test_killed_at_many_steps(buyer: Buyer, mode: Mode) -> None:
    killed = [buyer.buy(mode, nth).killed for nth in buyer.shuffled()]
    surely = min(len(killed) // 2, buyer.least)
    assert sum(killed) >= (surely // 2 if buyer.kind in TWICE else surely)
    assert 4 < buyer.bought < len(killed)  # some died before the commit, some after
    buyer.end()


@pytest.mark.parametrize("buyer", PURCHASES, indirect=True)
def test_a_disk_that_fails_at_some_steps(buyer: Buyer) -> None:
    fail(buyer, Mode.FAIL_FROM, errno.ENOSPC, buyer.shuffled(FEW // 2))
    fail(buyer, Mode.FAIL_ONCE, errno.ENOSPC, buyer.shuffled(FEW // 2))
    fail(buyer, Mode.FAIL_FROM, errno.EIO, [buyer.least - few for few in range(FEW // 2)])
    buyer.end()


@pytest.mark.slow
@patience
@every_kind
def test_a_disk_that_is_full_from_any_step_on(buyer: Buyer) -> None:
    assert len(fail(buyer, Mode.FAIL_FROM, errno.ENOSPC, buyer.shuffled())) > MANY // 4
    buyer.end()


@pytest.mark.slow
@patience
@every_kind
def test_a_disk_that_is_full_for_a_moment(buyer: Buyer) -> None:
    """Something else may free some space in time: then the budget is given back at once."""
    fail(buyer, Mode.FAIL_ONCE, errno.ENOSPC, buyer.shuffled())
    with Store(buyer.witness.store.directory).open_ledger() as ledger:
        assert not ledger.reservations()
    buyer.end()


@pytest.mark.slow
@patience
@every_kind
def test_a_disk_that_breaks_while_the_charge_is_written(buyer: Buyer) -> None:
    """A commit whose sync fails may count after all; its bytes must then still be there."""
    step = 3 if buyer.kind in TWICE else effort(5, 1)
    lines = fail(buyer, Mode.FAIL_FROM, errno.EIO, range(buyer.least // 2, buyer.steps + 1, step))
    assert any("the next start will find out" in line for line in lines)
    buyer.end()


def fail(buyer: Buyer, mode: Mode, failure: int, steps: Sequence[int]) -> list[str]:
    """Return what the user was told, having checked that it is true."""
    lines = []
    for nth in steps:
        before = buyer.bought
        ended = buyer.buy(mode, nth, failure)
        assert not ended.signal
        if not ended.error:
            assert buyer.bought == before + 1
            continue
        lines.append(ended.error)
        assert "\n" not in ended.error
        if "the next start will find out" in ended.error:
            continue
        if buyer.purpose == EVALUATION and "ask again" in ended.error:
            continue  # the session is paid for; its first answer is not on the disk
        assert "nothing was spent" in ended.error
        assert buyer.bought == before
    return lines


def test_a_read_only_store_is_one_line_and_spends_nothing(
    party: Party, patient: Experiments
) -> None:
    buyer = Buyer("release", party, patient)
    ended = buyer.buy(Mode.FAIL_FROM, 1, errno.EROFS)
    assert "nothing was spent; check the disk's space and rights" in ended.error
    assert buyer.bought == 2


def test_nothing_else_spends() -> None:
    """One protocol: no other module reserves budget, or makes a charge final."""
    package = Path(label_party.__file__).parent
    spending = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if re.search(r"ledger\.(reserve|commit)\(", path.read_text())
    }
    assert spending == {"store/purchase.py"}
