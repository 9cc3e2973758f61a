"""Several processes that train one network: each takes its share of every batch.

``torchrun --nproc_per_node N --no-python feature-party train`` starts them. Every worker draws the
same order from the seed and takes its columns of the global batch, gradients are added up by
``DistributedDataParallel``, and held-out rows are divided, too: the result is that of one process
but for the order in which floating-point numbers are added. Worker 0 alone writes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from labelveil.common.errors import ConfigError, LabelveilError
from labelveil.feature_party.torchrun import started_by_torchrun
from labelveil.feature_party.training.workers import ALONE, Workers

T = TypeVar("T")

_TIMEOUT = timedelta(hours=2)
"""How long a worker waits for another: writing shards, which worker 0 does alone, takes a while."""


class Distributed(Workers):
    """One worker of several."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def wrap(self, network: nn.Module) -> nn.Module:
        device = next(network.parameters()).device
        return nn.parallel.DistributedDataParallel(
            network, device_ids=None if device.type == "cpu" else [device.index]
        )

    def add(self, values: Tensor) -> Tensor:
        dist.all_reduce(values)
        return values

    def wait(self) -> None:
        dist.barrier()

    def from_first(self, value: T) -> T:
        box: list[Any] = [value if self.first else None]
        dist.broadcast_object_list(box, src=0)
        received: T = box[0]
        return received


@contextmanager
def joined_workers(device: str) -> Iterator[Workers]:
    """Join the other workers that torchrun started, if any, for as long as the context lasts.

    An error on one of them ends all: the first to fail reports it, the others end silently.
    ``[training] device`` says whether each is given a GPU (NCCL) or processors (Gloo).
    """
    size = started_by_torchrun()
    if size == 1:
        yield ALONE
        return
    # before the first collective, so that a worker with a problem can say so
    store, rank, size = next(iter(rendezvous("env://")))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")

    def first_to_tell() -> bool:
        return bool(store.add(f"labelveil/reported/{attempt}", 1) == 1)

    try:
        if torch.cuda.is_available() and device != "cpu":
            local = int(os.environ.get("LOCAL_RANK", "0"))
            if local >= torch.cuda.device_count():
                raise ConfigError(
                    f"worker {local} of this machine has no GPU: there are"
                    f" {torch.cuda.device_count()}; lower --nproc_per_node"
                )
            torch.cuda.set_device(local)
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        own = PrefixStore(f"labelveil/{attempt}", store)
        dist.init_process_group(backend, timeout=_TIMEOUT, store=own, rank=rank, world_size=size)
        try:
            together = Distributed(rank, size)
            yield together
            together.wait()  # nobody leaves, and takes the store along, while another still works
        finally:
            dist.destroy_process_group()
    except LabelveilError:
        if not first_to_tell():
            raise SystemExit(1) from None
        raise
    except (RuntimeError, dist.DistError) as error:
        # what Gloo and NCCL raise where another worker has gone
        lost = any(word in str(error).lower() for word in ("connection", "peer", "timed out"))
        if not isinstance(error, dist.DistError) and not lost:
            raise
        if not first_to_tell():
            raise SystemExit(1) from None
        raise LabelveilError(
            f"worker {rank} lost another one, which was killed or cut off; start again to go on"
            " from the last checkpoint"
        ) from error
