"""Receiving a population from the features party: a stream, checked against its own header.

Everything that is answered here is a function of what the client sent and of the epoch's public
state. Labels are not looked at: whether a key has one is unknown to this module.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime

import grpc

from labelveil.common.config.names import NAME_PATTERN
from labelveil.common.errors import LabelveilError
from labelveil.common.mechanisms.group_sums import GroupQuestion, NoisySums
from labelveil.common.release.blocks import KEY_BYTES
from labelveil.common.release.question import most_bytes, read_question
from labelveil.common.wire import label_release_pb2 as wire
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.events.submitted import Populations, Submitted, Upload
from labelveil.label_party.server.calls import Rpc
from labelveil.label_party.server.catalog import Catalog
from labelveil.label_party.server.limits import share_of
from labelveil.label_party.server.refusal import Refusal, finding, invalid, refused, unavailable
from labelveil.label_party.store.disk import StoreBusy, StoreError

Uploads = tuple[Upload, Upload]
"""Keys, and a question about their events."""

MAX_PART_BYTES = 3 << 20
_DIGEST_BYTES = 32
_NAME = re.compile(NAME_PATTERN)


class Submissions:
    """Receives populations, which an epoch's release freezes; safe for any number of threads."""

    def __init__(
        self, catalog: Catalog, populations: Populations, config: LabelPartyConfig
    ) -> None:
        self._catalog = catalog
        self._populations, self._config = populations, config
        self.data_set = config.data.data_set
        clients = sum(self.data_set in sets for sets in config.entitlements.values())
        self._each = share_of(
            config.server.max_waiting_populations, config.server.client_share, clients
        )
        self._arriving: Counter[str] = Counter()
        self._lock = threading.Lock()
        # what has arrived is worked on one after another: a client's eight streams take no more
        # processors and memory than one
        self._working: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def receive(
        self, header: wire.PopulationHeader, rpc: Rpc, stall_seconds: float
    ) -> wire.SubmitPopulationResponse:
        """Take in one submission whose sender and data set are authorized.

        The header was the stream's first message; each other may take ``stall_seconds`` to arrive.

        After a ``Refusal`` nothing is kept.
        """
        self._check(header)
        try:
            settled = await rpc.run(self._settled, header)
            if settled is not None:
                return settled
            with contextlib.ExitStack() as held:
                arriving = self._arriving_population(header, rpc.client)
                uploads = await rpc.run(held.enter_context, arriving)
                try:
                    async for message in rpc.messages(stall_seconds):
                        await rpc.run(self._append, uploads, header, message)
                        size = len(message.keys)
                        rpc.record.moved(size // KEY_BYTES, size + len(message.question))
                    async with self._working[rpc.client]:
                        return await rpc.run(self._store, uploads, header, rpc.client)
                finally:
                    await rpc.run(held.close)
        except StoreBusy as error:
            raise unavailable("the population is in use") from error
        except StoreError as error:
            raise unavailable("the population cannot be stored") from error

    def _check(self, header: wire.PopulationHeader) -> None:
        if not self._config.data.submitted or header.data_set != self.data_set:
            raise refused("this labels party supplies the population itself")
        if not _NAME.fullmatch(header.epoch):
            raise invalid("epoch must be 1 to 64 letters, digits, dots, dashes or underscores")
        if not header.rows:
            raise invalid("a population has at least one key")
        if len(header.population_sha256) != _DIGEST_BYTES:
            raise invalid("population_sha256 must have 32 bytes")
        if len(header.secret_check) != KEY_BYTES:
            raise invalid("secret_check must have 16 bytes")
        if header.question_sha256 and len(header.question_sha256) != _DIGEST_BYTES:
            raise invalid("question_sha256 must have 32 bytes, or none")
        if header.question_sha256 and not self._config.rounds.questions:
            raise refused("this labels party takes no questions; submit the keys alone")
        most = self._config.server.max_population_rows
        if header.rows > most:
            raise Refusal(
                grpc.StatusCode.OUT_OF_RANGE,
                f"{header.rows} keys are too many; the most allowed is {most}",
            )

    def _settled(self, header: wire.PopulationHeader) -> wire.SubmitPopulationResponse | None:
        """Answer without any keys where that is possible."""
        digest = header.population_sha256.hex()
        with finding():
            release = self._catalog.find(header.data_set, header.epoch)
        if release is not None:
            covered = release.heading.population
            if (covered.rows, covered.digest) == (header.rows, digest):
                return _answer(header, wire.POPULATION_STATUS_FROZEN)
            raise Refusal(
                grpc.StatusCode.ALREADY_EXISTS,
                "the epoch's release covers another population, forever; name another epoch",
            )
        stored = self._populations.current(header.data_set, header.epoch)
        if stored is None or stored != _described(header, stored.client, stored.submitted_at):
            return None
        return _answer(header, wire.POPULATION_STATUS_ALREADY_STORED)

    @contextlib.contextmanager
    def _arriving_population(self, header: wire.PopulationHeader, client: str) -> Iterator[Uploads]:
        """Hold room for one population: those that arrive count like those that wait."""
        with self._lock:
            self._make_sure_of_room(header, client)
            self._arriving[client] += 1
        try:
            with self._populations.upload() as uploads:
                yield uploads
        finally:
            with self._lock:
                self._arriving[client] -= 1

    def _make_sure_of_room(self, header: wire.PopulationHeader, client: str) -> None:
        named = set(self._populations.epochs(header.data_set))
        with finding():
            waiting = named - self._catalog.epochs(header.data_set) - {header.epoch}
        stored = [self._populations.current(header.data_set, epoch) for epoch in waiting]
        own = sum(known is not None and known.client == client for known in stored)
        all_of_them = len(waiting) + self._arriving.total()
        if all_of_them >= self._config.server.max_waiting_populations:
            raise refused(
                f"{all_of_them} populations wait for their releases already; submit"
                " again when one of them is released",
            )
        if own + self._arriving[client] >= self._each:
            raise refused(
                f"{self._each} populations of yours wait for their releases already; submit again"
                " when one of them is released",
            )

    def _append(
        self, uploads: Uploads, header: wire.PopulationHeader, message: wire.SubmitPopulationRequest
    ) -> None:
        keys, (upload, question) = message.keys, uploads
        if message.WhichOneof("part") == "question" and header.question_sha256:
            part, most = message.question, most_bytes(header.rows)
            if not 0 < len(part) <= MAX_PART_BYTES or question.size + len(part) > most:
                raise invalid(
                    f"a question has at most {most} bytes, in parts of 1 to {MAX_PART_BYTES}"
                )
            question.append(part)
            return
        if message.WhichOneof("part") != "keys" or question.size:
            raise invalid("the header must be the first message, and no other")
        if not keys or len(keys) % KEY_BYTES:
            raise invalid(f"{len(keys)} bytes are not one or more keys of 16 bytes")
        if len(keys) > MAX_PART_BYTES:
            raise invalid(f"{len(keys)} bytes of keys in one message; at most {MAX_PART_BYTES}")
        if upload.size + len(keys) > header.rows * KEY_BYTES:
            raise invalid(f"more keys than the {header.rows} of the header")
        upload.append(keys)

    def _store(
        self, uploads: Uploads, header: wire.PopulationHeader, client: str
    ) -> wire.SubmitPopulationResponse:
        upload, question = uploads
        rows = upload.size // KEY_BYTES
        if rows != header.rows:
            raise invalid(f"{rows} keys instead of the {header.rows} of the header")
        if upload.sha256 != header.population_sha256.hex():
            raise invalid("the keys do not give the header's population_sha256")
        for each in uploads:
            each.seal()
        if header.question_sha256:
            self._check_question(question, header)
        repeated = upload.repeated()
        if repeated:
            raise invalid(f"{repeated} of {header.rows} keys occurred before; send each event once")
        with self._populations.exchanging(header.data_set, header.epoch):
            settled = self._settled(header)  # the release may exist by now
            if settled is not None:
                return settled
            facts = _described(header, client, datetime.now(UTC).isoformat(timespec="seconds"))
            self._populations.store(header.data_set, header.epoch, *uploads, facts)
        return _answer(header, wire.POPULATION_STATUS_STORED)

    def _check_question(self, upload: Upload, header: wire.PopulationHeader) -> None:
        """Refuse what is no question about these labels; what it asks is nobody's business."""
        if upload.sha256 != header.question_sha256.hex():
            raise invalid("the question does not give the header's question_sha256")
        try:
            question = read_question(upload.path, header.rows)
            terms, privacy = self._config.terms[0], self._config.privacy
            if isinstance(question, GroupQuestion):
                NoisySums.for_label(question, terms, privacy.charge.exact_epsilon)
            else:
                question.plan(terms, privacy.message_epsilon)
        except LabelveilError as error:
            raise invalid(str(error)) from error


def _described(header: wire.PopulationHeader, client: str, submitted_at: str) -> Submitted:
    return Submitted(
        rows=header.rows,
        sha256=header.population_sha256.hex(),
        secret_check=header.secret_check.hex(),
        client=client,
        submitted_at=submitted_at,
        question=header.question_sha256.hex(),
    )


def _answer(
    header: wire.PopulationHeader, status: wire.PopulationStatus
) -> wire.SubmitPopulationResponse:
    return wire.SubmitPopulationResponse(
        rows=header.rows, population_sha256=header.population_sha256, status=status
    )
