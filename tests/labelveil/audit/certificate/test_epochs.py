"""What ties epochs together: whose prior is used, which session paid, which events pay twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from labelveil.audit.certificate.epochs import (
    disjoint_check,
    epochs_certificate,
    origin_check,
    session_check,
)
from labelveil.audit.certificate.evidence import Evidence, facts
from labelveil.audit.certificate.manifest_checks import arithmetic_check
from labelveil.audit.certificate.run import certify
from labelveil.audit.verdict import Verdict
from labelveil.common.errors import ReleaseError
from labelveil.common.mechanisms.interactive import Terms
from labelveil.common.mechanisms.interactive.targets import not_prior
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.table import write_release
from tests.common.release.releases import make_release
from tests.labelveil.audit.checks import FAIL, PASS, UNKNOWN
from tests.labelveil.audit.conftest import in_key_order

Change = Callable[[dict[str, Any]], None]

MADE = in_key_order(*make_release(60))
KEYS = [MADE[1][at : at + 16] for at in range(0, 16 * 60, 16)]


def epoch(name: str, *, keys: list[bytes] = KEYS, **changed: Any) -> Evidence:
    """A release's manifest, and the keys of its rows; the prior is its own unless ``drift``."""
    data = json.loads(MADE[0].to_bytes()) | {"epoch": name}
    for place, value in changed.items():
        inner = data
        *folders, last = place.split("__")
        for folder in folders:
            inner = inner[int(folder) if folder.isdigit() else folder]
        inner[last] = value
    manifest = Manifest.model_validate(data)
    rows = pl.DataFrame({"key": keys, "code": [0] * len(keys)})
    return Evidence(Path(), manifest.to_bytes(), manifest, rows)


FIRST = epoch("1")


def drift(origin: Evidence = FIRST, test: Any = None, **changed: Any) -> dict[str, Any]:
    """How an epoch came by the prior of another one."""
    stated = {
        "epoch": origin.manifest.epoch,
        "manifest": hashlib.sha256(origin.data).hexdigest(),
        "rows": origin.manifest.population.rows,
    }
    own = {name: changed.pop(name) for name in [*changed] if name in stated}
    return {"in_force": stated | own, "test": test, "drifted": False, **changed}


@pytest.mark.parametrize(
    ("later", "verdict", "found"),
    [
        (epoch("2", drift=drift()), PASS, "0 differ; the releases that 0 name are not here."),
        (
            epoch("2", drift=drift(manifest="0" * 64)),
            UNKNOWN,
            "0 differ; the releases that 1 name are not here (2).",
        ),
        (epoch("2", drift=drift(epoch="0")), FAIL, "1 differ (2)"),
        (epoch("2", drift=drift(rows=61)), FAIL, "1 differ (2)"),
        (
            epoch("2", drift=drift(), priors__0__noisy_counts=[9, 8, 7, 6, 5]),
            FAIL,
            "1 differ (2); the releases that 0",
        ),
        (epoch("2", drift=drift(), labels__0__grid=[0.0, 1.0, 2.0, 3.0, 5.0]), FAIL, "1 differ"),
        (epoch("2", drift=drift(drifted=True), labels__0__missing=1.0), PASS, "0 differ"),
        # a prior of its own is tested against another's
        (epoch("1", drift=drift(drifted=True), labels__0__missing=1.0), FAIL, "1 differ (1)"),
    ],
)
def test_a_prior_in_force_is_that_of_the_release_that_paid(
    later: Evidence, verdict: Verdict, found: str
) -> None:
    check = origin_check([FIRST, later])
    assert check.verdict is verdict
    assert check.found.startswith(found)
    assert check.tried.startswith("1 epochs name the release")


