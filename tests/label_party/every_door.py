"""All that a labels party does with its rows, once each, and what others may see of it."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
import sqlite3
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import polars as pl

from labelveil.common.release.event_keys import hash_keys, read_secret
from labelveil.common.release.manifest import Manifest
from labelveil.common.wire import evaluation_pb2 as wire
from labelveil.common.wire import evaluation_pb2_grpc as stubs
from labelveil.common.wire import label_release_pb2 as release
from labelveil.label_party.server.run import running
from tests.label_party.conftest import Client, Party
from tests.label_party.one_event import DAYS, EVENTS, FRONTS, KINDS, Variant, write
from tests.label_party.replayed import replayed

Connect = Callable[..., Client]

POPULATIONS = ("listed", "submitted", "own")
SETTINGS = {
    "privacy__total_epsilon": 100,
    "evaluation__offered": "true",
    "evaluation__epsilon": 20,
    "evaluation__answers": 3,
    "evaluation__tolerance": 1,
}


@dataclass
class Seen:
    """What anybody but the operator may come to see, under a name for each."""

    things: dict[str, Any] = field(default_factory=dict)

    def differences(self, other: Seen) -> list[str]:
        """Names of what is not the same."""
        names = self.things.keys() | other.things.keys()
        absent = object()
        return sorted(
            name
            for name in names
            if self.things.get(name, absent) != other.things.get(name, absent)
        )

    def command(self, name: str, party: Party, *arguments: str) -> None:
        """Run a command. Its words are the operator's, but whether it succeeds shows."""
        done = party.run(*arguments)
        self.things[f"{name}: exit code"] = done.code
        self.things[f"{name}: error"] = [
            line for line in done.err.splitlines() if line.startswith("error:")
        ]
        if done.code:
            assert "Traceback" not in done.err, done.err


def look(
    party: Party,
    connect: Connect,
    source: str,
    population: str,
    variant: Variant,
    at: int,
    *,
    briefly: bool = False,
    **settings: Any,
) -> Seen:
    """Write the rows, do everything with replayed keys, and return what can be seen of it.

    Briefly, a release is made and served.
    """
    _begin_anew(party)
    chosen = SETTINGS | write(party, source, variant, at) | settings
    if population == "submitted":
        chosen["data__population"] = "submitted"
    unlist(party)
    if population == "listed":
        chosen["data__population"] = "population.csv"
        users = [f"user-{i % 40}" for i in range(len(EVENTS))]
        party.write_population({"key": EVENTS, "person": users})
    (party.folder / "kinds.txt").write_text("\n".join(KINDS))
    seen = Seen()
    with replayed():
        _everything(party, connect, population, chosen, seen, briefly=briefly)
    return seen


def unlist(party: Party) -> None:
    """Leave the population out of the configuration."""
    settings_file = party.folder / "label_party.toml"
    settings_file.write_text(re.sub("(?m)^ *population = .*$", "", settings_file.read_text()))


def watch(party: Party, variant: Variant, at: int, source: str = "csv", **settings: Any) -> Seen:
    """Let a watch release three days, whose rows lie in one file, which may name the events."""
    _begin_anew(party)
    days = [DAYS[i % len(DAYS)] for i in range(len(EVENTS))]
    party.write_population({"key": EVENTS, "day": days})
    if source.startswith(FRONTS):
        unlist(party)
    chosen = SETTINGS | write(party, source, variant, at) | {"data__date": "day"} | settings
    seen = Seen()
    with replayed():
        for name in ("watch", "watch again"):
            seen.command(name, party, "watch", "--once", *party.arguments(**chosen))
        seen.things |= dict(store_files(party.store))
    return seen


def _everything(
    party: Party,
    connect: Connect,
    population: str,
    chosen: dict[str, Any],
    seen: Seen,
    *,
    briefly: bool,
) -> None:
    again = {"data__data_set": "again"}
    both = [chosen, chosen | again]
    if population == "submitted":
        for settings in both:
            _submit(party, connect, settings)
    arguments = party.arguments(**chosen)
    if briefly:
        seen.command("release", party, "release", *arguments)
        serve(party, connect, chosen, seen)
        return
    seen.command("plan", party, "plan", "--epsilons", "1", "--rows", "120", *arguments)
    seen.things["dry run leaves"] = _dry_run(party, arguments)
    seen.command("release", party, "release", *arguments)
    seen.command("release again", party, "release", *arguments)
    serve(party, connect, chosen, seen)
    kinds = ("--by", "kind", "--categories", "kinds.txt", "--k", "2")
    seen.command("top-k", party, "top-k", *kinds, *arguments)
    table = ("--column", "kind=kinds.txt", "--bins", "3")
    seen.command("table", party, "synthesize", *table, *arguments)
    seen.command("another account", party, "release", *party.arguments(**both[1]))
    apart = {"privacy__separate": "true", "privacy__separate_reason": "another column"}
    seen.command("apart", party, "release", *party.arguments(**both[1], **apart))
    seen.command("budget", party, "budget", "--json")
    seen.command("making a backup", party, "backup", "--to", "backup.tar")
    seen.things |= dict(store_files(party.store))
    seen.things |= dict(backup_members(party.folder / "backup.tar"))


