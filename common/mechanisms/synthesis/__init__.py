"""Private synthetic tables: a model of a categorical table that answers many linear queries well.

=============================  =====================================================
:class:`BLR`                   the exponential mechanism over all small databases, exact
:class:`MWEM`                  multiplicative weights, any linear queries, ε-DP
:class:`SelectMeasureProject`  its modern form for marginals, ε-DP or ρ-zCDP; the default
:func:`laplace_answers`        the baseline: noise on every answer
=============================  =====================================================
"""

from labelveil.common.mechanisms.synthesis.blr import BLR
from labelveil.common.mechanisms.synthesis.domain import Domain
from labelveil.common.mechanisms.synthesis.mwem import MWEM, Fitted
from labelveil.common.mechanisms.synthesis.select_measure_project import (
    Budget,
    ConcentratedBudget,
    Model,
    PureBudget,
    SelectMeasureProject,
)
from labelveil.common.mechanisms.synthesis.workload import (
    LinearQueries,
    Marginals,
    Workload,
    errors,
    laplace_answers,
)

__all__ = [
    "BLR",
    "MWEM",
    "Budget",
    "ConcentratedBudget",
    "Domain",
    "Fitted",
    "LinearQueries",
    "Marginals",
    "Model",
    "PureBudget",
    "SelectMeasureProject",
    "Workload",
    "errors",
    "laplace_answers",
]
