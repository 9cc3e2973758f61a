"""Key files as tests write them: for their owner alone, as their readers insist."""

from __future__ import annotations

from pathlib import Path


def write_key(path: Path, data: bytes | str) -> None:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    path.chmod(0o600)
