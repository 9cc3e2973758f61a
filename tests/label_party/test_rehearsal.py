"""Rehearsed messages are those of a release, and only an audit's data set is rehearsed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from common.entropy import Entropy, Words
from common.errors import ConfigError
from label_party.config.sections import load
from label_party.rehearsal import rehearse
from labelveil.audit.party.answers import answers_checks
from labelveil.audit.party.canary_parties import CONFIG, Plan, World, make_worlds
from labelveil.audit.party.endpoint import Fetched, Part
from labelveil.audit.party.rehearsals import (
    Rehearsed,
    rehearsal_checks,
    rehearsed_answers,
    rehearsed_messages,
)
from labelveil.audit.party.run import _labels
from labelveil.audit.verdict import Audit, Verdict


def messages_of(world: World, monkeypatch: pytest.MonkeyPatch) -> list[Rehearsed]:
    """Two messages, built in this process."""
    monkeypatch.chdir(world.folder)
    rehearse("messages", load(Path(CONFIG)), Path("out"), 2)
    return rehearsed_messages(Path("out"))


def answer(message: Rehearsed) -> Fetched:
    """A message as an endpoint would send it."""
    codes = message.codes.astype(f"<u{message.manifest.content.code_bytes}").tobytes()
    return Fetched(message.manifest.to_bytes(), b"", (Part(0, b"", codes),))


@pytest.mark.parametrize(("stream", "caught"), [("prior", False), ("labels", True)])
def test_noise_of_a_stream_of_its_own(
    stream: str, caught: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_worlds(Plan(tmp_path / "canaries", rows=1000, randomizer="rr-on-bins")).whole
    with mock.patch("common.randomizers.message.PRIOR_STREAM", stream):
        messages = messages_of(world, monkeypatch)
    served = answer(messages[0]), answer(messages[1])
    checks = rehearsal_checks(messages, world.in_row_order, served)
    failed = [check.name for check in checks if check.verdict is not Verdict.PASS]
    assert failed == ["two noises: known answers"] * caught
    twice = rehearsal_checks([messages[0]] * 2, world.in_row_order, (served[0], served[0]))
    failed = [check.name for check in twice if check.verdict is Verdict.FAIL]
    assert failed[-3:] == [
        "two noises: keys",
        "two noises: epoch against epoch",
        "two noises: release against release",
    ]


def test_messages_of_two_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_worlds(Plan(tmp_path / "canaries", rows=1000, labels=2)).whole
    messages = messages_of(world, monkeypatch)
    served = answer(messages[0]), answer(messages[1])
    checks = rehearsal_checks(messages, world.in_row_order, served)
    assert [check.name for check in checks if check.verdict is Verdict.FAIL] == []
    assert checks[0].verdict is Verdict.PASS  # noise and outputs, made again from the key
    audit = Audit("party", "two labels")
    _labels(audit, world, served[0], messages[0].manifest)
    # the same codes, of a message that says that it spends half of what it does
    halved = messages[0].manifest.model_copy(
        update={
            "randomizers": [
                one.model_copy(update={"guarantee": one.guarantee | {"epsilon": "1/10"}})
                for one in messages[0].manifest.randomizers
            ]
        }
    )
    _labels(audit, world, served[0], halved)
    told = [check.verdict for check in audit.checks if check.name == "one run"]
    assert told == [Verdict.PASS, Verdict.FAIL]


@pytest.mark.parametrize("labels", [1, 2])
@pytest.mark.parametrize(
    ("fault", "failed"),
    [
        (lambda key, name: (key, name), set()),
        (lambda key, name: (key, "answer"), {"reuse", "correlation", "known answers"}),
        (lambda key, name: (bytes(32), name), {"reuse", "correlation", "known answers"}),
    ],
    ids=["right", "one stream", "one key"],
)
def test_answers(
    fault: Callable[[bytes, str], tuple[bytes, str]],
    failed: set[str],
    labels: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = make_worlds(Plan(tmp_path / "canaries", rows=1000, labels=labels)).few
    monkeypatch.chdir(world.folder)
    real = Entropy.words

    def words(self: Entropy, stream: str, start: int, count: int) -> Words:
        key, name = fault(self.key, stream)
        return real(Entropy(key), name, start, count)

    with mock.patch.object(Entropy, "words", words):
        rehearse("answers", load(Path(CONFIG)), Path("out"), 64, 4)
    checks = answers_checks(rehearsed_answers(Path("out"), world.in_row_order))
    found = {c.name.partition(": ")[2] for c in checks if c.verdict is not Verdict.PASS}
    assert found == failed


def test_other_data_sets_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worlds = make_worlds(Plan(tmp_path / "canaries", rows=1000))
    monkeypatch.chdir(worlds.whole.folder)
    config = load(Path(CONFIG))
    other = config.model_copy(update={"data": config.data.model_copy(update={"data_set": "real"})})
    with pytest.raises(ConfigError, match="cannot be rehearsed"):
        rehearse("messages", other, Path("out"), 1)
    assert not Path("out").exists()
