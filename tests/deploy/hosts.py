"""Two hosts on one machine: network namespaces joined by a pair of virtual Ethernet devices."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

# RFC 5737: for documentation; nothing else on a machine has these addresses
_ADDRESSES = ("192.0.2.1", "192.0.2.2")
_DEVICE = "link0"


class NoHosts(Exception):
    """The system does not let us make network namespaces."""


@dataclass(frozen=True)
class Host:
    """A network namespace and its IPv4 address on the link."""

    name: str
    address: str

    def command(self, *arguments: str) -> list[str]:
        """Return a command line that runs another one on this host."""
        return ["ip", "netns", "exec", self.name, *arguments]

    @contextmanager
    def slowed(self, rate: str) -> Iterator[None]:
        """Limit what this host sends, for example to ``8mbit``, while the block runs."""
        limit = ("root", "tbf", "rate", rate, "burst", "32kb", "latency", "50ms")
        _run("tc", "-n", self.name, "qdisc", "add", "dev", _DEVICE, *limit)
        try:
            yield
        finally:
            _run("tc", "-n", self.name, "qdisc", "del", "dev", _DEVICE, "root")

    def cut(self) -> None:
        """Take the link down: packets of either host get no further."""
        self._link("down")

    def join(self) -> None:
        """Bring the link up again."""
        self._link("up")

    def _link(self, state: str) -> None:
        _run("ip", "-n", self.name, "link", "set", "dev", _DEVICE, state)


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Make two hosts that see each other and nothing else; both are gone in the end.

    ``NoHosts`` has the system's words, if it does not allow it.
    """
    names = [f"labelveil-{os.getpid()}-{side}" for side in ("labels", "features")]
    first, second = hosts = [
        Host(name, address) for name, address in zip(names, _ADDRESSES, strict=True)
    ]
    with ExitStack() as stack:
        try:
            for host in hosts:
                _run("ip", "netns", "add", host.name)
                stack.callback(_run, "ip", "netns", "del", host.name)
            peer = ("peer", "name", _DEVICE, "netns", second.name)
            _run("ip", "-n", first.name, "link", "add", "name", _DEVICE, "type", "veth", *peer)
            for host in hosts:
                address = f"{host.address}/30"
                _run("ip", "-n", host.name, "address", "add", address, "dev", _DEVICE)
                _run("ip", "-n", host.name, "link", "set", "dev", "lo", "up")
                host.join()
        except (OSError, subprocess.CalledProcessError) as error:
            detail = getattr(error, "stderr", "") or str(error)
            raise NoHosts(" ".join(detail.split())) from error
        yield first, second


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
