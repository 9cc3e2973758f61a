"""How many events matched on either side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import DataError
from feature_party.schema import NOTHING, Stated


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

    @classmethod
    def by_release(
        cls,
        feature_rows: int,
        released: Sequence[int],
        matched: Sequence[int],
        names: Sequence[str],
    ) -> MatchCounts:
        """Add up the counts of releases, each with the name of its labels party."""
        parties: dict[str, tuple[int, int]] = {}
        for name, rows, known in zip(names, released, matched, strict=True):
            before = parties.get(name, (0, 0))
            parties[name] = before[0] + rows, before[1] + known
        several = tuple((name, *counts) for name, counts in parties.items())
        return cls(sum(released), feature_rows, sum(matched), several if len(several) > 1 else ())

    def of(self, party: str) -> MatchCounts:
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
                    " key column, its epoch, and that secret_file is the one that you share with it"
                )

    def __str__(self) -> str:
        return (
            f"{self.matched:,} events match, of {self.feature_rows:,} in the features and"
            f" {self.release_rows:,} in the release"
        )

    def poor(self, share: float) -> str | None:
        """One sentence if less than a share of either side found its counterpart."""
        of_features = self.matched / self.feature_rows
        for name, released, matched in self.parties:
            if matched < share * released:
                return (
                    f"only {matched:,} of the {released:,} events of {name!r} are in the features;"
                    " check key column, epoch and key secret"
                )
        of_release = self.matched / self.release_rows
        if min(of_features, of_release) >= share:
            return None
        return (
            f"only {self.matched:,} events match: {of_features:.1%} of the {self.feature_rows:,} in"
            f" the features and {of_release:.1%} of the {self.release_rows:,} in the release; check"
            " key column, epoch and key secret"
        )
