"""Names of objectives, heads and learners, importable without torch."""

LEARNER_NAMES = ("networks", "trees", "kernel", "linear")
OBJECTIVE_NAMES = ("likelihood", "debiased", "raw", "true")
HEAD_NAMES = (
    "softmax",
    "bernoulli",
    "gaussian",
    "log-normal",
    "gamma",
    "prior-tilt",
    "canonical",
    "poisson",
    "negative-binomial",
    "mean",
)
