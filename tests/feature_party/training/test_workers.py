"""Processes that are killed, and processes that train together: the same weights in the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from labelveil.feature_party.commands.cli import main
from labelveil.feature_party.model.model import Model
from labelveil.feature_party.pipeline import learning
from labelveil.feature_party.training.run import train
from labelveil.feature_party.training.workers import Workers
from tests.commands import RunCommand
from tests.feature_party.worlds import World

TRAINER = """
import os, signal, sys
from pathlib import Path
from labelveil.common.errors import DataError
from labelveil.feature_party.training import fitting
from labelveil.feature_party.commands.cli import main

epoch, rank = int(os.environ.get("KILL_EPOCH", "0")), os.environ.get("RANK", "0")
plain = fitting.Fitter._train_part

def deadly(self, at, part, rows, step):
    if rank == os.environ.get("FAIL_RANK"):
        raise DataError("a shard is damaged")
    if epoch and at + 1 == epoch and rank == os.environ["KILL_RANK"]:
        taken = self.optimizer.step
        def last():
            taken()
            os.kill(os.getpid(), signal.SIGKILL)
        self.optimizer.step = last
    plain(self, at, part, rows, step)

fitting.Fitter._train_part = deadly
main()
"""
"""The command line: killed by SIGKILL after an epoch's first step, or failing, where asked to."""

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]


class Trainer:
    """``feature-party train`` in processes of its own."""

    def __init__(self, world: World, folder: Path) -> None:
        self.script = folder / "trainer.py"
        self.script.write_text(TRAINER)
        self.arguments = [
            *("train", "--release", str(world.directory), "--features", str(world.features)),
            *("--key", "event", "--secret-file", str(world.secret_file)),
            *("--head", "gaussian", "--ensemble", "2", "--epochs", "3", "--device", "cpu"),
            *("--set", "training.hidden=[8]", "--set", "training.dropout=0.1"),
            *("--set", "training.batch_size=101", "--set", "training.patience=9"),
        ]

    def run(
        self,
        model: Path,
        *more: str,
        together: bool = False,
        kill: tuple[int, int] | None = None,
        **variables: str,
    ) -> subprocess.CompletedProcess[str]:
        """Train, and kill worker ``kill[1]`` in epoch ``kill[0]``."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
        if kill is not None:
            environment |= {"KILL_EPOCH": str(kill[0]), "KILL_RANK": str(kill[1])}
        launcher = TORCHRUN if together else []
        return subprocess.run(
            [
                *(sys.executable, *launcher, str(self.script)),
                *(*self.arguments, "--model", str(model), *more),
            ],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )


@pytest.fixture(scope="module")
def trainer(world: World, tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    return Trainer(world, tmp_path_factory.mktemp("trainer"))


@pytest.fixture(scope="module")
def undisturbed(trainer: Trainer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of one process that nothing happened to."""
    model = tmp_path_factory.mktemp("undisturbed")
    result = trainer.run(model)
    assert result.returncode == 0, result.stderr
    return model


def weights(model: Path) -> dict[str, torch.Tensor]:
    states: list[dict[str, torch.Tensor]] = torch.load(
        model / "amount" / "weights.pt", weights_only=True
    )
    return states[0]


def losses(model: Path) -> np.ndarray:
    history = json.loads((model / "amount" / "model.json").read_text())["facts"]["history"]
    return np.array([[epoch["train_loss"], epoch["validation_loss"]] for epoch in history])


def checkpointed_epochs(model: Path) -> int:
    (checkpoint,) = (model / "amount" / "checkpoints").glob("*.pt")
    return len(torch.load(checkpoint, weights_only=True)["history"])


