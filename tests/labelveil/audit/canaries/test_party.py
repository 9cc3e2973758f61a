"""The checks of a labels party's answers: doubles that misbehave, and the real software."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from labelveil.audit.attacks import implementation
from labelveil.audit.canaries import worlds
from labelveil.audit.canaries.endpoint import (
    REQUESTS,
    SERVED,
    Fetched,
    Part,
    Refusal,
    Served,
    WrongRequest,
    fetched_certificate,
    refusals_check,
    resume_check,
    sizes_check,
)
from labelveil.audit.canaries.party import (
    CANARY_STEPS,
    ONE_LABEL,
    Observation,
    audit_party,
    cold_start_check,
    latency_check,
    log_kinds,
    shown_by,
)
from labelveil.audit.canaries.worlds import make_worlds
from labelveil.audit.settings import CanarySettings
from labelveil.audit.verdict import Verdict
from labelveil.commands.cli import app
from labelveil.common.errors import ConnectionFailed
from labelveil.common.release.manifest import Manifest
from tests.common.release.releases import make_release
from tests.labelveil.audit.conftest import (
    WriteRelease,
    in_key_order,
    other_population,
    without_power,
)
from tests.labelveil.audit.twins import samplers as twins
from tests.programs import fork_party


@cache
def made(rows: int) -> tuple[Manifest, bytes, bytes]:
    return in_key_order(*make_release(rows))


RIGHT = {name: Refusal(wrong.status, "no") for name, wrong in REQUESTS.items()}


@dataclass
class Double:
    """An endpoint in this process; a fault replaces one of its parts."""

    rows: int = 300
    change: Callable[[bytes], bytes] = lambda codes: codes
    refusals: dict[str, Refusal] = field(default_factory=lambda: RIGHT)
    work: int = 0
    calls: int = 0

    def fetch(self, start_row: int = 0, chunk: int = 0) -> Fetched:
        self.calls += 1
        twins.CLOCK.work(self.work)
        manifest, keys, codes = made(self.rows)
        codes = self.change(codes)
        data = manifest.to_bytes()
        step = chunk // 17 or self.rows
        parts = tuple(
            Part(keys[16 * at : 16 * (at + step)], codes[at : at + step])
            for at in range(start_row, self.rows, step)
        )
        return Fetched(data, hashlib.sha256(data).digest(), parts)

    def refuse(self, wrong: WrongRequest) -> Refusal:
        return next(self.refusals[name] for name, other in REQUESTS.items() if other is wrong)


def shown(end: Double) -> Observation:
    return shown_by(end, end.fetch())


def whole() -> Fetched:
    return Double().fetch()


def flip_once() -> Callable[[bytes], bytes]:
    """Codes that are drawn again from the second request on."""
    seen: list[int] = []

    def change(codes: bytes) -> bytes:
        seen.append(1)
        return codes if len(seen) == 1 else bytes(1 - min(code, 1) for code in codes)

    return change


def test_a_right_endpoint_passes() -> None:
    end = Double()
    whole = end.fetch()
    found = [*SERVED.checks(Served(end, whole)), *ONE_LABEL.checks(shown(end), shown(Double()))]
    assert {check.verdict for check in found} == {Verdict.PASS}
    assert len(found) == 8
    assert fetched_certificate(whole).passed


class Gone(Double):
    """Nobody is there any more."""

    def fetch(self, start_row: int = 0, chunk: int = 0) -> Fetched:
        raise ConnectionFailed("the labels party answered UNAVAILABLE")


def test_a_server_that_stops_answering_ends_in_verdicts() -> None:
    verdicts = {check.name: check.verdict for check in SERVED.checks(Served(Gone(), whole()))}
    wrong = {name for name, verdict in verdicts.items() if verdict is Verdict.FAIL}
    assert wrong == set(verdicts) - {"refusals"}


def test_a_second_start_with_the_same_noise_is_caught() -> None:
    """Of the rows, or of the histogram alone."""
    first = Double().fetch()
    noisy = Manifest.parse(first.manifest)
    prior = noisy.prior.model_copy(
        update={"noisy_counts": [n + 1 for n in noisy.prior.noisy_counts]}
    )
    other = noisy.model_copy(update={"priors": [prior]}).to_bytes()
    fresh = tuple(replace(part, codes=part.codes[::-1]) for part in first.parts)
    for second, verdict in (
        (replace(first, manifest=other, parts=fresh), Verdict.PASS),
        (replace(first, manifest=other), Verdict.FAIL),
        (replace(first, parts=fresh), Verdict.FAIL),
    ):
        assert cold_start_check(np.zeros(0), first, second).verdict is verdict


def test_fresh_noise_at_a_resumed_fetch_is_caught() -> None:
    end = Double(change=flip_once())
    assert resume_check(Served(end, end.fetch())).verdict is Verdict.FAIL


@pytest.mark.parametrize("place", [0, -1])
def test_a_size_that_says_something_is_caught(place: int) -> None:
    """The same in both of two worlds, so that comparing them would show nothing."""
    end = Double()
    whole = end.fetch()
    parts = list(whole.parts)
    parts[place] = Part(parts[place].keys, parts[place].codes + b"\0")
    padded = replace(whole, parts=tuple(parts))
    assert sizes_check(Served(end, whole)).verdict is Verdict.PASS
    assert sizes_check(Served(end, padded)).verdict is Verdict.FAIL


def test_wrong_refusals_are_caught() -> None:
    answers = Double().refusals | {"another data set": Refusal("NOT_FOUND", "no")}
    end = Double(refusals=answers)
    assert refusals_check(Served(end, end.fetch())).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("neighbour", "failed"),
    [
        (Double(rows=299), {"id set", "row order"}),
        (
            Double(refusals={**RIGHT, "a short digest": Refusal("INVALID_ARGUMENT", "label is 3")}),
            {"refusals do not depend on labels"},
        ),
    ],
)
def test_what_one_label_changes_is_seen(neighbour: Double, failed: set[str]) -> None:
    checks = ONE_LABEL.checks(shown(Double()), shown(neighbour))
    assert {check.name for check in checks if check.verdict is Verdict.FAIL} == failed


def test_logs_are_compared_but_for_times_and_ports(tmp_path: Path) -> None:
    line = '{"time": "%s", "peer": "127.0.0.1:%s", "event": "fetch", "rows": %s}\n'
    logs = [tmp_path / name for name in ("whole", "same", "less")]
    for log, values in zip(logs, [("1", 7, 300), ("2", 8, 300), ("1", 7, 299)], strict=True):
        log.write_text(line % values + "seconds=0.3 listening\n")
    whole, same, less = (Observation(log=log_kinds(log)) for log in logs)
    assert {check.verdict for check in ONE_LABEL.checks(whole, same)} == {Verdict.PASS}
    assert ONE_LABEL.checks(whole, less)[-1].verdict is Verdict.FAIL


def test_latency_of_two_worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(implementation, "clock", twins.CLOCK)
    assert latency_check(Double(), Double(work=500), 1.0, 200).verdict is Verdict.FAIL
    assert latency_check(Double(), Double(), 1.0, 200).verdict is Verdict.PASS


def test_the_command_line(write: WriteRelease, tmp_path: Path) -> None:
    runner, out = CliRunner(), tmp_path / "audit"
    arguments = ["audit", "certificate", str(write()), "--out", str(out)]
    done = runner.invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert json.loads((out / "audit.json").read_text())["verdict"] == "pass"
    assert "<h1>All 14 claims" in (out / "audit.html").read_text()
    arguments[2] = str(write(other_population))
    done = runner.invoke(app, arguments)
    assert done.exit_code == 1
    assert "population digest" in done.output


@pytest.mark.parametrize("command", ["certificate", "mechanism", "party", "inference"])
def test_help_has_examples(command: str) -> None:
    done = CliRunner().invoke(app, ["audit", command, "--help"])
    assert done.exit_code == 0
    assert "Example" in done.output
    assert "labelveil audit" in done.output


@pytest.mark.slow
def test_the_real_labels_party(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worlds, "run_party", fork_party)
    plan = CanarySettings(rows=4000, randomizer="randomized-thresholds")
    steps: list[str] = []
    audit = audit_party(None, plan, steps.append)
    assert len(steps) == len(set(steps)) == CANARY_STEPS
    assert [(c.name, c.found) for c in audit.checks if c.verdict is not Verdict.PASS] == []
    assert len(audit.checks) == 48  # eight of sums
    assert without_power(audit) == []


@pytest.mark.slow
def test_a_running_labels_party(tmp_path: Path) -> None:
    settings = CanarySettings(rows=1000, randomizer="rr-on-bins")
    world = make_worlds(tmp_path / "canaries", settings).whole
    assert world.release() is None
    with world.serving() as connection:
        audit = audit_party(connection, None)
    assert [(c.name, c.found) for c in audit.checks if c.verdict is Verdict.FAIL] == []
    undecided = {c.name for c in audit.checks if c.verdict is Verdict.NOT_CHECKABLE}
    assert {
        "cold starts differ",
        "nothing else was released",
        "the codes were drawn by this channel",
    } <= undecided
    assert audit.fields
    assert without_power(audit) == []
    assert {"refusals", "unknown clients are refused", "exact ε of the labels"} <= {
        check.name for check in audit.checks
    }
