"""``kill -9`` of the features party at every step of a fetch: it goes on to the same bytes."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from labelveil.common.release.folder import MANIFEST_FILE
from labelveil.common.release.table import read_release
from labelveil.common.security.pilot_certificates import CertificateFiles
from labelveil.feature_party.client.release_client import ReleaseClient, RetryPolicy
from labelveil.feature_party.client.spool import PARTIAL
from labelveil.feature_party.config.labels_party import LabelsPartySection
from tests.faults import Ended, Experiments, Mode, experiments
from tests.feature_party.servers import Behaviour, client_settings, serving
from tests.feature_party.worlds import World

BLOCK_ROWS = 256


def fetch(settings: str, directory: str) -> None:
    """What dies."""
    section = LabelsPartySection.model_validate(json.loads(settings))
    ReleaseClient(section, RetryPolicy(attempts=1)).fetch(Path(directory))


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Experiments]:
    with experiments(tmp_path_factory.mktemp("faults"), __name__) as found:
        yield found


@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.slow), 6])
def test_killed_at_every_step_of_a_fetch(
    world: World, files: CertificateFiles, patient: Experiments, tmp_path: Path, stride: int
) -> None:
    behaviour, target = Behaviour(), tmp_path / "release"

    def run(mode: Mode = Mode.COUNT, nth: int = 0) -> Ended:
        return patient.run(
            f"{__name__}:fetch", settings, str(target), folder=target, mode=mode, nth=nth
        )

    def complete() -> bool:
        """Whether there is a release, which must then be the right one."""
        if not (target / MANIFEST_FILE).exists():
            return False
        assert read_release(target).labels.equals(world.release.labels)
        return True

    with serving(world, behaviour, files) as address:
        settings = client_settings(address, files).model_dump_json()
        steps = run().steps
        assert complete()
        order = list(range(1, steps + 1))
        random.Random(steps).shuffle(order)
        shutil.rmtree(target)
        killed = finished = 0
        for nth in order[::stride]:
            killed += run(Mode.KILL_TORN, nth).killed
            if complete():  # perhaps it died while it was clearing up
                asked = len(behaviour.started_at)
                assert run().error == ""
                assert len(behaviour.started_at) == asked
                assert not (target / PARTIAL).exists()
                shutil.rmtree(target)
                finished += 1
        assert run().error == ""
        assert complete()
    assert killed > steps / stride / 2
    assert finished > 3 / stride
    # every row that was verified was kept: fetches went on at many blocks, and at those alone
    rows = len(world.codes)
    assert len(set(behaviour.started_at)) > (2 if stride == 1 else 1)
    assert all(row % BLOCK_ROWS == 0 or row == rows for row in behaviour.started_at)
