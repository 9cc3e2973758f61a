"""Write what each party's machine installs, with the digest of every file: ``make lock``.

Files are the wheels that pip chooses under constraints.txt for CPython 3.11, as in the images, on
x86-64 and on arm64. torch is the build that pip finds where this runs, which should be that for
CPUs: on another machine the index's own has CUDA's packages under it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = {"label-party": ("postgres", "tracing"), "feature-party": ("features",)}
PYTHON = ("--python-version", "3.11", "--implementation", "cp")
ARM = [f"--platform=manylinux_2_{glibc}_aarch64" for glibc in (17, 24, 26, 27, 28)]


def chosen(requirements: Iterable[str], *options: str) -> dict[str, tuple[str, str]]:
    """Return version and SHA-256 of the files that pip would install, by their project."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed"),
                *("--quiet", "--report", "-", "--only-binary", ":all:", "--target", folder),
                *("--constraint", str(ROOT / "constraints.txt"), *PYTHON, *options, *requirements),
            ],
            stdout=subprocess.PIPE, check=True,
        )  # fmt: skip
    return {
        item["metadata"]["name"].lower().replace("_", "-"): (
            item["metadata"]["version"].partition("+")[0],
            item["download_info"]["archive_info"]["hashes"]["sha256"],
        )
        for item in json.loads(done.stdout)["install"]
    }


def lock(party: str) -> str:
    """Return a party's requirements, pinned and with digests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = [project["optional-dependencies"][extra] for extra in EXTRAS[party]]
    here = chosen([*project["dependencies"], *(line for extra in extras for line in extra)])
    arm = chosen([f"{name}=={version}" for name, (version, _) in here.items()], "--no-deps", *ARM)
    lines = ["# Written by `make lock`; CPython 3.11 on Linux, x86-64 and arm64."]
    for name, (version, digest) in sorted(here.items()):
        digests = sorted({digest} if name == "torch" else {digest, arm[name][1]})
        lines.append(" ".join([f"{name}=={version}", *(f"--hash=sha256:{one}" for one in digests)]))
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    for party in EXTRAS:
        path = ROOT / "deploy" / party / "requirements.txt"
        path.write_text(lock(party), "utf-8")
        print(path.relative_to(ROOT))
