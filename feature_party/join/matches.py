"""How many events matched on either side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from labelveil.common.errors import DataError, listed
from labelveil.feature_party.schema import NOTHING, Stated


@dataclass(frozen=True)
class Party:
    """Whose a release is."""

    secret: bytes = field(repr=False)  # what its keys are hashed with
    name: str = ""  # of the labels party, where there are several


@dataclass(frozen=True)
class JoinInputs:
    """What is joined."""

    releases: tuple[Path, ...]  # fetched, oldest first, those of one labels party together
    features: Path  # a file, or a directory of Parquet files, one row an event
    key: str  # its key column
    parties: tuple[Party, ...]  # whose each release is
    stated: Stated = NOTHING  # what is said of the features' columns


@dataclass(frozen=True)
class MatchCounts:
    """How many events the two sides share; of several labels ``parties`` each one's name, events in
    its releases, and of these in the features."""

    release_rows: int  # events in the release
    feature_rows: int  # events in the features file
    matched: int  # events in both
    parties: tuple[tuple[str, int, int], ...] = ()
    unmatched: tuple[str, ...] = ()  # epochs of which there is none in the features
    # whether manifests say that keys are hashed with the secrets that we have
    right_secrets: bool = field(default=False, compare=False)

    @classmethod
    def by_release(
        cls,
        feature_rows: int,
        released: Sequence[int],
        matched: Sequence[int],
        names: Sequence[str],
        epochs: Sequence[str],
        right_secrets: bool,
    ) -> MatchCounts:
        """Add up the counts of releases, each with the name of its labels party and its epoch."""
        parties: dict[str, tuple[int, int]] = {}
        for name, rows, known in zip(names, released, matched, strict=True):
            before = parties.get(name, (0, 0))
            parties[name] = before[0] + rows, before[1] + known
        several = tuple((name, *counts) for name, counts in parties.items())
        return cls(
            sum(released),
            feature_rows,
            sum(matched),
            several if len(several) > 1 else (),
            tuple(epoch for epoch, count in zip(epochs, matched, strict=True) if not count),
            right_secrets,
        )

    def for_source(self, party: str) -> MatchCounts:
        """Those of one labels party."""
        (counts,) = [counts for name, *counts in self.parties if name == party]
        released, matched = counts
        return MatchCounts(released, self.feature_rows, matched)

    def check(self) -> None:
        """Raise ``DataError`` if none of a labels party's events were found."""
        for name, released, matched in self.parties:
            if not matched:
                raise DataError(
                    f"none of the {released:,} events of {name!r} are in the features; check the"
                    f" key column and its epoch{self._about_secrets}"
                )

    @property
    def _about_secrets(self) -> str:
        if self.right_secrets:
            return ", and how keys are written; the key secret is the right one"
        return ", and that secret_file is the one that both parties use"

    def __str__(self) -> str:
        return (
            f"{self.matched:,} events match, of {self.feature_rows:,} in the features and"
            f" {self.release_rows:,} in the release"
        )

    def poor(self, share: float) -> str | None:
        """One sentence if less than a share of either side found its counterpart."""
        of_features = self.matched / self.feature_rows
        if self.unmatched and share:
            return (
                f"no event of epoch{'s' * (len(self.unmatched) > 1)}"
                f" {listed([repr(epoch) for epoch in self.unmatched])} is in the features; check"
                " [labels_party] epochs"
                + (
                    "; the key secret is the right one"
                    if self.right_secrets
                    else ", and whether keys were hashed with another secret then: name its file in"
                    " [keys] old_secret_files"
                )
            )
        for name, released, matched in self.parties:
            if matched < share * released:
                return (
                    f"only {matched:,} of the {released:,} events of {name!r} are in the features;"
                    f" check key column and epoch{self._about_secrets}"
                )
        of_release = self.matched / self.release_rows
        if min(of_features, of_release) >= share:
            return None
        return (
            f"only {self.matched:,} events match: {of_features:.1%} of the {self.feature_rows:,} in"
            f" the features and {of_release:.1%} of the {self.release_rows:,} in the release; check"
            f" key column and epoch{self._about_secrets}"
        )
