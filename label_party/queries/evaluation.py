"""Answer by how much a model's loss on true labels is below a constant's, under one budget.

All answers for an epoch are paid for at once, before the first, whichever of an event's labels they
are about: that buys a *session*, a secret key and the labels as they are then, clipped to their
domains. Noise is a function of that key and the
question, and every answer is on the disk before anybody sees it. So a process may die at any point:
what it had not answered is answered the same way by the next one, and the same question has the
same answer forever. Labels that change later change nothing, and nobody can tell from an answer, or
a refusal, that they did. What a question is, and why it costs what it costs, says
:mod:`common.mechanisms.paired_gain`.

``outcome.bin`` of a session (:mod:`label_party.store.pay_once`) holds its key and its labels: it is
for the labels party alone, as the labels are, and stays on this disk, readable by its owner.
Backups take the answers and leave it out. Without it a session is closed: what was answered can be
asked again, and nothing else.

Answers lie in ``<store>/answers/<data set>/<epoch>/``, one file each; they count what was used up.
Versions before 0.2 answered otherwise, through Thresholdout: their answers can be read, and their
sessions are closed.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import numpy as np

from common.arrays import Floats
from common.entropy import Entropy
from common.errors import BudgetError, DataError, ReleaseError
from common.exact.rational import decimal_value
from common.files import write_durably
from common.guarantees import Guarantee
from common.mechanisms.paired_gain import NoisyAnswers, PairedGain, half_width
from label_party.config.sections import LabelPartyConfig
from label_party.events.completion import Completed
from label_party.events.on_disk import StoredEvents
from label_party.events.open import open_events
from label_party.store.disk import StoreError, exclusive, translating_errors
from label_party.store.entries import EVALUATION
from label_party.store.pay_once import pay_once, read_outcome
from label_party.store.purchase import Payment, Purchase, find_payment
from label_party.store.release_store import OUTCOME_FILE, Store, StoredRelease

FORMAT = "labelveil-evaluation/4"
_KEY_BYTES = 32
_LOCK_FILE = "lock"


@dataclass(frozen=True)
class Answered:
    """What a question was answered, in units of the loss.

    Attributes
    ----------
    loss
        The mean difference with noise; before 0.2 a loss.
    from_labels
        Whether it comes from true labels; before 0.2 it could confirm the asker's estimate.
    answers_left
        How many further answers there were, when this was answered.
    noise_scale
        Scale of the noise.
    """

    loss: float
    from_labels: bool
    answers_left: int
    noise_scale: float


@dataclass(frozen=True)
class Session:
    """What answers are made of: the key of their noise, and (rows, m) labels in release order."""

    key: bytes
    labels: Floats

    @classmethod
    def begin(cls, labels: Floats) -> Self:
        """A session under a fresh key."""
        return cls(os.urandom(_KEY_BYTES), labels)

    def to_bytes(self) -> bytes:
        """A line of JSON, and the labels."""
        facts = {"format": FORMAT, "key": self.key.hex(), "labels": self.labels.shape[1]}
        header = json.dumps(facts, sort_keys=True)
        return header.encode() + b"\n" + self.labels.astype("<f8").tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self | None:
        """Read it back; None if it is of another format."""
        line, _, labels = data.partition(b"\n")
        header = json.loads(line)
        if header["format"] != FORMAT:
            return None
        # sessions from before there were several labels do not say how many
        columns = np.frombuffer(labels, "<f8").reshape(-1, header.get("labels", 1))
        return cls(bytes.fromhex(header["key"]), columns)


class Evaluation:
    """One epoch's questions and answers; safe for any number of threads and processes.

    Parameters
    ----------
    config
        Which labels, and how much they may tell.
    store
        Where the session and its answers are kept.
    """

    def __init__(self, config: LabelPartyConfig, store: Store) -> None:
        self.settings = config.evaluation
        privacy = config.privacy
        self.mechanism = NoisyAnswers(
            epsilon=decimal_value(self.settings.epsilon),
            most=self.settings.answers,
            group=privacy.group,
            unit=privacy.privacy_unit,
        )
        self._config, self._store = config, store
        self.data_set = config.data.data_set
        self._lock = threading.Lock()
        self._session: Session | None = None

    def price(self) -> Guarantee | None:
        """What the first question will be charged; None if none is offered, or all is paid for."""
        data = self._config.data
        with self._store.read_ledger() as ledger:
            if ledger.committed(data.data_set, data.epoch, EVALUATION) is not None:
                return None
        return self.mechanism.guarantee if self.settings.offered else None

    def offers(self, release: StoredRelease, loss: str) -> bool:
        """Whether questions about a release and a loss are taken, or were before 0.2."""
        manifest, data, own = release.manifest, self._config.data, self.settings.loss
        mine = (manifest.data_set, manifest.epoch) == (data.data_set, data.epoch)
        released, names = manifest.names, [one.name for one in self._config.labels]
        same = released == names or len(released) == len(names) == 1
        return self.settings.offered and mine and same and loss in (f"{own} gain", own)

    def gain(self, release: StoredRelease, label: str) -> PairedGain:
        """What answers about one of a release's labels are the mean of."""
        settings, released = self.settings, release.manifest.marginal(label)
        return PairedGain.of_prior(*released, settings.loss, settings.largest_loss)

    def answers_left(self, release: StoredRelease) -> int:
        """How many questions will still be answered."""
        purchase = self._purchase(release)
        known = _read_answers(self._store.answers(purchase.data_set, purchase.epoch))
        return max(0, self.mechanism.most - len(known))

    def ask(self, release: StoredRelease, label: str, predictions: Floats) -> Answered:
        """Answer one question.

        Parameters
        ----------
        release
            A release that :meth:`offers` accepts.
        label
            Which of its labels predictions are of.
        predictions
            (rows,) in label units, in release order; NaN where a row is left out.

        Raises
        ------
        BudgetError
            If the budget does not allow an evaluation, or its answers are used up.
        Unsure
            If the answer would be less sure than the tolerance allows; nothing is spent.
        LabelveilError
            If labels, store or ledger cannot be used.
        """
        names, kind = release.manifest.names, f"gain {self.settings.loss}"
        if len(names) > 1:  # the same predictions of another label are another question
            kind += f" {label}"
        question = question_name(release.digest, kind.encode(), predictions)
        asked = ~np.isnan(predictions)
        gain, points = self.gain(release, label), predictions[asked]
        noise = self.mechanism.unsure(gain, gain.span(points), points.size)
        purchase = self._purchase(release)
        folder = self._store.answers(purchase.data_set, purchase.epoch)
        with self._lock:
            with translating_errors(folder):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with exclusive(folder / _LOCK_FILE, "another process is answering a question"):
                known = _read_answers(folder)
                if question in known:
                    return known[question]
                if len(known) >= self.mechanism.most:
                    raise BudgetError(f"{len(known)} answers were given, and no more are")
                most = self.settings.tolerance * gain.constant_loss
                if half_width(noise) > most:
                    raise Unsure(half_width(noise), most)
                paid = find_payment(self._store, purchase)
                if self._session is None:
                    self._session = self._open(release, purchase, paid)
                left = self.mechanism.most - len(known) - 1
                truth = self._session.labels[:, names.index(label)]
                value = self.answer(self._session.key, gain, predictions, truth, question)
                answer = Answered(value, True, left, noise)
                _write(folder / f"{question}.json", answer)
        return answer

    def answer(
        self, key: bytes, gain: PairedGain, predictions: Floats, labels: Floats, question: str
    ) -> float:
        """Answer a question by this name about (rows,) labels; nothing is written, or charged."""
        asked, entropy = ~np.isnan(predictions), Entropy(key)
        return self.mechanism.answer(
            gain, predictions[asked], labels[asked], question=question, entropy=entropy
        )

    def recall(self, release: StoredRelease, predictions: Floats, estimate: float) -> Answered:
        """Return what a version before 0.2 answered."""
        purchase = self._purchase(release)
        question = question_name(release.digest, np.float64(estimate).tobytes(), predictions)
        known = _read_answers(self._store.answers(purchase.data_set, purchase.epoch))
        if question not in known:
            raise ReleaseError('questions about a loss are taken no more; ask for its "gain"')
        return known[question]

    def _purchase(self, release: StoredRelease) -> Purchase:
        config, settings = self._config, self.settings
        terms = {
            one.name: {"domain": list(one.bounds), "missing": one.missing} for one in config.labels
        }
        asked = {
            "release": release.digest,
            "loss": f"{settings.loss} gain",
            **({"labels": terms} if len(terms) > 1 else next(iter(terms.values()))),
            "largest_loss": settings.largest_loss,
            "epsilon": settings.epsilon,
            "answers": settings.answers,
        }
        return Purchase.configured(config, EVALUATION, self.mechanism.guarantee, asked)

    def _open(self, release: StoredRelease, purchase: Purchase, paid: Payment | None) -> Session:
        """Pay for all answers, or read the session that did."""
        place = (purchase.data_set, purchase.epoch, EVALUATION)
        which = f"the evaluation of epoch {purchase.epoch!r}"
        if paid is None:
            with open_events(self._config, quiet=True) as events:
                session = Session.begin(self._labels(release, events))
                build, prints = session.to_bytes, events.fingerprints
                data = pay_once(self._store, purchase, build, prints).data
        elif (self._store.outcome_path(*place) / OUTCOME_FILE).exists():
            data = read_outcome(self._store, paid.charge)
        else:  # how many answers were given is not known
            raise ReleaseError(
                f"{which} was restored from a backup and is closed; name another epoch"
            )
        found = Session.from_bytes(data)
        if found is None:  # other questions, of other noise
            raise ReleaseError(
                f"{which} was begun by an earlier version and is closed; name another epoch"
            )
        return found

    def _labels(self, release: StoredRelease, events: Completed | StoredEvents) -> Floats:
        """(rows, m) true labels in release order, as they are now."""
        lower, upper = np.array([terms.bounds for terms in self._config.labels]).T
        digest, parts = hashlib.sha256(), []
        for keys, labels in events.parts():
            digest.update(keys.tobytes())
            parts.append(np.clip(labels, lower, upper))
        if digest.hexdigest() != release.manifest.population.digest:
            raise DataError(
                f"the population is no longer that of epoch {self._config.data.epoch!r};"
                " restore the files that it was released from"
            )
        return np.concatenate(parts)


