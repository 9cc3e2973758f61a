"""The part that matters: what the main commands need, with the options left out.

``python -m tests.core`` prints it by room, with the lines, and every door: a module of the core
that imports an option outside the places where most are wired. It also runs a job with its
defaults, and prints what either party's commands loaded for it, options and all.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl

from tests.imports import house_name, module_graph, modules

COMMANDS = {
    "label-party release": "label_party.commands.release",
    "label-party serve": "label_party.commands.serve",
    "feature-party run": "feature_party.commands.run",
    "feature-party predict": "feature_party.commands.predict",
}

OPTIONS = {
    "watch and drift": (
        "label_party.commands.watch",
        "label_party.release.prior_in_force",
        "label_party.release.watch",
        "common.mechanisms.interactive",
    ),
    "top-k": ("label_party.queries.top_k", "common.mechanisms.selection"),
    "synthetic tables": ("label_party.queries.synthetic_table", "common.mechanisms.synthesis"),
    "evaluation sessions": (
        "label_party.queries.evaluation",
        "label_party.server.evaluation_service",
        "feature_party.client.questions",
        "feature_party.commands.evaluate",
        "common.mechanisms.paired_gain",
        "common.wire.evaluation_pb2",
        "common.wire.evaluation_pb2_grpc",
    ),
    "public priors": ("label_party.release.public_prior",),
    "submitted populations": (
        "label_party.events.submitted",
        "label_party.server.submission",
        "feature_party.client.submission",
        "feature_party.commands.submit",
    ),
    "rounds": (
        "label_party.release.answer",
        "feature_party.learning.questions",
        "feature_party.pipeline.rounds",
        "common.randomizers.message.questions",
        "common.release.question",
    ),
    "several labels parties": (
        "feature_party.learning.several_releases",
        "feature_party.learning.sources",
    ),
    "sums over groups": (
        "common.mechanisms.group_sums",
        "common.release.sums",
        "feature_party.groups",
        "feature_party.pipeline.score",
        "feature_party.pipeline.sums",
        "feature_party.pipeline.sums_learning",
    ),
    "several labels": (
        "common.randomizers.design.joint",
        "common.randomizers.design.mixture",
        "common.randomizers.message.division",
        "label_party.release.plan_divisions",
    ),
    "shards and workers": (
        "feature_party.training.distributed",
        "feature_party.training.encoded_shards",
        "feature_party.training.streamed",
    ),
    "Spark": ("common.engine.spark",),
    "databases and object stores": (
        "label_party.sources.addresses",
        "label_party.sources.databases",
        "label_party.sources.object_stores",
        "label_party.sources.query_columns",
        "label_party.sources.refusals",
    ),
    "randomizers beside the default": (
        "common.randomizers.additive",
        "common.randomizers.binning",
        "common.randomizers.rp_with_prior",
        "common.randomizers.thresholds",
        "common.randomizers.two_point",
        "common.randomizers.unbiased",
    ),
    "trees, ridges and linear models": (
        "feature_party.model.random_features",
        "feature_party.ridge",
        "feature_party.training.kernel",
        "feature_party.model.trees",
        "feature_party.training.linear",
        "feature_party.training.quick",
        "feature_party.training.trees",
    ),
    "export": (
        "feature_party.commands.export",
        "feature_party.export",
        "feature_party.notebook",
    ),
    "guarantees beside pure ε": (
        "common.guarantees.accountant",
        "common.guarantees.bounded_range",
        "common.guarantees.calibration",
        "common.guarantees.composition",
        "common.guarantees.conversion",
        "common.guarantees.gaussian",
        "common.guarantees.pld",
        "common.guarantees.renyi",
        "common.guarantees.subsampling",
    ),
    "planning": (
        "common.randomizers.design.assessment",
        "label_party.commands.plan",
        "label_party.release.plan",
        "label_party.release.prior_knowledge",
    ),
    "backups": (
        "label_party.commands.backup",
        "label_party.store.backup",
        "label_party.store.restore",
    ),
    "withdrawals": ("label_party.commands.withdraw", "label_party.store.withdrawal"),
    "doctor": (
        "common.config.examination",
        "feature_party.commands.doctor",
        "label_party.commands.doctor",
    ),
    "tracing": ("label_party.monitoring.tracing",),
    "probes, metrics and status": (
        "label_party.commands.status",
        "label_party.monitoring.status",
        "label_party.server.http_probes",
        "label_party.store.account",
    ),
    "reflection": ("label_party.server.reflection_service",),
    "estimates of error": ("feature_party.evaluation",),
    "report": ("feature_party.report", "common.report"),
}
"""Modules and packages of each option."""

BY_DEFAULT = frozenset(
    {
        "databases and object stores",
        "estimates of error",
        "evaluation sessions",
        "guarantees beside pure ε",
        "planning",
        "probes, metrics and status",
        "public priors",
        "randomizers beside the default",
        "reflection",
        "report",
        "rounds",
        "several labels",
        "several labels parties",
        "shards and workers",
        "submitted populations",
        "sums over groups",
        "tracing",
        "trees, ridges and linear models",
        "watch and drift",
    }
)
"""Options of which a job with its defaults loads a module; ``tests/test_core.py`` runs one."""

ROOTS = (
    "label_party.commands",
    "label_party.config.data",
    "label_party.config.sections",
    "label_party.events.intention",
    "label_party.events.open",
    "label_party.release.run",
    "label_party.server.run",
    "feature_party.commands",
    "feature_party.config.sections",
    "feature_party.pipeline",
    "feature_party.model.model",
    "feature_party.training.prepare",
    "feature_party.training.run",
    "common.engine.local",
    "common.guarantees",
    "common.randomizers",
    "common.randomizers.message.plan",
    "common.release.stated_message",
    "common.release.sections",
)
"""Where options are wired: a package stands for its modules, but those of ``common`` for
themselves."""


def within(name: str, package: str) -> bool:
    """Return whether a module is this package, or in it."""
    return f"{name}.".startswith(f"{package}.")


def option_of(name: str) -> str | None:
    """Return the option that a module belongs to."""
    for option, parts in OPTIONS.items():
        if any(within(name, part) for part in parts):
            return option
    return None


def is_root(name: str) -> bool:
    """Return whether options are wired in this module."""
    if within(name, "common"):
        return name in ROOTS
    return any(within(name, root) for root in ROOTS)


@cache
def core(command: str) -> frozenset[str]:
    """Return what a command imports, lazily or not, but for options and what only they need."""
    graph, found, waiting = module_graph(), set[str](), [COMMANDS[command]]
    while waiting:
        name = waiting.pop()
        if name not in found and option_of(name) is None:
            found.add(name)
            waiting += graph[name]
            if "." in name:
                waiting.append(name.rpartition(".")[0])
    return frozenset(found)


def whole() -> frozenset[str]:
    """Return the cores of all main commands together."""
    return frozenset().union(*map(core, COMMANDS))


def doors() -> dict[str, list[str]]:
    """Return, for each option, which modules of the core import it."""
    found: dict[str, set[str]] = {option: set() for option in OPTIONS}
    for name in whole():
        for target in module_graph()[name]:
            if (option := option_of(target)) is not None:
                found[option].add(name)
    return {option: sorted(names) for option, names in found.items()}


def open_doors() -> dict[str, list[str]]:
    """Return the doors that stand in the way: those outside the places where options are wired."""
    inside = {
        option: [name for name in names if not is_root(name)] for option, names in doors().items()
    }
    return {option: names for option, names in inside.items() if names}


def loaded_by_default() -> dict[str, frozenset[str]]:
    """Run a job with its defaults, a release of 600 events and a model of it, and return which of
    our modules each party's commands loaded."""
    rng, rows = np.random.default_rng(0), 600
    x = rng.normal(size=rows)
    label = np.clip(np.round(5 + 2 * x + rng.normal(size=rows)), 0, 10)
    table = pl.DataFrame({"id": [f"e{i}" for i in range(rows)], "x": x, "y": label})
    with TemporaryDirectory() as folder:
        table.drop("x").write_csv(f"{folder}/labels.csv")
        table.drop("y").write_csv(f"{folder}/features.csv")
        command = [sys.executable, "-m", "labelveil", "simulate", "--no-nonprivate"]
        command += ["--labels", "labels.csv", "--features", "features.csv", "--out", "out"]
        command += ["--key", "id", "--label", "y", "--lower", "0", "--upper", "10"]
        command += ["--epsilon", "2", "--ask", "codes", "--rounds", "1"]
        # every Python then says on standard error what it imports: parties' goes to their logs
        says = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
        subprocess.run(command, check=True, cwd=folder, env=says, capture_output=True)
        logs = sorted(Path(folder, "out", "logs").glob("*.log"))
        return {log.stem: _imported(log.read_text("utf-8")) for log in logs}


