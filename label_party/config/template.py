"""The commented configuration file that ``label-party init`` writes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import ConfigError

_TEMPLATE = """\
# Configuration of the labels party. Relative paths are relative to the working directory.
# Every key can be overridden: label-party release --set privacy.epsilon=0.5

[data]
# One label per event: a file, CSV (with a header) or Parquet; an object (s3://, gs://, az://,
# https://, ending in .csv, .tsv or .parquet); or a database (sqlite:///file.db,
# postgresql://user@host/name). Addresses hold no credentials.
labels = {labels}
# A database's query: one SELECT with the columns named below.
# labels_query = "SELECT click_id AS key, amount AS label FROM sales"
# Credentials come from the environment (PGPASSFILE, PGSERVICE, AWS_ACCESS_KEY_ID, …) or from a file
# that you alone can read: for PostgreSQL a password file, host:port:database:user:password; for
# objects TOML lines such as aws_access_key_id = "…", as Polars names them.
# credentials_file = "certificates/credentials"
# The same for a list of every event that both parties know, labelled or not, with the same key.
# An event without a label gets `missing` before randomization, so that nobody learns which events
# have one. Default: the events in `labels` are the population. "submitted": the features party
# submits its list of keys while `label-party serve` runs, and gets labels in that order.
{population}
# population_query = "SELECT click_id AS key FROM landings"
# Column with the event's key: text, or whole numbers. In CSV files keys are taken as text.
key = {key}
# Column with the label: a number. Empty, null and NaN mean that the event has no label.
label = {label}
# Name of the data set; budgets belong to it. Up to 64 letters, digits, dots, dashes, underscores.
data_set = {data_set}
# Name of this release within the data set. One release is built per epoch, once and for ever.
epoch = {epoch}
# Label of an event without one, in label units, within the domain.
# Default: 0, or `lower` if 0 lies outside the domain.
# missing = 0.0
# For `label-party watch`: column of dates (ISO 8601, with or without a time) whose days are the
# epochs. Or give each epoch its own files, with {{epoch}} in the names of `labels`, `population`.
# date = "sold_at"
# What to do with several labels for one key: "refuse", "sum", "mean" or "last" (in file order).
duplicates = "refuse"

[domain]
# Public bounds of the labels, in label units. Labels outside are clipped to them. Choose them from
# what everybody knows about the labels, never by looking at the labels.
lower = {lower}
upper = {upper}
# Points on which labels are placed: "auto" (from bounds, number of events and epsilon alone),
# "step", "edges" or "log".
grid = "auto"
# grid = "step": distance between points, in label units, above 0.
# step = 1.0
# grid = "edges": all points, ascending, from lower to upper.
# edges = [0.0, 1.0, 10.0]
# grid = "log": number of points (at least 2), dense near lower, and the label distance from lower
# up to which they are nearly even.
# points = 200
# scale = 1.0

[privacy]
# What this release may reveal about the labels of one privacy unit: above 0, at most 40. Useful
# values lie between 0.1 and 8; smaller is more private.
epsilon = {epsilon}
# What all releases of the data set together may spend. Default: epsilon, that is one release.
{total_epsilon}
# Failure probability that all releases together may have, far below 1 / number of events.
# At 0 only releases with a pure epsilon fit (labels, top-k); `top-k --stable` needs more.
# Half of it pays for the releases' own delta, half for adding up different kinds of guarantees.
total_delta = 0.0
# Whose labels are protected: "record" (one event) or "user" (all events of one user).
unit = "record"
# unit = "user": column with the user of each event (in `population` if there is one, else in
# `labels`), and how many events of one user keep their label; the others get `missing`.
# user = "user_id"
# max_records_per_user = 5
# How epochs add up: "additive" (against total_epsilon and total_delta), or "disjoint" (no event
# occurs in two epochs, and each epoch may spend the whole total). Per user it is "additive".
epochs = "additive"
# The largest share of epsilon spent on the noisy histogram of all labels, between 0 and 1.
prior_share = 0.125

[randomizer]
# How labels are randomized; "auto" chooses the best for training, `labelveil compare` compares.
name = {randomizer}
# Loss of the regression: "squared", "absolute" or "poisson".
loss = {loss}
# Options of the randomizer.
# [randomizer.options]

[keys]
# Secret that both parties share and hash keys with: 64 hexadecimal digits, a new one for each
# partner. `label-party init --new-secret` makes one, and `labelveil certificates` does for tests.
secret_file = {secret_file}
# Ed25519 private key (PEM, mode 0600) that `label-party release` signs the manifest with, so that
# the features party can pin the public key. `label-party init --new-signing-key` makes a pair, and
# `labelveil certificates --signing-key` does for tests. The server does not need it.
{signing_key}

[evaluation]
# Whether the features party may have a model's predictions compared with true labels, in numbers:
# `feature-party evaluate --ask`. All answers of an epoch are charged at the first question, from
# which on the server keeps the labels in memory, 8 bytes an event; a question takes as much again.
offered = false
# What they may reveal together, on top of the release: above 0, at most 40.
epsilon = 0.5
# How many may come from true labels (the others confirm the estimate that was sent), and how many
# questions may be asked.
answers = 10
questions = 1000
# An estimate is confirmed if it is off by no more than about this share of `largest_loss`.
tolerance = 0.05
# "squared" or "absolute", and the most that one event counts for, in label units, squared or not:
# the smaller, the less noise. Default: what the domain allows.
loss = "squared"
# largest_loss = 100.0

