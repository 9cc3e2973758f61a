"""Stores of many releases, made by one: in a test that is about their number, not about labels."""

from __future__ import annotations

import json
import shutil
from dataclasses import fields
from typing import Any

from labelveil.common.release.manifest import manifest_digest
from labelveil.label_party.store.entries import Purchase
from labelveil.label_party.store.release_store import CHARGE_FILE, Store
from tests.label_party.conftest import Party


def many_releases(party: Party, count: int) -> None:
    """Release epoch 1, and copy it under other epochs' names, paid for in one transaction."""
    assert party.release(privacy__total_epsilon=1_000_000).code == 0
    store = Store(party.store)
    first = store.path("labels", "1")
    stated: Any = json.loads((first / "manifest.json").read_bytes())
    with store.open_ledger() as ledger:
        (charge,) = ledger.charges()
        terms = {field.name: getattr(charge, field.name) for field in fields(Purchase)}
        with ledger._transaction():
            for number in range(2, count + 1):
                stated["epoch"] = terms["epoch"] = str(number)
                data = json.dumps(stated, sort_keys=True, separators=(",", ":")).encode()
                terms["digest"] = manifest_digest(data)
                folder = store.path("labels", str(number))
                shutil.copytree(first, folder)
                (folder / "manifest.json").write_bytes(data)
                bought = Purchase(**terms)
                (folder / CHARGE_FILE).write_bytes(bought.to_bytes())
                ledger._insert(bought, "committed")
