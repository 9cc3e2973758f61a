"""What audits are told by their command lines, what they announce, and how they end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labelveil.audit.canaries import inference, party, score
from labelveil.audit.mechanism import run as mechanism
from labelveil.audit.mechanism.subject import CallableSubject, NamedSubject, SumsSubject
from labelveil.audit.verdict import UNSEEN, Audit, Check, Power, Verdict
from labelveil.commands.cli import main
from labelveil.commands.verdicts import VerdictOptions, announce, conduct, show
from labelveil.common.errors import ConfigError
from labelveil.common.release.table import write_release
from tests.commands import Result, RunCommand
from tests.common.release.releases import make_release

Ran = Callable[..., Result]


@pytest.fixture
def ran(run_command: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ran:
    """Run an audit in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: run_command(main, "audit", *arguments)


class Recorded:
    """In place of an audit: what it was given, and a verdict."""

    def __init__(self, verdict: Verdict = Verdict.PASS) -> None:
        self.given: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self._verdict = verdict

    def __call__(self, *given: Any, **named: Any) -> Audit:
        self.given.append((given, named))
        return Audit("kind", "subject", checks=[Check(self._verdict, "t", "f", name="one")])

    @property
    def last(self) -> tuple[Any, ...]:
        return self.given[-1][0]


def attacked(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    recorded = Recorded()
    monkeypatch.setattr(mechanism, "audit_mechanism", recorded)
    monkeypatch.setattr(mechanism, "mechanism_cost", lambda trial: 41.6)
    return recorded


def test_a_mechanism_is_attacked_as_its_options_say(
    ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = attacked(monkeypatch)
    done = ran("mechanism", "rr-on-bins")
    assert (done.code, done.err) == (0, "cost: about 42 s of CPU\n")
    trial = recorded.last[0]
    assert isinstance(trial.subject, NamedSubject)
    assert trial.subject.labels.tolist() == [*range(11)]
    assert (trial.subject.epsilon, trial.subject.loss, trial.grid_only) == (1.0, "squared", False)
    usual = trial.sizes
    ran("mechanism", "laplace", "--epsilon", "0.5", "--lower", "-2", "--upper", "2", "--points",
        "5", "--loss", "absolute", "--grid-only", "--effort", "3")  # fmt: skip
    trial = recorded.last[0]
    assert trial.subject.labels.tolist() == [-2, -1, 0, 1, 2]
    assert (trial.subject.epsilon, trial.subject.loss, trial.grid_only) == (0.5, "absolute", True)
    assert trial.sizes == usual.times(3) != usual
    ran("mechanism", "group-sums", "--points", "3")
    assert isinstance(recorded.last[0].subject, SumsSubject)
    ran("mechanism", "tests.nowhere:f", "--sums")
    assert isinstance(recorded.last[0].subject, SumsSubject)
    ran("mechanism", "tests.nowhere:f", "--points", "2", "--upper", "1")
    assert type(recorded.last[0].subject) is CallableSubject
    assert recorded.last[0].subject.labels.tolist() == [0, 1]


@pytest.mark.parametrize("subject", [["group-sums"], ["tests.nowhere:f", "--sums"]])
def test_a_sum_is_of_one_label(ran: Ran, subject: list[str]) -> None:
    assert "a sum is of one label" in ran("mechanism", *subject, "--also", "0:1").error


@pytest.mark.parametrize("ends", ["1:1", "nan:1", "0:inf", "-inf:0", "0:1:2", "x:1"])
def test_ends_of_a_further_label_are_two_numbers_apart(ran: Ran, ends: str) -> None:
    done = ran("mechanism", "tests.nowhere:f", "--also", ends)
    assert done.error == f"error: --also {ends!r} must be LOWER:UPPER, as in 0:1\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--epsilon", "0"], "--epsilon"),
        (["--points", "1"], "--points=1 must be"),
        (["--effort", "0.009"], "--effort=0.009 must be"),
        (["--effort", "1001"], "--effort=1001 must be"),
    ],
)
def test_claims_and_sizes_have_their_bounds(ran: Ran, options: list[str], said: str) -> None:
    assert said in ran("mechanism", "rr-on-bins", *options).error