[watch]
# `label-party watch` releases epochs as they arrive. The prior of the last one stays in force until
# a private test says that the labels have drifted from it; only then is a new one paid for.
# What one test may reveal: "auto" (what the tolerance needs, at most a quarter of what a prior
# costs), or a number above 0.
epsilon = "auto"
# Largest distance of two distribution functions, 0 … 1, that does not count as drift.
tolerance = 0.05
# Probability, about, with which an epoch without drift pays for a prior all the same.
false_alarm = 0.01
# Where events or users come again in later epochs, tests add up. Charge them all together instead,
# once, as a session that ends at so many hits; needs total_delta.
# hits = 5
# Seconds between two looks for new epochs, above 0.
interval = 3600.0

[store]
# Directory of the releases and of the ledger, on a local disk. Back it up: it is the proof of what
# has been spent.
directory = {directory}

[engine]
# Where a release is computed: "local", with so many worker processes, or "spark" (pip install
# 'labelveil[spark]'), whose workers must see the same files under the same names. The released
# bytes do not depend on it.
name = "local"
workers = 1
# For "spark": the master (as spark-submit knows it if left out), and into how many tasks work is
# cut at a time (0: as many as there are).
# master = "spark://head:7077"
# partitions = 0

[server]
# Address to listen on, host:port; port 0 lets the system choose one.
listen = {listen}
# The server's certificate (with its chain) and private key, PEM. They are read again when they
# change.
certificate = {certificate}
private_key = {private_key}
# Certificate authority that signs clients' certificates, PEM.
client_ca = {client_ca}
# The one subject alternative name, a DNS name or a URI, whose certificate may fetch.
client_san = {client_san}
# Data sets that it may fetch. Default: data_set above.
# data_sets = ["conversions"]
# Several clients: instead of these two, each one's name with its data sets, in one line.
# clients = {{ "publisher.example" = ["conversions"], "spiffe://net.example/a" = ["installs"] }}
# Fetches and submissions that may run at the same time, 1 to 1024.
max_streams = 16
# Threads kept free for everything else, health checks above all, 2 to 256.
spare_threads = 8
# Largest message that a client may send, in bytes, 4096 to 67108864.
max_message_bytes = 4194304
# Most events in a population that a client submits, at least 1, and how many populations may wait
# for their releases, at least 1.
max_population_rows = 50000000
max_waiting_populations = 8
# Requests per minute that each client may make, at least 1.
requests_per_minute = 600
# Seconds without progress after which a fetch or a submission is ended, above 0.
stall_seconds = 120.0
# Seconds that running fetches get to finish when the server stops, at least 0.
grace_seconds = 30.0
# Whether authorized clients may ask for the service's description (gRPC reflection).
reflection = true
# Log lines: "text", "json" (one object a line), or "auto", which is text on a terminal and JSON
# elsewhere; "debug", "info", "warning" or "error".
log_format = "auto"
log_level = "info"

[observability]
# Plain HTTP for the operator alone: /livez, /readyz and /metrics (Prometheus). Anybody who reaches
# this address can read it. Leave it out for no HTTP at all.
listen = "127.0.0.1:9464"
# Whether calls are traced with OpenTelemetry (pip install 'labelveil[tracing]'); where traces go is
# said by the usual environment, OTEL_EXPORTER_OTLP_ENDPOINT above all.
tracing = false
"""

_DEFAULTS: dict[str, Any] = {
    "labels": "labels.csv",
    "population": None,
    "key": "key",
    "label": "label",
    "data_set": "labels",
    "epoch": "1",
    "lower": 0.0,
    "upper": 100.0,
    "epsilon": 1.0,
    "total_epsilon": None,
    "randomizer": "auto",
    "loss": "squared",
    "secret_file": "certificates/join.key",
    "signing_key": None,
    "directory": "label_store",
    "listen": "127.0.0.1:50051",
    "certificate": "certificates/label-party.pem",
    "private_key": "certificates/label-party.key",
    "client_ca": "certificates/ca.pem",
    "client_san": "feature-party",
}
_EXAMPLES = {
    "population": "population.csv",
    "signing_key": "certificates/signing.key",
    "total_epsilon": 1.0,
}


def render(values: Mapping[str, Any]) -> str:
    """Return the file's text with the main values filled in.

    Parameters
    ----------
    values
        Any of the names in the template; None means the default.
    """
    chosen = {key: values.get(key) for key in _DEFAULTS}
    filled = {}
    for key, default in _DEFAULTS.items():
        value = default if chosen[key] is None else chosen[key]
        if key in _EXAMPLES:
            # an optional key without a value stays in the file as a comment
            assigned = f"{key} = {_toml(_EXAMPLES[key] if value is None else value)}"
            filled[key] = f"# {assigned}" if value is None else assigned
        else:
            filled[key] = _toml(value)
    return _TEMPLATE.format(**filled)


def write(path: Path, text: str, *, force: bool = False) -> None:
    """Write the file; refuse to overwrite one unless told to."""
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if force else os.O_EXCL)
    try:
        descriptor = os.open(path, flags, 0o644)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise ConfigError(f"{path} exists already; pass --force to overwrite it") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


def _toml(value: Any) -> str:
    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, str):
        # a JSON string is a TOML basic string
        return json.dumps(value, ensure_ascii=False)
    return repr(float(value))