def _dry_run(party: Party, arguments: list[str]) -> list[str]:
    """What a dry run leaves behind. How it ends is for the operator to see, and nobody else."""
    before = set(party.folder.rglob("*"))
    party.run("release", "--dry-run", *arguments)
    return sorted(str(path) for path in set(party.folder.rglob("*")) - before)


def _submit(party: Party, connect: Connect, settings: dict[str, Any]) -> None:
    secret = read_secret(party.folder / "join.key")
    with running(party.config(**settings)) as address:
        data_set = settings.get("data__data_set", "labels")
        connect(address).submit(hash_keys(pl.Series(EVENTS), secret), secret, data_set=data_set)


def serve(party: Party, connect: Connect, settings: dict[str, Any], seen: Seen) -> None:
    """All bytes that a partner gets, answers and errors, rightly and wrongly asked."""
    with running(party.config(**settings)) as address:
        client = connect(address)
        described = _called(seen, "describe", lambda: client.describe())
        if described is None:
            return
        _called(seen, "fetch", lambda: client.fetch(described))
        _called(seen, "fetch elsewhere", lambda: client.fetch(described, start_row=10_000))
        rows = Manifest.from_bytes(described.manifest).population.rows
        stub = stubs.EvaluationServiceStub(client.channel)
        asked = {
            "data_set": "labels",
            "epoch": "1",
            "manifest_sha256": described.manifest_sha256,
            "loss_name": "squared gain",
        }
        terms = wire.DescribeEvaluationRequest(**asked)
        _called(seen, "terms before", lambda: stub.DescribeEvaluation(terms, timeout=300))
        spread = np.linspace(0, 10, rows)
        for name, predictions in {
            "five": np.full(rows, 5.0),
            "five again": np.full(rows, 5.0),
            "spread": spread,
            "too few": spread[:2],
            "nothing": np.full(rows, math.nan),
            "zeros": np.zeros(rows),
            "one too many": np.ones(rows),
        }.items():
            header = wire.EvaluatePredictionsRequest(header=wire.EvaluationHeader(**asked))
            data = wire.EvaluatePredictionsRequest(predictions=predictions.astype("<f8").tobytes())
            question = iter([header, data])
            _called(
                seen, f"answer: {name}", partial(stub.EvaluatePredictions, question, timeout=300)
            )
        _called(seen, "terms after", lambda: stub.DescribeEvaluation(terms, timeout=300))


def _called(seen: Seen, name: str, call: Callable[[], Any]) -> Any:
    try:
        answer = call()
    except grpc.RpcError as error:
        seen.things[f"wire: {name}"] = (error.code(), error.details(), error.trailing_metadata())
        return None
    seen.things[f"wire: {name}"] = answer
    return answer


def store_files(store: Path) -> Iterator[tuple[str, Any]]:
    """Everything in a store: files' bytes and rights, the ledger row by row."""
    for path in sorted(store.rglob("*")):
        name = path.relative_to(store).as_posix()
        if name.startswith("ledger.sqlite"):
            continue  # its pages are laid out as SQLite likes
        what: Any = path.read_bytes() if path.is_file() else "a folder"
        yield f"store: {name}", (path.stat().st_mode, what)
    yield from ledger_rows(store / "ledger.sqlite", "ledger")


def ledger_rows(path: Path, name: str) -> Iterator[tuple[str, Any]]:
    """Every table of a ledger, if there is one."""
    if not path.exists():
        return
    with sqlite3.connect(path) as ledger:
        for (table,) in ledger.execute("SELECT name FROM sqlite_master WHERE type = 'table'"):
            rows = ledger.execute(f"SELECT * FROM {table} ORDER BY rowid").fetchall()
            yield f"{name}: {table}", rows
    ledger.close()


def _begin_anew(party: Party) -> None:
    """As if nothing had been released from here: store, receipt and backup go."""
    shutil.rmtree(party.store, ignore_errors=True)
    for name in ("label_party.toml.receipt", "backup.tar"):
        (party.folder / name).unlink(missing_ok=True)


