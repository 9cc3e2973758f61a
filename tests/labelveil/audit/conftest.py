"""A release in a folder, as the features party would have fetched it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from labelveil.audit.certificate.evidence import Evidence
from labelveil.audit.verdict import Audit, Verdict
from labelveil.common.release.blocks import block_ranges
from labelveil.common.release.manifest import Manifest, block_digest, content_digest
from labelveil.common.release.table import write_release
from labelveil.common.version import software
from tests.common.release.releases import make_release

WriteRelease = Callable[..., Path]


def in_key_order(manifest: Manifest, keys: bytes, codes: bytes) -> tuple[Manifest, bytes, bytes]:
    """Sort a made release's rows as the labels party does, with the digests that belong to it."""
    table = np.frombuffer(keys, dtype="S16")
    order = np.argsort(table, kind="stable")
    keys = table[order].tobytes()
    codes = np.frombuffer(codes, dtype=np.uint8)[order].tobytes()
    size = manifest.content.block_rows
    blocks = [
        block_digest(keys[16 * start : 16 * stop], codes[start:stop])
        for start, stop in block_ranges(order.size, size)
    ]
    data = json.loads(manifest.to_bytes())
    data["content"] |= {"blocks": blocks, "digest": content_digest(blocks)}
    data["software"] = software()
    data["population"]["digest"] = hashlib.sha256(keys).hexdigest()
    return Manifest.model_validate(data), keys, codes


def evidence_of(manifest: Manifest) -> Evidence:
    """A manifest alone, as if its rows were not looked at."""
    return Evidence(Path(), b"", manifest, pl.DataFrame())


def other_population(data: dict[str, Any]) -> None:
    """A lie that the population digest gives away."""
    data["population"]["digest"] = "0" * 64


def without_power(audit: Audit) -> list[str]:
    """Checks that decide something, and do not say what they would have found."""
    decided = [check for check in audit.checks if check.verdict is not Verdict.NOT_CHECKABLE]
    return [check.name for check in decided if not check.power_sentence]


@pytest.fixture(autouse=True)
def no_false_alarm(repeatable: None) -> None:
    """An audit's gate lets right software fail once in a million runs."""


@pytest.fixture
def write(tmp_path: Path) -> WriteRelease:
    """Write a release; ``change`` may alter the manifest's JSON values before it is written."""

    def write_one(
        change: Callable[[dict[str, Any]], None] | None = None, rows: int = 300, **options: Any
    ) -> Path:
        manifest, keys, codes = make_release(rows, **options)
        if keys:
            manifest, keys, codes = in_key_order(manifest, keys, codes)
        if change is not None:
            data = json.loads(manifest.to_bytes())
            change(data)
            manifest = Manifest.model_validate(data)
        folder = tmp_path / "release"
        write_release(folder, manifest.to_bytes(), keys, codes)
        return folder

    return write_one
