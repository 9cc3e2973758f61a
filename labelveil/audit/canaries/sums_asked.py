"""Sums over the wire: the software is asked about groups of planted canaries, and asked again.

Questions are submitted as a features party submits them, and answered by the commands that a user
types; what is known of the canaries is taken off the sums.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path

import grpc

from labelveil.audit.canaries import sums
from labelveil.audit.canaries.endpoint import connected
from labelveil.audit.canaries.planting import Planted, draw
from labelveil.audit.canaries.sums import Summed
from labelveil.audit.canaries.worlds import LOWER, UPPER, World
from labelveil.audit.certificate.evidence import read_evidence
from labelveil.audit.settings import CanarySettings, Planting
from labelveil.audit.verdict import Check, Probes, Verdict, verdict_of
from labelveil.common.errors import not_none
from labelveil.common.exact.rational import decimal_value
from labelveil.common.release.event_keys import hash_keys, read_secret, secret_check
from labelveil.common.release.folder import CODES_FILE
from labelveil.common.release.question import encode_question
from labelveil.common.security.pilot_certificates import CertificateFiles

EVENTS, POINTS = 16_000, 21
EPOCHS = ("1", "2", "3")
"""One is asked about groups, one for codes of the same events, one about other groups of them; two
are paid for."""


@dataclass(eq=False)
class SumsWorld(World):
    """A labels party of planted canaries, which answers questions about groups of them."""

    canaries: Planted

    @property
    def sent(self) -> bytes:
        """Sums of the first epoch, as they lie in the store."""
        return (self._release / CODES_FILE).read_bytes()

    @property
    def summed(self) -> Summed:
        """The same beside what is known."""
        return sums.match(self.canaries, read_evidence(self._release), self.files.join_secret)

    def submit(self) -> list[str]:
        """Submit the canaries for every epoch; how each submission ended."""
        secret = read_secret(self.files.join_secret)
        keys, check = hash_keys(self.canaries.keys, secret), secret_check(secret)
        one, other = (encode_question(sums.ask(self.canaries, POINTS)) for _ in range(2))
        ended = []
        with self.serving() as connection, connected(connection) as client:
            for epoch, question in zip(EPOCHS, (one, b"", other), strict=True):
                try:
                    client.submit(epoch, keys, check, question)
                    ended.append("stored")
                except grpc.RpcError as error:
                    ended.append(f"{error.code().name}: {error.details()}")
        return ended

    def release_all(self) -> list[str]:
        """Release every epoch; how each release ended, without what differs from place to place."""
        ended = (self.release("--set", f"data.epoch={epoch}") or "released" for epoch in EPOCHS)
        return [line.replace(str(self.folder), "").replace(self.folder.name, "") for line in ended]

    @property
    def _release(self) -> Path:
        return self.folder / "store" / "releases" / self.data_set / EPOCHS[0]


def make_sums_world(folder: Path, settings: CanarySettings, files: CertificateFiles) -> SumsWorld:
    """Draw its canaries, and make it: two of three epochs are paid for."""
    # sums are the same whatever randomizes codes, and who asks for codes asks this one
    plain = settings.model_copy(update={"randomizer": "auto"})
    made = draw(Planting(events=EVENTS, lower=LOWER, upper=UPPER))
    offer = "[rounds]\nquestions = true\n"
    return SumsWorld(
        plain, folder, files, made, offer, further=settings.epsilon, population="submitted"
    )


@dataclass(frozen=True, eq=False)
class Outcomes:
    """What labels parties did with three questions about the same canaries."""

    world: SumsWorld
    stored: list[str]  # how the submissions ended
    ended: list[str]  # and the releases
    elsewhere: list[str]  # of a party with other labels
    spent: Fraction
    kept: bool  # a release repeated with other labels is the same, and costs nothing
    summed: Summed | None  # None where nothing was released

    @property
    def answers(self) -> bool:
        return self.summed is not None


def ask_for_sums(world: SumsWorld) -> Outcomes:
    """Ask one labels party, a copy of it, and one more that has other labels."""
    stored = world.submit()
    again, other = world.copied("sums-again"), world.copied("sums-other")
    other.exchange_labels()
    ended, repeated, elsewhere = (each.release_all() for each in (world, again, other))
    if set(stored) != {"stored"} or not ended[0] == repeated[0] == elsewhere[0] == "released":
        return Outcomes(world, stored, ended, elsewhere, Fraction(0), False, None)
    spent, sent = world.spent, world.sent
    summed = replace(world.summed, before=(again.summed,))
    world.exchange_labels()
    world.release("--set", f"data.epoch={EPOCHS[0]}")
    kept = world.sent == sent and world.spent == spent
    return Outcomes(world, stored, ended, elsewhere, spent, kept, summed)


SUMS = Probes[Outcomes](refused=Verdict.FAIL)
check = partial(SUMS.add, fits=lambda outcomes: outcomes.answers)


@SUMS.add(
    "sums",
    "Does the labels party answer a question about groups?",
    "A labels party that takes questions answers one about groups.",
)
def answered_check(outcomes: Outcomes) -> Check:
    return Check(
        verdict_of(outcomes.answers),
        "One was submitted, and `label-party release` run.",
        f"Submissions: {'; '.join(outcomes.stored)}. Releases: {'; '.join(outcomes.ended)}.",
    )


# two starts of one epoch are compared in the place of two epochs, and bounds are our own setting
SUMS.of_part(
    (sums.sums_check, sums.kinds_check, sums.other_groups_check),
    lambda outcomes: not_none(outcomes.summed),
    fits=lambda outcomes: outcomes.answers,
)


@check(
    "sums: two cold starts differ",
    "Does a second start draw the noise of the sums again?",
    "Noise on sums is of the operating system's entropy, again in every process.",
)
def starts_check(outcomes: Outcomes) -> Check:
    return sums.epochs_check(not_none(outcomes.summed))


@check(
    "sums: an event is charged for every answer",
    "Does an event pay for a sum and for a code?",
    "An event that is asked about again, in another sum or by a code, is refused or charged.",
)
def charged_check(outcomes: Outcomes) -> Check:
    released, spent = outcomes.ended.count("released"), float(outcomes.spent)
    due = float(released * decimal_value(outcomes.world.settings.epsilon))
    return Check(
        verdict_of(spent >= due),
        "The same events were submitted with no question, and with another one about groups, and"
        " these epochs released; two of the three were within the total.",
        f"{released} of {len(outcomes.ended)} epochs were released, and {spent:g} charged.",
        claimed=spent,
        bound=due,
    )


@check(
    "sums: refusals do not depend on labels",
    "Do refusals of questions say anything about labels?",
    "Which questions are answered, and what is said of others, depends on no label.",
)
def endings_check(outcomes: Outcomes) -> Check:
    same = outcomes.ended == outcomes.elsewhere
    return Check(
        verdict_of(same),
        f"The same {len(EPOCHS)} questions were released by two labels parties whose labels all"
        " differ.",
        "They ended alike."
        if same
        else f"One: {'; '.join(outcomes.ended)}. The other: {'; '.join(outcomes.elsewhere)}.",
    )


@check(
    "sums: updated labels",
    "What is sent after a label has changed?",
    "A label that is updated after its sum was released is frozen, or charged again.",
)
def kept_check(outcomes: Outcomes) -> Check:
    return Check(
        verdict_of(outcomes.kept),
        "All labels were exchanged, and the same epoch released again.",
        f"The sums are {'the same' if outcomes.kept else 'others, or were charged again'}.",
    )
