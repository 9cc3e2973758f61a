"""Answer a question: labels by strata that the features party gathered, as it expects them to be.

Whatever was asked, the channel of each stratum is ε-DP in the label that it reads, and nothing is
counted (:mod:`labelveil.common.randomizers.message.questions`). Of a question only its shape is
checked, and that its labels are those that are configured.
"""

from __future__ import annotations

from labelveil.common.entropy import Entropy
from labelveil.common.errors import ConfigError, DataError, ReleaseError
from labelveil.common.randomizers.message.steps import MessagePlan
from labelveil.common.release.question import read_question
from labelveil.common.release.sections import StratumSection
from labelveil.common.release.size import check_message
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.events.steps import Events
from labelveil.label_party.release.message import Count, Counted, count_labels


def answering(config: LabelPartyConfig, otherwise: Count = count_labels) -> Count:
    """Answer what was asked of an epoch's events; where nothing was, do otherwise.

    What cannot be answered is a ``DataError`` of its epoch alone; nothing was drawn or spent.
    """

    def count(plan: MessagePlan, events: Events, entropy: Entropy) -> Counted:
        if events.submitted is None or events.submitted.question is None:
            return otherwise(plan, events, entropy)
        try:
            question = read_question(events.submitted.question, events.rows)
            plan = question.plan(config.terms[0], config.privacy.message_epsilon)
            (share,) = plan.channels
            message = plan.build(question.released(share.group))
            check_message(message, events.rows)
        except (ConfigError, ReleaseError) as error:
            raise DataError(
                f"what was asked of epoch {config.data.epoch!r} cannot be answered: {error}; have"
                " its population submitted again"
            ) from error
        laws = question.on(share.group.cells.grids[0]).laws
        stated = zip(question.classes.rows, laws.tolist(), strict=True)
        strata = [
            StratumSection(name=str(number), rows=rows, law=law)
            for number, (rows, law) in enumerate(stated)
        ]
        return Counted(message, asked=strata)

    return count
