"""Answer by how much a model's loss on true labels is below a constant's, under one budget.

All answers for an epoch are paid for at once, before the first, whichever of an event's labels they
are about: that buys a *session*, a secret key and the labels as they are then, clipped to their
domains. Noise is a function of that key and the question, and an answer is shown once the ledger
has it, in the one transaction that uses it up. So a process may die at any point: the next one
gives the same answer, and the same question has the same answer forever. Nobody can tell from an
answer, or a refusal, that labels changed later. What a question costs, and why, says
:mod:`labelveil.common.mechanisms.paired_gain`.

``outcome.bin`` of a session (:mod:`labelveil.label_party.store.purchase`) holds its key and its
labels: it stays on this disk, readable by its owner, and backups leave it out. Without it a session
is closed: what was answered can be asked again, and nothing else. A ledger that is an older copy is
seen by ``answered.log`` beside the session, which names every question whose answer was shown: one
that the ledger does not know closes it.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from labelveil.common.arrays import Floats
from labelveil.common.entropy import Entropy
from labelveil.common.errors import BudgetError, DataError, ReleaseError
from labelveil.common.exact.rational import decimal_value
from labelveil.common.files import append_durably, file_errors
from labelveil.common.guarantees import Guarantee
from labelveil.common.mechanisms.paired_gain import NoisyAnswers, PairedGain, half_width
from labelveil.common.noncopyable import NonCopyable
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.store.disk import StoreError
from labelveil.label_party.store.entries import EVALUATION, Answer, Charge
from labelveil.label_party.store.ledger import LedgerError
from labelveil.label_party.store.purchase import Order, check_terms, pay_once, read_outcome
from labelveil.label_party.store.reading import Current
from labelveil.label_party.store.release_store import (
    ANSWERED_FILE,
    OUTCOME_FILE,
    Store,
    StoredRelease,
)

if TYPE_CHECKING:
    from labelveil.label_party.events.steps import Events

FORMAT = "labelveil-evaluation/1"
_KEY_BYTES = 32
_NAME_LENGTH = 64


@dataclass(frozen=True, eq=False)
class EvaluationSession:
    """What answers are made of: the key of their noise, and (rows, m) labels in release order."""

    key: bytes
    labels: Floats

    def to_bytes(self) -> bytes:
        """A line of JSON, and the labels."""
        facts = {"format": FORMAT, "key": self.key.hex(), "labels": self.labels.shape[1]}
        header = json.dumps(facts, sort_keys=True)
        return header.encode() + b"\n" + self.labels.astype("<f8").tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read it back."""
        line, _, labels = data.partition(b"\n")
        header = json.loads(line)
        columns = np.frombuffer(labels, "<f8").reshape(-1, header["labels"])
        return cls(bytes.fromhex(header["key"]), columns)


@dataclass(frozen=True, eq=False)
class _State:
    """A session as the ledger knows it."""

    charge: Charge | None  # none if it is not sold yet
    given: list[Answer]
    closed: str | None  # why it answers nothing new; None if it does


