"""Sums between two companies: from a question in a notebook to sums joined to its events."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import labelveil as lv
from labelveil.common.errors import LabelveilError
from labelveil.common.mechanisms.group_sums import NO_GROUP, Lattice
from labelveil.common.release.folder import POPULATION_FILE, QUESTION_FILE
from labelveil.common.release.sums import read_sums
from labelveil.common.security.pilot_certificates import Credentials
from labelveil.feature_party.commands.cli import app
from labelveil.label_party.server.run import running
from tests.label_party.conftest import EVENTS, Party
from tests.label_party.release.test_answer import ASKED

ORDER = np.argsort([i * 7919 % 1009 for i in range(EVENTS)], kind="stable")
"""In which the features party has the events."""
GROUPS = ORDER % 5
KEYS = [f"event-{i}" for i in ORDER]
QUESTION = lv.GroupQuestion(
    Lattice(0.0, 10.0, 20),
    np.where(ORDER == 9, NO_GROUP, GROUPS),
    np.full(5, 20),
    np.array([0, 4]),
    levels=ORDER % 2,
    weights=ORDER % 3 + 1,
)
SETTINGS = ASKED | {"privacy__epsilon": 40, "privacy__total_epsilon": 40}
RELEASED = Path("release")


@pytest.fixture
def features(party: Party, client_identity: Credentials) -> Iterator[list[str]]:
    """Arguments of a features party, and a labels party that serves."""
    folder = party.folder
    (folder / "client.pem").write_bytes(client_identity.certificate_pem)
    (folder / "client.key").write_bytes(client_identity.key_pem)
    (folder / "client.key").chmod(0o600)
    pl.DataFrame({"key": KEYS, "x": ORDER % 10 / 1}).write_csv("features.csv")
    lv.write_question(QUESTION, "asked.bin")
    with running(party.config(**SETTINGS)) as address:
        settings = {
            "data.features": "features.csv",
            "data.key": "key",
            "keys.secret_file": "join.key",
            "labels_party.data_set": "labels",
            "labels_party.epoch": "1",
            "labels_party.address": address,
            "labels_party.ca": "ca.pem",
            "labels_party.certificate": "client.pem",
            "labels_party.private_key": "client.key",
        }
        yield [f"--set={name}={value}" for name, value in settings.items()]


def invoke(command: str, *arguments: str) -> str:
    result = CliRunner().invoke(app, [command, *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def refusal(command: str, *arguments: str) -> str:
    with pytest.raises(LabelveilError) as caught:
        CliRunner().invoke(app, [command, *arguments], catch_exceptions=False)
    assert str(caught.value).isprintable()
    return str(caught.value)


def release(party: Party) -> None:
    done = party.release(**SETTINGS)
    assert done.code == 0, done


def expected() -> np.ndarray:
    """Sums of the true labels, in units of the label."""
    labels = np.where(ORDER % 2 == 0, ORDER % 10, 0)
    left = (labels - 2.0 * (ORDER % 2)) * (ORDER % 3 + 1)
    asked = ORDER != 9
    return np.bincount(GROUPS[asked], left[asked], minlength=5)


NOISE = 30.0
"""In units of the label: of scale .75 once in e⁴⁰ larger."""


def test_sums_come_back_joined_to_their_events(party: Party, features: list[str]) -> None:
    said = invoke("submit", "--question", "asked.bin", *features)
    assert "200 keys with a question" in said
    release(party)
    fetched = invoke("fetch", *features)
    assert "5 sums over 200 events" in fetched
    assert "feature-party train" in fetched
    sums = lv.read_sums("release")
    assert sums.question.encode() == QUESTION.encode()
    assert np.abs(sums.values - expected()).max() < NOISE
    assert sums.guarantee.epsilon == 40
    # the table may have another order by now, and further events
    keys = ["later-1", *sorted(KEYS), "later-2"]
    again = lv.read_sums("release", keys, "join.key")
    assert again.sums.tolist() == sums.sums.tolist()
    assert again.guarantee == sums.guarantee
    assert again.deviations.tolist() == sums.deviations.tolist()
    numbers = np.array([-1, *(int(key.removeprefix("event-")) for key in sorted(KEYS)), -1])
    known = (numbers >= 0) & (numbers != 9)
    assert again.question.groups.tolist() == np.where(known, numbers % 5, NO_GROUP).tolist()
    assert again.question.levels is not None
    assert again.question.weights is not None
    assert (again.question.levels[known] == numbers[known] % 2).all()
    assert (again.question.weights[known] == numbers[known] % 3 + 1).all()


def test_what_a_fetch_left_out_is_fetched_again_at_no_cost(
    party: Party, features: list[str]
) -> None:
    invoke("submit", "--question", "asked.bin", *features)
    release(party)
    (document,) = json.loads(invoke("fetch", "--json", *features))
    assert (document["rows"], document["events"]) == (5, EVENTS)
    before = lv.read_sums("release").sums.tolist()
    (RELEASED / "codes.bin").unlink()
    invoke("fetch", *features)
    assert lv.read_sums("release").sums.tolist() == before
    (account,) = json.loads(party.run("budget", "--json").out)
    assert account["spent"]["epsilon"] == "40"


def test_whoever_assumes_codes_gets_one_line(party: Party, features: list[str]) -> None:
    invoke("submit", "--question", "asked.bin", *features)
    release(party)
    invoke("fetch", *features)
    line = "has 5 sums over groups of events, and no codes"
    assert line in refusal("join", *features)
    assert line in refusal("fetch", "--set=release.parquet=true", *features)
    with pytest.raises(LabelveilError, match=line):
        lv.read_release("release")
    release_of_codes(party, features)
    with pytest.raises(LabelveilError, match="has codes, and no sums"):
        lv.read_sums("codes")
    plan = party.run(
        "plan", "--prior-release", "release/manifest.json", *party.arguments(**SETTINGS)
    )
    assert line in plan.error


def release_of_codes(party: Party, features: list[str]) -> None:
    other = [*features, "--set=labels_party.epoch=2", "--set=release.directory=codes"]
    pl.DataFrame({"key": [f"other-{i}" for i in range(40)]}).write_csv("features.csv")
    invoke("submit", *other)
    assert party.release(**SETTINGS, data__epoch="2").code == 0
    invoke("fetch", *other)


def test_sums_need_the_question_that_they_answer(party: Party, features: list[str]) -> None:
    invoke("submit", "--question", "asked.bin", *features)
    release(party)
    kept = (RELEASED / QUESTION_FILE).read_bytes()
    (RELEASED / QUESTION_FILE).unlink()
    assert "question.bin is missing" in refusal("fetch", *features)
    assert not (RELEASED / "manifest.json").exists()
    (RELEASED / QUESTION_FILE).write_bytes(kept[:-1] + b"\7")
    assert "but the labels party answered" in refusal("fetch", *features)
    (RELEASED / QUESTION_FILE).write_bytes(kept)
    invoke("fetch", *features)
    (RELEASED / QUESTION_FILE).write_bytes(kept[:-1] + b"\7")
    with pytest.raises(LabelveilError, match="but the labels party answered"):
        lv.read_sums("release")
    (RELEASED / QUESTION_FILE).write_bytes(kept)
    sums = bytearray((RELEASED / "codes.bin").read_bytes())
    sums[3] ^= 1
    (RELEASED / "codes.bin").write_bytes(sums)
    with pytest.raises(LabelveilError, match="do not match the manifest's digest"):
        lv.read_sums("release")


def test_another_question_does_not_take_the_place_of_the_answered_one(
    party: Party, features: list[str]
) -> None:
    invoke("submit", "--question", "asked.bin", *features)
    release(party)
    lv.write_question(lv.GroupQuestion(QUESTION.lattice, 0 * ORDER, np.array([3])), "other.bin")
    said = invoke("submit", "--question", "other.bin", *features)
    assert "released already" in said
    invoke("submit", *features)
    invoke("fetch", *features)
    assert read_sums(RELEASED).question.encode() == QUESTION.encode()
    # where nothing is left of the submission, the same again puts it there
    shutil.rmtree(RELEASED)
    invoke("submit", "--question", "asked.bin", *features)
    invoke("fetch", *features)
    assert read_sums(RELEASED).question.encode() == QUESTION.encode()


def test_events_and_secrets_that_do_not_fit_are_said(party: Party, features: list[str]) -> None:
    invoke("submit", "--question", "asked.bin", *features)
    release(party)
    invoke("fetch", *features)
    with pytest.raises(LabelveilError, match="2 of 200 submitted events are not among the 198"):
        lv.read_sums("release", KEYS[2:], "join.key")
    others = [*KEYS[1:], "nobody's", "nothing's"]
    with pytest.raises(LabelveilError, match="1 of 200 submitted events are not among the 201"):
        lv.read_sums("release", others, "join.key")
    with pytest.raises(LabelveilError, match="there are no keys; give those"):
        lv.read_sums("release", [], "join.key")
    with pytest.raises(LabelveilError, match="1 keys occurred before"):
        lv.read_sums("release", [*KEYS, KEYS[0]], "join.key")
    with pytest.raises(LabelveilError, match="secret_file is missing"):
        lv.read_sums("release", KEYS)
    Path("other.key").write_text("5" * 64)
    Path("other.key").chmod(0o600)
    with pytest.raises(LabelveilError, match="is not the secret"):
        lv.read_sums("release", KEYS, "other.key")
    kept = bytearray((RELEASED / POPULATION_FILE).read_bytes())
    kept[:16], kept[16:32] = kept[16:32], kept[:16]
    (RELEASED / POPULATION_FILE).write_bytes(kept)
    with pytest.raises(LabelveilError, match="is not the population"):
        lv.read_sums("release", KEYS, "join.key")


def test_a_question_that_does_not_fit_is_never_sent(party: Party, features: list[str]) -> None:
    lv.write_question(lv.GroupQuestion(QUESTION.lattice, GROUPS[:-1], np.full(5, 3)), "short.bin")
    assert "the question about 200 events is none" in refusal(
        "submit", "--question", "short.bin", *features
    )
    assert "cannot be read" in refusal("submit", "--question", "nowhere.bin", *features)
    both = refusal("submit", "--question", "asked.bin", "--ask", *features)
    assert "exclude each other" in both
    assert not list(party.store.glob("populations/labels/1/current.json"))


def test_a_withdrawn_release_of_sums_is_marked(party: Party, features: list[str]) -> None:
    invoke("submit", "--question", "asked.bin", *features)
    release(party)
    invoke("fetch", *features)
    assert party.run("withdraw", "1", "--reason", "wrong", "--yes").code == 0
    assert "wrong" in refusal("fetch", *features)
    with pytest.warns(UserWarning, match="was withdrawn: wrong"):
        lv.read_sums("release")
    for command in (["train"], ["means", "--by", "x"]):
        assert "wrong; fetch another, or set [release] withdrawn" in refusal(*command, *features)


def test_means_are_told_from_sums_that_were_asked_for_them(
    party: Party, features: list[str]
) -> None:
    """Labels are 0 or the last digit; noise of scale .25 in a sum of 40 events' is .006 of one."""
    table = pl.DataFrame({"key": KEYS, "arm": [f"arm {i % 5}" for i in ORDER]})
    table = table.with_columns(side=pl.Series(ORDER % 2))
    table.write_csv("features.csv")
    asked = lv.ask_means(table.drop("key"), ["arm", "side"], lower=0, upper=10)
    lv.write_question(asked.question, "means.bin")
    invoke("submit", "--question", "means.bin", *features)
    release(party)
    invoke("fetch", *features)
    table[::-1].write_csv("features.csv")  # whatever order they have by now
    labels = np.where(ORDER % 2 == 0, ORDER % 10, 0)
    true = table.with_columns(y=pl.Series(labels)).group_by("arm").agg(pl.col("y").mean())
    given = ["means", "--by", "arm", *features]
    document = json.loads(invoke(*given, "--control", "arm 0", "--json"))
    assert document["told_by"] == "sums"
    means = {group["group"]["arm"]: group for group in document["groups"]}
    for arm, mean in true.iter_rows():
        assert means[arm]["events"] == 40
        assert means[arm]["mean"] == pytest.approx(mean, abs=0.3)
        assert means[arm]["mean_high"] - means[arm]["mean_low"] < 0.1
    assert means["arm 4"]["lift"] == pytest.approx(2, abs=0.5)
    assert "sums over 200 events" in invoke(*given)
    assert len(json.loads(invoke(*given, "--by", "side", "--json"))["groups"]) == 10
    table.with_columns(x=pl.Series(ORDER % 3)).write_csv("features.csv")
    assert "groups that hold several values of these columns" in refusal(
        "means", "--by", "x", *features
    )


def test_sums_that_are_clipped_tell_no_means(party: Party, features: list[str]) -> None:
    invoke("submit", "--question", "asked.bin", *features)
    release(party)
    invoke("fetch", *features)
    assert "weighed, squared or clipped labels, which tell no means" in refusal(
        "means", "--by", "x", *features
    )


def test_a_model_is_scored_across_the_wire(party: Party, features: list[str]) -> None:
    labels = np.where(ORDER % 2 == 0, ORDER % 10, 0)
    points = np.where(ORDER % 2 == 0, ORDER % 10, 1.0)
    asked = lv.ask_score(points, None, epsilon=40, lower=0, upper=10, reference=2.0)
    lv.write_question(asked.question, "score.bin")
    invoke("submit", "--question", "score.bin", *features)
    release(party)
    invoke("fetch", *features)
    score = asked.score(lv.read_sums("release"))
    # half of the labels are missed by 1; of scale 2.5 is the noise in the sum of their squares
    true = 1 - np.mean((labels - points) ** 2) / np.mean((labels - 2.0) ** 2)
    assert score.r2.low < true < score.r2.high
    assert score.r2.value == pytest.approx(true, abs=0.1)