def _imported(log: str) -> frozenset[str]:
    names = re.findall(r"^import time: .*\| +(labelveil[\w.]*)$", log, re.MULTILINE)
    return frozenset(map(house_name, names)) & modules().keys()


@cache
def lines(name: str) -> int:
    """Return how long a module is."""
    return len(modules()[name].read_text("utf-8").splitlines())


def page() -> str:
    """Return the tables of the architecture page."""
    rooms: dict[str, list[str]] = {}
    for name in sorted(whole()):
        package, room, *rest = [*name.split("."), ""]
        rooms.setdefault(f"{package}.{room}", []).append(".".join(filter(None, rest)))
    shown = ["| room | modules to read |", "|---|---|"]
    flat = [name for name, rest in rooms.items() if not any(rest) and not name.endswith(".")]
    for room, rest in rooms.items():
        if any(rest):
            shown.append(f"| `{room}` | {' · '.join(filter(None, rest))} |")
    shown.append(f"| modules alone | {' · '.join(f'`{name}`' for name in flat)} |")
    shown += ["", "| option | by default | where it is | imported by |", "|---|---|---|---|"]
    for option, names in doors().items():
        parts = " · ".join(f"`{part}`" for part in OPTIONS[option] if part in modules())
        by = " · ".join(f"`{name}`" for name in names)
        default = "loaded" if option in BY_DEFAULT else ""
        shown.append(f"| {option} | {default} | {parts} | {by or 'nothing in the core'} |")
    return "\n".join(shown)


if __name__ == "__main__":
    for command in COMMANDS:
        print(f"{sum(map(lines, core(command))):7,} {command}")
    print(f"{sum(map(lines, whole())):7,} together")
    rooms = Counter[str]()
    for name in whole():
        rooms[".".join(name.split(".")[:2])] += lines(name)
    for room, count in sorted(rooms.items()):
        print(f"  {count:6,} {room}")
    for option, names in open_doors().items():
        left = sum(lines(name) for name in modules() if option_of(name) == option)
        print(f"{left:7,} left out: {option}, but asked for by {', '.join(names)}")
    job = loaded_by_default()
    for command, loaded in job.items():
        print(f"{sum(map(lines, loaded)):7,} loaded by default: {command}")
    everything = frozenset().union(*job.values())
    print(f"{sum(map(lines, everything)):7,} together, in {len(everything)} modules of", end=" ")
    print(f"{len(modules())} with {sum(map(lines, modules())):,} lines")