class Evaluation(NonCopyable):
    """One epoch's questions and answers; safe for any number of threads and processes."""

    def __init__(self, config: LabelPartyConfig, store: Store) -> None:
        super().__init__()
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
        self._session: EvaluationSession | None = None
        self._known = Current(store.ledger_path, self._read)

    def price(self) -> Guarantee | None:
        """What the first question will be charged; None if none is offered, or all is paid for."""
        if self._known.value().charge is not None:
            return None
        return self.mechanism.guarantee if self.settings.offered else None

    def offers(self, release: StoredRelease, loss: str) -> bool:
        """Whether questions about a release and a loss are taken."""
        manifest, data = release.manifest, self._config.data
        mine = (manifest.data_set, manifest.epoch) == (data.data_set, data.epoch)
        released, names = manifest.names, [label.name for label in self._config.labels]
        same = released == names or len(released) == len(names) == 1
        codes = manifest.sums is None  # whose prior says what answers are compared with
        return (
            self.settings.offered
            and mine
            and same
            and codes
            and loss == f"{self.settings.loss} gain"
        )

    def gain(self, release: StoredRelease, label: str) -> PairedGain:
        """What answers about one of a release's labels are the mean of."""
        settings, released = self.settings, release.manifest.message.marginal(label)
        return PairedGain.of_prior(*released, settings.loss, settings.largest_loss)

    def answers_left(self, release: StoredRelease) -> int:
        """How many questions will still be answered.

        ``ReleaseError`` if the session was sold on other terms than are configured.
        """
        state = self._state(self._order(release))
        return 0 if state.closed else self.mechanism.most - len(state.given)

    def ask(self, release: StoredRelease, label: str, predictions: Floats) -> Answer:
        """Answer one question about a release that :meth:`offers` accepts, and one of its labels.

        ``predictions`` are (rows,), in label units and release order; NaN where a row is left out.
        ``BudgetError`` if the budget does not allow an evaluation, or its answers are used up;
        ``Unsure`` if the answer would be less sure than the tolerance allows, which spends nothing;
        ``LabelveilError`` if labels, store or ledger cannot be used.
        """
        names, kind = release.manifest.names, f"gain {self.settings.loss}"
        if len(names) > 1:  # the same predictions of another label are another question
            kind += f" {label}"
        question = question_name(release.digest, kind.encode(), predictions)
        predicted = ~np.isnan(predictions)
        gain, points = self.gain(release, label), predictions[predicted]
        noise = self.mechanism.unsure(gain, gain.span(points), points.size)
        order = self._order(release)
        with self._lock:
            state = self._state(order)
            for answer in state.given:
                if answer.question == question:
                    return self._shown(order, answer)
            if len(state.given) >= self.mechanism.most:
                raise BudgetError(f"{len(state.given)} answers were given, and no more are")
            most = self.settings.tolerance * gain.constant_loss
            if half_width(noise) > most:
                raise Unsure(half_width(noise), most)
            if state.closed:
                raise ReleaseError(
                    f"the evaluation of epoch {order.epoch!r} {state.closed}, and is closed; name"
                    " another epoch"
                )
            if self._session is None:
                self._session = self._open(release, order, state.charge)
            truth = self._session.labels[:, names.index(label)]
            value = self.mechanism.draw(
                gain,
                points,
                truth[predicted],
                question=question,
                entropy=Entropy(self._session.key),
            )
            return self._shown(order, self._count(order, question, value, noise))

    def _read(self) -> _State:
        """What the ledger says of the one session there may be."""
        data = self._config.data
        with self._store.read_ledger() as ledger:
            charge = ledger.committed(data.data_set, data.epoch, EVALUATION)
            if charge is None:
                return _State(None, [], None)
            return _State(charge, ledger.answers(charge), ledger.closed(charge))

    def _state(self, order: Order) -> _State:
        """What was sold and answered, and why nothing more is."""
        known = self._known.value()
        charge, given, closed = known.charge, known.given, known.closed
        if charge is None:
            return known
        check_terms(charge, order)
        log = self._log(order)
        if closed is None and not (log.parent / OUTCOME_FILE).exists():
            closed = "has lost its key and its labels"
        if closed is None and not shown_questions(log) <= {answer.question for answer in given}:
            closed = f"gave answers that the ledger does not know ({log}), an older copy,"
        return _State(charge, given, closed)

    def _count(self, order: Order, question: str, value: float, noise: float) -> Answer:
        """Use an answer up: nobody sees it before the ledger has it."""
        try:
            with self._store.open_ledger() as ledger:
                charge = ledger.committed(*order.name)
                if charge is None:
                    raise LedgerError(f"ledger {ledger.path} lost a session that it sold")
                return ledger.answer(charge, question, value, noise)
        except LedgerError as error:
            raise StoreError(
                f"the session of epoch {order.epoch!r} is paid for, but its answer could not be"
                f" written ({error.__cause__ or error}); ask again: the answer will be the same"
            ) from error

    def _shown(self, order: Order, answer: Answer) -> Answer:
        """Remember that an answer is shown, where an older ledger cannot make it forgotten."""
        path = self._log(order)
        if path.parent.exists() and answer.question not in shown_questions(path):
            remedy = (
                "; check the disk's space and rights, then ask again: the answer will be the same"
            )
            with file_errors(StoreError, f"{path} cannot be written", remedy):
                append_durably(path, f"\n{answer.question}".encode())
        return answer

    def _log(self, order: Order) -> Path:
        return self._store.folder(*order.name) / ANSWERED_FILE

    def _order(self, release: StoredRelease) -> Order:
        config, settings = self._config, self.settings
        terms = {
            label.name: {"domain": list(label.bounds), "missing": label.missing}
            for label in config.labels
        }
        request = {
            "release": release.digest,
            "loss": f"{settings.loss} gain",
            **({"labels": terms} if len(terms) > 1 else next(iter(terms.values()))),
            "largest_loss": settings.largest_loss,
        }
        return Order.configured(
            config, EVALUATION, self.mechanism.guarantee, request, answers=self.mechanism.most
        )

    def _open(
        self, release: StoredRelease, order: Order, charge: Charge | None
    ) -> EvaluationSession:
        """Pay for all answers, or read the session that did."""
        if charge is not None:
            return EvaluationSession.from_bytes(read_outcome(self._store, charge))
        from labelveil.label_party.events.open import open_events  # reading is no part of a server

        with open_events(self._config, quiet=True) as events:
            session = EvaluationSession(os.urandom(_KEY_BYTES), self._labels(release, events))
            bought = pay_once(self._store, order, session.to_bytes, events)
            return EvaluationSession.from_bytes(bought.data)

    def _labels(self, release: StoredRelease, events: Events) -> Floats:
        """(rows, m) true labels in release order, as they are now."""
        stated = release.manifest.population.secret_check
        if stated not in (None, events.join_check):
            raise DataError(
                f"the keys of epoch {self._config.data.epoch!r} are hashed with another secret than"
                f" {self._config.keys.secret_file}; set [keys] secret_file to that epoch's"
            )
        lower, upper = np.array([terms.bounds for terms in self._config.labels]).T
        digest, parts = hashlib.sha256(), []
        for keys, labels in events.keys_and_labels():
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


def shown_questions(log: Path) -> set[str]:
    """Every question whose answer was shown; a line that a crash tore was not."""
    try:
        return {line for line in log.read_text().split("\n") if len(line) == _NAME_LENGTH}
    except FileNotFoundError:
        return set()
    except (OSError, ValueError) as error:
        raise ReleaseError(f"{log} cannot be read; restore it from a backup") from error
