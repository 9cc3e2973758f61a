"""Figures as they were when the tests that say whether they are right had passed.

Whether an estimate is right on average, or an interval holds as often as it says, takes many draws
and minutes, and such tests bear small faults. These figures are kept beside the quick tests, so
that it is noticed at once that one is another. Where that is meant, let the slow tests of the
folder pass first, and look at the difference; then ``LABELVEIL_APPROVE=1`` writes them anew.
"""

from __future__ import annotations

import json
import os
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def approved(kept_in: Path, name: str, found: Any) -> None:
    """Fail if figures are others than those that are kept under a name in a file."""
    kept = json.loads(kept_in.read_text("utf-8")) if kept_in.exists() else {}
    found = json.loads(json.dumps(plain(found)))
    if os.environ.get("LABELVEIL_APPROVE"):
        kept[name] = found
        lines = [
            f"{json.dumps(of)}: {{\n"
            + ",\n".join(f"{json.dumps(key)}: {json.dumps(each[key])}" for key in sorted(each))
            for of, each in sorted(kept.items())
        ]
        kept_in.write_text("{" + "\n},\n".join(lines) + "\n}}\n", "utf-8")
    _same(found, kept[name], name)


def plain(value: Any) -> Any:
    """What JSON can say: of more than six numbers how many there are, ends, size and a checksum."""
    if hasattr(value, "detach"):
        value = value.detach().numpy()
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "iufb":
        if value.size <= 6:
            return plain(value.tolist())
        flat = value.astype(np.float64).ravel()
        flat = np.where(np.isfinite(flat), flat, -9.25)
        weights = np.sin(np.arange(flat.size) + 1.0)
        figures = [*flat[:2].tolist(), flat[-1].item(), np.abs(flat).sum(), flat @ weights]
        return [list(value.shape), *map(plain, figures)]
    if isinstance(value, float):
        return float(f"{value:.9g}") if np.isfinite(value) else repr(value)
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(each) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _same(found: Any, kept: Any, at: str) -> None:
    if isinstance(kept, dict):
        assert found.keys() == kept.keys(), at
        for key in kept:
            _same(found[key], kept[key], f"{at}.{key}")
    elif isinstance(kept, list):
        assert len(found) == len(kept), at
        for place, (one, other) in enumerate(zip(found, kept, strict=True)):
            _same(one, other, f"{at}[{place}]")
    elif isinstance(kept, float):
        assert found == pytest.approx(kept, rel=1e-4, abs=1e-6), at
    else:
        assert found == kept, at