ABOUT_THE_LEDGER: dict[str, Callable[[Any], object]] = {
    "backup.json": lambda index: index.pop("ledger"),
    "digests.json": lambda index: index["files"].pop("ledger.sqlite"),
}
"""What a backup says of itself, and how the digest of its ledger is taken out of it."""


def backup_members(path: Path) -> Iterator[tuple[str, Any]]:
    """Everything in a backup; of its ledger the rows."""
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member)
            data = b"" if file is None else file.read()
            if member.name == "ledger.sqlite":
                copy = path.with_suffix(".ledger")
                copy.write_bytes(data)
                yield from ledger_rows(copy, "backup's ledger")
                copy.unlink()
                continue
            facts = (member.mode, member.mtime, member.uid, member.size)
            if member.name in ABOUT_THE_LEDGER:  # whose rows are compared, and not its pages
                index = json.loads(data)
                ABOUT_THE_LEDGER[member.name](index)
                facts, data = (), json.dumps(index).encode()
            yield f"backup: {member.name}", (facts, data)


NOISY = {"cells", "leaders", "measurements"}
"""What is noise on labels in a table and among leaders."""


def masked(seen: Seen, rows: list[int]) -> Seen:
    """Leave out what may depend on some events' labels: their codes, noisy counts and answers.

    What only follows from these goes, too: digests, and the noise of a table or of leaders.
    """
    names = {
        hashlib.sha256(what[1]).hexdigest(): name
        for name, what in seen.things.items()
        if name.startswith("store: ") and name.endswith(("/manifest.json", "/outcome.bin"))
    }
    questions = [row[2] for row in seen.things["ledger: answers"]]
    names |= {question: f"question {number}" for number, question in enumerate(questions)}
    things = {
        _renamed(name, names): _renamed(repr(_without(name, what, rows)), names)
        for name, what in seen.things.items()
        if not name.endswith(": seals")
    }
    return Seen(things)


def _renamed(text: str, names: dict[str, str]) -> str:
    for digest, name in names.items():
        text = text.replace(digest, name).replace(repr(bytes.fromhex(digest)), name)
    return text


def _without(name: str, what: Any, rows: list[int]) -> Any:
    """What is seen, without what some rows' labels may change."""
    if isinstance(what, wire.EvaluatePredictionsResponse):
        return what.answers_left
    if isinstance(what, wire.DescribeEvaluationResponse):
        return what.epsilon, what.answers, what.answers_left
    if name.endswith("ledger: answers"):
        return [row[:3] for row in what]
    if isinstance(what, release.DescribeReleaseResponse):
        return _of_manifest(what.manifest), what.signature
    if name == "wire: fetch" and isinstance(what[0], bytes):
        return what[0], _without_rows(what[1], rows)
    if not name.startswith(("store: ", "backup: ")) or isinstance(what[1], str):
        return what
    first, data = what
    if name == "backup: digests.json":
        index = json.loads(data)
        return sorted(index["files"]), index["damaged"]
    size = len(data)
    if name.endswith("/codes.bin"):
        return first, _without_rows(data, rows)
    if name.endswith("/manifest.json"):
        return _of_manifest(data)
    if name.endswith("/charge.json"):
        return {key: value for key, value in json.loads(data).items() if key != "check"}
    if name.endswith("/outcome.bin"):
        released = json.loads(data) if data[:1] == b"{" and b"\n" not in data else {"session": size}
        return {key: v for key, v in released.items() if key not in NOISY}
    return what


def _without_rows(codes: bytes, rows: list[int]) -> bytes:
    left = bytearray(codes)
    for row in rows:
        left[row] = 255
    return bytes(left)


def _of_manifest(data: bytes) -> Any:
    facts = json.loads(data)
    for digest in ("blocks", "digest"):
        facts["content"].pop(digest)
    for prior in facts.get("priors", []):
        prior.pop("noisy_counts")
    return facts


def noisy_counts(seen: Seen) -> np.ndarray[Any, Any]:
    """Of the release, which differ under replayed keys as exact ones do."""
    counts = json.loads(seen.things["wire: describe"].manifest)["priors"][0]["noisy_counts"]
    return np.array(counts)


def rows_of(seen: Seen, keys: list[str], secret: bytes, population: str) -> list[int]:
    """Where some events lie in the release."""
    if population == "submitted":
        return [EVENTS.index(key) for key in keys]
    hashed = hash_keys(pl.Series(keys), secret)
    sent = seen.things["wire: fetch"][0]
    order = [sent[i : i + 16] for i in range(0, len(sent), 16)]
    return [order.index(hashed[i : i + 16]) for i in range(0, len(hashed), 16)]
