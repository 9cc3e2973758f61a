"""Our own build, with the keys of its noise: messages, answers and starts have their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from labelveil.audit.canaries.endpoint import Fetched, Part
from labelveil.audit.canaries.party import one_run_check
from labelveil.audit.canaries.worlds import CONFIG, World, make_worlds
from labelveil.audit.settings import CanarySettings
from labelveil.audit.verdict import Verdict
from labelveil.common.arrays import Words
from labelveil.common.entropy import Entropy
from labelveil.label_party.config.sections import load
from tests.effort import one_in
from tests.label_party.answered import answers_checks
from tests.label_party.rehearsal import rehearse
from tests.label_party.rehearsed import (
    Rehearsed,
    Starts,
    make_world,
    rehearsal_checks,
    rehearsed_answers,
    rehearsed_messages,
    starts_check,
)
from tests.label_party.rehearsed import rehearse as rehearse_apart


def messages_of(world: World, monkeypatch: pytest.MonkeyPatch) -> list[Rehearsed]:
    """Two messages, built in this process."""
    monkeypatch.chdir(world.folder)
    rehearse("messages", load(Path(CONFIG)), Path("out"), 2)
    return rehearsed_messages(Path("out"))


def answer(message: Rehearsed) -> Fetched:
    """A message as an endpoint would send it."""
    codes = message.codes.astype(f"<u{message.manifest.content.code_bytes}").tobytes()
    return Fetched(message.manifest.to_bytes(), b"", (Part(b"", codes),))


@pytest.mark.slow
@pytest.mark.parametrize(("stream", "caught"), one_in(2, [("prior", False), ("labels", True)]))
def test_noise_of_a_stream_of_its_own(
    stream: str, caught: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = CanarySettings(rows=1000, randomizer="rr-on-bins")
    world = make_worlds(tmp_path / "canaries", settings).whole
    with mock.patch("labelveil.common.randomizers.message.plan.PRIOR_STREAM", stream):
        messages = messages_of(world, monkeypatch)
    checks = rehearsal_checks(messages, world.in_row_order)
    failed = [check.name for check in checks if check.verdict is not Verdict.PASS]
    assert failed == ["two noises: known answers"] * (2 * caught)
    twice = rehearsal_checks([messages[0]] * 2, world.in_row_order)
    failed = [check.name for check in twice if check.verdict is Verdict.FAIL]
    assert failed[-2:] == ["two noises: keys", "two noises: stretches"]


@pytest.mark.slow
def test_messages_of_two_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_worlds(tmp_path / "canaries", CanarySettings(rows=1000, labels=2)).whole
    messages = messages_of(world, monkeypatch)
    checks = rehearsal_checks(messages, world.in_row_order)
    assert [check.name for check in checks if check.verdict is Verdict.FAIL] == []
    assert checks[0].verdict is Verdict.PASS  # noise and outputs, made again from the key
    secrets, first, second = world.in_row_order, *map(answer, messages)
    assert one_run_check(secrets, first, second).verdict is Verdict.PASS
    # the same codes, of a message that says that it spends half of what it does
    halved = messages[0].manifest.model_copy(
        update={
            "randomizers": [
                one.model_copy(update={"guarantee": one.guarantee | {"epsilon": "1/10"}})
                for one in messages[0].manifest.randomizers
            ]
        }
    )
    claiming_less = replace(first, manifest=halved.to_bytes())
    assert one_run_check(secrets, claiming_less, second).verdict is Verdict.FAIL


@pytest.mark.slow
@pytest.mark.parametrize("labels", one_in(2, [1, 2], first=1))
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
    world = make_world(tmp_path / "canaries", labels)
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


@pytest.mark.slow
def test_processes_of_our_build(tmp_path: Path) -> None:
    """As a release begins in earnest: thousands of starts, epochs, answers, in other processes."""
    world = make_world(tmp_path / "canaries")
    messages = rehearsed_messages(rehearse_apart(world, "messages", 4))
    asked = rehearsed_answers(rehearse_apart(world, "answers", 512, 4), world.in_row_order)
    checks = [
        starts_check(world, Starts()),
        *answers_checks(asked),
        *rehearsal_checks(messages, world.in_row_order),
    ]
    assert [
        (check.name, check.found) for check in checks if check.verdict is not Verdict.PASS
    ] == []
    keys = [*asked.keys, *(message.key for message in messages)]
    assert len(set(keys)) == len(keys)