@pytest.mark.slow
def test_a_process_killed_in_an_epoch_ends_with_the_same_weights(
    trainer: Trainer, undisturbed: Path, tmp_path: Path
) -> None:
    killed = trainer.run(tmp_path, kill=(2, 0))
    assert killed.returncode == -signal.SIGKILL
    assert checkpointed_epochs(tmp_path) == 1
    assert not (tmp_path / "model.json").exists()
    resumed = trainer.run(tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    for name, value in weights(undisturbed).items():
        assert torch.equal(weights(tmp_path)[name], value)
    assert np.array_equal(losses(tmp_path), losses(undisturbed))


@pytest.mark.slow
def test_two_workers_train_what_one_does_even_if_one_is_killed(
    trainer: Trainer, undisturbed: Path, tmp_path: Path
) -> None:
    whole = trainer.run(tmp_path / "whole", together=True)
    assert whole.returncode == 0, whole.stderr
    assert whole.stdout.count("events match") == 1
    np.testing.assert_allclose(losses(tmp_path / "whole"), losses(undisturbed), atol=1e-5)
    for name, value in weights(undisturbed).items():
        torch.testing.assert_close(weights(tmp_path / "whole")[name], value, atol=1e-4, rtol=0)

    killed = trainer.run(tmp_path / "killed", together=True, kill=(2, 1))
    assert killed.returncode != 0
    assert checkpointed_epochs(tmp_path / "killed") == 1
    lost = [line for line in killed.stderr.splitlines() if line.startswith("error: ")]
    assert len(lost) <= 1  # torchrun may end the other worker before it notices
    resumed = trainer.run(tmp_path / "killed", together=True)
    assert resumed.returncode == 0, resumed.stderr
    for name, value in weights(tmp_path / "whole").items():
        torch.testing.assert_close(weights(tmp_path / "killed")[name], value, atol=1e-6, rtol=0)


@pytest.mark.slow
def test_two_workers_train_from_shards_what_one_does(trainer: Trainer, tmp_path: Path) -> None:
    shards = ["--set", "training.shard_rows=200", "--epochs", "2", "--set"]
    for name, together in (("one", False), ("two", True)):
        folder = f"training.shards={tmp_path / name}-rows"
        joined = ["--set", f"join.directory={tmp_path / name}-joined"]
        result = trainer.run(tmp_path / name, *shards, folder, *joined, together=together)
        assert result.returncode == 0, result.stderr
        assert len(list((tmp_path / f"{name}-rows").glob("part-*.parquet"))) == 6
    np.testing.assert_allclose(losses(tmp_path / "two"), losses(tmp_path / "one"), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("everywhere", [False, True])
def test_an_error_ends_all_workers_and_is_told_once(
    trainer: Trainer, tmp_path: Path, everywhere: bool
) -> None:
    if everywhere:
        missing = str(tmp_path / "none.parquet")
        result = trainer.run(tmp_path, "--features", missing, together=True)
    else:
        result = trainer.run(tmp_path, together=True, FAIL_RANK="1")
    assert result.returncode != 0
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert ("none.parquet does not exist" if everywhere else "a shard is damaged") in errors[0]
    # torchrun shows a traceback of its own
    assert not any(
        name in result.stderr for name in ('trainer.py", line', "stages.py", "workers.py")
    )
    assert not list(tmp_path.glob("model.json"))


def test_shards_stay_until_every_worker_has_trained(
    trainer: Trainer, run_command: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened = []

    class Watched(Workers):
        def wait(self) -> None:
            happened.append("waited")

    @contextmanager
    def joined(device: str) -> Iterator[Workers]:
        yield Watched()

    def trained(*arguments: Any, **named: Any) -> Model:
        model = train(*arguments, **named)
        happened.append("trained")
        return model

    monkeypatch.setattr(learning, "joined_workers", joined)
    monkeypatch.setattr(learning, "train", trained)
    monkeypatch.setattr(learning, "remove_shards", lambda folder: happened.append(folder.name))
    run_command(main, *trainer.arguments, "--epochs", "1", "--model", str(tmp_path))
    assert happened == ["trained", "waited", "shards"]


def test_other_commands_take_one_process(
    world: World, run_command: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    ended = run_command(main, "predict", "--features", str(world.features))
    assert ended.error.startswith("error: WORLD_SIZE=2, but train alone takes several")
