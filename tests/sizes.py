"""Advice on sizes, which `make check` prints: ``python -m tests.sizes``. Nothing fails over it."""

from __future__ import annotations

from collections import Counter

from tests.imports import PACKAGES, ROOT, sources

LONG_MODULE = 450
"""Lines after which a module is worth another look."""

FULL_FOLDER = 16
"""Files that a folder shows at a glance."""


def advice() -> list[str]:
    """Return a line for every long module and full folder; generated stubs aside."""
    files = [path for package in (*PACKAGES, "benchmarks", "tests") for path in sources(package)]
    ours = [path.relative_to(ROOT) for path in files if "wire" not in path.parts]
    folders = Counter(path.parent for path in ours)
    lengths = {path: len((ROOT / path).read_text("utf-8").splitlines()) for path in ours}
    return [
        *(f"{name}/ has {count} files" for name, count in folders.items() if count > FULL_FOLDER),
        *(f"{name} has {count} lines" for name, count in lengths.items() if count > LONG_MODULE),
    ]


if __name__ == "__main__":
    for line in advice():
        print(f"advice: {line}; see whether it reads better as two")
