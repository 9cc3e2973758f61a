"""Steps that tests of backups share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.label_party.conftest import Client, Party, Result

Connect = Callable[..., Client]


def account_of(party: Party) -> dict[str, Any]:
    (account,) = json.loads(party.run("budget", "--json").out)
    return dict(account)


def lose_store(party: Party) -> Path:
    old = party.folder / "old_store"
    party.store.rename(old)
    return old


def restore(party: Party, *more: str) -> Result:
    return party.run("restore", "b.tar", *more)


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
