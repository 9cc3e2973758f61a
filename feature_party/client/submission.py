"""The population that we submit: our events' hashed keys, in the order of the features."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import grpc
import polars as pl

from labelveil.common.errors import ConfigError, DataError, ReleaseError
from labelveil.common.release.blocks import KEY_BYTES
from labelveil.common.release.event_keys import canonical_keys, hash_keys, secret_check
from labelveil.common.release.peers import own_software
from labelveil.common.wire import label_release_pb2 as pb2
from labelveil.common.wire import label_release_pb2_grpc as pb2_grpc
from labelveil.feature_party.client.channel import open_channel
from labelveil.feature_party.client.release_client import (
    NoProgress,
    Patience,
    ReleaseClient,
    RowsCallback,
)

FROZEN = "released already"
_ENDINGS = {
    pb2.POPULATION_STATUS_STORED: "stored",
    pb2.POPULATION_STATUS_ALREADY_STORED: "stored before",
    pb2.POPULATION_STATUS_FROZEN: FROZEN,
}

_CHUNK_BYTES = 1 << 20
_HASH_ROWS = 1 << 16


@dataclass(frozen=True)
class Population:
    """A list of hashed keys of 16 bytes, concatenated, and the check of the secret in them."""

    keys: bytes
    secret_check: bytes
    question: bytes = (
        b""  # what is asked of these events (:mod:`labelveil.common.release.question`)
    )

    @property
    def rows(self) -> int:
        return len(self.keys) // KEY_BYTES

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 over all keys, 32 bytes; the manifest of their release states it."""
        return hashlib.sha256(self.keys).digest()

    def messages(
        self, data_set: str, epoch: str, on_rows: RowsCallback
    ) -> Iterator[pb2.SubmitPopulationRequest]:
        """Yield the stream that submits it: a header, then keys and question in parts of 1 MB."""
        yield pb2.SubmitPopulationRequest(
            header=pb2.PopulationHeader(
                data_set=data_set,
                epoch=epoch,
                rows=self.rows,
                population_sha256=self.digest,
                secret_check=self.secret_check,
                question_sha256=hashlib.sha256(self.question).digest() if self.question else b"",
                client=own_software(),
            )
        )
        for start in range(0, len(self.keys), _CHUNK_BYTES):
            part = self.keys[start : start + _CHUNK_BYTES]
            yield pb2.SubmitPopulationRequest(keys=part)
            on_rows((start + len(part)) // KEY_BYTES, self.rows)
        for start in range(0, len(self.question), _CHUNK_BYTES):
            part = self.question[start : start + _CHUNK_BYTES]
            yield pb2.SubmitPopulationRequest(question=part)


def distinct_keys(keys: pl.Series) -> pl.Series:
    """(n,) keys as text; ``DataError`` if there is none, one is missing, or one comes twice."""
    if not keys.len():
        raise DataError("the features have no rows")
    text = canonical_keys(keys)
    repeats = ~text.is_first_distinct()
    if repeats.any():
        raise DataError(
            f"{int(repeats.sum()):,} rows, the first of them row {(repeats.arg_max() or 0) + 1:,},"
            f" repeat a key that occurred before in column {keys.name!r}; keep one row for each"
            " event"
        )
    return text


def hash_population(
    keys: pl.Series,
    secret: bytes,
    on_rows: RowsCallback = lambda done, total: None,
) -> Population:
    """Hash a key column, in its order; keys must be there, each once."""
    text = distinct_keys(keys)
    parts = []
    for start in range(0, text.len(), _HASH_ROWS):
        part = text.slice(start, _HASH_ROWS)
        parts.append(hash_keys(part, secret))
        on_rows(start + part.len(), text.len())
    return Population(b"".join(parts), secret_check(secret))


class SubmittingClient(ReleaseClient):
    """One labels party, to which we submit who the population is."""

    def submit(
        self, population: Population, on_rows: RowsCallback = lambda done, total: None
    ) -> str:
        """Submit our key list as the population of the configured epoch; returns how it ended.

        Nothing is kept of a submission that breaks: it starts again from the first key. One that
        arrived before is recognised by its header. ``ConfigError`` if no epoch is configured;
        ``ConnectionFailed`` if the labels party cannot be reached, cannot prove its name, or
        refuses us; ``ReleaseError`` if it does not take this population.
        """
        settings = self.settings
        if not settings.epoch:
            raise ConfigError(
                "epoch is empty, but a population belongs to one epoch; set [labels_party] epoch"
            )
        with open_channel(settings) as channel:
            stub = pb2_grpc.LabelReleaseServiceStub(channel)
            return self.repeat(lambda: self._submit(stub, population, on_rows), "submit")

    def _submit(
        self,
        stub: pb2_grpc.LabelReleaseServiceStub,
        population: Population,
        on_rows: RowsCallback,
    ) -> str:
        started = threading.Event()

        def sent(done: int, total: int) -> None:
            started.wait()
            patience.progress()
            on_rows(done, total)

        settings = self.settings
        messages = population.messages(settings.data_set, settings.epoch, sent)
        call = stub.SubmitPopulation.future(messages)
        patience = Patience(call.cancel, settings.timeout)
        started.set()
        try:
            answer = call.result()
        except grpc.FutureCancelledError as error:
            raise NoProgress(settings.timeout) from error
        finally:
            patience.stop()
            call.cancel()
        if (answer.rows, answer.population_sha256) != (population.rows, population.digest):
            raise ReleaseError("the labels party confirms another population than was submitted")
        return _ENDINGS.get(answer.status, "stored")
