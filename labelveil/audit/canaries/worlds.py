"""Labels parties that run as processes on data sets of canaries.

All labels are uniform secrets, the domain's lower or upper bound, so that one release is a one-run
audit too; of several labels of an event all lie at the same end. One world lacks a label: its event
is in the population all the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from shutil import copytree
from typing import Any, NamedTuple, Self

import numpy as np

from labelveil.audit.attacks.one_run import draw_secrets
from labelveil.audit.canaries.planting import Canaries, at_the_ends
from labelveil.audit.settings import CanarySettings, Connection
from labelveil.children import LABEL_PROGRAM
from labelveil.common.arrays import Integers
from labelveil.common.exact.rational import parse_rational
from labelveil.common.release.event_keys import hash_keys, read_secret
from labelveil.common.release.folder import MANIFEST_FILE
from labelveil.common.release.manifest import Manifest
from labelveil.common.security.pilot_certificates import (
    FEATURE_PARTY,
    LABEL_PARTY,
    CertificateFiles,
    write_certificates,
)
from labelveil.simulation.processes import StageFailed, run_party, serving

NAMES = ("conversions", "installs", "orders", "sales", "sign-ups", "visits")
"""Data sets have one of these names, and keys of their own in each run: nothing says what they are.
"""

LOWER, UPPER = 0.0, 10.0
CATEGORIES = [f"c{number:02}" for number in range(40)]
CONFIG, LIST = "label_party.toml", "categories.txt"

QUERY_EPSILON = 0.05
"""So much noise that a cell of a query that has none in a few releases stands out."""


@dataclass(eq=False)
class World:
    """One labels party with its own folder, store and data; all share one set of certificates."""

    settings: CanarySettings
    folder: Path
    files: CertificateFiles
    canaries: Canaries
    offer: str = ""  # further sections of the configuration
    data_set: str = NAMES[0]
    further: float = 0.0  # what else may be spent
    population: str = "population.parquet"

    def __post_init__(self) -> None:
        """Write labels, population and configuration."""
        self.folder.mkdir(parents=True)
        labels, population = self.canaries.tables()
        labels.write_parquet(self.folder / "labels.parquet")
        population.write_parquet(self.folder / "population.parquet")
        (self.folder / LIST).write_text("\n".join(CATEGORIES), encoding="utf-8")
        (self.folder / CONFIG).write_text(self._config(), encoding="utf-8")

    def copied(self, name: str) -> Self:
        """Return the same machine as it is now, in another place."""
        other = copy(self)
        other.folder = self.folder.with_name(name)
        copytree(self.folder, other.folder)
        return other

    def exchange_labels(self) -> None:
        """Give every event another label."""
        labels, _ = self.canaries.mirrored(LOWER, UPPER).tables()
        labels.write_parquet(self.folder / "labels.parquet")

    @property
    def manifest(self) -> Manifest:
        """Of the release that lies in the store."""
        (path,) = self.folder.glob(f"store/releases/{self.data_set}/*/{MANIFEST_FILE}")
        return Manifest.parse(path.read_bytes())

    @property
    def log(self) -> Path:
        """Of the server."""
        return self.folder / "serve.log"

    @property
    def secrets(self) -> Integers:
        """(n,) in the order of the population."""
        return self.canaries.secrets

    @property
    def in_row_order(self) -> Integers:
        """(n,) secrets in the order of a release's rows: by hashed key."""
        hashed = hash_keys(self.canaries.keys, read_secret(self.files.join_secret))
        return self.secrets[np.argsort(np.frombuffer(hashed, dtype="S16"), kind="stable")]

    @property
    def categories(self) -> Integers:
        """(n,) numbers of the events' categories."""
        return categories(self.secrets.size)

    def release(self, *arguments: str) -> str | None:
        """Run ``label-party release``; returns the refusal's line, or None for success."""
        command = ["release", "--config", CONFIG, "--quiet", *arguments]
        try:
            run_party(LABEL_PROGRAM, command, self.folder, self.folder / "release.log")
        except StageFailed as failure:
            return str(failure)
        return None

    def answer(self, *query: str) -> dict[str, Any]:
        """Release an answer of ε = ``QUERY_EPSILON`` by a further command; what it releases."""
        out = f"{query[0]}.json"
        words = [*query, "--config", CONFIG, "--quiet", "--yes", f"--epsilon={QUERY_EPSILON}"]
        run_party(LABEL_PROGRAM, [*words, f"--out={out}"], self.folder, self.folder / "query.log")
        return dict(json.loads((self.folder / out).read_bytes()))

    @property
    def spent(self) -> Fraction:
        """ε that is charged in all, by ``label-party budget --json``."""
        log = self.folder / "budget.log"
        log.unlink(missing_ok=True)
        run_party(LABEL_PROGRAM, ["budget", "--config", CONFIG, "--json"], self.folder, log)
        charges = (account["spent"] for account in json.loads(log.read_text(encoding="utf-8")))
        return sum((parse_rational(spent["epsilon"]) for spent in charges if spent), Fraction(0))

    @contextmanager
    def serving(self) -> Iterator[Connection]:
        """Run ``label-party serve``; yields how to reach it."""
        port_file = self.folder / "port"
        port_file.unlink(missing_ok=True)
        command = ["serve", "--config", CONFIG, "--port-file", str(port_file)]
        with serving(command, self.folder, self.log, port_file) as port:
            yield Connection(
                address=f"127.0.0.1:{port}",
                data_set=self.data_set,
                ca=self.files.authority,
                certificate=self.files.feature_party_certificate,
                private_key=self.files.feature_party_key,
                server_name=LABEL_PARTY,
            )

    def _config(self) -> str:
        settings, files, (name, *others) = self.settings, self.files, self.canaries.names
        ends = f"lower = {LOWER}\nupper = {UPPER}\n"
        labels = f'[domain]\n{ends}[randomizer]\nname = "{settings.randomizer}"\n'
        if others:
            each = (f'[[label]]\nname = "{label}"\n{ends}' for label in (name, *others))
            labels = "".join(each)

        def path(file: Path) -> str:
            return json.dumps(str(file.absolute()))

        return f"""
[data]
labels = "labels.parquet"
population = "{self.population}"
key = "key"
data_set = "{self.data_set}"
epoch = "1"
[privacy]
epsilon = {settings.epsilon}
total_epsilon = {settings.epsilon + self.further}
[keys]
secret_file = {path(files.join_secret)}
[store]
directory = "store"
[server]
listen = "127.0.0.1:0"
certificate = {path(files.label_party_certificate)}
private_key = {path(files.label_party_key)}
client_ca = {path(files.authority)}
client_san = "{FEATURE_PARTY}"
requests_per_minute = 1_000_000
grace_seconds = 2.0
{labels}{self.offer}"""


