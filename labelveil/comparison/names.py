"""Names of what a comparison sets beside a release."""

from __future__ import annotations

TRUE_LABELS = "true-labels"
"""Name of the reference that trains on the labels themselves."""

SEPARATE = "separate"
"""Name of the reference in which every label of an event has a message, and its part of ε."""

AS_PUBLISHED = "as-published"
"""Name of the objective that trains as *Regression with Label Differential Privacy* did."""

GROUPS = "groups"
"""Name of the method that sends no code, but sums over groups of events, in rounds."""

FEATURE_AWARE_RIDGE = "feature-aware-ridge"

FEATURE_AWARE_GAUSSIAN = "feature-aware-gaussian"

DP_SGD = "dp-sgd"

CENTRAL = {
    FEATURE_AWARE_RIDGE: "ridge regression where one party holds features and labels and noise is"
    " added to one statistic: ε-DP for replacing a label, features public",
    FEATURE_AWARE_GAUSSIAN: "regression on random features where one party holds features and"
    " labels and Gaussian noise is added to one projection of the labels: (ε, δ)-DP for replacing a"
    " label, features public",
    DP_SGD: "a network trained by DP-SGD where one party holds everything: (ε, δ)-DP for adding or"
    " removing an event",
}
"""Baselines of a trusted curator, and what they guarantee; no randomized label exists in them."""

NEED_DELTA = (FEATURE_AWARE_GAUSSIAN, DP_SGD)
"""Those of them that have no ε at δ = 0."""
