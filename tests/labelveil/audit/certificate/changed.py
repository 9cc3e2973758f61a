"""A release, and its manifest after a change of its JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from labelveil.audit.certificate.evidence import Evidence
from labelveil.common.release.manifest import Manifest
from tests.common.release.releases import make_release
from tests.labelveil.audit.conftest import evidence_of, in_key_order

MANIFEST, KEYS, CODES = in_key_order(*make_release(300))
DATA = json.loads(MANIFEST.to_bytes())
Change = Callable[[dict[str, Any]], None]


def changed(change: Change, data: dict[str, Any] = DATA) -> Evidence:
    """A manifest after a change of its JSON, without rows."""
    data = json.loads(json.dumps(data))
    change(data)
    return evidence_of(Manifest.model_validate(data))
