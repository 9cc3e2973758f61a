"""What the labels party does while it is killed or its disk fails: one function an experiment."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from common.release.event_keys import read_secret, secret_check
from common.wire import label_release_pb2 as wire
from label_party.config import sections as config
from label_party.events.submitted import Populations
from label_party.release.run import run_release
from label_party.server import run as server
from label_party.server.catalog import Catalog
from label_party.server.submission import Reception
from label_party.store.pay_once import pay_once
from label_party.store.purchase import Purchase
from label_party.store.release_store import Store

KEYS = 12


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


def release(folder: str, epoch: str) -> None:
    run_release(settings(folder, data__epoch=epoch), quiet=True)


def outcome(folder: str, epoch: str) -> None:
    """Any other private computation that is paid for; its bytes differ from run to run."""
    privacy = settings(folder).privacy
    purchase = Purchase("labels", epoch, "leaders", privacy.charge, privacy.limit)
    pay_once(Store(Path("label_store")), purchase, lambda: os.urandom(64))


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
    reception = Reception(Catalog(store), populations, loaded)
    reception.receive(header, iter(messages), "partner.example", lambda: None)


def serve(folder: str, port_file: str) -> None:
    server.serve(settings(folder), port_file=Path(port_file), announce=lambda line: None)
