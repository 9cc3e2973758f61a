"""A party that offers evaluations, and a client that asks it about events in release order."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import polars as pl
import pytest

from labelveil.common.release.event_keys import hash_keys, read_secret
from labelveil.common.release.manifest import Manifest
from labelveil.common.wire import evaluation_pb2 as wire
from labelveil.common.wire import evaluation_pb2_grpc as stubs
from labelveil.common.wire.label_release_pb2 import DescribeReleaseResponse
from labelveil.label_party.store.entries import EVALUATION, Answer
from labelveil.label_party.store.release_store import Store, outcome_name
from tests.label_party.conftest import EVENTS, Client, Party

Connect = Callable[..., Client]
EPSILON = 40
OFFERED = {
    "evaluation__offered": "true",
    "evaluation__epsilon": EPSILON,
    "evaluation__answers": 3,
    "evaluation__largest_loss": 20,
    "privacy__total_epsilon": EPSILON + 10,
    "privacy__epsilon": 10,  # tells the histogram, of which depends what is answered
}
RELEASED = {name: value for name, value in OFFERED.items() if name.startswith("privacy__")}
TRUTH = np.array([float(i % 10) if i % 2 == 0 else 0.0 for i in range(EVENTS)])
LARGEST = 20.0
GAIN = {"loss_name": "squared gain"}


@dataclass(frozen=True)
class Asker:
    """A client that knows the events in release order."""

    stub: stubs.EvaluationServiceStub
    described: DescribeReleaseResponse
    truth: np.ndarray

    @property
    def named(self) -> dict[str, Any]:
        digest = self.described.manifest_sha256
        return {"data_set": "labels", "epoch": "1", "manifest_sha256": digest} | GAIN

    def terms(self) -> wire.DescribeEvaluationResponse:
        return self.stub.DescribeEvaluation(wire.DescribeEvaluationRequest(**self.named))

    def ask(self, predictions: np.ndarray, **header: Any) -> wire.EvaluatePredictionsResponse:
        first = wire.EvaluationHeader(**{**self.named, **header})
        data = predictions.astype("<f8").tobytes()
        half = len(data) // 16 * 8
        parts = [wire.EvaluatePredictionsRequest(header=first)]
        parts += [
            wire.EvaluatePredictionsRequest(predictions=data[a:b])
            for a, b in ((0, half), (half, len(data)))
        ]
        return self.stub.EvaluatePredictions(iter(parts), timeout=300)

    def refused(self, *given: Any, **header: Any) -> tuple[grpc.StatusCode, str | None]:
        with pytest.raises(grpc.RpcError) as error:
            self.ask(*given, **header)
        return error.value.code(), error.value.details()

    @property
    def constant(self) -> float:
        """What a model is compared with: the released prior's mean."""
        prior, grid = self.prior
        return float(prior @ grid)

    @property
    def prior(self) -> tuple[np.ndarray, np.ndarray]:
        """What was released of all labels: probabilities, and of which."""
        manifest = Manifest.from_bytes(self.described.manifest)
        return manifest.message.histograms[0][1].probabilities, np.asarray(manifest.label.grid)

    def gain(self, predictions: np.ndarray) -> float:
        """The mean of clipped differences over the events that are asked about."""
        differences = (self.constant - self.truth) ** 2 - (predictions - self.truth) ** 2
        return float(np.nanmean(np.clip(differences, -LARGEST, LARGEST)))


def make_asker(party: Party, client: Client) -> Asker:
    described = client.describe()
    keys, _ = client.fetch(described)
    secret = read_secret(party.folder / "join.key")
    hashed = hash_keys(pl.Series([f"event-{i}" for i in range(EVENTS)]), secret)
    row = {hashed[16 * i : 16 * i + 16]: value for i, value in enumerate(TRUTH.tolist())}
    truth = np.array([row[keys[at : at + 16]] for at in range(0, len(keys), 16)])
    return Asker(stubs.EvaluationServiceStub(client.channel), described, truth)


def answers(party: Party) -> list[Answer]:
    """What the ledger says was answered."""
    with Store(party.store).read_ledger() as ledger:
        charge = ledger.committed("labels", "1", EVALUATION)
        return [] if charge is None else ledger.answers(charge)


def charges(party: Party) -> list[dict[str, Any]]:
    (account,) = json.loads(party.run("budget", "--json").out)
    return [c for c in account["charges"] if c["purpose"] == EVALUATION]


CLOSED = grpc.StatusCode.FAILED_PRECONDITION, "no evaluation can be given now"
USED_UP = grpc.StatusCode.FAILED_PRECONDITION, "the budget for evaluations is used up"


def ask_until_refused(asker: Asker, start: int) -> list[wire.EvaluatePredictionsResponse]:
    """Ask new questions as long as they are answered."""
    given = []
    for number in range(start, start + 4):
        try:
            given.append(asker.ask(np.full(EVENTS, float(number))))
        except grpc.RpcError:
            break
    return given


def outcome_folder(party: Party) -> Path:
    return session(party).parent


def session(party: Party) -> Path:
    (path,) = party.store.glob(f"outcomes/labels/1/{outcome_name(EVALUATION)}/outcome.bin")
    return path
