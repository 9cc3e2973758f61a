"""Answer a question: labels by strata that the features party gathered, as it expects them to be;
or, of groups, their sums (:mod:`labelveil.label_party.release.sums`).

Whatever was asked, the channel of each stratum is ε-DP in the label that it reads, and nothing is
counted (:mod:`labelveil.common.randomizers.message.questions`). Of a question only its shape is
checked, and that its labels are those that are configured.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from labelveil.common.errors import ConfigError, DataError, PrivacyError, ReleaseError
from labelveil.common.mechanisms.group_sums import GroupQuestion, NoisySums
from labelveil.common.randomizers import Message
from labelveil.common.release.question import read_question
from labelveil.common.release.size import check_message
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.events.steps import Events


def questioned_message(config: LabelPartyConfig, events: Events) -> Message | None:
    """Answer what was asked of an epoch's events, and count nothing; None where nothing was asked.

    What cannot be answered is a ``DataError`` of its epoch alone; nothing was drawn or spent.
    """
    submitted = events.submitted
    if not config.rounds.questions or submitted is None or submitted.question is None:
        return None
    with _answerable(config):
        question = read_question(submitted.question, events.rows)
        if isinstance(question, GroupQuestion):
            raise ConfigError("it asks for sums, and not for codes")
        plan = question.plan(config.terms[0], config.privacy.message_epsilon)
        (share,) = plan.channels
        message = plan.build(question.released(share.group))
        check_message(message, events.rows)
    return message


def questioned_sums(config: LabelPartyConfig, events: Events) -> NoisySums | None:
    """What sums were asked of an epoch's events, and their noise; None where none were.

    What cannot be answered is a ``DataError`` of its epoch alone; nothing was drawn or spent. It
    depends on the question and on the configuration, and on no label.
    """
    submitted = events.submitted
    if not config.rounds.questions or submitted is None or submitted.question is None:
        return None
    with _answerable(config):
        question = read_question(submitted.question, events.rows)
        if not isinstance(question, GroupQuestion):
            return None
        return NoisySums.of_label(question, config.terms[0], config.privacy.charge.exact_epsilon)


@contextmanager
def _answerable(config: LabelPartyConfig) -> Iterator[None]:
    try:
        yield
    except (ConfigError, PrivacyError, ReleaseError) as error:
        raise DataError(
            f"what was asked of epoch {config.data.epoch!r} cannot be answered: {error}; have"
            " its population submitted again"
        ) from error
