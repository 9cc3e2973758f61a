"""Rehearsed messages are those of a release, and only an audit's data set is rehearsed."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from common.errors import ConfigError
from common.program.audit.party.canary_parties import CONFIG, Plan, Worlds, make_worlds
from common.program.audit.party.endpoint import Answer, Part
from common.program.audit.party.rehearsals import Rehearsed, rehearsal_checks, rehearsed
from common.program.audit.verdict import Verdict
from label_party.config.sections import load
from label_party.release.rehearsal import rehearse


def messages_of(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> list[Rehearsed]:
    """Two messages, built in this process."""
    monkeypatch.chdir(worlds.whole.folder)
    rehearse(load(Path(CONFIG)), Path("out"), 2)
    return [
        rehearsed(
            *(Path("out", f"{n}.{part}").read_bytes() for part in ("manifest", "codes", "key"))
        )
        for n in range(2)
    ]


def answer(message: Rehearsed) -> Answer:
    """A message as an endpoint would send it."""
    codes = message.codes.astype(f"<u{message.manifest.content.code_bytes}").tobytes()
    return Answer(message.manifest.to_bytes(), b"", (Part(0, b"", codes),))


@pytest.mark.parametrize(("stream", "caught"), [("prior", False), ("labels", True)])
def test_noise_of_a_stream_of_its_own(
    stream: str, caught: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worlds = make_worlds(Plan(tmp_path / "canaries", rows=1000, randomizer="rr-on-bins"))
    with mock.patch("common.randomizers.prior.PRIOR_STREAM", stream):
        messages = messages_of(worlds, monkeypatch)
    served = answer(messages[0]), answer(messages[1])
    checks = rehearsal_checks(messages, worlds.in_row_order(), served)
    failed = [check.name for check in checks if check.verdict is not Verdict.PASS]
    assert failed == ["two noises: known answers"] * caught
    twice = rehearsal_checks([messages[0]] * 2, worlds.in_row_order(), (served[0], served[0]))
    failed = [check.name for check in twice if check.verdict is Verdict.FAIL]
    assert failed[-3:] == [
        "two noises: keys",
        "two noises: epoch against epoch",
        "two noises: release against release",
    ]


def test_other_data_sets_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worlds = make_worlds(Plan(tmp_path / "canaries", rows=1000))
    monkeypatch.chdir(worlds.whole.folder)
    config = load(Path(CONFIG))
    other = config.model_copy(update={"data": config.data.model_copy(update={"data_set": "real"})})
    with pytest.raises(ConfigError, match="cannot be rehearsed"):
        rehearse(other, Path("out"), 1)
    assert not Path("out").exists()
