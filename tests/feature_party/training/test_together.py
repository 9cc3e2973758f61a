"""Several workers of one training: threads here, which need no second process."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributed import HashStore

from labelveil.common.errors import ConfigError, DataError, LabelveilError
from labelveil.feature_party.learning.objectives import PointObjective
from labelveil.feature_party.learning.optimizers import Optimizer
from labelveil.feature_party.model.encoding import Encoded
from labelveil.feature_party.model.facts import FitSettings
from labelveil.feature_party.model.network import NetworkShape
from labelveil.feature_party.training import distributed, fitting
from labelveil.feature_party.training.batches import MemoryParts
from labelveil.feature_party.training.distributed import Distributed, joined_workers
from labelveil.feature_party.training.fitting import Fit, Fitter
from labelveil.feature_party.training.workers import ALONE, Workers
from tests.feature_party.training.test_encoded_shards import CPU, CutParts

SIZE = 3


class Together(Workers):
    """One of three threads that add up what each has."""

    size = SIZE

    def __init__(self, rank: int, barrier: threading.Barrier, said: dict[int, Any]) -> None:
        self.rank, self.barrier, self.said = rank, barrier, said

    def exchange(self, value: Any) -> list[Any]:
        self.said[self.rank] = value
        self.barrier.wait(60)
        every = [self.said[rank] for rank in range(SIZE)]
        self.barrier.wait(60)
        return every

    def add(self, values: Tensor) -> Tensor:
        return torch.stack([each.clone() for each in self.exchange(values)]).sum(0)

    def from_first(self, value: Any) -> Any:
        return self.exchange(value)[0]


def trained(workers: Workers, checkpoint: Path) -> Fit:
    """Two parts of an odd number of rows, in batches that no three workers share evenly."""
    objective = PointObjective("raw", "squared", np.zeros(0), 0.0, 1.0, 0.0, 1.0)
    rng = np.random.default_rng(1)
    numbers = rng.normal(size=(67, 2)).astype(np.float32)
    inputs = Encoded(numbers, rng.integers(0, 3, (67, 1)).astype(np.int32))
    targets = torch.as_tensor(numbers[:, 0] + 0.1 * rng.normal(size=67), dtype=torch.float32)
    parts = CutParts(inputs, targets, (40, 27))
    settings = FitSettings(4, 3, 7, 0.1, "adamw", 0.01, (3,), 0.25, 0.25, 9, 1)
    shape = NetworkShape(2, (3,), (3,), 1, 4)
    (fit,) = Fitter(objective, parts, shape, settings, CPU, workers).run(None, checkpoint)
    return fit


@pytest.fixture
def averaging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients are averaged before a step, as after a backward pass of several processes."""
    plain = Optimizer.step

    def step(self: Optimizer) -> None:
        if isinstance(worker := threading.current_thread(), Thread):
            for tensor in self._tensors:
                every = worker.workers.exchange(tensor.grad)
                tensor.grad = None if tensor.grad is None else torch.stack(every).mean(0)
        plain(self)

    monkeypatch.setattr(Optimizer, "step", step)


class Killed(Exception):
    """In the second epoch's second part."""


class Thread(threading.Thread):
    """Trains as one of them."""

    def __init__(self, workers: Together, checkpoint: Path) -> None:
        super().__init__()
        self.workers, self.checkpoint = workers, checkpoint
        self.fit: Fit | None = None
        self.start()

    def run(self) -> None:
        try:
            self.fit = trained(self.workers, self.checkpoint)
        except Killed:
            pass  # as all are
        except BaseException:
            self.workers.barrier.abort()
            raise


