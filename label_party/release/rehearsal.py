"""Rehearse releases for an audit: built as ever, and their keys handed over.

``python -m label_party.release.rehearsal CONFIG FOLDER MESSAGES``. A release's noise can be taken
off by whoever has its key, so a rehearsal is refused for every data set but the one of the name
that audits give to labels which they have made up. Nothing is charged, stored or served: FOLDER
gets manifest, codes and key of each message, an epoch of its own.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

from common.entropy import system_entropy
from common.errors import ConfigError, LabelveilError
from label_party.config.sections import LabelPartyConfig, load
from label_party.events.open import open_events
from label_party.release.message import build

REHEARSED = "canaries"
"""The only data set that may be rehearsed."""


@dataclass
class InMemory:
    """Where a rehearsal's rows go.

    Attributes
    ----------
    codes
        Codes written so far.
    """

    codes: bytearray = field(default_factory=bytearray)

    def write_rows(self, keys: bytes, codes: bytes) -> None:
        """Append rows."""
        self.codes += codes

    def adopt(self, keys: Path, codes: Path) -> None:
        """Append rows that lie in files."""
        self.codes += codes.read_bytes()


def rehearse(config: LabelPartyConfig, folder: Path, messages: int) -> None:
    """Build so many messages, and keep them with their keys.

    Raises
    ------
    ConfigError
        If the data set is not one that an audit has made.
    """
    if config.data.data_set != REHEARSED:
        raise ConfigError(
            f"data set {config.data.data_set!r} cannot be rehearsed: a rehearsal hands over the key"
            f" of the noise; it is for audits, of data sets that are called {REHEARSED!r}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    with open_events(config, quiet=True) as events:
        for number in range(messages):
            entropy, written = system_entropy(), InMemory()
            built = build(events, config.at(str(number + 1)), entropy, written)
            (folder / f"{number}.manifest").write_bytes(built.manifest_bytes)
            (folder / f"{number}.codes").write_bytes(written.codes)
            (folder / f"{number}.key").write_bytes(entropy.key)
            entropy.destroy()


def main(config: str, folder: str, messages: str) -> None:
    """Run a rehearsal; a refusal is one line."""
    try:
        rehearse(load(Path(config)), Path(folder), int(messages))
    except LabelveilError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main(*sys.argv[1:])
