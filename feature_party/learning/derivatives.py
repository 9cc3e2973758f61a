"""Which derivatives serve a law: tabulated ones, or those of few values."""

from __future__ import annotations

from feature_party.learning.heads import Head, LinearHead
from feature_party.learning.law_table import LawTable
from feature_party.learning.support import Support
from feature_party.learning.values_table import ValuesTable

Derivatives = LawTable | ValuesTable


def derivatives_of(head: Head, support: Support) -> Derivatives | None:
    """What boosting and Fisher scoring need of a law over a support; None if nothing serves it."""
    if support.values_alone and isinstance(head, LinearHead):
        return ValuesTable(head, support.likelihood)
    if LawTable.serves(head, support.likelihood.shape[1]):
        return LawTable(head, support.likelihood, support.channel_of, support.shares)
    return None