@pytest.mark.usefixtures("averaging")
def test_workers_train_what_one_does_and_go_on_as_it_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = trained(ALONE, tmp_path / "alone.pt")
    monkeypatch.setattr(fitting, "KEEP_SECONDS", 0.0)
    plain = Fitter._train_part

    def deadly(self: Fitter, epoch: int, part: int, rows: Any, step: int) -> None:
        if epoch == 1 and self.parts_done:
            raise Killed
        plain(self, epoch, part, rows, step)

    for train_part in (deadly, plain):
        monkeypatch.setattr(Fitter, "_train_part", train_part)
        barrier, said = threading.Barrier(SIZE), dict[int, Any]()
        threads = [
            Thread(Together(rank, barrier, said), tmp_path / f"{min(rank, 1)}.pt")
            for rank in range(SIZE)
        ]
        for thread in threads:
            thread.join(60)
        # worker 0 alone writes, and the others need not see its disk
        assert [path.name for path in sorted(tmp_path.glob("?.pt"))] == ["0.pt"]
        state = torch.load(tmp_path / "0.pt", weights_only=True)
        assert (state["parts_done"], len(state["history"])) == ((1, 1), (0, 3))[train_part is plain]
    for thread in threads:
        assert thread.fit is not None
        for name, value in alone.learned.state_dict().items():
            found = thread.fit.learned.state_dict()[name]
            torch.testing.assert_close(found, value, atol=1e-5, rtol=0)
        np.testing.assert_allclose(thread.fit.losses, alone.losses, atol=1e-5)
        np.testing.assert_allclose(thread.fit.predictions, alone.predictions, atol=1e-5)
        for one, other in zip(thread.fit.history, alone.history, strict=True):
            assert one.training == pytest.approx(other.training, abs=1e-5)
            assert one.validation == pytest.approx(other.validation, abs=1e-5)


class Network(torch.nn.Linear):
    """With a device that nobody has."""

    def parameters(self, recurse: bool = True) -> Any:
        return iter([SimpleNamespace(device=torch.device("cuda", 1))])


