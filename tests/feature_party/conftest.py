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


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """1,500 events at ε = 4 by randomized thresholds."""
    return build_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    """Certificates of both parties."""
    return certificates(tmp_path_factory.mktemp("certificates"))