def test_a_prior_that_nobody_paid_for_is_no_origin() -> None:
    """An epoch that used another one's is not where a prior comes from, even where both agree."""
    second = epoch("2", drift=drift())
    third = epoch("3", drift=drift(second))
    assert origin_check([FIRST, second, third]).found.startswith("1 differ (3)")
    lost = epoch("4", drift=drift(manifest="1" * 64))
    # one that differs is not excused by one that is not here
    assert origin_check([FIRST, second, third, lost]).verdict is FAIL


TERMS = Terms(not_prior(Fraction(1, 10)), hits=3).to_json()
SPENT = {"kind": "pure", "adjacency": "replace-label", "unit": "record", "epsilon": "1/10"}


def trial(calls: int, hits: int, outcome: str = "a", **guarantee: str) -> dict[str, Any]:
    """A test for drift, charged to a session, which has had so many calls and hits after it."""
    state = {"version": 1, "terms": TERMS, "hits": [hits], "calls": calls, "call_delta": "0",
             "runs": 1}  # fmt: skip
    session = {"outcome": outcome * 64, "state": state}
    return {"guarantee": SPENT | guarantee, "scale": "10", "threshold": 5, "session": session}


def charged(name: str, *given: Any, drifted: bool = False, **guarantee: str) -> Evidence:
    return epoch(name, drift=drift(test=trial(*given, **guarantee), drifted=drifted))


@pytest.mark.parametrize(
    ("epochs", "verdict", "found"),
    [
        ([FIRST], PASS, "No test is charged to a session"),
        ([charged("2", 1, 0), charged("3", 2, 0)], PASS, "0 of 3 hits after 2 calls"),
        # in the order of their calls, not of their folders
        ([charged("3", 2, 1, drifted=True), charged("2", 1, 0)], PASS, "1 of 3 hits after 2 calls"),
        ([charged("2", 1, 3, drifted=True)], UNKNOWN, "3 of 3 hits after 1 calls"),
        ([charged("2", 1, 4, drifted=True)], FAIL, "4 of 3 hits after 1 calls"),
        # an epoch that is not here may have hit; none can have taken a call or a hit back
        ([charged("2", 2, 0)], UNKNOWN, "0 of 3 hits after 2 calls"),
        ([charged("2", 1, 1)], UNKNOWN, "1 of 3 hits after 1 calls"),
        ([charged("2", 1, 0), charged("3", 1, 0)], FAIL, "0 of 3 hits after 1 calls"),
        ([charged("2", 0, 0)], FAIL, "0 of 3 hits after 0 calls"),
        ([charged("2", 1, 0, drifted=True)], FAIL, "0 of 3 hits after 1 calls"),
        ([charged("2", 1, 1, drifted=True), charged("3", 2, 0)], FAIL, "0 of 3 hits"),
        # what one call may spend, and of whom
        ([charged("2", 1, 0, epsilon="1/11")], PASS, "0 of 3 hits"),
        ([charged("2", 1, 0, epsilon="1/9")], FAIL, "0 of 3 hits"),
        ([charged("2", 1, 0, unit="user")], FAIL, "0 of 3 hits"),
        ([charged("2", 1, 0), charged("3", 1, 0, "b")], PASS, "0 of 3 hits after 1 calls"),
    ],
)
def test_calls_and_hits_of_a_session_are_followed(
    epochs: list[Evidence], verdict: Verdict, found: str
) -> None:
    check = session_check(epochs)
    assert check.verdict is verdict, check
    assert check.found.startswith(found)
    if verdict is FAIL:
        assert "0 epochs do not fit" not in check.found
    sessions = {e.manifest.drift.test.session.outcome for e in epochs if e.manifest.drift}  # type: ignore[union-attr]
    assert f"of {len(sessions)} sessions" in check.tried


def test_terms_are_the_same_in_all_of_a_session() -> None:
    later = charged("3", 2, 0)
    for terms in (TERMS | {"hits": 4}, TERMS | {"q": "9/2"}):
        data = json.loads(later.data)
        data["drift"]["test"]["session"]["state"]["terms"] = terms
        other = Evidence(Path(), b"", Manifest.model_validate(data), later.labels)
        check = session_check([charged("2", 1, 0), other])
        assert check.verdict is FAIL
        assert "1 epochs do not fit (3), 0 do not follow the one before" in check.found


