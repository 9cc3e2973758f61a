"""What is kept of a submission: complete at any moment, and gone if it was refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labelveil.common.errors import ConfigError, ConnectionFailed, ReleaseError
from labelveil.common.files import write_durably
from labelveil.common.release.folder import (
    CHECK_FILE,
    CODES_FILE,
    MANIFEST_FILE,
    POPULATION_FILE,
    QUESTION_FILE,
    mark_withdrawn,
)
from labelveil.common.release.table import write_release
from labelveil.feature_party.client.channel import Withdrawn
from labelveil.feature_party.client.release_client import Fetched, ReleaseClient
from labelveil.feature_party.client.submission import Population, SubmittingClient
from labelveil.feature_party.commands.submit import submitted
from labelveil.feature_party.config.labels_party import GroupsSection, RoundsSection
from labelveil.feature_party.config.sections import DataSection, FeaturePartyConfig
from labelveil.feature_party.pipeline.rounds import Rounds
from labelveil.feature_party.pipeline.stages import Stages
from labelveil.feature_party.pipeline.transfer import kept_in, read_kept
from tests.common.release.releases import make_release
from tests.feature_party.worlds import SECRET

FIRST = Population(b"k" * 32, b"c" * 16, b"first")
SECOND = Population(b"l" * 32, b"c" * 16, b"second")
Ending = Callable[[], str]


def ends(error: BaseException) -> Ending:
    def end() -> str:
        raise error

    return end


@pytest.fixture
def rounds(tmp_path: Path) -> Rounds:
    write_durably(tmp_path / "join.key", SECRET.hex().encode())
    values = {
        "keys": {"secret_file": tmp_path / "join.key"},
        "labels_party": {"submit": True, "epoch": "day"},
        "release": {"directory": tmp_path / "release"},
        "rounds": {"shares": [0.5, 0.5]},
    }
    return Rounds(Stages(FeaturePartyConfig.model_validate(values), quiet=True))


def send(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch, population: Population, ending: Ending
) -> str:
    with monkeypatch.context() as patched:
        patched.setattr(SubmittingClient, "submit", lambda *_: ending())
        return rounds.stages.submit(population, rounds.config.round_folder(2))


def kept(rounds: Rounds) -> tuple[bytes, bytes] | None:
    place = kept_in(rounds.config.round_folder(2))
    population = place and read_kept(place, SECRET)
    return population and (population.keys, population.question)


def test_what_was_taken_is_kept(rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rounds.asks(2)
    assert send(rounds, monkeypatch, FIRST, lambda: "stored") == "stored"
    assert kept(rounds) == (FIRST.keys, FIRST.question)
    folder = rounds.config.round_folder(2)
    there = sorted(path.name for path in folder.iterdir())
    assert there == [CHECK_FILE, POPULATION_FILE, QUESTION_FILE]
    assert not rounds.asks(2)


def test_a_score_that_asks_nothing_is_not_submitted(rounds: Rounds) -> None:
    """No fault: codes tell as well, which is known once the model is there."""
    population, ending = rounds.submit(3, None, Population(FIRST.keys, FIRST.secret_check))
    document, line = submitted(rounds.party(3), population, ending)
    assert line.startswith("nothing to submit: the codes of 2 rounds tell how good the model is")
    assert (document["rows"], document["asked"], document["epoch"]) == (0, False, "day-3")
    assert kept_in(rounds.config.score_folder) is None


def test_a_round_is_submitted_as_its_own_epoch(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def submit(client: SubmittingClient, *_: object) -> str:
        seen.append(client.settings.epoch)
        return "stored"

    monkeypatch.setattr(SubmittingClient, "submit", submit)
    for number in (1, 2):
        rounds.submit(number, None, FIRST)
    assert seen == ["day-1", "day-2"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ConnectionFailed("gone")], ids=type)
def test_what_was_interrupted_is_sent_again_as_it_was(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    with pytest.raises(type(error)):
        send(rounds, monkeypatch, FIRST, ends(error))
    assert kept(rounds) == (FIRST.keys, FIRST.question)


def test_what_was_refused_leaves_nothing(rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ReleaseError):
        send(rounds, monkeypatch, FIRST, ends(ReleaseError("not this one")))
    assert kept(rounds) is None
    send(rounds, monkeypatch, FIRST, lambda: "stored")
    with pytest.raises(ReleaseError):  # and what was taken before stays
        send(rounds, monkeypatch, SECOND, ends(ReleaseError("not this one")))
    assert kept(rounds) == (FIRST.keys, FIRST.question)


@pytest.mark.parametrize(("anyway", "there"), [(True, True), (True, False), (False, True)])
def test_a_withdrawn_round_goes_on_where_it_is_here_and_learned_from_anyway(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch, anyway: bool, there: bool
) -> None:
    folder = rounds.config.round_folder(2)
    folder.mkdir(parents=True)
    for name in (MANIFEST_FILE, CODES_FILE)[: 1 + there]:
        (folder / name).touch()
    taken = rounds.config.release.model_copy(update={"withdrawn": anyway})
    stages = rounds.stages.with_config(rounds.config.model_copy(update={"release": taken}))
    withdrawn = ends(Withdrawn("it is withdrawn", "a mistake"))
    if anyway and there:
        assert send(Rounds(stages), monkeypatch, FIRST, withdrawn) == "withdrawn"
    else:
        with pytest.raises(Withdrawn):
            send(Rounds(stages), monkeypatch, FIRST, withdrawn)
    assert kept(rounds) is None
    other = ends(ReleaseError("not this one"))
    with pytest.raises(ReleaseError, match="not this one"):
        send(Rounds(stages), monkeypatch, FIRST, other)


def test_labels_are_written_for_other_programs_of_rounds_and_not_of_their_score(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[Path, Any]] = []
    monkeypatch.setattr(
        "labelveil.feature_party.client.labels_table.write_labels_table",
        lambda *given: written.append(given),
    )
    monkeypatch.setattr(
        ReleaseClient, "fetch", lambda self, folder, show: Fetched(folder.name, folder, 5, 0.1)
    )

    def fetched(**release: bool) -> list[str]:
        written.clear()
        section = rounds.config.release.model_copy(update=release)
        epochs = {"epoch": "", "epochs": ["day-1", "day-2", "day-3"]}
        party = rounds.config.only_labels_party.model_copy(update=epochs)
        update = {"release": section, "labels_party": [party]}
        rounds.stages.with_config(rounds.config.model_copy(update=update)).fetch()
        assert all(folder == section.directory / manifest for folder, manifest in written)
        return [manifest for _, manifest in written]

    assert fetched() == []
    assert fetched(parquet=True) == ["day-1", "day-2"]


@pytest.mark.parametrize("writes", range(6))
def test_keys_never_lie_beside_another_question(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    send(rounds, monkeypatch, FIRST, lambda: "stored")
    done = []

    def write_some(path: Path, data: bytes) -> None:
        if len(done) == writes:
            raise KeyboardInterrupt
        done.append(path)
        write_durably(path, data)

    with monkeypatch.context() as patched:
        patched.setattr("labelveil.feature_party.pipeline.transfer.write_durably", write_some)
        with pytest.raises(KeyboardInterrupt):
            send(rounds, patched, SECOND, lambda: "stored")
    folder = rounds.config.round_folder(2)
    pairs = {FIRST.keys: FIRST.question, SECOND.keys: SECOND.question}
    for keys in folder.rglob(POPULATION_FILE):
        assert keys.with_name(QUESTION_FILE).read_bytes() == pairs[keys.read_bytes()]
    assert kept(rounds) is not None


def test_of_a_withdrawn_round_no_model_asks(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody trains on it, and no event of the next round is submitted."""
    folder = rounds.config.round_folder(1)
    folder.mkdir(parents=True)
    for name in (MANIFEST_FILE, CODES_FILE):
        (folder / name).touch()
    asked = []

    def withdrawn(client: ReleaseClient, *_: object) -> None:
        asked.append(client.settings.epoch)
        raise Withdrawn("the labels party has withdrawn it", "wrong")

    def unwanted(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(ReleaseClient, "fetch", withdrawn)
    monkeypatch.setattr(Stages, "train", unwanted)
    monkeypatch.setattr(SubmittingClient, "submit", unwanted)
    with pytest.raises(Withdrawn):
        next(rounds.learn())
    assert asked == ["day-1"]


@pytest.mark.parametrize("anyway", [False, True])
def test_a_withdrawn_score_is_warned_of_and_does_not_tell(
    rounds: Rounds, capsys: pytest.CaptureFixture[str], anyway: bool
) -> None:
    folder = rounds.config.score_folder
    folder.mkdir(parents=True)
    for name in (MANIFEST_FILE, CODES_FILE):
        (folder / name).touch()
    taken = rounds.config.release.model_copy(update={"withdrawn": anyway})
    stages = replace(rounds.stages, config=rounds.config.model_copy(update={"release": taken}))
    (folder / CODES_FILE).unlink()
    assert stages.score_release is None  # it is not all here
    (folder / CODES_FILE).touch()
    assert stages.score_release == folder
    assert capsys.readouterr().err == ""
    mark_withdrawn(folder, "labels of another table")
    for _ in range(2):  # said once
        assert stages.score_release == (folder if anyway else None)
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("was withdrawn by its labels party: labels of another table") == 1
    assert said.count("are not taken to tell") == (not anyway)


def test_a_score_that_cannot_be_read_is_warned_of_and_codes_tell(
    rounds: Rounds, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Such as codes, which a labels party released in place of the sums that it was asked for."""
    data = {"features": tmp_path / "features.csv", "key": "key"}
    (tmp_path / "features.csv").write_text("key,x\n" + "".join(f"e{n},1\n" for n in range(40)))
    config = rounds.config.model_copy(update={"data": DataSection.model_validate(data)})
    stages = replace(rounds.stages, config=config, _labels={"y": None})
    manifest, keys, codes = make_release(40)
    write_release(config.score_folder, manifest.to_bytes(), keys, codes)
    assert stages._score() is None
    assert "no sums tell how good the model is: the release of" in " ".join(
        capsys.readouterr().err.split()
    )


def test_what_was_hashed_before_the_secret_changed_is_sent_again_with_its_check(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the labels party would release over keys that match nothing."""
    with pytest.raises(ConnectionFailed):
        send(rounds, monkeypatch, FIRST, ends(ConnectionFailed("gone")))
    path = rounds.config.keys.secret_file
    assert path is not None
    path.write_text("5" * 64)
    sent: list[Population] = []
    monkeypatch.setattr(
        SubmittingClient, "submit", lambda self, population, show: sent.append(population) or "ok"
    )
    rounds.submit(2, None)
    assert [(each.keys, each.secret_check) for each in sent] == [(FIRST.keys, FIRST.secret_check)]


def test_rounds_are_dealt_under_one_secret(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another would deal some events to two rounds."""
    (tmp_path / "features.csv").write_text("key,x\n" + "".join(f"e{n},1\n" for n in range(40)))
    data = {"features": tmp_path / "features.csv", "key": "key"}
    config = rounds.config.model_copy(update={"data": DataSection.model_validate(data)})
    mine = replace(rounds, stages=replace(rounds.stages, config=config))
    monkeypatch.setattr(SubmittingClient, "submit", lambda *_: "stored")
    mine.submit(1, None)
    (tmp_path / "join.key").write_text("5" * 64)
    with pytest.raises(ConfigError, match="round 1 was hashed with another secret"):
        mine.submit(2, None)


@pytest.mark.parametrize(
    "changed",
    [
        {"rounds": RoundsSection(shares=[0.2, 0.8])},
        {"rounds": RoundsSection(shares=[0.1, 0.2, 0.7])},
    ],
)
def test_no_event_is_dealt_to_two_rounds_by_other_shares(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changed: dict[str, Any]
) -> None:
    """It would pay twice, or the labels party would refuse it."""
    keys = [f"e{n}" for n in range(200)]
    (tmp_path / "features.csv").write_text("key,x\n" + "".join(f"{key},1\n" for key in keys))
    data = {"features": tmp_path / "features.csv", "key": "key"}
    config = rounds.config.model_copy(update={"data": DataSection.model_validate(data)})
    sent: list[bytes] = []
    monkeypatch.setattr(
        SubmittingClient, "submit", lambda self, population, _: sent.append(population.keys) or "ok"
    )
    Rounds(rounds.stages.with_config(config)).submit(1, None)
    with pytest.raises(ConfigError, match=r"\d+ events of round 1 would be asked again in round 2"):
        Rounds(rounds.stages.with_config(config.model_copy(update=changed))).submit(2, None)
    # who asks for sums from now on deals events as before
    sums = {"groups": GroupsSection(epsilon=1, lower=0, upper=1)}
    Rounds(rounds.stages.with_config(config.model_copy(update=sums))).submit(2, None)
    first, second = ({part[at : at + 16] for at in range(0, len(part), 16)} for part in sent)
    assert not first & second
    assert len(first | second) == 200


def test_whom_a_score_is_about_is_read_from_the_rounds_once(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """That a score is next, and of whom it is, are one answer."""
    keys = [f"e{n}" for n in range(400)]
    (tmp_path / "features.csv").write_text("key,x\n" + "".join(f"{key},1\n" for key in keys))
    data = {"features": tmp_path / "features.csv", "key": "key"}
    config = rounds.config.model_copy(update={"data": DataSection.model_validate(data)})
    sent: list[Population] = []
    monkeypatch.setattr(
        SubmittingClient, "submit", lambda self, population, _: sent.append(population) or "ok"
    )
    monkeypatch.setattr(Stages, "ask", lambda *_: b"a question")
    mine = Rounds(rounds.stages.with_config(config))
    mine.submit(1, None)
    mine.submit(2, None)
    folders = [config.round_folder(number) for number in (1, 2)]
    module = "labelveil.feature_party.pipeline.rounds"
    monkeypatch.setattr(f"{module}.is_complete", lambda folder: folder in folders)
    monkeypatch.setattr(Stages, "load", lambda self: self)
    monkeypatch.setattr(Stages, "ask_score", lambda self, model, asked: b"how good?")
    read: list[Path] = []
    monkeypatch.setattr(
        f"{module}.read_kept", lambda place, check: read.append(place) or read_kept(place, check)
    )
    party, population, _ = Rounds(rounds.stages.with_config(config)).submit_next()
    assert (party.epoch, population.question) == ("day-3", b"how good?")
    first, second, third = (
        {each.keys[at : at + 16] for at in range(0, len(each.keys), 16)} for each in sent
    )
    assert len(third) >= 20
    assert not third & (first | second)
    # whether each was hashed with our secret, and whom it was about
    assert sorted(read) == sorted(2 * folders)
