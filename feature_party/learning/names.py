"""Names of objectives and heads, importable without torch."""

OBJECTIVE_NAMES = ("likelihood", "debiased", "raw", "true")
HEAD_NAMES = (
    "softmax",
    "bernoulli",
    "gaussian",
    "log-normal",
    "gamma",
    "prior-tilt",
    "log-prior-tilt",
    "canonical",
    "poisson",
    "negative-binomial",
)