class Unsure(ReleaseError):
    """A question whose answer would be less sure than the tolerance allows."""

    def __init__(self, reach: float, most: float) -> None:
        super().__init__(
            f"the answer could be off by {reach:.4g}, more than the {most:.4g} of [evaluation]"
            " tolerance; ask about more events, predict closer to the mean, or agree on a larger"
            " epsilon or fewer answers"
        )


def question_name(release: str, kind: bytes, predictions: Floats) -> str:
    """Name of a question's noise: SHA-256 of all that is asked, about which release."""
    data = np.ascontiguousarray(predictions, dtype="<f8").tobytes()
    return hashlib.sha256(bytes.fromhex(release) + kind + data).hexdigest()


def _read_answers(folder: Path) -> dict[str, Answered]:
    """Every answer that was ever given, by its question."""
    try:
        return {
            path.stem: Answered(**json.loads(path.read_bytes())) for path in folder.glob("*.json")
        }
    except (OSError, ValueError, TypeError) as error:
        raise ReleaseError(f"{folder} cannot be read; restore it from a backup") from error


def _write(path: Path, answer: Answered) -> None:
    """Put an answer on the disk; it counts once it has its name."""
    try:
        write_durably(path, json.dumps(asdict(answer), sort_keys=True).encode())
    except OSError as error:
        raise StoreError(
            f"{path} cannot be written: {error.strerror}; check the disk's space and rights, then"
            " ask again: the answer will be the same"
        ) from error