HISTOGRAMS, HISTOGRAM_ROWS = 12, 1000  # releases of few events, whose histograms' noise is tested
QUERIED = 4
"""How many of these answer further queries, too: where one cell has no noise, by chance as often in
none of a million audits."""


class Worlds(NamedTuple):
    """Labels parties on one machine.

    The first three are over one population: with all labels, with one less (it is the lower bound
    then), and a copy of the first from before it ran.
    """

    whole: World
    less: World
    again: World
    questioned: World  # of one label, which answers questions
    small: list[World]  # of few events, all alike


def categories(events: int) -> Integers:
    """(n,) numbers of categories, which events have in turn."""
    return np.arange(events) % len(CATEGORIES)


def canaries_of(secrets: Integers, names: Sequence[str] = ("label",)) -> Canaries:
    """Canaries with (n,) secret bits and categories."""
    category = np.array(CATEGORIES)[categories(secrets.size)]
    return at_the_ends(secrets, names, LOWER, UPPER, {"category": category})


def make_worlds(folder: Path, settings: CanarySettings, offer: str = "") -> Worlds:
    """Make certificates, data sets and configurations; ``offer`` is of the one that answers."""
    files = write_certificates(folder / "certificates", days=2)
    name = NAMES[int(draw_secrets(1, len(NAMES))[0])]
    secrets = draw_secrets(settings.rows)
    secrets[0] = 1  # the canary: at the upper bound, or without a label
    made = canaries_of(secrets, settings.names)
    single = replace(made, names=made.names[:1], labels=made.labels[:, :1])
    few = canaries_of(draw_secrets(HISTOGRAM_ROWS), settings.names)
    whole = World(settings, folder / "whole", files, made, data_set=name)
    less = World(settings, folder / "less", files, made.without(0), data_set=name)
    questioned = World(settings, folder / "asked", files, single, offer, name, further=10)
    small = World(settings, folder / "small", files, few, data_set=name, further=1)
    copies = [small.copied(f"small{at}") for at in range(1, HISTOGRAMS * settings.effort)]
    return Worlds(whole, less, whole.copied("again"), questioned, [small, *copies])
