"""What commands that buy an answer share: their settings, and how it is shown and copied."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.files import file_errors

if TYPE_CHECKING:
    from label_party.store.pay_once import Outcome

OF_AN_ANSWER = (
    *("data.labels", "data.population", "data.data_set", "data.epoch"),
    *("privacy.epsilon", "privacy.total_epsilon", "keys.secret_file", "store.directory"),
)
"""Settings that such a command has flags for."""


def answer_document(result: Outcome) -> dict[str, Any]:
    """Return an answer that was bought, and what it left of the budget, as JSON values."""
    return {
        "released": result.document,
        "digest": result.digest,
        "existed": result.existed,
        "left": None if result.left is None else result.left.to_json(),
    }


def writing(path: Path) -> AbstractContextManager[None]:
    """Turn the file system's errors, while a copy of an answer is written, into one line."""
    from label_party.store.disk import StoreError

    return file_errors(StoreError, f"{path} cannot be written", "; set --out")
