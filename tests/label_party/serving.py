"""``label-party serve`` as a process: its addresses, metrics, probes and log."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.label_party.conftest import Party

ROOT = Path(__file__).parents[2]


def get(address: str, path: str, accept: str = "") -> tuple[int, str]:
    """Return the status and text of an HTTP answer."""
    connection = http.client.HTTPConnection(address, timeout=300)
    try:
        connection.request("GET", path, headers={"Accept": accept})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def metrics(address: str) -> dict[str, float]:
    """Return every sample by its name with labels, as Prometheus would read it."""
    status, text = get(address, "/metrics")
    assert status == 200
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


@dataclass
class Served:
    """A running server process."""

    process: subprocess.Popen[str]
    address: str
    observed_at: str
    log_path: Path  # its standard error

    @property
    def host_and_port(self) -> tuple[str, int]:
        host, _, port = self.address.rpartition(":")
        return host, int(port)

    def metric(self, name: str) -> float:
        return metrics(self.observed_at).get(name, 0.0)

    def refusals(self, reason: str) -> float:
        return self.metric(f'label_party_refusals_total{{reason="{reason}"}}')

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the log's events of one name."""
        found = [json.loads(line) for line in self.log.splitlines()]
        return [event for event in found if event["event"] == name]


@contextmanager
def serving(party: Party, **settings: Any) -> Iterator[Served]:
    """Run the server of a party's folder with probes on a free port, until the block is left."""
    options = party.arguments(observability__listen="127.0.0.1:0", **settings)
    log_path = party.folder / "serve.log"
    with log_path.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "labelveil.label_party", "serve", *options],
            cwd=party.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
    assert process.stdout is not None
    try:
        address = _announced(process.stdout.readline(), r"serving on (\S+)", log_path)
        observed = _announced(process.stdout.readline(), r"metrics on http://(\S+)", log_path)
        yield Served(process, address, observed, log_path)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        process.stdout.close()


def _announced(line: str, pattern: str, log_path: Path) -> str:
    found = re.search(pattern, line)
    assert found is not None, log_path.read_text()
    return found[1]
