"""What the labels party does while it is killed or its disk fails: one function an experiment."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import redirect_stdout
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import grpc
import numpy as np

from labelveil.common.files import write_text
from labelveil.common.mechanisms.group_sums import GroupQuestion, Lattice
from labelveil.common.release.event_keys import read_secret, secret_check
from labelveil.common.release.question import encode_question
from labelveil.common.wire import label_release_pb2 as wire
from labelveil.common.wire import label_release_pb2_grpc
from labelveil.label_party.commands import cli
from labelveil.label_party.config import sections as config
from labelveil.label_party.events.submitted import Populations, Submitted
from labelveil.label_party.queries import synthetic_table, top_k
from labelveil.label_party.queries.evaluation import Evaluation
from labelveil.label_party.release.run import run_release
from labelveil.label_party.release.watch import release_new
from labelveil.label_party.server import run as server
from labelveil.label_party.server.calls import Rpc
from labelveil.label_party.server.catalog import Catalog
from labelveil.label_party.server.submission import Submissions
from labelveil.label_party.store.entries import EVALUATION, LABELS
from labelveil.label_party.store.release_store import Store
from labelveil.label_party.store.restore import restore
from labelveil.label_party.store.withdrawal import withdraw

KEYS = 12
T = TypeVar("T")


def settings(folder: str, **changes: Any) -> config.LabelPartyConfig:
    """Small and quick, with budget for every experiment of a test."""
    os.chdir(folder)
    quick = {
        "domain.upper": 2,
        "privacy.total_epsilon": 1_000_000,
        "randomizer.name": "randomized-response",
    }
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    return config.load(Path("label_party.toml"), quick | changes)


PURCHASES = {
    "release": LABELS,
    "several": LABELS,
    "watched": LABELS,
    "sums": LABELS,
    "leaders": "top-k by kind",
    "table": "synthetic table of kind",
    "question": EVALUATION,
}
"""What each of the following functions buys, the last thing of all."""


def release(folder: str, epoch: str) -> None:
    run_release(settings(folder, data__epoch=epoch), quiet=True)


def withdrawn(folder: str, epoch: str) -> None:
    withdraw(Store(settings(folder).store.directory), "labels", epoch, "wrong")


def restored(folder: str, backup: str) -> None:
    store = Store(settings(folder).store.directory)
    restore(store, Path(backup), [], "labels", nothing_since=True)


def several(folder: str, epoch: str) -> None:
    """A release of two labels, each of few values, so that nothing takes long."""
    asked = settings(folder, data__labels="several.csv", data__epoch=epoch)
    given = asked.model_dump(exclude_unset=True, exclude={"domain", "randomizer"})
    rows = [f"event-{i},{i % 3},{i % 2}" for i in range(40)]
    Path("several.csv").write_text("\n".join(["key,stars,kept", *rows]) + "\n")
    stars = {"name": "stars", "kind": "category", "values": [0, 1, 2]}
    tables = [stars, {"name": "kept", "kind": "binary"}]
    given["privacy"]["division"] = "split"
    run_release(config.LabelPartyConfig.model_validate({**given, "label": tables}), quiet=True)


def watched(folder: str, epoch: str) -> None:
    """An epoch of a watch, and the session that pays for its test: one of its own each time."""
    os.chdir(folder)
    Path("days").mkdir(exist_ok=True)
    shutil.copy("labels.csv", f"days/{epoch}.csv")
    loaded = settings(
        folder,
        data__labels="days/{epoch}.csv",
        privacy__total_delta=1e-6,
        watch__hits=2,
        watch__epsilon=0.01 + int(epoch) / 1e6,
    )
    release_new(loaded, lambda outcome: None, quiet=True)


def sums(folder: str, epoch: str) -> None:
    """Sums over groups of events that were submitted with the question."""
    asked = settings(
        folder,
        data__population="submitted",
        data__epoch=epoch,
        rounds__questions=True,
        randomizer__name="auto",
        domain__grid="auto",
    )
    populations = Populations(Store(asked.store.directory))
    question = GroupQuestion(Lattice(0.0, 2.0, 4), np.arange(KEYS) % 3, np.array([1, 4, 2]))
    parts = population("sums"), encode_question(question)
    check = secret_check(read_secret(asked.keys.secret_file)).hex()
    digests = [hashlib.sha256(part).hexdigest() for part in parts]
    facts = Submitted(KEYS, digests[0], check, "partner", "2026-11-26T00:00:00+00:00", digests[1])
    if populations.current("labels", epoch) != facts:
        with populations.upload() as uploads, populations.exchanging("labels", epoch):
            for upload, part in zip(uploads, parts, strict=True):
                upload.append(part)
                upload.seal()
            populations.store("labels", epoch, *uploads, facts)
    run_release(asked, quiet=True)


def leaders(folder: str, epoch: str) -> None:
    request = top_k.TopKRequest("kind", 1, 2, Path("kinds.txt"), None)
    top_k.run_top_k(with_kinds(folder, epoch), request)


def table(folder: str, epoch: str) -> None:
    request = synthetic_table.TableRequest((("kind", Path("kinds.txt")),), (0.0, 1.0, 2.0), 1)
    synthetic_table.synthesize(with_kinds(folder, epoch), request, quiet=True)


def with_kinds(folder: str, epoch: str) -> config.LabelPartyConfig:
    """A category for every event."""
    loaded = settings(folder, data__labels="kinds.csv", data__epoch=epoch)
    rows = [f"event-{i},{i % 3},{'ab'[i % 2]}" for i in range(40)]
    Path("kinds.csv").write_text("\n".join(["key,label,kind", *rows]) + "\n")
    Path("kinds.txt").write_text("a\nb\n")
    return loaded


def question(folder: str, epoch: str) -> None:
    """A release, and the session that answers the first question about a model of it."""
    loaded = settings(folder, data__epoch=epoch, evaluation__offered=True)
    run_release(loaded, quiet=True)
    store = Store(loaded.store.directory)
    found = Catalog(store).find("labels", epoch)
    assert found is not None
    Evaluation(loaded, store).ask(found, "label", np.zeros(found.rows))


def population(seed: str) -> bytes:
    """Keys that a features party might submit."""
    return b"".join(hashlib.sha256(f"{seed} {i}".encode()).digest()[:16] for i in range(KEYS))


def submit(folder: str, seed: str) -> None:
    """What ``serve`` does at its start, and with a submission in two messages."""
    loaded = settings(folder, data__population="submitted")
    store = Store(loaded.store.directory)
    populations = Populations(store)
    populations.clean()
    keys = population(seed)
    header = wire.PopulationHeader(
        data_set="labels", epoch="1", rows=KEYS,
        population_sha256=hashlib.sha256(keys).digest(),
        secret_check=secret_check(read_secret(loaded.keys.secret_file)),
    )  # fmt: skip
    messages = [wire.SubmitPopulationRequest(keys=part) for part in (keys[:64], keys[64:])]
    submissions = Submissions(Catalog(store), populations, loaded)
    asyncio.run(submissions.receive(header, cast(Rpc, _Arriving(messages)), 60))


class _Arriving:
    """A call whose other messages are there already."""

    client = "partner.example"

    def __init__(self, others: list[wire.SubmitPopulationRequest]) -> None:
        self._others = others
        self.record = SimpleNamespace(moved=lambda rows, size: None)

    async def messages(self, seconds: float) -> AsyncIterator[wire.SubmitPopulationRequest]:
        for message in self._others:
            yield message

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        return function(*arguments)


def serve(folder: str, port_file: str) -> None:
    with server.running(settings(folder)) as address:
        write_text(Path(port_file), address.rpartition(":")[2])
        threading.Event().wait()


def fetch_once(folder: str, answer: str) -> None:
    """A server from its start to its end, which one client asks once, and commands that read."""
    loaded = settings(folder)
    names = ("ca.pem", "client.key", "client.pem")
    proof = grpc.ssl_channel_credentials(*(Path(name).read_bytes() for name in names))
    with (
        server.running(loaded) as address,
        grpc.secure_channel(address, proof) as channel,
    ):
        asked = wire.DescribeReleaseRequest(data_set="labels")
        stub = label_release_pb2_grpc.LabelReleaseServiceStub(channel)
        Path(answer).write_bytes(stub.DescribeRelease(asked, timeout=60).manifest)
    for command in (["budget", "--json"], ["backup", "--to", f"{answer}.tar"]):
        sys.argv = ["label-party", *command]
        try:
            with redirect_stdout(sys.stderr):
                cli.main()
        except SystemExit as ended:
            if ended.code:
                raise


def dying(step: str, moment: str, there: str = ".") -> None:
    """Kill this process before or after a step, ``module:Class.method``, once a path is there."""
    place, _, name = step.rpartition(".")
    owner = resolve_name(place)
    real = getattr(owner, name)

    def die(*arguments: Any, **options: Any) -> Any:
        if moment == "before" and os.path.exists(there):
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*arguments, **options)
        if os.path.exists(there):
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, die)


def command(folder: str, step: str, moment: str, there: str, *arguments: str) -> None:
    """``label-party`` with arguments, which dies at a step."""
    os.chdir(folder)
    dying(step, moment, there)
    sys.argv = ["label-party", *arguments]
    with redirect_stdout(sys.stderr):  # standard output is the patient's own
        cli.main()


def submission(folder: str, port_file: str, step: str, moment: str) -> None:
    """A server that dies at a step of the first submission."""
    with server.running(settings(folder, data__population="submitted")) as address:
        dying(step, moment)
        Path(port_file).write_text(address)
        threading.Event().wait(60)
