"""Canaries in groups come back as sums of the real labels party; what is wrong with them shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import labelveil.commands.cli
from labelveil.audit.canaries import sums
from labelveil.audit.canaries.planting import Planted, plant, read_planted
from labelveil.audit.canaries.score import score
from labelveil.audit.canaries.sums import Summed, match
from labelveil.audit.certificate.evidence import Evidence, read_evidence
from labelveil.audit.certificate.sums import parsed_question
from labelveil.audit.settings import Planting
from labelveil.audit.verdict import Verdict
from labelveil.common.arrays import Integers
from labelveil.common.errors import ConfigError, ReleaseError
from labelveil.common.release.event_keys import hash_keys, read_secret, secret_check
from labelveil.common.security.new_keys import write_secret
from labelveil.label_party.config.sections import load
from labelveil.label_party.events.submitted import Populations, Submitted
from labelveil.label_party.release.run import run_release
from labelveil.label_party.store.release_store import Store
from tests.commands import RunCommand
from tests.labelveil.audit.conftest import without_power

pytestmark = pytest.mark.statistical

CONFIG = """
[data]
labels = "partner/labels.parquet"
population = "submitted"
[domain]
lower = -4
upper = 6
grid = "auto"
[privacy]
epsilon = 1
total_epsilon = 2
[keys]
secret_file = "join.key"
[rounds]
questions = true
"""


@dataclass(frozen=True)
class Grown:
    """Canaries, two releases of sums of them, and the secret of their keys."""

    planted: Planted
    folder: Path
    first: Evidence
    second: Evidence

    @property
    def secret(self) -> Path:
        """Of the keys."""
        return self.folder / "join.key"

    @property
    def noise(self) -> Integers:
        """(G,) what is left of all sums: of those whose labels are not known, of no meaning."""
        summed = self.summed(self.first)
        noise = np.zeros(self.first.answer.size, dtype=np.int64)
        noise[summed.groups] = summed.noise
        return noise

    def summed(self, evidence: Evidence) -> Summed:
        """Sums beside the known labels."""
        return match(self.planted, evidence, self.secret)

    def failed(self, answer: Integers, *before: Evidence) -> set[str]:
        """Of the checks of canaries, where other sums are sent."""
        sent = replace(self.first, labels=pl.DataFrame({"sum": answer}))
        audit = score(self.planted, sent, self.secret, before=before)
        ours = ("noise of the sums", "labels of every kind", "noise of other groups")
        ours += ("noise of two epochs",)
        return {c.name for c in audit.checks if c.verdict is Verdict.FAIL and c.name in ours}


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Grown:
    folder = tmp_path_factory.mktemp("summed")
    planting = Planting(events=16_000, lower=-4.0, upper=6.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert plant(Path("."), planting)
        write_secret(Path("join.key"))
        Path("label_party.toml").write_text(CONFIG)
        main = labelveil.commands.cli.main
        patch.setattr("sys.argv", ["labelveil", "audit", "canaries", "ask", ".", "--points=21"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        planted, question = read_planted(Path(".")), Path("release/question.bin").read_bytes()
        for epoch in ("1", "2"):
            submit(planted, Path("join.key"), question, epoch)
            run_release(load(Path("label_party.toml"), {"data.epoch": epoch}), quiet=True)
    releases = folder / "label_store" / "releases" / "labels"
    return Grown(planted, folder, *(read_evidence(releases / epoch) for epoch in ("1", "2")))


def submit(planted: Planted, secret: Path, question: bytes, epoch: str) -> None:
    """Put canaries and the question about them into the store, as a submission does."""
    key, populations = read_secret(secret), Populations(Store(Path("label_store")))
    parts = hash_keys(planted.keys, key), question
    with populations.upload() as uploads, populations.exchanging("labels", epoch):
        for upload, part in zip(uploads, parts, strict=True):
            upload.append(part)
            upload.seal()
        keys, asked = (sha256(part).hexdigest() for part in parts)
        facts = Submitted(
            planted.keys.len(), keys, secret_check(key).hex(), "us", "2026-11-26T00:00:00Z", asked
        )
        populations.store("labels", epoch, *uploads, facts)


@pytest.mark.slow
def test_a_right_party_passes(grown: Grown) -> None:
    audit = score(grown.planted, grown.first, grown.secret, before=[grown.second])
    assert [c.name for c in audit.checks if c.verdict is Verdict.FAIL] == []
    verdicts = {check.name: check.verdict for check in audit.checks}
    names = ("noise of the sums", "labels of every kind", "noise of other groups")
    for name in (*names, "noise of two epochs"):
        assert verdicts[name] is Verdict.PASS
    assert verdicts["sums answer the question"] is Verdict.PASS
    assert without_power(audit) == []
    (kinds,) = (check for check in audit.checks if check.name == "labels of every kind")
    assert "Of groups that have one kind of label each, of " in kinds.tried
    assert "so far or farther has probability at most" in kinds.found


def half(grown: Grown, noise: Integers) -> Integers:
    return noise // 2


def even(grown: Grown, noise: Integers) -> Integers:
    return 2 * (noise // 2)


def large_groups_exact(grown: Grown, noise: Integers) -> Integers:
    return np.where(sizes_of(grown) == 20, 0, noise)


def empty_groups_exact(grown: Grown, noise: Integers) -> Integers:
    return np.where(sizes_of(grown) == 0, 0, noise)


def missing_left_out(grown: Grown, noise: Integers) -> Integers:
    """A missing label is worth nothing instead of the lowest label."""
    asked = parsed_question(grown.first.question or b"", grown.planted.keys.len())
    kinds = len(grown.planted.labels)
    places = np.zeros(grown.planted.secrets.size, dtype=np.int64)
    none = grown.planted.secrets == kinds - 1
    at_the_offset = asked.offsets[asked.levels]
    return noise + asked.sums(np.where(none, at_the_offset, places)) - asked.sums(places)


def beyond_counts(grown: Grown, noise: Integers) -> Integers:
    """Labels above the highest count as they are, in groups that are not narrower."""
    asked = parsed_question(grown.first.question or b"", grown.planted.keys.len())
    above = np.flatnonzero(grown.planted.secrets == len(grown.planted.planting.labels) + 1)
    above = above[asked.groups[above] < asked.widths.size]
    more = np.zeros(noise.size, dtype=np.int64)
    np.add.at(more, asked.groups[above], 40 * asked.weights[above])
    return noise + more


def one_for_two(grown: Grown, noise: Integers) -> Integers:
    again = noise.copy()
    again[1::2] = again[::2][: again[1::2].size]
    return again


def sizes_of(grown: Grown) -> Integers:
    asked = parsed_question(grown.first.question or b"", grown.planted.keys.len())
    named = asked.groups[asked.groups < asked.widths.size]
    return np.bincount(named, minlength=asked.widths.size)


@pytest.mark.parametrize(
    ("twin", "name"),
    [
        (half, "noise of the sums"),
        (even, "noise of the sums"),
        (large_groups_exact, "noise of the sums"),
        (empty_groups_exact, "noise of the sums"),
        (missing_left_out, "labels of every kind"),
        (beyond_counts, "labels of every kind"),
        (one_for_two, "noise of other groups"),
    ],
)
def test_what_is_wrong_with_sums_shows(
    grown: Grown, twin: Callable[[Grown, Integers], Integers], name: str
) -> None:
    noise = grown.noise
    assert name in grown.failed(grown.first.answer - noise + twin(grown, noise))


def test_noise_that_is_kept_for_the_next_epoch_shows(grown: Grown) -> None:
    assert grown.failed(grown.first.answer, grown.first) == {"noise of two epochs"}


def test_the_commands(grown: Grown, run_command: RunCommand) -> None:
    main, folder = labelveil.commands.cli.main, grown.folder
    again = run_command(main, "audit", "canaries", "ask", str(folder))
    assert (again.code, "is there already" in again.err) == (1, True)
    words = [f"--release={grown.first.directory}", f"--secret={grown.secret}"]
    words += [f"--before={grown.second.directory}", f"--out={folder}/audit"]
    scored = run_command(main, "audit", "canaries", "score", str(folder), *words)
    assert scored.code == 0, scored.out
    assert "pass  noise of the sums" in scored.out
    assert "pass  noise of two epochs" in scored.out


def test_what_does_not_fit_is_refused(grown: Grown, tmp_path: Path) -> None:
    (tmp_path / "other.key").write_bytes(b"1" * 64)
    (tmp_path / "other.key").chmod(0o600)
    with pytest.raises(ReleaseError, match="not of these canaries"):
        match(grown.planted, grown.first, tmp_path / "other.key")
    for shown, said in (
        (replace(grown.first, directory=tmp_path), "the question that .* answers is not beside it"),
        (replace(grown.first, labels=grown.first.labels[1:]), "of other groups than the question"),
    ):
        with pytest.raises(ReleaseError, match=said):
            match(grown.planted, shown, grown.secret)
    plant(tmp_path / "two", Planting(events=1000, lower=0, upper=1, also=["other:0:1"]))
    with pytest.raises(ConfigError, match="without --also"):
        sums.ask(read_planted(tmp_path / "two"), 11)
