"""What goes to the labels party and comes from it: the population, the release."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars.selectors as cs
from rich.progress import Progress

from labelveil.common.console import progress, warn
from labelveil.common.errors import ConnectionFailed, LabelveilError, ReleaseError
from labelveil.common.files import write_durably
from labelveil.common.release.event_keys import read_secret
from labelveil.common.release.folder import (
    CHECK_FILE,
    POPULATION_FILE,
    QUESTION_FILE,
    is_complete,
    withdrawn_reason,
)
from labelveil.common.release.manifest import Manifest, manifest_in
from labelveil.common.release.question import decode_question
from labelveil.common.streams import say
from labelveil.feature_party.client.channel import Withdrawn
from labelveil.feature_party.client.release_client import Fetched, ReleaseClient, noting_withdrawal
from labelveil.feature_party.client.submission import (
    FROZEN,
    Population,
    SubmittingClient,
    hash_population,
)
from labelveil.feature_party.config.labels_party import LabelsPartySection
from labelveil.feature_party.config.sections import FeaturePartyConfig
from labelveil.feature_party.tables import check_key, check_type_of_key, collect_table, scan_table

_SENDING = "submission"
"""Folder, in a release's, of what is being submitted."""


@dataclass(eq=False)
class Transfer:
    """The stages between the parties; ``timings`` has the seconds that each took."""

    config: FeaturePartyConfig
    quiet: bool = False
    timings: dict[str, float] = field(default_factory=dict)
    _warned: set[str] = field(default_factory=set)

    def warn(self, text: str) -> None:
        """Print a warning once, however many stages give it."""
        if text not in self._warned:
            self._warned.add(text)
            warn(text)

    @property
    def manifests(self) -> list[Manifest]:
        """What the releases that are learned from state, a labels party's oldest first."""
        return [manifest_in(path) for path in self.config.release_folders]

    @property
    def withdrawn(self) -> list[str]:
        """A sentence on each of these that is known to be withdrawn, with the reason."""
        reasons = {folder: withdrawn_reason(folder) for folder in self.config.release_folders}
        return [
            f"the release in {folder} was withdrawn by its labels party: {reason}"
            for folder, reason in reasons.items()
            if reason is not None
        ]

    @property
    def score_release(self) -> Path | None:
        """The folder of the release that tells how good a model of rounds is; None if there is
        none, or one that was withdrawn and is not to be learned from, which is warned of."""
        if not self.config.round_shares or not is_complete(self.config.score_folder):
            return None
        folder = self.config.score_folder
        if (reason := withdrawn_reason(folder)) is not None:
            self.warn(f"the release in {folder} was withdrawn by its labels party: {reason}")
            if not self.config.release.withdrawn:
                self.warn(f"how good the model is, the sums in {folder} are not taken to tell")
                return None
        return folder

    def check_withdrawn(self) -> None:
        """Refuse, or warn of, releases that are known to be withdrawn, as is configured."""
        for said in self.withdrawn:
            if not self.config.release.withdrawn:
                raise ReleaseError(
                    f"{said}; fetch another, or set [release] withdrawn = true to learn from it all"
                    " the same"
                )
            self.warn(said)

    def population(self) -> Population:
        """The keys of the features, hashed."""
        config = self.config
        secret = read_secret(config.secret_of(config.only_labels_party))
        frame = scan_table(config.features)
        check_key(frame, config.key)
        check_type_of_key(config.features, config.key)
        keys = collect_table(frame.select(cs.by_name(config.key)))[config.key]
        with progress(quiet=self.quiet) as bar:
            hashing = bar.add_task("hash keys", total=keys.len(), note="keys")
            return hash_population(
                keys, secret, on_rows=lambda done, total: bar.update(hashing, completed=done)
            )

    def submit_all(self, question: bytes = b"") -> tuple[Population, str]:
        """Submit the keys of the features as the population; returns them, and how it ended.

        ``ReleaseError`` if a question is none about as many events.
        """
        population = replace(self.population(), question=question)
        if question:
            decode_question(question, population.rows)
        return population, self.submit(population, self.config.release.directory)

    def submit(self, population: Population, folder: Path) -> str:
        """Submit a population; returns how it ended.

        What was sent lies in its release's folder once it was taken, and beside that from before it
        leaves, so that whoever is interrupted sends the same again.
        """
        client, sending = SubmittingClient(self.config.only_labels_party), folder / _SENDING
        sending.mkdir(parents=True, exist_ok=True)
        _keep(population, sending)
        with self._timed("submit"), progress(quiet=self.quiet) as bar:
            task = bar.add_task("submit", total=population.rows, note="keys")
            begun = time.monotonic()

            def show(done: int, total: int) -> None:
                rate = done / max(time.monotonic() - begun, 1e-9)
                bar.update(task, completed=done, total=total, note=f"keys, {rate:,.0f}/s")

            try:
                with noting_withdrawal(folder, client.settings):
                    ending = client.submit(population, show)
            except ReleaseError as error:  # it was not taken, and need not be
                (sending / POPULATION_FILE).unlink()  # first: without keys it is nothing
                shutil.rmtree(sending)
                if isinstance(error, Withdrawn) and self._goes_on(folder):
                    return "withdrawn"
                raise
            if self._is_answered(client, population, ending):
                _keep(population, folder)  # a second time: at any moment one of the two is complete
            shutil.rmtree(sending)
            bar.update(task, completed=population.rows)
            return ending

    def _is_answered(self, client: SubmittingClient, population: Population, ending: str) -> bool:
        """Whether the epoch's release is, or can be, about the question that was submitted.

        Another one is not asked any more; nor may it take the place of the one whose sums came.
        """
        if ending != FROZEN:
            return True
        sums = client.describe("submit").sums
        if sums is None or hashlib.sha256(population.question).hexdigest() == sums.question:
            return True
        warn(
            "the release exists, and answers another question than this one, which stays where it"
            " is: name another epoch to ask anew"
        )
        return False

    def fetch(self) -> list[Fetched]:
        """Fetch and verify the release, or one of each epoch and labels party configured.

        ``ConnectionFailed`` if a labels party's could not be fetched; those of the others are there
        then.
        """
        fetched: list[Fetched] = []
        failed: dict[str, LabelveilError] = {}
        with self._timed("fetch"), progress(quiet=self.quiet) as bar:
            for party in self.config.labels_party:
                folder = self.config.folder_of(party)
                wanted = [
                    (party.model_copy(update={"epoch": epoch, "epochs": []}), folder / epoch)
                    for epoch in party.epochs
                ] or [(party, folder)]
                try:
                    fetched += [self._fetch(bar, *release) for release in wanted]
                except (ConnectionFailed, ReleaseError) as error:
                    if not self.config.several:
                        raise
                    failed[party.called] = error
        if failed:
            reasons = "; ".join(f"{name}: {error}" for name, error in failed.items())
            raise ConnectionFailed(
                f"{len(failed)} of {len(self.config.labels_party)} labels parties did not send"
                f" their release, those of the others are here; {reasons}"
            )
        return fetched

    def _fetch(self, bar: Progress, party: LabelsPartySection, folder: Path) -> Fetched:
        step = "fetch" if folder == self.config.release.directory else f"fetch {folder.name}"
        task = bar.add_task(step, total=None, note="rows")
        begun, first = time.monotonic(), None

        def show(done: int, total: int) -> None:
            nonlocal begun, first
            if first is None:  # rows that an earlier fetch left count for no rate
                begun, first = time.monotonic(), done
            rate = (done - first) / max(time.monotonic() - begun, 1e-9)
            bar.update(task, completed=done, total=total, note=f"rows, {rate:,.0f}/s")

        try:
            tell = (lambda line: None) if self.quiet else say
            fetched = ReleaseClient(party, tell=tell).fetch(folder, show)
        except Withdrawn as error:
            if not self._goes_on(folder):
                raise
            manifest = manifest_in(folder)
            fetched = Fetched(manifest, folder, 0, 0.0, withdrawn=error.reason)
        if fetched.withdrawn is not None:
            lost = fetched.replaced or (fetched.manifest.data_set, fetched.manifest.epoch)
            warn(
                f"the labels party has withdrawn its release of data set {lost[0]!r}, epoch"
                f" {lost[1]!r}: {fetched.withdrawn}"
            )
        score = self.config.score_folder if self.config.round_shares else None
        if self.config.release.parquet and folder != score:  # which no rows are of
            from labelveil.feature_party.client.labels_table import write_labels_table

            write_labels_table(folder, fetched.manifest)
        return fetched

    def _goes_on(self, folder: Path) -> bool:
        """Whether we are to learn from what is here although it was withdrawn."""
        return self.config.release.withdrawn and is_complete(folder)

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        begun = time.monotonic()
        yield
        self.timings[stage] = time.monotonic() - begun


def kept_in(folder: Path) -> Path | None:
    """Where that lies which was submitted for a release's folder, or was about to be, if at all."""
    places = (folder, folder / _SENDING)
    return next((place for place in places if (place / POPULATION_FILE).is_file()), None)


def read_kept(place: Path, check: bytes) -> Population:
    """What lies there, to be sent again as it was, whatever the secret is by now.

    ``check`` is of the present secret: for what an earlier version kept, which says none.
    """
    keys, question, kept = (place / name for name in (POPULATION_FILE, QUESTION_FILE, CHECK_FILE))
    hashed_with = kept.read_bytes() if kept.is_file() else check
    return Population(keys.read_bytes(), hashed_with, question.read_bytes())


def _keep(population: Population, folder: Path) -> None:
    """Write a population; there is one as long as its keys are there, which come last."""
    (folder / POPULATION_FILE).unlink(missing_ok=True)  # those that another question was about
    write_durably(folder / QUESTION_FILE, population.question)
    write_durably(folder / CHECK_FILE, population.secret_check)
    write_durably(folder / POPULATION_FILE, population.keys)