def test_a_test_that_an_epoch_pays_for_itself_is_part_of_its_total() -> None:
    """And one that is charged to a session is not; the prior is another epoch's."""
    labels = Fraction(json.loads(FIRST.data)["randomizers"][0]["guarantee"]["epsilon"])
    for session, added in ((None, labels + Fraction(1, 10)), (1, labels)):
        test = trial(1, 0)
        test["session"] = session and test["session"]
        later = epoch("2", drift=drift(test=test), privacy__total=SPENT | {"epsilon": str(added)})
        check = arithmetic_check(later)
        assert (check.verdict, check.bound) == (PASS, float(added))
        assert ("0.1 (test for drift) + " in check.found) is (session is None)
        assert "(prior)" not in check.found
    drifted = arithmetic_check(charged("2", 1, 1, drifted=True))
    prior = Fraction(json.loads(FIRST.data)["priors"][0]["guarantee"]["epsilon"])
    assert drifted.bound == float(prior + labels)
    other = epoch("2", privacy__total=SPENT | {"unit": "user", "epsilon": str(prior + labels)})
    check = arithmetic_check(other)
    assert (check.verdict, check.bound) == (FAIL, check.claimed)
    assert check.found.endswith("the parts are about different neighbours.")


def test_an_epoch_alone_says_what_others_would_show(tmp_path: Path) -> None:
    """Of the prior in force and of the test, where there are any."""
    folder = written(tmp_path, "2", lambda data: data.update(drift=drift(test=trial(1, 0))))
    beyond = {"priors in force", "the test for drift was made as stated"}
    checks = {check.name: check.verdict for check in certify(folder).checks}
    assert {checks[name] for name in beyond} == {UNKNOWN}
    alone = {check.name for check in certify(written(tmp_path, "1")).checks}
    assert not beyond & alone


def test_what_an_epoch_says_of_its_prior_is_shown() -> None:
    origin = f"1, {hashlib.sha256(FIRST.data).hexdigest()}"
    own = f"{float(Fraction(json.loads(FIRST.data)['priors'][0]['guarantee']['epsilon'])):.6g}"

    def shown(evidence: Evidence) -> dict[str, str]:
        every = facts(evidence.manifest, "d")
        return {name: text for name, text in every.items() if "histogram" in name or "test" in name}

    assert shown(FIRST) == {"ε for the histogram": own}
    assert shown(epoch("2", drift=drift())) == {
        "ε for the histogram": f"0: that of epoch {origin}",
        "test for drift": "none: the session's hits are spent",
    }
    assert shown(charged("2", 1, 1, drifted=True)) == {
        "ε for the histogram": own,
        "ε of the test for drift": "0.1, charged to a session over all epochs",
        "tested against": origin,
    }
    alone = trial(1, 0) | {"session": None}
    assert shown(epoch("2", drift=drift(test=alone)))["ε of the test for drift"] == "0.1"


def of(*names: str, keys: list[list[bytes]], **changed: Any) -> list[Evidence]:
    return [epoch(name, keys=each, **changed) for name, each in zip(names, keys, strict=True)]


def test_an_event_in_several_epochs_pays_in_each() -> None:
    epsilon = float(Fraction(json.loads(FIRST.data)["privacy"]["total"]["epsilon"]))
    apart = disjoint_check(of("1", "2", keys=[KEYS[:30], KEYS[30:]]))
    assert (apart.verdict, apart.bound, apart.claimed) == (PASS, epsilon, epsilon)
    assert apart.found.startswith("0 events are in more than one. The labels of one event pay at")
    assert apart.found.endswith(f"ε = {epsilon:.6g} in all.")
    assert apart.tried == (
        "60 hashed keys were compared over all epochs; all are hashed under one secret."
    )
    thrice = disjoint_check(of("1", "2", "3", keys=[KEYS[:30], KEYS[29:], KEYS[29:40]]))
    assert (thrice.verdict, thrice.bound) == (UNKNOWN, pytest.approx(3 * epsilon))
    assert thrice.found.startswith("11 events are in more than one.")
    assert "their epochs add up" in thrice.found


