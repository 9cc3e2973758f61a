"""Both parties with the configurations that deployments mount, as containers would run them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pytest

from labelveil.common.release.table import read_release
from labelveil.common.security.new_keys import SIGNING_KEY, write_signing_key
from labelveil.common.security.pilot_certificates import write_certificates
from tests.deploy.documents import DEPLOY, assignments, documents, pod_of, stages
from tests.deploy.sandbox import USER, Sandbox

ROWS = 3000
CONFIG = "/etc/labelveil"
STATE = "/var/lib/labelveil"
LABELS_PARTY = ("ca.pem", "label-party.pem", "label-party.key")
RELEASE_KEYS = ("join.key", SIGNING_KEY)
MOUNTED_KEYS = "/run/keys"
FEATURES_PARTY = ("ca.pem", "feature-party.pem", "feature-party.key", "join.key", "signing.key.pub")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that is mounted, in folders of the names that the tests below use."""
    folder = tmp_path_factory.mktemp("mounted")
    made = folder / "made"
    write_certificates(made)
    write_signing_key(made / SIGNING_KEY)
    for name, chosen in (
        ("certificates", LABELS_PARTY),
        ("secret", RELEASE_KEYS),
        ("identity", FEATURES_PARTY),
    ):
        (folder / name).mkdir()
        for file in chosen:
            # as a cluster mounts secrets: root's, and readable by the pod's group
            copy = folder / name / file
            copy.write_bytes((made / file).read_bytes())
            copy.chmod(0o440)
            own(copy, 0)
    for name in ("data", "store", "models", "keys", "root"):
        (folder / name).mkdir()
    for name in ("store", "models", "keys"):
        (folder / name).chmod(0o700)
        own(folder / name, USER)
    keys = pl.DataFrame({"click_id": pl.int_range(ROWS, eager=True)})
    keys.write_parquet(folder / "data" / "landings.parquet")
    clicks = keys.with_columns(hour=pl.col("click_id") % 24)
    clicks.write_parquet(folder / "data" / "clicks.parquet")
    sales = keys[::3].with_columns(amount=pl.col("click_id").cast(pl.Float64) % 200)
    sales.write_parquet(folder / "data" / "sales.parquet")
    return folder


def own(path: Path, user: int) -> None:
    if os.geteuid() == 0:
        os.chown(path, user, USER)


def sandbox(files: Path, party: str, mounts: dict[str, tuple[str, bool]]) -> Sandbox:
    name = f"{party.replace('-', '_')}.toml"
    places = {f"{CONFIG}/{name}": (DEPLOY / party / name, False)}
    places |= {to: (files / folder, writable) for to, (folder, writable) in mounts.items()}
    made = Sandbox(files / "root", places, stages(party)[1].last("WORKDIR"))
    if refused := made.refusal():
        pytest.skip(f"no sandbox here: {refused}")
    return made


@pytest.fixture(scope="module")
def server(files: Path) -> Sandbox:
    """What the server's container sees."""
    certificates = (f"{CONFIG}/certificates", ("certificates", False))
    return sandbox(files, "label-party", dict([certificates, (STATE, ("store", True))]))


def build(files: Path, keys: str) -> subprocess.CompletedProcess[str]:
    """Run the release's container, which sees labels and keys."""
    mounts = {f"{CONFIG}/release": (keys, False), "/data": ("data", False), STATE: ("store", True)}
    return label_party(sandbox(files, "label-party", mounts), "release", "--quiet")


@pytest.fixture(scope="module")
def released(files: Path) -> Path:
    """The store after the release's job has run, its first container first."""
    [job] = documents(DEPLOY / "label-party" / "kubernetes" / "release.yaml")
    pod = pod_of(job)
    assert pod is not None
    [first] = pod["spec"]["initContainers"]
    mounts = {MOUNTED_KEYS: ("secret", False), f"{CONFIG}/release": ("keys", True)}
    done = sandbox(files, "label-party", mounts).run(*first["command"])
    assert done.returncode == 0, done.stderr
    done = build(files, "keys")
    assert done.returncode == 0, done.stderr
    return files / "store" / "store"


def image_environment(party: str) -> dict[str, str]:
    """Return the image's variables, but for where its own Python is."""
    found = assignments(stages(party)[1].last("ENV"))
    del found["PATH"]
    return found


def label_party(where: Sandbox, *arguments: str) -> subprocess.CompletedProcess[str]:
    variables = image_environment("label-party")
    return where.run(sys.executable, "-m", "labelveil.label_party", *arguments, **variables)


@contextmanager
def serving(where: Sandbox) -> Iterator[str]:
    """Run the image's own command on ports of this machine's choice; yields the address."""
    command = json.loads(stages("label-party")[1].last("CMD"))
    ports = ("--listen=127.0.0.1:0", "--set=observability.listen=127.0.0.1:0")
    process = subprocess.Popen(
        where.command(sys.executable, "-m", "labelveil.label_party", *command, *ports),
        env=where.environment(**image_environment("label-party")),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("serving on"), process.stderr.read()
        yield f"localhost:{line.strip().rpartition(':')[2]}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_the_sandbox_is_one(server: Sandbox) -> None:
    program = """
import errno, os, sys
assert (os.getuid(), os.getgid(), os.getgroups()) == (10001, 10001, []), os.getuid()
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0 and int(status["NoNewPrivs"])
open("/tmp/x", "w"); open("/var/lib/labelveil/x", "w"); os.remove("/var/lib/labelveil/x")
for path in ("/x", "/usr/x", "/etc/labelveil/x", "/etc/labelveil/certificates/x"):
    try:
        open(path, "w")
    except OSError as error:
        assert error.errno in (errno.EROFS, errno.EACCES), error
    else:
        sys.exit(path)
"""
    done = server.run(sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_what_is_released_is_served_and_learned_from(
    files: Path, server: Sandbox, released: Path
) -> None:
    mounts = {f"{CONFIG}/certificates": ("identity", False), "/data": ("data", False)}
    mounts[STATE] = ("models", True)
    client = sandbox(files, "feature-party", mounts)
    run = json.loads(stages("feature-party")[1].last("CMD"))
    quick = ("--set=training.ensemble=1", "--set=training.epochs=1")
    with serving(server) as address:
        done = client.run(
            sys.executable, "-m", "labelveil.feature_party", *run, "--address", address, *quick,
            **image_environment("feature-party"),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        # while it serves
        saved = label_party(server, "backup", "--quiet", "--to", f"{STATE}/backup.tar")
        assert saved.returncode == 0, saved.stderr
    fetched = read_release(files / "models" / "release")
    stored = released / "releases" / "conversions" / "1" / "manifest.json"
    assert fetched.manifest_bytes == stored.read_bytes()
    assert fetched.labels.height == ROWS
    assert pl.read_parquet(files / "models" / "predictions.parquet").height == ROWS
    assert (files / "store" / "backup.tar").stat().st_uid == USER


@pytest.mark.slow
def test_a_mounted_secret_is_a_signing_key(files: Path) -> None:
    """A cluster mounts it as root's, for the group of the one user who runs here."""
    assert build(files, "secret").returncode == 0


@pytest.mark.slow
@pytest.mark.usefixtures("released")
def test_a_store_that_cannot_be_written_is_served_from(files: Path, server: Sandbox) -> None:
    mounts = dict(server.mounts) | {STATE: (files / "store", False)}
    with serving(Sandbox(server.root, mounts, server.cwd)) as address:
        assert address.startswith("localhost:")
