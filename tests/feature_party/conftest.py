"""Fixtures of the features party's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from labelveil.common.security.pilot_certificates import CertificateFiles
from tests.feature_party.servers import certificates
from tests.feature_party.worlds import World, build_world


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Train on one thread: on a busy machine tiny networks only wait for a second one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


PIECES = {
    "client.labels_table._ROWS_AT_ONCE": 97,
    "client.questions._CHUNK_ROWS": 97,
    "client.questions._ROWS_AT_ONCE": 97,
    "client.submission._HASH_ROWS": 97,
    "evaluation.error_estimates._CHUNK_ELEMENTS": 4999,
    "groups.boosting._ROWS_AT_ONCE": 197,
    "ridge.law._ROWS_AT_ONCE": 197,
    "ridge.ridge.IN_CACHE": 197,
    "ridge.fit.IN_CACHE": 197,
    "ridge.fit._ROWS_AT_ONCE": 197,
    "ridge.evidence._ROWS_AT_ONCE": 97,
    "ridge.wave_sums.IN_CACHE": 197,
    "join.on_disk._ROWS_AT_ONCE": 97,
    "learning.derivatives._BLOCK": 197,
    "learning.mixing._BLOCK": 197,
    "model.encoding._BLOCK": 197,
    "model.model._EVALUATION_ROWS": 197,
    "model.network._TOGETHER": 499,
    "model.trees._ROWS": 197,
    "training.batches._AT_ONCE": 197,
    "training.fitting._EVALUATION_ROWS": 499,
    "training.folds._ROWS_AT_ONCE": 197,
}


@pytest.fixture(autouse=True, scope="module")
def small_pieces() -> Iterator[None]:
    """Let what is done piece by piece need several in every test, and a last one that is shorter:
    a test's few rows would be one piece, and a piece that is forgotten seen by none."""
    with pytest.MonkeyPatch.context() as patch:
        for name, size in PIECES.items():
            patch.setattr(f"labelveil.feature_party.{name}", size)
        yield


@pytest.fixture(autouse=True)
def larger_pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow tests have so many rows that there are several of larger pieces, too: two hundred rows
    at a time, they took up to twenty times as long."""
    if request.node.get_closest_marker("slow"):
        for name, size in PIECES.items():
            monkeypatch.setattr(f"labelveil.feature_party.{name}", 20 * size)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """1,500 events at ε = 4 by randomized thresholds."""
    return build_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    """Certificates of both parties."""
    return certificates(tmp_path_factory.mktemp("certificates"))
