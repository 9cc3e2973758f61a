"""Matched events in Parquet shards, and what ``shards.json`` beside them says.

A shard has the matched events of one range of the features' rows, in their order; all shards, in
the order of their names, are the join. The manifest is written last; without it a folder holds no
join.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import polars.selectors as cs
from pydantic import TypeAdapter

from labelveil.common.errors import DataError
from labelveil.common.formats import JOIN
from labelveil.common.version import software
from labelveil.feature_party.join.matches import MatchCounts
from labelveil.feature_party.join.tasks import ROW
from labelveil.feature_party.schema import Found

JOIN_MANIFEST = "join.json"


@dataclass(frozen=True)
class JoinedShards:
    """A join on disk."""

    directory: Path  # its folder
    content: str  # what identifies it: releases, features, key column and secret
    matches: MatchCounts  # counts on both sides
    slice_rows: int  # rows of the features that a shard covers
    events: tuple[int, ...]  # how many different events each shard has
    labels: tuple[tuple[int, ...], ...]  # how many labels of each release each shard has
    found: Found  # what the columns of all features mean, matched or not

    @classmethod
    def open(cls, directory: Path, content: str) -> JoinedShards | None:
        """The join with this content, if the folder holds it; ``DataError`` if it is damaged."""
        path = directory / JOIN_MANIFEST
        if not path.is_file():
            return None
        try:
            facts = json.loads(path.read_bytes())
            stated = facts.pop("format", None)
            if (number := JOIN.number_of(stated)) is None or number < JOIN.oldest:
                return None  # it is made again
            JOIN.check(
                stated,
                f"the join in {directory}",
                DataError,
                update="set [join] directory to another folder, or update labelveil here",
                made_by=facts.pop("software", None),
            )
            if facts["content"] != content:
                return None
            return _JSON.validate_python({**facts, "directory": directory})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path} is damaged; remove {directory} and join again") from error

    def to_bytes(self) -> bytes:
        facts = _JSON.dump_python(self, mode="json", exclude={"directory"})
        document = {"format": str(JOIN), "software": software(), **facts}
        return json.dumps(document, ensure_ascii=False).encode() + b"\n"

    @property
    def rows(self) -> int:
        """Labels in all shards."""
        return sum(map(sum, self.labels))

    @property
    def shards(self) -> list[Path]:
        return [shard_path(self.directory, index) for index in range(len(self.labels))]

    @property
    def columns(self) -> list[str]:
        names = pl.scan_parquet(self.shards[0], glob=False).collect_schema().names()
        return names[: names.index(ROW)]

    def read(self, index: int, columns: list[str]) -> pl.DataFrame:
        """Some columns of a shard; ``DataError`` if it is missing or damaged."""
        path = self.shards[index]
        try:
            part = pl.scan_parquet(path, glob=False).select(cs.by_name(*columns)).collect()
        except (pl.exceptions.PolarsError, OSError) as error:
            raise DataError(
                f"{path} is missing or damaged; remove {self.directory} and join again"
            ) from error
        if part.height != sum(self.labels[index]):
            raise DataError(
                f"{path} holds {part.height:,} rows, not {sum(self.labels[index]):,}; remove"
                f" {self.directory} and join again"
            )
        return part

    def tables(self, columns: list[str]) -> Iterator[pl.DataFrame]:
        """Yield some columns of all shards, one after another."""
        return (self.read(index, columns) for index in range(len(self.labels)))


_JSON = TypeAdapter(JoinedShards)


def shard_path(directory: Path, index: int) -> Path:
    return directory / f"shard-{index:05}.parquet"
