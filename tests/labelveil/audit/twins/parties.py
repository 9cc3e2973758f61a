"""Twins of a whole labels party: programs that run in the place of ours.

``python -m tests.labelveil.audit.twins.parties TWIN …`` rehearses with the twin's keys. Spawned
processes come by here, too.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from pathlib import Path
from typing import ClassVar

from labelveil.audit.canaries.worlds import World
from labelveil.audit.verdict import Check
from labelveil.common.entropy import Entropy
from tests.label_party.rehearsed import Starts, make_world, starts_check
from tests.labelveil.audit.twins.library import Twin, twin

STATE = Path("state")


class PartyTwin(Twin):
    """A labels party whose keys can be had again by one kind of start.

    Attributes
    ----------
    starts
        Of that kind alone.
    """

    caught_by = "cold starts"
    slow = True
    starts: ClassVar[Starts]

    def __init__(self) -> None:
        self._seed = b""

    def furnish(self, world: World) -> None:
        """Leave on the machine what lies there before it runs."""

    def begin(self) -> bytes:
        """What this process's keys are made from."""
        raise NotImplementedError

    def entropy(self) -> Entropy:
        """The next key."""
        self._seed = hashlib.sha256(self._seed or self.begin()).digest()
        return Entropy(self._seed)

    def audit(self) -> Check:
        """Hold the probe against it."""
        with tempfile.TemporaryDirectory() as folder:
            program = (__name__, type(self).__name__)
            world = make_world(Path(folder))
            self.furnish(world)
            return starts_check(world, self.starts, program)


@twin
class PartyOfTwelveBits(PartyTwin):
    """Every message has a key of 12 bits."""

    starts = Starts(here=400, forked=0, spawned=0, restored=0, restarted=0)

    def entropy(self) -> Entropy:
        return Entropy(bytes(30) + (int.from_bytes(os.urandom(2)) >> 4).to_bytes(2))


@twin
class ForkedFromOneServer(PartyTwin):
    """Seeded well, once: processes that are forked afterwards go on from the same place."""

    starts = Starts(here=1, forked=2, spawned=0, restored=0, restarted=0)

    def begin(self) -> bytes:
        return os.urandom(32)


@twin
class SpawnedWithTheSeed(PartyTwin):
    """Workers find the seed in their environment, and begin with its first key."""

    starts = Starts(here=1, forked=0, spawned=2, restored=0, restarted=0)

    def begin(self) -> bytes:
        return bytes.fromhex(os.environ.setdefault("NOISE_SEED", os.urandom(32).hex()))


@twin
class StateInTheSnapshot(PartyTwin):
    """A generator that keeps its state on the disk, well: a snapshot has it, too."""

    starts = Starts(here=1, forked=0, spawned=0, restored=2, restarted=0)

    def entropy(self) -> Entropy:
        self._seed = STATE.read_bytes() if STATE.exists() else os.urandom(32)
        STATE.write_bytes(hashlib.sha256(self._seed + b"next").digest())
        return Entropy(self._seed)


@twin
class SeedInTheImage(PartyTwin):
    """The seed was drawn when the container's image was built."""

    starts = Starts(here=1, forked=0, spawned=0, restored=0, restarted=2)

    def furnish(self, world: World) -> None:
        (world.folder / STATE).write_bytes(os.urandom(32))

    def begin(self) -> bytes:
        return STATE.read_bytes()


def main() -> None:
    """Rehearse with a twin's keys; in a spawned process, wait for what is to be done."""
    from tests.label_party import rehearsal

    rehearsal.system_entropy = globals()[sys.argv[1]].entropy  # type: ignore[attr-defined]
    if __name__ == "__main__":
        rehearsal.main(*sys.argv[2:])


if __name__ in ("__main__", "__mp_main__"):
    main()