def test_keys_that_cannot_be_compared_are_not() -> None:
    hidden = epoch("2", content__key_bytes=0, population__keys="submitted")
    check = disjoint_check([FIRST, hidden])
    assert (check.verdict, check.bound) == (UNKNOWN, None)
    assert check.found == "Some populations were submitted, and their keys are not here."


def written(folder: Path, name: str, change: Change = lambda data: None) -> Path:
    manifest, hashed, codes = MADE
    data = json.loads(manifest.to_bytes()) | {"epoch": name}
    change(data)
    write_release(folder / name, Manifest.model_validate(data).to_bytes(), hashed, codes)
    return folder / name


def test_a_folder_of_epochs_is_one_audit(tmp_path: Path) -> None:
    def cheaper(data: dict[str, Any]) -> None:
        data["privacy"]["total"]["epsilon"] = "1/2"

    folders = [written(tmp_path, "1"), written(tmp_path, "2", cheaper)]
    folders += [written(tmp_path, "3", cheaper)]
    seen: list[str] = []
    audit = epochs_certificate(folders, seen.append)
    assert seen == ["1", "2", "3"]
    assert (audit.kind, audit.subject) == ("certificate", "3 epochs of clicks")
    assert audit.facts == {
        "data set": "clicks",
        "epochs": "3, 1 … 3",
        "events": "180",
        "priors paid for": "3: 1, 2, 3",
        "tests for drift": "0",
    }
    by_name = {check.name: check for check in audit.checks}
    assert [*by_name][-3:] == ["priors in force", "sessions", "events in several epochs"]
    split = by_name["arithmetic of the ε split"]
    assert split.verdict is FAIL
    assert split.found.startswith("2 of 3 epochs: fail (2, 3). 2: ")
    assert split.claim.startswith("In every epoch: The release spends ε = 0.5")
    assert (split.claimed, split.bound, split.shown, split.details) == (None, None, None, {})
    outputs = by_name["outputs"]
    assert outputs.found.startswith("In all 3 epochs. 1: 0 do not fit")
    alone = {check.name: check for check in epochs_certificate(folders[:1]).checks}
    assert outputs.found == f"In all 3 epochs. 1: {alone['outputs'].found}"
    assert outputs.claim == f"In every epoch: {alone['outputs'].claim}"
    total = float(Fraction(json.loads(MADE[0].to_bytes())["privacy"]["total"]["epsilon"]))
    # each event is in all three: as one pays, and twice what the others claim
    assert audit.claimed == by_name["events in several epochs"].bound == pytest.approx(total + 1)
    fields = {field.name: field for field in audit.fields}
    assert fields["epoch"].value == "1 and 2 others"
    assert fields["data_set"].value == "clicks"
    assert fields["privacy.total.epsilon"].verdict is FAIL
    assert fields["content.digest"].verdict is PASS
    assert "content digest" in fields["content.digest"].decided_by


def test_epochs_of_two_data_sets_are_two_audits(tmp_path: Path) -> None:
    folders = [written(tmp_path / "a", "1")]
    folders += [written(tmp_path / "a", "2", lambda d: d.update(data_set="visits"))]
    with pytest.raises(ReleaseError, match="holds releases of 'clicks' and 'visits'; audit one"):
        epochs_certificate(folders)
    (folders[1] / "manifest.json").write_text("{}")
    with pytest.raises(ReleaseError, match=f"^{folders[1]}: "):
        epochs_certificate(folders)
