"""One cold start: randomize some labels in a process of its own and write the outputs' bytes."""

from __future__ import annotations

import json
import sys

import numpy as np

from common.program.audit.mechanism.subject import from_spec


def main(spec: str, rows: str) -> None:
    """Write the outputs for ``rows`` labels, cycling through the subject's grid."""
    subject = from_spec(json.loads(spec))
    labels = np.resize(subject.labels, int(rows))
    sys.stdout.buffer.write(np.ascontiguousarray(subject.mechanism(labels)).tobytes())


if __name__ == "__main__":
    main(*sys.argv[1:])