def test_what_workers_have_goes_through_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []
    monkeypatch.setattr(distributed.dist, "all_reduce", lambda values: values.mul_(2))
    monkeypatch.setattr(distributed.dist, "barrier", lambda: said.append("here"))
    parallel = lambda network, device_ids: said.append(device_ids) or network  # noqa: E731
    monkeypatch.setattr(distributed.nn.parallel, "DistributedDataParallel", parallel)

    def broadcast(box: list[Any], src: int) -> None:
        said.append((box[0], src))
        box[0] = "of the first"

    monkeypatch.setattr(distributed.dist, "broadcast_object_list", broadcast)
    for rank in (0, 1):
        worker = Distributed(rank, 3)
        assert (worker.first, worker.share(7)) == (rank == 0, slice([0, 2][rank], [2, 4][rank]))
        assert worker.add(torch.tensor([1.0, 2.0])).tolist() == [2.0, 4.0]
        assert worker.from_first("mine") == "of the first"
    worker.wait()
    worker.wrap(torch.nn.Linear(1, 1))
    worker.wrap(Network(1, 1))
    assert said == [("mine", 0), (None, 0), "here", None, [1]]


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What torch is asked, by worker 1 of 2 that share a store."""
    done, store = list[Any](), HashStore()
    monkeypatch.setattr(distributed, "started_by_torchrun", lambda: 2)
    monkeypatch.setattr(distributed, "rendezvous", lambda url: iter([(store, 1, 2)]))
    for name in ("init_process_group", "destroy_process_group", "barrier"):
        monkeypatch.setattr(
            distributed.dist, name,
            lambda *given, name=name, **named: done.append((name, *given, named.get("rank"))),
        )  # fmt: skip
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: done.append(("device", device)))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    return done


@pytest.mark.parametrize(
    ("gpus", "device", "local", "backend"),
    [
        (False, "auto", "1", "gloo"),
        (True, "auto", "1", "cpu:gloo,cuda:nccl"),
        (True, "cpu", "5", "cpu:gloo,cuda:nccl"),
        (True, "cuda", "2", None),
    ],
)
def test_each_worker_takes_a_gpu_of_its_own_or_none(
    joined: list[Any], monkeypatch: pytest.MonkeyPatch, gpus: bool, device: str, local: str,
    backend: str | None,
) -> None:  # fmt: skip
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus)
    monkeypatch.setenv("LOCAL_RANK", local)
    if backend is None:
        said = "worker 2 of this machine has no GPU: there are 2; lower --nproc_per_node"
        with pytest.raises(ConfigError, match=said), joined_workers(device):
            pass
        return
    with joined_workers(device) as workers:
        assert (workers.rank, workers.size) == (1, 2)
        joined.append("trained")
    taken = [("device", 1)] * (backend != "gloo" and device == "auto")
    begun, ended = ("init_process_group", backend, 1), [("barrier", None)]
    assert joined == [*taken, begun, "trained", *ended, ("destroy_process_group", None)]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (DataError("a shard is damaged"), "a shard is damaged"),
        (RuntimeError("Connection closed"), "worker 1 lost another one, which was killed or cut"),
        (RuntimeError("[..] by PEER"), "start again to go on from the last checkpoint"),
        (RuntimeError("Timed out waiting"), "worker 1 lost another one"),
        (torch.distributed.DistError("a collective"), "worker 1 lost another one"),
        (RuntimeError("a fault of ours"), None),
    ],
)
def test_the_first_worker_to_fail_says_why_and_the_others_end(
    joined: list[Any], monkeypatch: pytest.MonkeyPatch, error: Exception, told: str | None
) -> None:
    kind = LabelveilError if told else RuntimeError
    for attempt in ("0", "0", "1"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", attempt)
        again = bool(joined) and attempt == "0" and told is not None
        with pytest.raises(SystemExit if again else kind) as caught, joined_workers("cpu"):
            raise error
        assert joined[-1] == ("destroy_process_group", None)
        assert ("barrier", None) not in joined  # who failed waits for nobody
        assert (told or "a fault of ours") in str(caught.value) or again
        assert not again or caught.value.code == 1  # type: ignore[attr-defined]


def test_a_process_alone_joins_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with joined_workers("auto") as workers:
        assert workers is ALONE


SETTINGS = FitSettings(2, 2, 8, 0.1, "adamw", 0.01, (3,), 0.0, 0.25, 9, 1)
OTHERS: dict[str, Any] = {"members": 4, "optimizer": "rmsprop", "hidden": (4,)}
"""Another value of each setting: of the others a larger one."""


class Given(NamedTuple):
    """What a training is of."""

    settings: FitSettings = SETTINGS
    raised: tuple[str, int] = ("", 0)  # one value of the rows
    swapped: str = ""  # the first two rows
    name: str = "raw"
    members: range = range(2)

    def epochs(self, checkpoint: Path) -> list[int]:
        """Epochs that are trained, beginning with what a checkpoint has."""
        rng, settings = np.random.default_rng(1), self.settings
        rows = {
            "numbers": rng.normal(size=(30, 2)).astype(np.float32),
            "categories": rng.integers(0, 3, (30, 1)).astype(np.int32),
            "targets": rng.normal(size=30).astype(np.float32),
        }
        if self.raised[0]:
            rows[self.raised[0]].flat[self.raised[1]] += 1
        if self.swapped:
            rows[self.swapped][:2] = rows[self.swapped][1::-1]
        objective = PointObjective(self.name, "squared", np.zeros(0), 0.0, 1.0, 0.0, 1.0)
        inputs = Encoded(rows["numbers"], rows["categories"])
        parts = MemoryParts(inputs, torch.as_tensor(rows["targets"]), CPU)
        shape = NetworkShape(2, (4,), settings.hidden, 1, len(self.members))
        fitter = Fitter(
            objective, parts, shape, settings, CPU, first=self.members.start
        )  # fmt: skip
        found: list[int] = []
        fitter.run(lambda record: found.append(record.epoch), checkpoint)
        return found


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> dict[int, bytes]:
    """Checkpoints of all members, beside which a training of some is compared that begin there."""
    found, path = dict[int, bytes](), tmp_path_factory.mktemp("kept") / "kept.pt"
    for start, first in ((0, Given()), (2, Given(replace(SETTINGS, members=4)))):
        path.unlink(missing_ok=True)
        assert [first.epochs(path), first.epochs(path)] == [[1, 2], []]
        found[start] = path.read_bytes()
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "other",
    [
        *(
            Given(
                replace(SETTINGS, **{name: OTHERS.get(name, 2 * value or 0.5)}),
                members=range(4 if name == "members" else 2),
            )
            for name, value in vars(SETTINGS).items()
        ),
        *(
            Given(raised=(name, at))
            for name in ("numbers", "categories", "targets")
            for at in (0, 29)
        ),
        *(Given(swapped=name) for name in ("numbers", "categories", "targets")),
        Given(name="true"),
        Given(replace(SETTINGS, members=4), members=range(2, 4)),
    ],
)
def test_a_checkpoint_is_taken_up_by_the_very_same_training_alone(
    kept: dict[int, bytes], tmp_path: Path, other: Given
) -> None:
    (tmp_path / "kept.pt").write_bytes(kept[other.members.start])
    assert other.epochs(tmp_path / "kept.pt") == [*range(1, other.settings.epochs + 1)]
