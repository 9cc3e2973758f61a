"""Sessions over the wire: a server that answers questions is asked for more than it has sold.

The server is the real build, started by the command that a user types, on labels that the auditor
knows: what an answer is more than the true sum is its noise. Questions are constant predictions for
all events, drawn anew in each run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.stats import binom, gamma

from labelveil.audit.attacks.one_run import draw_secrets
from labelveil.audit.canaries.endpoint import Described, Endpoint, Refusal, connected
from labelveil.audit.canaries.worlds import LOWER, UPPER, World
from labelveil.audit.power import FOUND, least, rarest_seen
from labelveil.audit.verdict import GATE, Check, Power, Probes, Verdict, verdict_of
from labelveil.common.arrays import Floats, Integers
from labelveil.common.mechanisms.paired_gain import RESOLUTION, PairedGain
from labelveil.common.release.manifest import Manifest

ANSWERS, EPSILON = 100, 2  # of the session that is sold
CLIENTS = 10  # ask at once

OFFER = f"[evaluation]\noffered = true\nepsilon = {EPSILON}\nanswers = {ANSWERS}\ntolerance = 1.0\n"
"""What the labels party is configured to sell."""

SESSION_FILE = "outcome.bin"  # the key of the noise and the labels, in the labels party's store


@contextmanager
def clients(world: World) -> Iterator[list[Endpoint]]:
    """Start the server; yield as many clients as ask at once."""
    with world.serving() as connection, ExitStack() as stack:
        yield [stack.enter_context(connected(connection)) for _ in range(CLIENTS)]


@dataclass(frozen=True, eq=False)
class SessionAnswers:
    """What a server answered about known labels, asked for more than it has sold."""

    manifest: Manifest
    labels: Floats  # (n,)
    questions: Sequence[Floats]  # of one client, (n,) predictions each
    answers: Sequence[float | Refusal]  # to these
    further: Sequence[float | Refusal] = ()  # to others, after starts and of the copy
    again: Sequence[float | Refusal] = ()  # to the first question
    removed: bool = True  # whether the copy had a file to lose

    @cached_property
    def noise(self) -> tuple[Integers, Floats, bool]:
        """The answers less the true sums, their scales, and whether they are whole numbers."""
        released = self.manifest.message.marginal(self.manifest.names[0])
        gain = PairedGain.of_prior(*released, "squared")
        pairs = zip(self.questions, self.answers, strict=True)
        given = [(points, answer) for points, answer in pairs if isinstance(answer, float)]
        sums = np.array([value for _, value in given]) * RESOLUTION * self.labels.size / gain.bound
        true = [int(gain.differences(points, self.labels).sum()) for points, _ in given]
        scales = np.array([gain.span(points[:1]) * ANSWERS / EPSILON for points, _ in given])
        whole = bool(np.abs(sums - np.rint(sums)).max(initial=0.0) < 1e-3)
        return np.rint(sums).astype(np.int64) - np.array(true, dtype=np.int64), scales, whole


def ask_for_more(world: World) -> SessionAnswers:
    """Ask a server, started three times, and once with a lost file; the world has a release."""
    rows, span = world.secrets.size, UPPER - LOWER
    # distinct numbers of 2⁻¹² of the domain
    drawn = np.unique(draw_secrets(4 * ANSWERS, 1 << 12))[: ANSWERS + 2 * CLIENTS]
    predictions = [
        np.full(rows, LOWER + span * (place + 0.5) / (1 << 12)) for place in drawn.tolist()
    ]
    sold, spare = predictions[: ANSWERS - 2], iter(predictions[ANSWERS - 2 :])
    with clients(world) as endpoints:
        release = endpoints[0].describe()
        answers = [endpoints[0].ask(release, question) for question in sold]
        again = _at_once(endpoints, release, [sold[0]] * CLIENTS)
    lost = world.copied("lost")
    removed = list(lost.folder.rglob(SESSION_FILE))
    for file in removed:
        file.unlink()
    with clients(world) as endpoints:
        again += [endpoints[1].ask(release, sold[0])]
        new = [next(spare) for _ in range(CLIENTS)]
        race = _at_once(endpoints, release, new)
        further = [endpoints[0].ask(release, next(spare)) for _ in range(2)]
    with clients(lost) as endpoints:
        again += [endpoints[0].ask(release, sold[0])]
        further += [endpoints[0].ask(release, next(spare))]
    return SessionAnswers(
        Manifest.parse(release.manifest),
        np.where(world.secrets == 1, UPPER, LOWER),
        sold,
        answers,
        [*race, *further],
        again,
        bool(removed),
    )


def _at_once(
    endpoints: Sequence[Endpoint], release: Described, questions: Sequence[Floats]
) -> list[float | Refusal]:
    with ThreadPoolExecutor(CLIENTS) as pool:
        return list(
            pool.map(lambda client, question: client.ask(release, question), endpoints, questions)
        )


SESSIONS = Probes[SessionAnswers](refused=Verdict.FAIL)
TRIED = "The true sums were taken off {} answers about labels that the auditor knows."


@SESSIONS.add(
    "answers that were sold",
    "Does a server answer more questions than were paid for?",
    f"A session of {ANSWERS} answers gives {ANSWERS}, whoever asks, and however often the server"
    " starts.",
)
def paid_check(session: SessionAnswers) -> Check:
    answers = [*session.answers, *session.further]
    given = sum(isinstance(answer, float) for answer in answers)
    refused = Counter(answer.status for answer in answers if isinstance(answer, Refusal))
    holds = session.removed and given == ANSWERS and set(refused) == {"FAILED_PRECONDITION"}
    return Check(
        verdict_of(holds),
        f"{len(answers)} different questions were asked: {ANSWERS - 2} by one client; after a"
        f" restart {CLIENTS} by as many clients at once, and two more; and one of a copy of the"
        " labels party that had lost the session's file.",
        f"{given} were answered; refusals: {dict(refused) or 'none'}.",
    )


@SESSIONS.add(
    "the same question again",
    "Does the same question have the same answer?",
    "The same question has the same answer forever: nothing averages out.",
)
def same_check(session: SessionAnswers) -> Check:
    first, again = session.answers[0], session.again
    other = sum(not isinstance(first, float) or answer != first for answer in again)
    return Check(
        verdict_of(not other),
        f"One question was asked {len(again)} more times: by {CLIENTS} clients at once, after"
        " a restart, and after the session's file was lost.",
        f"{other} answers differ.",
    )


@SESSIONS.add(
    "noise of answers",
    "Have answers the noise that is paid for?",
    "Every answer has discrete Laplace noise of the stated scale.",
)
def noise_check(session: SessionAnswers) -> Check:
    """Noise is the answer less the true sum: of its stated scale, even as often as odd."""
    noise, scales, whole = session.noise
    count, total = noise.size, float((np.abs(noise) / scales).sum())
    level = GATE / 6
    # |noise| / scale is exponential; even as often as odd, and positive as often as negative
    coins = [int(np.count_nonzero(noise % 2 == 0)), int(np.count_nonzero(noise > 0))]
    tails = [2 * min(gamma.cdf(total, count), gamma.sf(total, count))]
    tails += [2 * min(binom.cdf(c, count, 0.5), binom.sf(c - 1, count, 0.5)) for c in coins]
    narrow = least(
        lambda share: bool(
            gamma.cdf(gamma.isf(1 - FOUND, count) * (1 - share), count) < level  # its 95% quantile
        ),
        1e-3,
        1 - 1e-3,
    )
    return Check(
        verdict_of(whole and count > 0 and min(tails) >= 2 * level),
        f"{TRIED.format(count)} Size, sign and parity of what remained were compared with the law.",
        f"Mean |noise| is {total / max(count, 1):.3g} of its scale; {coins[0]} are even,"
        f" {coins[1]} positive; probabilities {', '.join(f'{tail:.2g}' for tail in tails)}.",
        confidence=1 - GATE,
        power=(Power("share by which noise is too narrow", narrow),),
    )


@SESSIONS.add(
    "no noise twice",
    "Does any answer repeat the noise of another?",
    "Every answer has noise of its own.",
)
def twice_check(session: SessionAnswers) -> Check:
    """The same noise, or the same word: two noises that are alike in units of their scales."""
    noise, scales, _ = session.noise
    count = noise.size
    if not count:
        return Check(Verdict.FAIL, "The answers were looked at.", "No question was answered.")
    close = int(np.count_nonzero(np.diff(np.sort(noise / scales)) * scales.min() < 2))
    close = max(close, count - np.unique(noise).size)
    most = int(binom.isf(GATE / 2, count, min(2.0 * count / float(scales.min()), 1.0))) + 1
    return Check(
        verdict_of(close < most),
        f"{TRIED.format(count)} What remained was compared with each other, as it is and in units"
        " of its scale.",
        f"{close} repeat another's; {most} have a probability below {GATE:g}.",
        confidence=1 - GATE,
        power=(Power("share of answers that repeat another's", rarest_seen(count, most)),),
    )