def asked(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    recorded = Recorded()
    monkeypatch.setattr(party, "audit_party", recorded)
    monkeypatch.setattr(party, "canary_cost", lambda made: made.rows / 1000)
    return recorded


def test_canaries_are_made_where_no_address_is_given(
    ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And beside an address only where they are asked for."""
    recorded, local = asked(monkeypatch), "for labels parties on this machine"
    done = ran("party", "--rows", "1000", "--epsilon", "0.5")
    assert done.err == f"cost: about 1 s of CPU, {local}\n"
    connection, made, _ = recorded.last
    assert (connection, made.rows, made.epsilon, made.labels) == (None, 1000, 0.5, 1)
    done = ran("party", "--address", "a:1", "--data-set", "sales")
    assert done.err == f"cost: {party.RUNNING_COST}\n"
    connection, made, _ = recorded.last
    assert (connection.address, connection.data_set, made) == ("a:1", "sales", None)
    done = ran("party", "--address", "a:1", "--canaries")
    assert done.err == f"cost: {party.RUNNING_COST}; about 20 s of CPU, {local}\n"
    connection, made, _ = recorded.last
    assert connection is not None
    assert made is not None
    done = ran("party", "--labels", "2", "--quiet")
    assert (done.code, done.out, done.err) == (0, "", "")
    assert recorded.last[1].names == ["label", "label2"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rows", "999"], "--rows 999 must be at least 1000: fewer canaries show nothing"),
        (["--labels", "2", "--randomizer", "laplace"], "--randomizer laplace is of one label"),
        (["--no-canaries"], "--no-canaries without --address leaves nothing to audit"),
        (["--epsilon", "-1"], "--epsilon"),
        (["--labels", "9"], "--labels=9 must be"),
        (["--effort", "101"], "--effort=101 must be"),
    ],
)
def test_canaries_that_show_nothing_are_refused(ran: Ran, options: list[str], said: str) -> None:
    assert said in ran("party", *options).error


def test_steps_of_a_progress_bar_are_those_that_run(
    ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a running party, of canaries, and of both together."""
    asked(monkeypatch)
    seen: list[int] = []
    import labelveil.commands.audit as command

    monkeypatch.setattr(command, "conduct", lambda name, steps, *rest: seen.append(steps))
    for options in (["--address", "a:1"], [], ["--address", "a:1", "--canaries"]):
        ran("party", *options)
    running, canaries = party.RUNNING_STEPS, party.CANARY_STEPS
    assert seen == [running, canaries, running + canaries]
    assert running == 2 + len(party.SERVED) + len(party.NOT_CHECKABLE)


def test_files_of_a_run_lie_in_its_folder_unless_they_are_named(
    ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = Recorded(Verdict.FAIL)
    monkeypatch.setattr(inference, "audit_inference", recorded)
    done = ran("inference", "run", "--release", "other", "--canaries", "planted.parquet")
    assert done.err == (
        "cost: about 2 s of CPU; nothing leaves this machine\nerror: 1 of 1 checks failed: one\n"
    )
    assert done.code == 1
    files = recorded.last[0]
    assert (str(files.release), str(files.canaries)) == ("other", "planted.parquet")
    found = {name: str(getattr(files, name)) for name in ("predictions", "features", "truth")}
    assert found == {
        "predictions": "run/predictions.parquet",
        "features": "run/feature_party/features.parquet",
        "truth": "run/truth/labels.parquet",
    }
    assert str(files.secret) == "run/certificates/join.key"
    ran("inference", "run")
    assert (str(recorded.last[0].release), recorded.last[0].canaries) == ("run/release", None)


def written(folder: Path, epoch: str) -> Path:
    manifest, keys, codes = make_release(50)
    manifest = manifest.model_copy(update={"epoch": epoch})
    write_release(folder / epoch, manifest.to_bytes(), keys, codes)
    return folder / epoch


def test_a_certificate_is_of_a_release_or_of_a_folder_of_them(ran: Ran, tmp_path: Path) -> None:
    local = "and 1 s for a million rows; nothing leaves this machine"
    one = written(tmp_path / "releases", "1")
    done = ran("certificate", str(one), "--json")
    assert done.err.startswith(f"cost: about 2 s of CPU, {local}\n")
    found = json.loads(done.out)
    assert found == json.loads((tmp_path / "audit" / "audit.json").read_text())
    assert (found["kind"], found["subject"]) == ("certificate", "release clicks · 1")
    for epoch in ("2", "3"):
        written(tmp_path / "releases", epoch)
    done = ran("certificate", str(tmp_path / "releases"), "--out", "all")
    assert done.err.startswith(f"cost: about 4 s of CPU, {local}\n")
    found = json.loads((tmp_path / "all" / "audit.json").read_text())
    assert found["subject"] == "3 epochs of clicks"
    assert done.out.endswith("report: all/audit.html\n")
    assert (tmp_path / "all" / "audit.html").is_file()


def plant(ran: Ran, *options: str) -> Any:
    ends = ["--lower", "0", "--upper", "400", "--events", "1000", "--folder", "c"]
    return json.loads(ran("canaries", "plant", *ends, *options, "--json").out)


def test_planting_says_what_to_give_and_changes_nothing_again(ran: Ran, tmp_path: Path) -> None:
    first = plant(ran)
    assert first == {"planted": True, "events": 1000, "folder": "c", "partner": first["partner"]}
    given = {path: path.read_bytes() for path in Path(first["partner"]).iterdir()}
    assert {path.name for path in given} == {"labels.parquet", "labels-population.parquet"}
    assert plant(ran) == {**first, "planted": False}
    assert {path: path.read_bytes() for path in Path(first["partner"]).iterdir()} == given
    ends = ["--lower", "0", "--upper", "400", "--events", "1000", "--folder", "c"]
    lines = ran("canaries", "plant", *ends).out.splitlines()
    assert lines[0] == "1,000 canaries were planted before in c"
    assert "with label from 0 to 400 and duplicates missing; keep all else" in lines[1]
    assert lines[2].endswith(
        "labelveil audit canaries score c --address HOST:PORT --data-set NAME --secret join.key"
    )
    other = ["--lower", "0", "--upper", "1", "--events", "1000", "--folder", "d", "--also", "x:2:3"]
    lines = ran("canaries", "plant", *other).out.splitlines()
    assert lines[0] == "1,000 canaries are planted in d"
    assert "with label from 0 to 1, x from 2 to 3 and duplicates" in lines[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--events", "999"], "--events 999 must be at least 1000"),
        (["--upper", "0"], "--lower 0 must be below --upper 0"),
        (["--also", "x:0:inf"], "x: --lower 0 must be below --upper inf"),
        (["--also", "x:1:1"], "must be below"),
        (["--also", "x:-inf:1"], "x: --lower -inf must be below --upper 1"),
        (["--values", "1"], "--values 1 must be at least 2"),
        (["--values", "17"], "at most 16 secrets"),
        (["--values", "9", "--also", "x:0:1"], "at most 16 secrets"),
        (["--users", "-1"], "--users -1 must be 0"),
        (["--events", "1003", "--users", "251"], "--users 251 must be 0"),
        (["--name", "a/b"], "--name 'a/b' must be letters"),
        (["--name", "a" * 61], "must be letters"),
        (["--date", "day:"], "--date 'day:' must be COLUMN:DATE"),
        (["--date", ":2026-01-01"], "must be COLUMN:DATE"),
    ],
)
def test_canaries_have_their_bounds(ran: Ran, options: list[str], said: str) -> None:
    ends = ["--lower", "0", "--upper", "1", "--events", "1000"]
    assert said in ran("canaries", "plant", *ends, *options).error
    assert not Path("canaries").exists()


def test_canaries_at_the_ends_of_their_bounds_are_planted(ran: Ran) -> None:
    last = [*("--values", "16", "--users", "250", "--name", "a" * 60)]
    last += ["--events", "1003"]
    assert plant(ran, *last, "--date", "day:2026-03-01")["planted"] is True


def test_a_question_is_asked_once(ran: Ran, tmp_path: Path) -> None:
    plant(ran)
    told = json.loads(ran("canaries", "ask", "c", "--points", "5", "--json").out)
    question = tmp_path / "c" / "release" / "question.bin"
    assert told["question"] == "c/release/question.bin"
    # the header: bounds and steps of the lattice, groups
    body = question.read_bytes().partition(b"\n")[2]
    assert np.frombuffer(body, "<f8", 2).tolist() == [0, 400]
    assert np.frombuffer(body, "<u4", 2, 16).tolist() == [4, told["groups"]]
    again = ran("canaries", "ask", "c")
    assert again.error.startswith("error: c/release/question.bin is there already")
    for points in ("1", "1002"):
        assert f"--points={points} must be" in ran("canaries", "ask", "c", "--points", points).error


def test_canaries_are_scored_where_their_release_is(
    ran: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was fetched before is not fetched again; what is named is taken, and compared."""
    plant(ran)
    recorded, fetched = Recorded(), []

    def fetch(party: Any, folder: Path) -> None:
        fetched.append(party.address)
        written(folder.parent, folder.name)

    monkeypatch.setattr(score, "score", recorded)
    monkeypatch.setattr("labelveil.audit.canaries.endpoint.fetch_release", fetch)
    few = "1,000 canaries, a few seconds of CPU"
    done = ran("canaries", "score", "c", "--address", "a:1")
    assert done.err == f"cost: 1 fetch, {few}\n"
    done = ran("canaries", "score", "c", "--address", "a:1", "--epsilon", "2", "--secret", "s")
    assert done.err == f"cost: {few}\n"
    assert fetched == ["a:1"]
    (planted, evidence, secret, _), named = recorded.given[-1]
    assert (planted.secrets.size, evidence.directory, secret) == (
        1000, Path("c/release"), Path("s"),
    )  # fmt: skip
    assert (named["epsilon"], named["public_key"], named["before"]) == (2.0, None, [])
    other = str(written(tmp_path, "other"))
    ran("canaries", "score", "c", "--release", other, "--before", "c/release")
    (_, evidence, _, _), named = recorded.given[-1]
    assert str(evidence.directory) == other
    assert [release.directory for release in named["before"]] == [Path("c/release")]
    both = ran("canaries", "score", "c", "--release", other, "--address", "a:1")
    assert "--release and --address name two releases" in both.error


def some_audit() -> Audit:
    audit = Audit("mechanism", "rr [bold]", 1.0)
    audit.checks = [
        Check(Verdict.FAIL, "t", "It is more.", "c", 1.0, 1.23456, 1.5, name="first",
              question="Is it less?", seconds=1.04),
        Check(Verdict.PASS, "t", "It is.", "c", 1.0, name="second", question="Is it?", seconds=0.5,
              power=(Power("share", 0.0123),), confidence=0.9, not_looked_at="Others."),
        Check(Verdict.NOT_CHECKABLE, "t", "Ask.", "c", name="third", question="Can it?"),
    ]  # fmt: skip
    return audit


def test_a_terminal_shows_every_verdict_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    show(some_audit())
    head, _, rest = capsys.readouterr().out.partition("\nNobody sees from outside\n")
    assert [line.rstrip() for line in head.splitlines()] == [
        "Audit of rr [bold]",
        "",
        "pass  second",
        "  Is it?",
        "  It is.",
        "  Would have found with 95 %: share from 0.012 on.",
        "  Not looked at: Others.",
        "",
        "not checkable  third",
        "  Can it?",
        "  Ask.",
        "",
        "fail  first  ε ≥ 1.235, claimed 1",
        "  Is it less?",
        "  It is more.",
        "  Exact: no chance is in it.",
    ]
    assert rest.splitlines()[-1] == "1 pass, 1 fail, 1 not checkable; 1.5 s"
    assert all(line.startswith("  ") for line in rest.splitlines()[:-2])
    assert " ".join(rest.split()).startswith(next(iter(UNSEEN)))


def test_verdicts_are_kept_whatever_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a folder, on the terminal or for a program, and none of it where nothing was asked for."""
    shown = VerdictOptions(out=tmp_path / "a", as_json=True)
    steps: list[int] = []

    def audit(progress: Callable[[str], None]) -> Audit:
        steps.append(1)
        progress("first")
        return some_audit()

    with pytest.raises(SystemExit):
        conduct("audit", 3, shown, audit)
    out, err = capsys.readouterr()
    kept = (tmp_path / "a" / "audit.json").read_text()
    assert kept.endswith("}\n")
    assert json.loads(out) == json.loads(kept)
    assert err == "error: 1 of 3 checks failed: first\n"
    audit_of_one = Audit("k", "s", checks=some_audit().checks[1:])
    conduct("audit", 1, VerdictOptions(out=tmp_path / "b", quiet=True), lambda _: audit_of_one)
    assert capsys.readouterr() == ("", "")
    assert (tmp_path / "b" / "audit.html").is_file()
    announce("much", VerdictOptions(out=tmp_path / "c"))
    assert capsys.readouterr().err == "cost: much\n"
    announce("much", VerdictOptions(out=tmp_path / "c", quiet=True))
    assert capsys.readouterr().err == ""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="--out"):
        announce("much", VerdictOptions(out=tmp_path / "file", quiet=True))


def test_without_what_a_page_needs_the_verdicts_are_shown_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(path: Path, audit: Audit) -> None:
        raise ModuleNotFoundError("no jinja", name="jinja2")

    monkeypatch.setattr("labelveil.audit.report.write_report", missing)
    audit = Audit("k", "something", checks=some_audit().checks[1:])
    conduct("audit", 1, VerdictOptions(out=tmp_path / "a"), lambda _: audit)
    out, err = capsys.readouterr()
    assert out.startswith("Audit of something\n")
    assert out.endswith(f"report: {tmp_path / 'a' / 'audit.json'}\n")
    assert " ".join(err.split()).startswith("warning: no audit.html: jinja2 is not installed;")


def test_json_says_each_number_and_its_confidence() -> None:
    first, second, third = (check.to_json() for check in some_audit().checks)
    assert first == {
        "name": "first", "question": "Is it less?", "verdict": "fail", "claim": "c", "tried": "t",
        "found": "It is more.", "claimed_epsilon": 1.0, "measured_bound": 1.23456,
        "measured_bound_95": 1.5, "confidence": 1.0, "power_95": [], "not_looked_at": "",
        "seconds": 1.04, "cpu_seconds": 0.0, "details": {},
    }  # fmt: skip
    assert second["power_95"] == [{"fault": "share", "least": 0.0123}]
    assert (second["confidence"], third["confidence"]) == (0.9, None)
    whole = some_audit().to_json()
    assert (whole["verdict"], whole["gate"], whole["claimed_epsilon"]) == ("fail", 1e-6, 1.0)
    assert (whole["seconds"], whole["cpu_seconds"]) == (1.54, 0.0)
