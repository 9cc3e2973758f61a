"""``label-party release``: read and complete the events, then buy a message about them.

Everything that can be refused is refused before the budget is touched. Reserving, writing and
committing is :mod:`labelveil.label_party.store.purchase`'s; nothing is served before the commit.
"""

from __future__ import annotations

from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from labelveil.common.console import row_progress
from labelveil.common.entropy import Entropy, system_entropy
from labelveil.common.errors import ReleaseError, not_none
from labelveil.common.files import write_durably
from labelveil.common.mechanisms.group_sums import GroupQuestion
from labelveil.common.randomizers import Message
from labelveil.common.randomizers.message.plan import MessagePlan
from labelveil.common.randomizers.message.questions import Question
from labelveil.common.release.folder import MANIFEST_FILE, SIGNATURE_FILE
from labelveil.common.release.manifest import Manifest, manifest_digest
from labelveil.common.release.question import AnyQuestion
from labelveil.common.release.sections import DriftSection
from labelveil.common.release.signature import read_signing_key
from labelveil.common.release.size import check_manifest
from labelveil.label_party.config.sections import KeysSection, LabelPartyConfig
from labelveil.label_party.events.columns import list_digest
from labelveil.label_party.events.intention import Confirm, Intention, go_on
from labelveil.label_party.events.open import open_events
from labelveil.label_party.events.steps import Events
from labelveil.label_party.events.tally import Tally
from labelveil.label_party.release.answer import (
    build_sums,
    message_for,
    submitted_question,
    sums_for,
)
from labelveil.label_party.release.message import build, count_labels
from labelveil.label_party.release.prior_in_force import InForce, prior_in_force
from labelveil.label_party.release.public_prior import public_prior, with_prior
from labelveil.label_party.release.strata import plan_events, stratum_column
from labelveil.label_party.store.disk import translating_errors
from labelveil.label_party.store.entries import LABELS
from labelveil.label_party.store.ledger import Ledger
from labelveil.label_party.store.purchase import Order, Payment, find_paid, pay
from labelveil.label_party.store.release_store import Store


@dataclass(frozen=True)
class ReleaseOutcome:
    """What a release run did, for the labels party's own console."""

    manifest: Manifest
    payment: Payment
    tally: Tally | None  # what happened to the raw labels; None if the release existed already


class ReadElsewhere(ReleaseError):
    """What was sold is at hand, and served as it was built, but this version cannot read it."""

    def __init__(self, payment: Payment, reason: str) -> None:
        sold = payment.charge
        super().__init__(
            f"already released: data set {sold.data_set!r}, epoch {sold.epoch!r}, by"
            f" {sold.software}; serving the same bytes, nothing spent. This version cannot read"
            f" them ({reason})"
        )
        self.payment = payment


def run_release(
    config: LabelPartyConfig,
    *,
    quiet: bool = False,
    confirm: Confirm = go_on,
    keeps_prior: bool = False,
) -> ReleaseOutcome:
    """Build the release of the configured data set and epoch, exactly once.

    ``confirm`` is called once the events are read, unless the release exists. ``keeps_prior`` is
    whether a prior in force is kept (:mod:`labelveil.label_party.release.prior_in_force`), as by a
    watch; by default every release pays for its own. ``LabelveilError`` for any refusal; then
    nothing was spent and nothing can be fetched; ``ReadElsewhere`` if it was released already, and
    this version cannot read it.
    """
    config = config.at(config.data.epoch)
    _signing_key(config.keys)  # if it cannot be read, that is said before anything is charged
    store = Store(config.store.directory)
    column, prior = stratum_column(config.strata), public_prior(config)
    request = config.request()
    if column is not None:
        values = list_digest(not_none(column.values))
        request["strata"] = {"column": column.name, "values": values}
    if prior is not None:
        request["prior"] = {"weights": prior.digest, "corrected": config.prior.corrected}
    order = Order.configured(config, LABELS, config.privacy.charge, request)
    if (paid := find_paid(store, order)) is not None:
        return _sold(store, paid)
    with open_events(config, stratum=column, quiet=quiet) as events:
        # what no message can carry, or no manifest, is refused before anything
        question, plan, sums = submitted_question(config, events), None, None
        if isinstance(question, GroupQuestion):
            sums = sums_for(config, question)
        else:
            plan = with_prior(plan_events(config, events, column), config, prior)
            check_manifest(plan)
        names = {label.name: at for at, label in enumerate(config.labels)}
        in_rounds = config.rounds.questions
        confirm(Intention((order,), events, names, plan, sums, in_rounds=in_rounds))
        made: list[Manifest] = []

        def write(ledger: Ledger) -> tuple[str, int]:
            in_force = prior_in_force(config, store, ledger) if keeps_prior and plan else None
            writer = store.writer(config.data.data_set, config.data.epoch)
            entropy = system_entropy()
            try:
                with (
                    translating_errors(store.directory),  # tasks write rows beside each other
                    row_progress("Randomizing", events.rows, quiet) as advance,
                ):
                    if plan is None:
                        noisy = not_none(sums)
                        manifest = build_sums(events, config, noisy, entropy, writer, advance)
                    else:
                        message, drift = _count(config, plan, events, question, in_force, entropy)
                        manifest = build(events, config, message, entropy, writer, advance, drift)
            finally:
                entropy.destroy()
            data, key = manifest.to_bytes(), _signing_key(config.keys)
            writer.finish(data, key.sign(data) if key else b"")
            writer.publish()
            made.append(manifest)
            return manifest_digest(data), events.rows

        paid = pay(store, order, write, events)
        if paid.existed:  # another process was faster
            return _sold(store, paid)
        return ReleaseOutcome(made[0], paid, events.tally)


def _count(
    config: LabelPartyConfig,
    plan: MessagePlan,
    events: Events,
    question: AnyQuestion | None,
    in_force: InForce | None,
    entropy: Entropy,
) -> tuple[Message, DriftSection | None]:
    """The message of which no code was drawn yet, and how it came by its prior.

    A question expects its labels, and nothing is counted; a prior in force is tested first.
    """
    if isinstance(question, Question):
        return message_for(config, question, events.rows), None
    if in_force is not None:
        return in_force.count(plan, events, entropy)
    return count_labels(plan, events, entropy), None


def _sold(store: Store, paid: Payment) -> ReleaseOutcome:
    release = store.open_release(paid.charge)  # its bytes are verified, whatever they say
    try:
        return ReleaseOutcome(release.manifest, paid, None)
    except ReleaseError as error:
        raise ReadElsewhere(paid, str(error)) from error


def sign_again(config: LabelPartyConfig) -> None:
    """Sign a release that was made without the configured key.

    Ed25519 signatures are a function of key and bytes, so an equal one is the same.
    """
    if (key := _signing_key(config.keys)) is None:
        return
    directory = Store(config.store.directory).path(config.data.data_set, config.data.epoch)
    with translating_errors(directory):
        signature = key.sign((directory / MANIFEST_FILE).read_bytes())
        path = directory / SIGNATURE_FILE
        if not path.is_file() or path.read_bytes() != signature:
            write_durably(path, signature)


def _signing_key(keys: KeysSection) -> Ed25519PrivateKey | None:
    return None if keys.signing_key is None else read_signing_key(keys.signing_key)
