"""How many events matched on either side."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MatchCounts:
    """How many events the two sides share.

    Attributes
    ----------
    release_rows
        Events in the release.
    feature_rows
        Events in the features file.
    matched
        Events in both.
    """

    release_rows: int
    feature_rows: int
    matched: int

    def __str__(self) -> str:
        return (
            f"{self.matched:,} events match, of {self.feature_rows:,} in the features and"
            f" {self.release_rows:,} in the release"
        )

    def poor(self, share: float) -> str | None:
        """One sentence if less than a share of either side found its counterpart."""
        of_features = self.matched / self.feature_rows
        of_release = self.matched / self.release_rows
        if min(of_features, of_release) >= share:
            return None
        return (
            f"only {self.matched:,} events match: {of_features:.1%} of the {self.feature_rows:,} in"
            f" the features and {of_release:.1%} of the {self.release_rows:,} in the release; check"
            " key column, epoch and key secret"
        )
