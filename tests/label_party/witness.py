"""Who looks at a store after every disaster, and remembers every message that it ever saw."""

from __future__ import annotations

import sqlite3

from labelveil.label_party.server.catalog import Catalog
from labelveil.label_party.store.entries import LABELS, Answer, Charge
from labelveil.label_party.store.purchase import read_outcome
from labelveil.label_party.store.recovery import recover
from labelveil.label_party.store.release_store import ANSWERED_FILE, Store
from tests.label_party.conftest import Party


class Witness:
    """Every charge has its bytes, every fetchable byte its charge, and no message ever changes."""

    def __init__(self, party: Party) -> None:
        self.store = Store(party.store)
        self.messages: dict[tuple[str, str], bytes] = {}
        self.answers: list[Answer] = []

    def bought(self, purpose: str) -> int:
        """How many messages of a kind were seen; the next epoch's name."""
        return sum(kind == purpose for _, kind in self.messages)

    def look(self) -> None:
        """Check everything that must hold before anybody clears up."""
        ledger = sqlite3.connect(self.store.ledger_path)
        assert ledger.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        ledger.close()
        with self.store.open_ledger() as opened:
            charges = opened.charges()
        paid = {(entry.epoch, entry.purpose): entry for entry in charges if entry.digest}
        reserved = [entry for entry in charges if entry.state == "reserved"]
        assert len(paid) + len(reserved) == len(charges)
        assert len(reserved) <= 1
        assert self.messages.keys() <= paid.keys()  # nothing that was paid for is ever lost
        # older messages are looked at when all is over
        for key in paid.keys() - self.messages.keys():
            self.messages[key] = self._bytes(*key)
        open_ = [entry.epoch for entry in reserved if entry.purpose == LABELS]
        assert all(self._fetchable(epoch) is None for epoch in open_)
        answers = self._answers(charges)
        assert set(self.answers) <= set(answers)
        shown = [
            line
            for log in self.store.directory.glob(f"outcomes/*/*/*/{ANSWERED_FILE}")
            for line in log.read_text().split("\n")
            if len(line) == 64
        ]
        assert set(shown) <= {answer.question for answer in answers}  # none that is not counted
        self.answers = answers

    def clear_up(self) -> None:
        """Start as the server does; then all is at peace, and every message is as it was."""
        with self.store.building(), self.store.open_ledger() as ledger:
            recover(self.store, ledger)
            assert not ledger.reservations()
            charges = ledger.charges()
        folders = [self.store.folder(c.data_set, c.epoch, c.purpose) for c in charges]
        assert self.store.folders() == sorted(folders)
        assert {key: self._bytes(*key) for key in self.messages} == self.messages

    def _answers(self, charges: list[Charge]) -> list[Answer]:
        with self.store.open_ledger() as ledger:
            return [answer for charge in charges for answer in ledger.answers(charge)]

    def _bytes(self, epoch: str, purpose: str) -> bytes:
        if purpose != LABELS:
            with self.store.open_ledger() as ledger:
                charge = ledger.committed("labels", epoch, purpose)
            assert charge is not None
            return read_outcome(self.store, charge)
        found = self._fetchable(epoch)
        assert found is not None
        return found

    def _fetchable(self, epoch: str) -> bytes | None:
        catalog = Catalog(self.store)
        release = catalog.find("labels", epoch)
        if release is None:
            return None
        message = release.manifest_bytes + b"".join(release.read(0, release.rows))
        return message
